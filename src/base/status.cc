// Names of the domain codes and the end of a failed check.
#include "base/status.h"

#include <cstdio>
#include <cstdlib>

namespace deepinfer {

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kInvalidConfig:
      return "invalid configuration";
    case Code::kInvalidData:
      return "invalid data";
    case Code::kNotFound:
      return "not found";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kResourceExhausted:
      return "resource exhausted";
    case Code::kDeadlineExceeded:
      return "deadline exceeded";
    case Code::kCancelled:
      return "cancelled";
    case Code::kIo:
      return "input/output error";
    case Code::kUnavailable:
      return "unavailable";
  }
  return "unknown";
}

void check_failed(const char* file, int line, const char* condition, const std::string& context) {
  std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", file, line, condition, context.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace deepinfer
