// What the speculation tests share: small engines, sixteen mixed requests, their answers.
#pragma once

#include "serving_fixture.h"

namespace deepinfer::parity {

inline const char* const kModel = "t0";

inline EngineConfig small(policy::SpeculationMode mode, int fixed = 0) {
  EngineConfig c;
  c.pool_blocks = 400;
  c.calibrate_ns = 0;
  c.speculation.mode = mode;
  c.speculation.fixed = fixed;
  return c;
}

inline EngineRequest request(int length, int variant, double temperature, int64_t out) {
  EngineRequest r;
  r.prompt = prompt(length, weights(kModel).config.vocab_size, variant);
  r.max_tokens = out;
  r.sampling.temperature = temperature;
  r.sampling.seed = static_cast<uint64_t>(variant) * 17 + 3;
  return r;
}

// Sixteen requests, greedy and seeded, short and long.
inline std::vector<EngineRequest> mixed() {
  std::vector<EngineRequest> all;
  for (int i = 0; i < 16; ++i) all.push_back(request(5 + 13 * i % 90, i, i % 2 == 0 ? 0.0 : 0.9, 12 + i % 5));
  return all;
}

inline std::vector<std::vector<int32_t>> answers_of(Server* s, const std::vector<EngineRequest>& requests,
                                                    size_t at_a_time) {
  std::vector<std::vector<int32_t>> out;
  for (size_t i = 0; i < requests.size(); i += at_a_time) {
    std::vector<RequestId> ids;
    for (size_t k = i; k < std::min(requests.size(), i + at_a_time); ++k)
      ids.push_back(s->submit(requests[k]));
    EXPECT_TRUE(s->finish_all());
    for (RequestId id : ids) out.push_back(s->answers[{id, 0}].ids);
  }
  return out;
}

}  // namespace deepinfer::parity
