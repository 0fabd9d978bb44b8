// URL parts, address classes and verdicts of edge/fetch_policy.h.
#include "edge/fetch_policy.h"

#include <algorithm>
#include <charconv>

#include "edge/images.h"

namespace deepinfer {
namespace {

constexpr size_t kMaxUrlBytes = 8192;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
std::string lower(std::string_view s) {
  std::string out(s);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}
Status invalid(const std::string& path, std::string_view url) {
  return error(Code::kInvalidArgument, "{}: invalid url: \"{}\"", path, url.substr(0, 200));
}

// Labels of letters, digits, '-' and '_'.
bool is_host_name(std::string_view host) {
  if (host.empty() || host.size() > 253) return false;
  size_t label = 0;
  for (char c : host) {
    if (c == '.') {
      if (label == 0) return false;
      label = 0;
    } else if ((c >= 'a' && c <= 'z') || is_digit(c) || c == '-' || c == '_') {
      if (++label > 63) return false;
    } else {
      return false;
    }
  }
  return label > 0;
}

// Names that mean this machine or its own network, whatever they resolve to.
bool is_local_name(std::string_view host) {
  if (host.find('.') == host.npos) return true;
  for (std::string_view end : {".localhost", ".local", ".localdomain", ".internal", ".intranet", ".lan",
                               ".home", ".corp", ".home.arpa"}) {
    if (host.ends_with(end)) return true;
  }
  return false;
}

// Resolvers read "127.1", "0x7f000001" and "2130706433" as addresses: a last label that is a number is one.
bool looks_numeric(std::string_view host) {
  std::string_view last = host.substr(host.rfind('.') == host.npos ? 0 : host.rfind('.') + 1);
  return !last.empty() && (is_digit(last[0]) || last.starts_with("0x")) &&
         std::all_of(last.begin(), last.end(),
                     [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || c == 'x'; });
}

Status check_host(std::string_view host, bool literal_v6, const std::string& path, std::string_view url) {
  if (literal_v6 || looks_numeric(host)) {
    std::optional<Address> address = parse_address(host);
    if (!address || address->v6 != literal_v6) return invalid(path, url);
    if (!is_public(*address)) return fetch_failure(FetchFault::kForbiddenTarget, path, host);
    return {};
  }
  if (!is_host_name(host)) return invalid(path, url);
  if (is_local_name(host)) return fetch_failure(FetchFault::kForbiddenTarget, path, host);
  return {};
}

bool parse_port(std::string_view text, uint16_t* port) {
  uint32_t value = 0;
  auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text.size() > 5 || fault != std::errc() || end != text.data() + text.size())
    return false;
  if (value == 0 || value > 65535) return false;
  *port = static_cast<uint16_t>(value);
  // Below 1024 only the web's own: mail and the like can be made to misread a request.
  return value >= 1024 || value == 80 || value == 443;
}

bool in_network(uint32_t address, uint32_t network, int bits) {
  return (address ^ network) >> (32 - bits) == 0;
}
uint32_t v4_at(const std::array<uint8_t, 16>& b, size_t at) {
  return uint32_t{b[at]} << 24 | uint32_t{b[at + 1]} << 16 | uint32_t{b[at + 2]} << 8 | b[at + 3];
}

bool is_public_v4(uint32_t a) {
  struct Network {
    uint32_t address;
    int bits;
  };
  static constexpr Network kOthers[] = {
      {0x00000000, 8},   // this network
      {0x0a000000, 8},   // private
      {0x64400000, 10},  // shared by carriers
      {0x7f000000, 8},   // loopback
      {0xa9fe0000, 16},  // link-local, cloud metadata
      {0xac100000, 12},  // private
      {0xc0000000, 24},  // protocol assignments
      {0xc0000200, 24},  // documentation
      {0xc0586300, 24},  // 6to4 relays
      {0xc0a80000, 16},  // private
      {0xc6120000, 15},  // benchmarks
      {0xc6336400, 24},  // documentation
      {0xcb007100, 24},  // documentation
      {0xe0000000, 4},   // multicast
      {0xf0000000, 4},   // reserved, broadcast
  };
  return std::none_of(std::begin(kOthers), std::end(kOthers),
                      [&](const Network& n) { return in_network(a, n.address, n.bits); });
}

bool is_public_v6(const std::array<uint8_t, 16>& b) {
  auto zeros = [&](size_t from, size_t to) {
    return std::all_of(b.begin() + static_cast<std::ptrdiff_t>(from),
                       b.begin() + static_cast<std::ptrdiff_t>(to), [](uint8_t x) { return x == 0; });
  };
  if (zeros(0, 10) && b[10] == 0xff && b[11] == 0xff) return is_public_v4(v4_at(b, 12));  // mapped
  if (v4_at(b, 0) == 0x0064ff9b && zeros(4, 12)) return is_public_v4(v4_at(b, 12));       // translated
  if (b[0] >> 5 != 1) return false;  // all but 2000::/3 is local, multicast or reserved
  uint32_t head = v4_at(b, 0);
  bool special = in_network(head, 0x20010000, 23)     // protocol assignments, Teredo
                 || in_network(head, 0x20010db8, 32)  // documentation
                 || in_network(head, 0x20020000, 16)  // 6to4: carries any IPv4 address
                 || in_network(head, 0x3fff0000, 20);
  return !special;
}

std::optional<uint32_t> parse_v4(std::string_view text) {
  uint32_t address = 0;
  for (int part = 0; part < 4; ++part) {
    size_t n = 0;
    while (n < text.size() && is_digit(text[n])) ++n;
    // No leading zeros: some resolvers read them as octal.
    if (n == 0 || n > 3 || (n > 1 && text[0] == '0')) return std::nullopt;
    uint32_t value = 0;
    for (size_t i = 0; i < n; ++i) value = value * 10 + static_cast<uint32_t>(text[i] - '0');
    if (value > 255) return std::nullopt;
    address = address << 8 | value;
    text.remove_prefix(n);
    if (part < 3) {
      if (text.empty() || text[0] != '.') return std::nullopt;
      text.remove_prefix(1);
    }
  }
  return text.empty() ? std::optional<uint32_t>(address) : std::nullopt;
}

// 16-bit groups of one side of "::" (or of the whole); an IPv4 tail counts two.
bool parse_groups(std::string_view text, bool v4_tail, std::vector<uint16_t>* groups) {
  while (!text.empty()) {
    size_t colon = std::min(text.find(':'), text.size());
    std::string_view group = text.substr(0, colon);
    bool last = colon == text.size();
    if (last && v4_tail && group.find('.') != group.npos) {
      std::optional<uint32_t> v4 = parse_v4(group);
      if (!v4) return false;
      groups->push_back(static_cast<uint16_t>(*v4 >> 16));
      groups->push_back(static_cast<uint16_t>(*v4 & 0xffff));
      return true;
    }
    uint16_t value = 0;
    auto [end, fault] = std::from_chars(group.data(), group.data() + group.size(), value, 16);
    if (group.empty() || group.size() > 4 || fault != std::errc() || end != group.data() + group.size())
      return false;
    groups->push_back(value);
    if (last) return true;
    text.remove_prefix(colon + 1);
    if (text.empty()) return false;  // a single colon at the end
  }
  return true;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    uint8_t value = 0;
    bool coded =
        text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 3, value, 16).ptr == text.data() + i + 3;
    out += coded ? static_cast<char>(value) : text[i];
    if (coded) i += 2;
  }
  return out;
}

}  // namespace

