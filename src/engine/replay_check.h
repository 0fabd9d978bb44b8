// Is bounded replay what it says? Every schedule (prompt, reused prefix, stored window or not, rows kept,
// chunks) is carried out twice: in full layout, where all rows run and a mask hides what must not be seen,
// and with compact rows, as the engine does it. Both must agree on the keys every row sees and the slots they
// lie in, and on the logits, bit for bit. Source: model specification 10; serving specification 3.6. Threads:
// one caller.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/forward.h"

namespace deepinfer {

struct ReplaySchedule {
  int64_t prompt = 0;
  int64_t kv_hit = 0;          // tokens whose blocks are reused; a multiple of the window
  bool from_snapshot = false;  // start at kv_hit; otherwise, if kv_hit > 0, one window earlier
  int64_t keep = 0;
  std::vector<int64_t> chunks;  // ends of the chunks, ascending, the last one == prompt
  int64_t start(int64_t window) const { return from_snapshot || kv_hit == 0 ? kv_hit : kv_hit - window; }
  int64_t decoder_floor(int64_t window) const;
  int64_t encoder_floor(int64_t window) const { return from_snapshot || kv_hit == 0 ? 0 : start(window); }
};

// A legal schedule from random bits: hits as decide_hit gives them, chunks of any size.
ReplaySchedule random_schedule(uint64_t seed, int64_t most_tokens, int64_t window, int64_t backtrack);

// Which window keys one row of one half sees, ascending, and the ring slot of each.
struct VisibleRow {
  int64_t position = 0;
  std::vector<int64_t> keys, slots;
  bool operator==(const VisibleRow&) const = default;
};
// All rows of a half in order. Full layout: every pair of positions is asked. Compact: rings of `slots` slots
// as chunks go by; a key that is not in its slot any more is reported as -1.
std::vector<VisibleRow> masked_rows(const ReplaySchedule& s, bool decoder, int64_t window, int64_t slots);
std::vector<VisibleRow> compact_rows(const ReplaySchedule& s, bool decoder, int64_t window, int64_t slots);

struct ReplayReport {
  int64_t schedules = 0, replayed = 0, from_snapshot = 0;
  int64_t rows = 0, keys = 0;  // compared
  int64_t logit_rows = 0;      // compared
  int64_t block_digests = 0;   // reused blocks that were looked at and had not been written
  int64_t mismatches = 0;
  std::string first;  // what differed first, empty if nothing
};
// `schedules` random schedules on a model; `most_tokens` bounds their prompts.
ReplayReport check_replay(const ModelWeights& weights, ThreadPool* pool, int64_t schedules, uint64_t seed,
                          int64_t most_tokens);

}  // namespace deepinfer
