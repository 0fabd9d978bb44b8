// Image references and header sizes of edge/images.h. Headers only: nothing is decoded or fetched.
#include "edge/images.h"

#include <array>

namespace deepinfer {
namespace {

constexpr size_t kMaxUrlBytes = 8192;

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

// "image/PNG;charset=x" -> "image/png" if it is a supported type, else empty.
std::string media_type(std::string_view s) {
  std::string type = lower(s.substr(0, s.find(';')));
  while (!type.empty() && type.back() == ' ') type.pop_back();
  if (type == "image/jpg") type = "image/jpeg";
  for (const char* known : {"image/jpeg", "image/png", "image/gif", "image/webp"}) {
    if (type == known) return type;
  }
  return {};
}

uint32_t big(std::string_view b, size_t at, int bytes) {
  uint32_t v = 0;
  for (int i = 0; i < bytes; ++i) v = v << 8 | static_cast<uint8_t>(b[at + static_cast<size_t>(i)]);
  return v;
}
uint32_t little(std::string_view b, size_t at, int bytes) {
  uint32_t v = 0;
  for (int i = bytes - 1; i >= 0; --i) v = v << 8 | static_cast<uint8_t>(b[at + static_cast<size_t>(i)]);
  return v;
}

bool jpeg_size(std::string_view b, int64_t* w, int64_t* h) {
  for (size_t at = 2; at + 9 < b.size();) {
    if (static_cast<uint8_t>(b[at]) != 0xff) return false;
    auto marker = static_cast<uint8_t>(b[at + 1]);
    if (marker == 0xff) {
      ++at;
      continue;
    }
    bool frame = marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
    if (frame) {
      *h = big(b, at + 5, 2), *w = big(b, at + 7, 2);
      return true;
    }
    if (marker == 0x01 || (marker >= 0xd0 && marker <= 0xd8)) {
      at += 2;
    } else {
      at += 2 + std::max<size_t>(2, big(b, at + 2, 2));
    }
  }
  return false;
}

bool webp_size(std::string_view b, int64_t* w, int64_t* h) {
  if (b.size() < 30) return false;
  std::string_view kind = b.substr(12, 4);
  if (kind == "VP8X") {
    *w = 1 + little(b, 24, 3), *h = 1 + little(b, 27, 3);
  } else if (kind == "VP8 ") {
    *w = little(b, 26, 2) & 0x3fff, *h = little(b, 28, 2) & 0x3fff;
  } else if (kind == "VP8L") {
    uint32_t bits = little(b, 21, 4);
    *w = 1 + (bits & 0x3fff), *h = 1 + (bits >> 14 & 0x3fff);
  } else {
    return false;
  }
  return true;
}

}  // namespace

std::optional<std::string> decode_base64(std::string_view text) {
  static const std::array<int8_t, 256> value = [] {
    std::array<int8_t, 256> t;
    t.fill(-1);
    const char* alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int i = 0; i < 64; ++i) t[static_cast<uint8_t>(alphabet[i])] = static_cast<int8_t>(i);
    return t;
  }();
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  if (text.size() % 4 == 1) return std::nullopt;
  std::string out;
  out.reserve(text.size() / 4 * 3 + 3);
  uint32_t bits = 0;
  int have = 0;
  for (char c : text) {
    int v = value[static_cast<uint8_t>(c)];
    if (v < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(v);
    if ((have += 6) >= 8) out += static_cast<char>(bits >> (have -= 8));
  }
  return out;
}

bool read_image_size(std::string_view b, int64_t* w, int64_t* h) {
  if (b.size() >= 24 && b.starts_with("\x89PNG\r\n\x1a\n")) {
    *w = big(b, 16, 4), *h = big(b, 20, 4);
  } else if (b.size() >= 10 && (b.starts_with("GIF87a") || b.starts_with("GIF89a"))) {
    *w = little(b, 6, 2), *h = little(b, 8, 2);
  } else if (b.starts_with("\xff\xd8")) {
    if (!jpeg_size(b, w, h)) return false;
  } else if (b.size() >= 16 && b.starts_with("RIFF") && b.substr(8, 4) == "WEBP") {
    if (!webp_size(b, w, h)) return false;
  } else {
    return false;
  }
  return *w > 0 && *h > 0;
}

Result<ImageSource> image_from_url(std::string_view url, ImageSource::Detail detail,
                                   const std::string& path) {
  ImageSource image;
  image.detail = detail;
  image.path = path;
  image.url = url;
  std::string start = lower(url.substr(0, 8));
  if (start.starts_with("data:")) {
    size_t comma = url.find(',');
    std::string head(url.substr(5, comma == url.npos ? url.npos : comma - 5));
    if (comma == url.npos || media_type(head).empty())
      return error(Code::kInvalidArgument, "{}: Unsupported image_url format", path);
    image.kind = ImageSource::Kind::kDataUrl;
    if (lower(head).ends_with(";base64")) {
      std::optional<std::string> bytes = decode_base64(url.substr(comma + 1));
      if (!bytes || bytes->empty()) return error(Code::kInvalidArgument, "{}: base64 decode error", path);
      if (!read_image_size(*bytes, &image.width, &image.height)) image.width = image.height = 0;
    }
    return image;
  }
  if (!start.starts_with("http://") && !start.starts_with("https://")) {
    return error(Code::kInvalidArgument, "{}: Unsupported image_url format", path);
  }
  if (url.size() > kMaxUrlBytes) {
    return error(Code::kInvalidArgument,
                 "{}: external link length {} too long, max link length {}. Consider passing file data "
                 "directly with base64 data url "
                 "instead.",
                 path, url.size(), kMaxUrlBytes);
  }
  return image;
}

Result<ImageSource> image_from_base64(std::string_view type, std::string_view data, const std::string& path) {
  std::string known = media_type(type);
  if (known.empty()) return error(Code::kInvalidArgument, "{}: Unsupported image_url format", path);
  std::string padded(data);
  while (padded.size() % 4 != 0) padded += '=';
  return image_from_url("data:" + known + ";base64," + padded, ImageSource::Detail::kHigh, path);
}

}  // namespace deepinfer