std::string FetchTarget::url() const {
  bool v6 = host.find(':') != host.npos;
  return fmt::format("{}://{}{}{}:{}{}", https ? "https" : "http", v6 ? "[" : "", host, v6 ? "]" : "", port,
                     path_and_query);
}

Result<FetchTarget> fetch_target(std::string_view url, const std::string& path) {
  FetchTarget t;
  std::string scheme = lower(url.substr(0, url.find(':')));
  t.https = scheme == "https";
  bool plain = std::all_of(url.begin(), url.end(), [](char c) { return c > ' ' && c < 0x7f && c != '\\'; });
  if (url.size() > kMaxUrlBytes || !plain || (!t.https && scheme != "http")) return invalid(path, url);
  std::string_view rest = url.substr(scheme.size());
  if (!rest.starts_with("://")) return invalid(path, url);
  rest.remove_prefix(3);
  rest = rest.substr(0, rest.find('#'));
  size_t end = std::min(rest.find_first_of("/?"), rest.size());
  std::string_view authority = rest.substr(0, end);
  t.path_and_query = rest.substr(end);
  if (!t.path_and_query.starts_with('/')) t.path_and_query.insert(0, "/");
  if (authority.find('@') != authority.npos) return invalid(path, url);
  bool v6 = authority.starts_with('[');
  size_t host_end = v6 ? authority.find(']') : std::min(authority.find(':'), authority.size());
  if (host_end == authority.npos) return invalid(path, url);
  t.host = lower(authority.substr(v6 ? 1 : 0, host_end - (v6 ? 1 : 0)));
  std::string_view after = authority.substr(host_end + (v6 ? 1 : 0));
  t.port = t.https ? 443 : 80;
  if (!after.empty() && (after[0] != ':' || !parse_port(after.substr(1), &t.port))) return invalid(path, url);
  if (t.host.ends_with('.')) t.host.pop_back();
  DI_TRY(check_host(t.host, v6, path, url));
  return t;
}

