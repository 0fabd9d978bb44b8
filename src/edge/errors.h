// Error answers of the three protocols: one body for all, and what a stream sends when it has already begun.
// Source: request edge specification 4.4. Threads: pure functions.
#pragma once

#include <string>

#include "base/status.h"
#include "edge/request.h"

namespace deepinfer {

// 400 for what the client must change, 429 and 503 for what it may try again, 500 for the rest.
int http_status(const Status& status);
// {"error":{"message":...,"type":...,"param":null,"code":...}}; Messages adds "type":"error" on top, which
// its client library looks for.
std::string error_body(const Status& status, Protocol protocol);
// The last event of a stream that breaks: a whole SSE frame. `sequence_number` is the next one of a Responses
// stream.
std::string stream_error_frame(const Status& status, Protocol protocol, int64_t sequence_number);

}  // namespace deepinfer
