// What a mixture-of-experts call works on; grown on demand and kept, so that a call allocates nothing once
// the sizes have been seen. Private to the engine (moe.cc).
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/weights.h"
#include "engine/prepared_rows.h"

namespace deepinfer {

template <typename A>
struct MoeScratch {
  // Rows of one expert: entries [at, at + n) of row_of and weight_of.
  struct Group {
    const ExpertWeights* e = nullptr;
    int64_t at = 0, n = 0;
  };
  // A range of an expert's inner width, or of the outputs.
  struct Piece {
    const Group* group = nullptr;
    int64_t begin = 0, end = 0;
  };

  std::vector<A> logits, weights;  // [T, E], [T, K]
  std::vector<int32_t> ids;        // [T, K]
  std::vector<int64_t> first;      // [E + 1] entries before each expert
  std::vector<int32_t> row_of;     // [T * K + T] by expert, then the shared expert's
  std::vector<A> weight_of;        // the same
  std::vector<int64_t> entry_of;   // [T * K] where a (row, k) pair went
  std::vector<Group> groups;       // touched experts ascending, then the shared one
  std::vector<int32_t> touched;    // ids of the touched experts, where they may not all be resident
  std::vector<Piece> pieces;
  std::vector<int64_t> ends;              // of the pieces of every memory node
  PreparedRows<A> dense, routed;          // the input: router and shared expert, routed experts
  PreparedRows<A> dense_act, routed_act;  // the activations between up and down
};

}  // namespace deepinfer
