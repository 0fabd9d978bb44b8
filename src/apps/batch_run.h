// A file of requests through the server's own endpoints, without sockets: every line is answered exactly as
// the server would answer it. Continues where it stopped: what stands in the output is not computed again.
// Formats: one JSON object per line, {"custom_id", "url", "body"} or a bare request body; answers {"id",
// "custom_id", "response", "error"}. Source: OpenAI batch files; docs/batch.md. Threads: one caller; answers
// come on its thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "edge/http/exchange.h"

namespace deepinfer {

struct BatchCounts {
  int64_t lines = 0;  // with a request, good or bad
  int64_t kept = 0;   // answered by an earlier run
  int64_t answered = 0,
          failed = 0;  // by this run; failed: an answer other than 200, or a line that is no request
  int64_t output_tokens = 0;
  bool stopped = false;
};

struct BatchOptions {
  int64_t concurrency = 64;  // requests at a time
  std::string model;         // for bodies that name none
  int64_t line_limit_bytes = 64 << 20;
  // Told after every answer. False: what runs is given up, what is answered is kept.
  std::function<bool(const BatchCounts&)> progress;
};

// `handle` is the server's. Errors: kIo and kInvalidData for the files as such; a bad line is an answer that
// says so.
Result<BatchCounts> run_batch(const std::function<void(std::shared_ptr<Exchange>)>& handle,
                              const std::string& in_path, const std::string& out_path,
                              const BatchOptions& options);

}  // namespace deepinfer
