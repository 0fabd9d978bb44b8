// zlib behind edge/http/compress.h.
#include "edge/http/compress.h"

#include <zlib.h>

#include <cctype>
#include <cstdlib>

namespace deepinfer {
namespace {

constexpr int kLevel = 4;             // a fair share of the gain; the loop thread pays
constexpr int kGzipWindow = 15 + 16;  // 32 KiB, with gzip's header

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

bool same(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::tolower(static_cast<unsigned char>(a[i])) != b[i]) return false;
  }
  return true;
}

// "q=0", "q=0.0" and the like; anything else counts as wanted.
bool refused(std::string_view parameters) {
  const size_t q = parameters.find("q=");
  if (q == parameters.npos) return false;
  const std::string_view weight = trim(parameters.substr(q + 2));
  return !weight.empty() && weight.find_first_not_of("0.") == weight.npos;
}

}  // namespace

bool accepts_gzip(std::string_view accept) {
  bool any = false;
  while (true) {
    const size_t comma = accept.find(',');
    const std::string_view item = accept.substr(0, comma);
    const size_t semicolon = item.find(';');
    const std::string_view coding = trim(item.substr(0, semicolon));
    const bool no = semicolon != item.npos && refused(item.substr(semicolon + 1));
    if (same(coding, "gzip") || same(coding, "x-gzip")) return !no;
    if (coding == "*") any = !no;
    if (comma == accept.npos) return any;
    accept.remove_prefix(comma + 1);
  }
}

bool worth_compressing(std::string_view type) {
  if (type.rfind("text/event-stream", 0) == 0) return false;
  for (std::string_view start : {"text/", "application/json", "application/javascript", "image/svg+xml"}) {
    if (type.rfind(start, 0) == 0) return true;
  }
  return false;
}

std::string gzip(std::string_view bytes) {
  z_stream z{};
  if (deflateInit2(&z, kLevel, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) != Z_OK) return {};
  std::string out(bytes.size(), '\0');  // no more than before
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  z.avail_in = static_cast<uInt>(bytes.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  const bool whole = deflate(&z, Z_FINISH) == Z_STREAM_END;
  out.resize(whole ? z.total_out : 0);
  deflateEnd(&z);
  return out;
}

}  // namespace deepinfer
