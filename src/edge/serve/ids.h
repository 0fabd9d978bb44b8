// Identifiers made by the server: unguessable, so that nobody names another's response. Threads: any.
#pragma once

#include <string>
#include <string_view>

namespace deepinfer {

// 24 hexadecimal digits from the system's random source.
std::string fresh_id();
// A client's request id is kept if it is short and plain, else a new one is made.
std::string request_id_or_fresh(const std::string* given);

}  // namespace deepinfer