Result<FetchTarget> redirect_target(const FetchTarget& from, std::string_view location, int hops,
                                    const FetchLimits& limits, const std::string& path) {
  if (hops >= limits.max_redirects) return fetch_failure(FetchFault::kTooManyRedirects, path, from.host);
  std::string url;
  size_t colon = location.find(':');
  std::string base = from.url();
  if (colon != location.npos && location.find_first_of("/?#") > colon) {
    url = location;  // absolute: has a scheme of its own
  } else if (location.starts_with("//")) {
    url = (from.https ? "https:" : "http:") + std::string(location);
  } else {
    base.resize(base.size() - from.path_and_query.size());
    std::string_view old = from.path_and_query;
    old = old.substr(0, old.find('?'));
    if (location.starts_with('/')) {
      url = base + std::string(location);
    } else if (location.empty() || location[0] == '?' || location[0] == '#') {
      url = base + std::string(old) + std::string(location);
    } else {
      url = base + std::string(old.substr(0, old.rfind('/') + 1)) + std::string(location);
    }
  }
  DI_ASSIGN(FetchTarget to, fetch_target(url, path));
  if (from.https && !to.https) return fetch_failure(FetchFault::kForbiddenTarget, path, to.host);
  return to;
}

std::optional<Address> parse_address(std::string_view text) {
  Address a;
  if (text.find(':') == text.npos) {
    std::optional<uint32_t> v4 = parse_v4(text);
    if (!v4) return std::nullopt;
    for (size_t i = 0; i < 4; ++i) a.bytes[i] = static_cast<uint8_t>(*v4 >> (24 - 8 * i));
    return a;
  }
  a.v6 = true;
  std::vector<uint16_t> head, tail;
  size_t gap = text.find("::");
  if (gap == text.npos) {
    if (!parse_groups(text, true, &head) || head.size() != 8) return std::nullopt;
  } else {
    std::string_view right = text.substr(gap + 2);
    if (right.find("::") != right.npos || right.starts_with(':')) return std::nullopt;
    if (!parse_groups(text.substr(0, gap), false, &head) || !parse_groups(right, true, &tail))
      return std::nullopt;
    if (head.size() + tail.size() > 7) return std::nullopt;
    head.resize(8 - tail.size());
    head.insert(head.end(), tail.begin(), tail.end());
  }
  for (size_t i = 0; i < 8; ++i) {
    a.bytes[2 * i] = static_cast<uint8_t>(head[i] >> 8);
    a.bytes[2 * i + 1] = static_cast<uint8_t>(head[i] & 0xff);
  }
  return a;
}

