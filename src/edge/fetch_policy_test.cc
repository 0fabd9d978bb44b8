// Which links may be fetched, address by address; what redirects may do; whose fault a failure is; what an
// answer must be to count as an image.
#include "edge/fetch_policy.h"

#include <gtest/gtest.h>

#include <random>

#include "edge/errors.h"

namespace deepinfer {
namespace {

std::string target(const std::string& url) {
  Result<FetchTarget> t = fetch_target(url, "P");
  if (t.ok()) return t->url();
  EXPECT_EQ(http_status(t.status()), 400) << url;
  EXPECT_TRUE(t.status().message().starts_with("P: ")) << t.status().message();
  return t.status().message().find("not allowed") != std::string::npos ? "forbidden" : "invalid";
}
bool is_public(const char* text) {
  std::optional<Address> a = parse_address(text);
  EXPECT_TRUE(a.has_value()) << text;
  return a && deepinfer::is_public(*a);
}

TEST(FetchPolicy, Urls) {
  EXPECT_EQ(target("http://Example.com"), "http://example.com:80/");
  EXPECT_EQ(target("HTTPS://example.com./a/b?c=d#e"), "https://example.com:443/a/b?c=d");
  EXPECT_EQ(target("http://example.com:8080?q"), "http://example.com:8080/?q");
  EXPECT_EQ(target("https://[2606:4700::1]/x"), "https://[2606:4700::1]:443/x");
  EXPECT_EQ(target("http://8.8.8.8/"), "http://8.8.8.8:80/");
  for (const char* bad : {"",
                          "http",
                          "http:",
                          "http:/x.com/",
                          "http://",
                          "http:///x",
                          "ftp://x.com/",
                          "file:///etc/passwd",
                          "gopher://x.com/",
                          "data:image/png;base64,AA",
                          "javascript:1",
                          "//x.com/",
                          "x.com",
                          "http://user@x.com/",
                          "http://a:b@x.com/",
                          "http://x.com:/",
                          "http://x.com:0/",
                          "http://x.com:65536/",
                          "http://x.com:22/",
                          "http://x.com:25/",
                          "http://x.com:8o/",
                          "http://x.com:+80/",
                          "http://x y.com/",
                          "http://x.com/a b",
                          "http://x.com/\n",
                          "http://x.com\\@y.com/",
                          "http://x..com/",
                          "http://.x.com/",
                          "http://ex%61mple.com/",
                          "http://exämple.com/",
                          "http://[::1",
                          "http://[1.2.3.4]/",
                          "http://::1/",
                          "http://[2606:4700::1]x/",
                          "http://[fe80::1%25eth0]/"}) {
    EXPECT_EQ(target(bad), "invalid") << bad;
  }
  EXPECT_EQ(target("http://" + std::string(64, 'a') + ".com/"), "invalid") << "a label of 64";
  EXPECT_EQ(target("http://x.com/" + std::string(8192, 'a')), "invalid");
  EXPECT_EQ(target("http://x.com/" + std::string(8192 - 13, 'a')).size(), 8192u + 3);
}

TEST(FetchPolicy, AddressesInAnySpelling) {
  for (const char* url : {"http://127.0.0.1/",
                          "http://10.1.2.3/",
                          "http://169.254.169.254/latest/meta-data",
                          "http://0.0.0.0/",
                          "http://[::1]/",
                          "http://[::]/",
                          "http://[fe80::1]/",
                          "http://[fc00::1]/",
                          "http://[::ffff:127.0.0.1]/",
                          "http://[::ffff:7f00:1]/",
                          "http://[64:ff9b::10.0.0.1]/",
                          "http://[2002:7f00:1::]/",
                          "http://localhost/",
                          "http://LOCALHOST:8080/",
                          "http://a.localhost/",
                          "http://printer/",
                          "http://metadata.google.internal/",
                          "http://nas.local/",
                          "http://router.lan/",
                          "http://localhost./"}) {
    EXPECT_EQ(target(url), "forbidden") << url;
  }
  // What resolvers also read as an address is refused outright.
  for (const char* url : {"http://2130706433/", "http://0x7f000001/", "http://0x7f.1/", "http://127.1/",
                          "http://127.0.1/", "http://0177.0.0.1/", "http://127.0.0.01/", "http://1.2.3.4.5/",
                          "http://256.1.1.1/", "http://example.0x1/"}) {
    EXPECT_EQ(target(url), "invalid") << url;
  }
  EXPECT_EQ(target("http://1.example.com/"), "http://1.example.com:80/");
  EXPECT_EQ(target("http://0x7f.example.com/"), "http://0x7f.example.com:80/");
}

TEST(FetchPolicy, PublicAddresses) {
  for (const char* yes :
       {"8.8.8.8",         "1.1.1.1",         "9.255.255.255", "11.0.0.0",        "100.63.255.255",
        "100.128.0.0",     "126.255.255.255", "128.0.0.0",     "169.253.255.255", "172.15.255.255",
        "172.32.0.0",      "192.167.255.255", "192.169.0.0",   "198.17.255.255",  "198.20.0.0",
        "223.255.255.255", "2606:4700::1111", "2a00::1",       "::ffff:8.8.8.8",  "64:ff9b::8.8.8.8"}) {
    EXPECT_TRUE(is_public(yes)) << yes;
  }
  for (const char* no : {"0.0.0.0",
                         "0.1.2.3",
                         "10.0.0.0",
                         "10.255.255.255",
                         "100.64.0.0",
                         "100.127.255.255",
                         "127.0.0.1",
                         "127.255.255.255",
                         "169.254.0.1",
                         "172.16.0.0",
                         "172.31.255.255",
                         "192.0.0.1",
                         "192.0.2.1",
                         "192.88.99.1",
                         "192.168.0.1",
                         "198.18.0.0",
                         "198.19.255.255",
                         "198.51.100.1",
                         "203.0.113.1",
                         "224.0.0.1",
                         "239.255.255.255",
                         "240.0.0.1",
                         "255.255.255.255",
                         "::",
                         "::1",
                         "fe80::1",
                         "febf::1",
                         "fc00::1",
                         "fd12::1",
                         "ff02::1",
                         "2001:db8::1",
                         "2001::1",
                         "2002::1",
                         "3fff::1",
                         "::ffff:10.0.0.1",
                         "::10.0.0.1",
                         "64:ff9b::127.0.0.1",
                         "64:ff9b:1::1",
                         "100::1",
                         "4000::1"}) {
    EXPECT_FALSE(is_public(no)) << no;
  }
  for (const char* none :
       {"", "1.2.3", "1.2.3.4.", "1.2.3.a", "1.2.3.256", "01.2.3.4", ":", ":::", "1::2::3", "1:2:3:4:5:6:7",
        "1:2:3:4:5:6:7:8:9", "12345::", "g::", "::1.2.3", "1.2.3.4::", "1:", ":1", "1:2:3:4:5:6:7::8:9"}) {
    EXPECT_FALSE(parse_address(none).has_value()) << none;
  }
}

TEST(FetchPolicy, Redirects) {
  FetchLimits limits;
  FetchTarget from = fetch_target("https://a.com/d/e?f", "P").value();
  auto to = [&](const std::string& location, int hops = 0) {
    Result<FetchTarget> t = redirect_target(from, location, hops, limits, "P");
    return t.ok() ? t->url() : t.status().message();
  };
  EXPECT_EQ(to("https://b.com/x"), "https://b.com:443/x");
  EXPECT_EQ(to("//b.com/x"), "https://b.com:443/x");
  EXPECT_EQ(to("/x?y"), "https://a.com:443/x?y");
  EXPECT_EQ(to("x"), "https://a.com:443/d/x");
  EXPECT_EQ(to("?y"), "https://a.com:443/d/e?y");
  EXPECT_EQ(to("x:y"), "P: invalid url: \"x:y\"");
  for (const char* inside : {"https://127.0.0.1/", "//169.254.169.254/x", "https://localhost/",
                             "https://[::1]/", "http://b.com/"}) {
    EXPECT_NE(to(inside).find("not allowed"), std::string::npos) << inside;
  }
  EXPECT_EQ(to("file:///etc/passwd"), "P: invalid url: \"file:///etc/passwd\"");
  EXPECT_NE(to("/x", 3).find("redirects too often"), std::string::npos);
  EXPECT_EQ(to("/x", 2), "https://a.com:443/x");
  from = fetch_target("http://a.com/", "P").value();
  EXPECT_EQ(to("https://b.com/"), "https://b.com:443/");
}

TEST(FetchPolicy, RetryabilityDecidesTheStatus) {
  using F = FetchFault;
  for (F f : {F::kTransport, F::kUpstreamServerError, F::kClientSetup, F::kTokenBudget}) {
    EXPECT_TRUE(is_retryable(f));
    EXPECT_EQ(http_status(fetch_failure(f, "P", "d")), 500);
  }
  for (F f : {F::kUpstreamClientError, F::kTooManyRedirects, F::kForbiddenTarget, F::kTooManyImages,
              F::kTooLarge, F::kEmpty, F::kUnsupportedType, F::kBadData}) {
    EXPECT_FALSE(is_retryable(f));
    EXPECT_EQ(http_status(fetch_failure(f, "P", "d")), 400);
    EXPECT_TRUE(fetch_failure(f, "P", "d").message().starts_with("P: "));
  }
  EXPECT_EQ(upstream_fault(200), std::nullopt);
  EXPECT_EQ(upstream_fault(204), std::nullopt);
  EXPECT_EQ(upstream_fault(404), F::kUpstreamClientError);
  EXPECT_EQ(upstream_fault(503), F::kUpstreamServerError);
}

// A header of each type with the given size, and nothing behind it.
std::string png(uint32_t w, uint32_t h) {
  std::string s("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16);
  for (uint32_t v : {w, h}) {
    for (int shift = 24; shift >= 0; shift -= 8) s += static_cast<char>(v >> shift);
  }
  return s;
}

TEST(FetchPolicy, ImageBytes) {
  FetchLimits limits;
  limits.max_bytes = 1000;
  limits.max_pixels = 10000;
  limits.max_side = 150;
  auto check = [&](const std::string& bytes) {
    ImageSource image;
    image.path = "P";
    Result<std::string> type = check_image_bytes(bytes, limits, &image);
    return type.ok() ? fmt::format("{} {}x{}", *type, image.width, image.height) : type.status().message();
  };
  EXPECT_EQ(check(png(30, 20)), "image/png 30x20");
  EXPECT_EQ(check(std::string("GIF89a\x1e\0\x14\0", 10)), "image/gif 30x20");
  EXPECT_EQ(check(std::string("\xff\xd8\xff\xe0\0\4ab\xff\xc0\0\x11\x08\0\x14\0\x1e\3", 18)),
            "image/jpeg 30x20");
  EXPECT_EQ(check(std::string("RIFF\x20\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\x1d\0\0\x13\0\0", 30)),
            "image/webp 30x20");
  EXPECT_EQ(check(""), "P: the image is empty");
  EXPECT_EQ(check("<svg/>"), "P: unsupported image type");
  EXPECT_EQ(check("BM......"), "P: unsupported image type");
  EXPECT_EQ(check(png(30, 20).substr(0, 20)), "P: the image cannot be read: no size in its header");
  EXPECT_EQ(check(png(0, 20)), "P: the image cannot be read: no size in its header");
  EXPECT_EQ(check(png(101, 100)), "P: the image is too large: 101 x 100 pixels");
  EXPECT_EQ(check(png(151, 1)), "P: the image is too large: 151 x 1 pixels");
  EXPECT_EQ(check(png(100, 100)), "image/png 100x100");
  EXPECT_EQ(check(png(0xffffffff, 0xffffffff)), "P: the image is too large: 4294967295 x 4294967295 pixels");
  EXPECT_EQ(check(png(30, 20) + std::string(1000, 'x')),
            "P: the image is too large: 1024 bytes, at most 1000");
  // Nothing that is cut or broken does more than fail.
  std::mt19937 rng(3);
  for (const std::string& whole :
       {png(30, 20), std::string("\xff\xd8\xff\xe0\0\4ab\xff\xc0\0\x11\x08\0\x14\0\x1e\3", 18),
        std::string("RIFF\x20\0\0\0WEBPVP8L\x0a\0\0\0/\x1d\x80\4\0\0\0\0\0\0", 30)}) {
    for (size_t n = 0; n <= whole.size(); ++n) check(whole.substr(0, n));
    for (int round = 0; round < 500; ++round) {
      std::string broken = whole;
      broken[rng() % broken.size()] = static_cast<char>(rng());
      check(broken);
    }
  }
}

TEST(FetchPolicy, DataUrls) {
  FetchLimits limits;
  limits.max_bytes = 1000;
  auto decode = [&](const std::string& url) {
    Result<DataUrl> d = decode_data_url(url, limits, "P");
    return d.ok() ? d->media_type + " " + std::to_string(d->bytes.size()) : d.status().message();
  };
  const std::string body = "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAYAAACddGYaAAAAC0lEQVR4";
  EXPECT_EQ(decode("data:image/png;base64," + body), "image/png 42");
  EXPECT_EQ(decode("DATA:image/JPEG;x=y;BASE64," + body), "image/png 42") << "its own header decides";
  EXPECT_EQ(decode("data:image/png,%89PNG%0d%0A%1a%0a%00%00%00%0dIHDR%00%00%00%03%00%00%00%02"),
            "image/png 24");
  EXPECT_EQ(decode("data:image/png;base64,"), "P: base64 decode error");
  EXPECT_EQ(decode("data:image/png;base64,A"), "P: base64 decode error");
  EXPECT_EQ(decode("data:image/png;base64,AAAA"), "P: unsupported image type");
  EXPECT_EQ(decode("data:image/svg+xml;base64,AAAA"), "P: Unsupported image_url format");
  EXPECT_EQ(decode("data:image/png;base64"), "P: Unsupported image_url format");
  EXPECT_EQ(decode("http://x.com/"), "P: Unsupported image_url format");
  EXPECT_EQ(decode("data:image/png;base64," + body + std::string(2000, 'A')), "P: the image is too large");
  EXPECT_EQ(decode("data:image/png,%"), "P: unsupported image type");
  EXPECT_EQ(decode("data:image/png,%8"), "P: unsupported image type");
}

}  // namespace
}  // namespace deepinfer
