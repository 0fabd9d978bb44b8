// What a request must fulfil before an engine queues it. Private to the engine. Threads: pure functions.
#pragma once

#include "engine/engine.h"
#include "model/config.h"

namespace deepinfer {

struct RequestLimits {
  int64_t context = 0;
  int choices = 128;
  int top_logprobs = 100;
};

// kInvalidArgument, naming the field.
Status check_request(const EngineRequest& request, const ModelConfig& config, const RequestLimits& limits);

}  // namespace deepinfer
