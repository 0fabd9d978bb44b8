// Reads traceparent headers.
#include "edge/serve/trace.h"

#include <algorithm>

namespace deepinfer {

std::optional<TraceContext> parse_traceparent(const std::string& h) {
  auto hex = [&](size_t begin, size_t n) {
    return std::all_of(h.begin() + static_cast<long>(begin), h.begin() + static_cast<long>(begin + n),
                       [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  };
  // version-trace-parent-flags; a later version may go on behind them.
  if (h.size() < 55 || h[2] != '-' || h[35] != '-' || h[52] != '-') return std::nullopt;
  if (!hex(0, 2) || !hex(3, 32) || !hex(36, 16) || !hex(53, 2) || h.rfind("ff", 0) == 0) return std::nullopt;
  if (h.rfind("00", 0) == 0 && h.size() != 55) return std::nullopt;
  TraceContext c;
  c.trace_id = h.substr(3, 32);
  c.parent_id = h.substr(36, 16);
  if (c.trace_id.find_first_not_of('0') == std::string::npos ||
      c.parent_id.find_first_not_of('0') == std::string::npos)
    return std::nullopt;
  c.sampled = ((h[54] >= 'a' ? h[54] - 'a' + 10 : h[54] - '0') & 1) != 0;
  return c;
}

}  // namespace deepinfer