bool is_public(const Address& address) {
  return address.v6 ? is_public_v6(address.bytes) : is_public_v4(v4_at(address.bytes, 0));
}

bool is_retryable(FetchFault fault) {
  return fault == FetchFault::kTransport || fault == FetchFault::kUpstreamServerError ||
         fault == FetchFault::kClientSetup || fault == FetchFault::kTokenBudget;
}

Status fetch_failure(FetchFault fault, const std::string& path, std::string_view detail) {
  static constexpr const char* kWhat[] = {"the image could not be fetched",
                                          "the image's server failed",
                                          "the image could not be fetched",
                                          "the image's size could not be fitted",
                                          "the image's server refused the request",
                                          "the image link redirects too often",
                                          "the image link's target is not allowed",
                                          "too many images",
                                          "the image is too large",
                                          "the image is empty",
                                          "unsupported image type",
                                          "the image cannot be read"};
  return error(is_retryable(fault) ? Code::kIo : Code::kInvalidArgument, "{}: {}{}{}", path,
               kWhat[static_cast<size_t>(fault)], detail.empty() ? "" : ": ", detail.substr(0, 200));
}

std::optional<FetchFault> upstream_fault(int http_status) {
  if (http_status >= 200 && http_status < 300) return std::nullopt;
  return http_status >= 500 ? FetchFault::kUpstreamServerError : FetchFault::kUpstreamClientError;
}

Result<std::string> check_image_bytes(std::string_view bytes, const FetchLimits& limits, ImageSource* image) {
  auto fault = [&](FetchFault f, std::string_view detail) { return fetch_failure(f, image->path, detail); };
  if (bytes.empty()) return fault(FetchFault::kEmpty, "");
  if (static_cast<int64_t>(bytes.size()) > limits.max_bytes)
    return fault(FetchFault::kTooLarge, fmt::format("{} bytes, at most {}", bytes.size(), limits.max_bytes));
  const char* type = bytes.starts_with("\x89PNG\r\n\x1a\n")                               ? "image/png"
                     : bytes.starts_with("GIF87a") || bytes.starts_with("GIF89a")         ? "image/gif"
                     : bytes.starts_with("\xff\xd8\xff")                                  ? "image/jpeg"
                     : bytes.starts_with("RIFF") && bytes.substr(0, 12).ends_with("WEBP") ? "image/webp"
                                                                                          : nullptr;
  if (type == nullptr) return fault(FetchFault::kUnsupportedType, "");
  int64_t w = 0, h = 0;
  if (!read_image_size(bytes, &w, &h)) return fault(FetchFault::kBadData, "no size in its header");
  if (w > limits.max_side || h > limits.max_side || w > limits.max_pixels / h)
    return fault(FetchFault::kTooLarge, fmt::format("{} x {} pixels", w, h));
  image->width = w, image->height = h;
  return std::string(type);
}

Result<DataUrl> decode_data_url(std::string_view url, const FetchLimits& limits, const std::string& path) {
  size_t comma = url.find(',');
  if (lower(url.substr(0, 5)) != "data:" || comma == url.npos)
    return error(Code::kInvalidArgument, "{}: Unsupported image_url format", path);
  // Four characters of base64 are three bytes: refuse before the copy, not after.
  if (static_cast<int64_t>((url.size() - comma) / 4 * 3) > limits.max_bytes + 3)
    return fetch_failure(FetchFault::kTooLarge, path, "");
  DI_ASSIGN(ImageSource image, image_from_url(url, ImageSource::Detail::kHigh, path));
  std::string_view body = url.substr(comma + 1);
  DataUrl out;
  if (lower(url.substr(0, comma)).ends_with(";base64")) {
    out.bytes = decode_base64(body).value_or("");
  } else {
    out.bytes = percent_decoded(body);
  }
  DI_ASSIGN(out.media_type, check_image_bytes(out.bytes, limits, &image));
  return out;
}

}  // namespace deepinfer
