// The file's bytes, then the reader's rules.
#include "apps/trace_source.h"

#include "host/files.h"

namespace deepinfer {

Result<sim::Trace> read_trace(const std::string& path, int64_t block_tokens) {
  constexpr int64_t kMostBytes = int64_t{8} << 30;
  Result<std::string> text =
      path == "-" ? read_descriptor(0, "standard input", kMostBytes) : read_file(path, kMostBytes);
  if (!text.ok()) return text.status();
  sim::TraceLimits limits;
  limits.block_tokens = block_tokens;
  return sim::parse_trace(*text, path == "-" ? "standard input" : path, limits);
}

}  // namespace deepinfer
