// Random identifiers.
#include "edge/serve/ids.h"

#include <sys/random.h>

#include <cctype>

#include "base/check.h"
#include "base/sha256.h"

namespace deepinfer {

std::string fresh_id() {
  // The system is asked once per 256 ids and thread.
  thread_local uint8_t pool[12 * 256];
  thread_local size_t at = sizeof pool;
  if (at == sizeof pool) {
    for (size_t got = 0; got < sizeof pool;) {
      ssize_t n = ::getrandom(pool + got, sizeof pool - got, 0);
      DI_CHECK(n > 0 || errno == EINTR, "the system gives no random bytes");
      if (n > 0) got += static_cast<size_t>(n);
    }
    at = 0;
  }
  std::string id = to_hex({pool + at, 12});
  at += 12;
  return id;
}

std::string request_id_or_fresh(const std::string* given) {
  bool plain = given != nullptr && !given->empty() && given->size() <= 128;
  for (size_t i = 0; plain && i < given->size(); ++i) {
    const char c = (*given)[i];
    plain = std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.' || c == ':';
  }
  return plain ? *given : "req_" + fresh_id();
}

}  // namespace deepinfer
