// Where the time of forward passes goes: per part of the pass the wall time, the bytes of weights and cache
// it had to read, and its multiply-adds. The parts follow each other on the calling thread, so their times
// add up to the whole. Counts bytes once per call, however many rows use them. Threads: the caller of the
// pass.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "model/matrix_view.h"

namespace deepinfer {

enum class StepPart {
  kEmbed,      // embedding rows, rotary tables
  kEngram,     // n-gram rows, their product, the gated update
  kStreams,    // mHC: mixing product, coefficients, collapse, norm, expand
  kQueries,    // products of the attention input and of the query latent
  kPublish,    // compressor: main entries and index keys
  kIndex,      // index scores and selection
  kAttend,     // gather and softmax
  kOutput,     // grouped output projection
  kExperts,    // router, routed and shared experts
  kNarrow,     // encoder rows to decoder rows
  kDraftFeed,  // window latents of the draft stages
  kHead,       // final norm and logits
  kDraft,      // the draft pass outside its blocks: embedding, heads
  kCount,
};
const char* step_part_name(StepPart part);

// What a part had to do.
struct StepWork {
  int64_t bytes = 0;  // read from memory, each weight once
  int64_t macs = 0;   // multiply-adds
  int64_t jobs = 0;   // hand-outs to the threads (each ends in one barrier when there are several threads)
};

struct StepProfile {
  struct Line {
    int64_t ns = 0;
    StepWork work;
  };
  std::array<Line, static_cast<size_t>(StepPart::kCount)> lines;
  int64_t total_ns = 0;  // of all calls, measured apart
  int64_t calls = 0;
  Line& operator[](StepPart p) { return lines[static_cast<size_t>(p)]; }
  const Line& operator[](StepPart p) const { return lines[static_cast<size_t>(p)]; }
};

}  // namespace deepinfer
