// DI_CHECK: a condition that only a fault of our own code can break. It prints where and why, then aborts, in
// every build. DI_DCHECK is the same in debug builds only, for checks that cost time in inner loops.
#pragma once

#include <string>

namespace deepinfer {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& context);
}  // namespace deepinfer

#define DI_CHECK(cond, context)                                        \
  do {                                                                 \
    if (!(cond)) [[unlikely]]                                          \
      ::deepinfer::check_failed(__FILE__, __LINE__, #cond, (context)); \
  } while (0)

#ifdef DEEPINFER_DEBUG_CHECKS
#define DI_DCHECK(cond, context) DI_CHECK(cond, context)
#else
#define DI_DCHECK(cond, context) \
  do {                           \
  } while (0)
#endif
