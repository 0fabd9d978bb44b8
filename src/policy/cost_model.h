// What a prefill step costs and how many rows fit a time budget. A quadratic in the rows of a sequence: rows
// attend to each other (a), to what is cached (b), and pass linear layers (d); a step has a floor (e). Rows
// that also run the decoder half pay extra. Does not know clocks: coefficients come from cost_fit.h or the
// caller. Source: serving specification 1.2, 1.4. Threads: pure functions.
#pragma once

#include <cstdint>

namespace deepinfer::policy {

// All in nanoseconds. The defaults are the illustrative published ones; an engine fits its own.
struct CostModel {
  double a = 2.0e-3;       // per pair of new rows
  double b = 2.0e-2;       // per pair of a new row and a cached token
  double d = 9.0e3;        // per new row
  double e = 0.0;          // per step
  double e_decoder = 0.0;  // per sequence with decoder rows in the step
  double d_decoder = 0.0;  // per decoder row
  double g_decoder = 0.0;  // per pair of a decoder row and a token of its context
  bool operator==(const CostModel&) const = default;
};

// Cost of `rows` new rows of one sequence with `context` tokens before them, without the step's floor.
inline double rows_cost_ns(const CostModel& m, int64_t rows, int64_t context) {
  double q = static_cast<double>(rows), c = static_cast<double>(context);
  return m.a * q * q + m.b * q * c + m.d * q;
}

// Extra cost of those of the rows that run the decoder half; `context` counts up to the last of them.
inline double decoder_cost_ns(const CostModel& m, int64_t rows, int64_t context) {
  if (rows <= 0) return 0;
  double n = static_cast<double>(rows);
  return m.e_decoder + m.d_decoder * n + m.g_decoder * n * static_cast<double>(context);
}

// A whole step that holds nothing else.
inline double step_cost_ns(const CostModel& m, int64_t rows, int64_t context) {
  return m.e + rows_cost_ns(m, rows, context);
}

// Most rows whose rows_cost_ns is at most time_ns: monotone in both arguments. Not aligned, not capped.
int64_t rows_within(const CostModel& m, double time_ns, int64_t context);

struct ChunkQuery {
  double time_ns = 0;     // what is left of the step: budget - e - cost of what is placed already
  int64_t context = 0;    // tokens of the sequence before the chunk
  int64_t remaining = 0;  // rows it still has to run
  int64_t chunk_max = 0;  // cap per step
  int64_t block_tokens = 1;
  bool must_progress = false;  // the step is empty, or the sequence has waited its bound: at least one block
};
// Rows to run now. Unless the chunk takes all that remains it ends on a block boundary, so that blocks,
// digests and snapshots stay aligned. 0: nothing fits.
int64_t solve_chunk(const CostModel& m, const ChunkQuery& query);

// The budget of a group of ranks: every rank proposes, the least wins, all use the same integer.
inline constexpr int64_t kNoWork = INT64_MAX;  // a rank without work must not shorten the step
struct BudgetQuery {
  bool has_work = false;
  int64_t target_ns = 0;
  int64_t min_ns = 0;
  int64_t need_ns = 0;  // predicted cost of all its ready work
};
int64_t propose_budget(const BudgetQuery& query);
// kNoWork when nobody has work: an idle step on all ranks.
int64_t agree_budget(const int64_t* proposals, int count);

}  // namespace deepinfer::policy
