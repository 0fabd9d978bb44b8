// The arithmetic the engine asks for, as one table of functions per back end: on spans of activations,
// without threads, without allocation, without knowing layers, requests or caches. A call may use half a MiB
// of stack.
//
// Two kinds of activation. A = double is math mode: exact formulas, no rounding. A = float is native mode: a
// result marked
// "[r]" is rounded once to bf16 (round to nearest even) on write, so activations carry bf16 values in fp32
// registers; everything else stays fp32.
//
// The contract of the house: a row of output depends on that row's inputs alone. Every reduction has one
// order that is a function of the reduced length only, never of T, of the row range asked for, of alignment
// or of neighbours. reference_kernels<A>() is the plain scalar definition; native_kernels() the vector
// version for this machine; a test matrix holds one against the other. Source: model specification 2 to 6
// and 8.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/matrix_view.h"

namespace deepinfer {

enum class Out { kRounded, kFull };  // [r] or not

// Layout of one cache record (main KV entry, index key, window latent): codes then scales in separate arrays.
enum class RecordFormat {
  kRaw,     // A values themselves (math mode)
  kFp8_32,  // 1 byte per value, E8M0 scale per 32
  kFp4_32,  // 2 values per byte (low nibble first), E8M0 scale per 32
  kFp4_16,  // 2 values per byte, E4M3 scale per 16
};

// Bytes of the code part and of the scale part of a record of n values (kRaw: n * sizeof(A) and 0).
template <typename A>
int64_t record_code_bytes(RecordFormat format, int64_t n);
int64_t record_scale_bytes(RecordFormat format, int64_t n);

struct HcParams {
  int hc = 4;
  int sinkhorn_iters = 20;
  double hc_eps = 1e-6;
  double rms_eps = 1e-20;
};

template <typename A>
struct Kernels {
  const char* name;  // "reference", "avx3_zen4", ...

  // y[t*ldy + o] = W[o,:] . x[row(t)*ldx + :] for o in [row0, row1), t in [0, T); row(t) = rows ? rows[t] :
  // t. x: A values [.., cols]. Works for every WeightFormat; dequantised weights are exact. fp32 (or fp64)
  // accumulation. The vector back end rounds x to 8-bit integers per block of 32 for kMxfp4, where the
  // format's own reference rounds it to E4M3; block sums are then exact, and every instruction level gives
  // the same bits. kBF16 and FP8 weights against bf16 values of x use the bf16 products of a level that has
  // them (kernels/bf16.h states their order and error).
  void (*linear)(const MatrixView& w, const A* x, int64_t ldx, const int32_t* rows, int64_t T, int64_t row0,
                 int64_t row1, A* y, int64_t ldy, Out out);

  // A row of x in the form that linear_prepared() reads for weights of `format`: integers per block of 32 for
  // kMxfp4, bf16 for kBF16 and FP8 where the level multiplies bf16. Made once per row, read by every matrix
  // and thread. Bytes of one row, a multiple of 64; 0 where linear() reads x as it is.
  int64_t (*prepared_bytes)(WeightFormat format, int64_t cols);
  // Columns [col, col + n) of such a row, both multiples of 32, from x[0..n). False where linear_prepared()
  // would not give the bits of linear(): bf16 products, and a value of x that is not bf16 (no activation
  // [r]). Ranges of a row may be written by different threads.
  bool (*prepare)(WeightFormat format, int64_t cols, const A* x, int64_t col, int64_t n, uint8_t* row);
  // linear() on prepared rows, row t at x + row(t) * stride (stride a multiple of 64, x aligned to 4): same
  // bits.
  void (*linear_prepared)(const MatrixView& w, const uint8_t* x, int64_t stride, const int32_t* rows,
                          int64_t T, int64_t row0, int64_t row1, A* y, int64_t ldy, Out out);

  // out[0..cols) = dequantised row of a matrix (embedding, Engram row).
  void (*decode_row)(const MatrixView& m, int64_t row, A* out);

  // y = x / sqrt(mean(x^2) + eps) * w  [r], n values; y may be x.
  void (*rms_norm)(const A* x, const A* w, int64_t n, double eps, A* y);

  // Sum of squares of n values, not rounded.
  A (*sum_squares)(const A* x, int64_t n);

  // mHC coefficients from mix[(2+hc)*hc] (= flatten(X) . fn^T, not yet divided) and mean_square =
  // mean(flatten(X)^2). Writes pre[hc], post[hc], comb[hc*hc] (row = source stream j, column = destination
  // k). Model specification 2.2.
  void (*hc_coefficients)(const A* mix, A mean_square, const A* base, const A* scale, const HcParams& p,
                          A* pre, A* post, A* comb);
  // u[d] = sum_i c[i] X[i*H + d]  [r]
  void (*hc_collapse)(const A* X, const A* c, int hc, int64_t H, A* u);
  // X[k][d] = post[k] y[d] + sum_j comb[j][k] X[j][d]  [r], in place.
  void (*hc_expand)(const A* y, const A* post, const A* comb, int hc, int64_t H, A* X);
  // out[d] = mean over the streams  [r]
  void (*hc_mean)(const A* X, int hc, int64_t H, A* out);

  // Rotates the `pairs` adjacent pairs of x (2*pairs values) by (cos, sin) [r]; inverse rotates back.
  void (*rope)(A* x, const A* cos, const A* sin, int pairs, bool inverse);

  // Encodes n values into a record; decodes it again. kRaw copies. Quantisers see fp32 (math mode converts
  // first).
  void (*encode_record)(RecordFormat format, const A* x, int64_t n, uint8_t* codes, uint8_t* scales);
  void (*decode_record)(RecordFormat format, const uint8_t* codes, const uint8_t* scales, int64_t n, A* out);

  // scores[j] = sum_h w[h] * max(0, q_h . key_j), j in [0, n). q: [heads, dim] decoded values on the fp4_32
  // grid (or raw); keys: n records of `format`, codes at codes + j*code_stride, scales at scales +
  // j*scale_stride. Order: per head the dot product is a sum over blocks of 32 dims in ascending order (each
  // block sum exact for fp4_32), then total = fma(w[h], relu(dot), total) over ascending heads.
  void (*index_scores)(const A* q, const A* w, int heads, int dim, RecordFormat format, const uint8_t* codes,
                       int64_t code_stride, const uint8_t* scales, int64_t scale_stride, int64_t n,
                       A* scores);
  // The same for queries made ready once for many calls: bytes of them, 0 where index_scores() has no such
  // way; prepare_index() returns false for queries that are not on the grid of `format`, which must take
  // index_scores(). Same bits.
  int64_t (*index_prepared_bytes)(RecordFormat format, int heads, int dim);
  bool (*prepare_index)(const A* q, int heads, int dim, uint8_t* out);
  void (*index_scores_prepared)(const uint8_t* q, const A* w, int heads, int dim, const uint8_t* codes,
                                int64_t code_stride, const uint8_t* scales, int64_t scale_stride, int64_t n,
                                A* scores);

  // One softmax over n rows (window and selected entries together) plus the sink, for `heads` heads of one
  // query row. q: [heads, D]; rows: [n, D] decoded, key and value at once; sink: [heads]; out: [heads, D]
  // [r]. scratch: heads*n values. Row order is the order of summation. n >= 1.
  void (*attend)(const A* q, const A* rows, int64_t n, int64_t D, int heads, double scale, const A* sink,
                 A* scratch, A* out);

  // The same on records in the form a level multiplies: bytes of one record of D values in it, 0 where there
  // is none (then decode_record and attend are the way). gather_records() puts n values of records that lie
  // one after the other (n a multiple of D) into it; false where a value has no such form, and its query row
  // must take attend(). attend_gathered() gives attend()'s bits on them, or false, having written nothing
  // that counts, where a query has no such form either (never for a query [r]).
  int64_t (*gathered_bytes)(RecordFormat format, int64_t D);
  bool (*gather_records)(RecordFormat format, const uint8_t* codes, const uint8_t* scales, int64_t n,
                         uint8_t* out);
  bool (*attend_gathered)(const A* q, const uint8_t* rows, int64_t n, int64_t D, int heads, double scale,
                          const A* sink, A* scratch, A* out);

  // a[i] = weight * silu(min(g, limit)) * clamp(u, -limit, limit)  [r]; limit 0: no clamps.
  void (*swiglu)(const A* g, const A* u, int64_t n, double weight, double limit, A* a);

  // y[i] += x[i]; not rounded.
  void (*add)(const A* x, int64_t n, A* y);
  // y[i] = bf16(x[i]) in native mode, a copy in math mode. y may be x.
  void (*round)(const A* x, int64_t n, A* y);

  // Engram gate and update of one stream: rs, dot, gate, X += gate*val [r]  (model specification 5.5).
  // Returns the gate.
  A (*engram_stream)(const A* key, const A* val, const A* q_weight, const A* k_weight, int64_t H, double eps,
                     A* X);

  // pooled[d] = sum_t softmax_t(g_t[d]) a_t[d], t in [0, r): `a` and `g` are arrays of r pointers to n
  // values. [r]
  void (*compress_pool)(const A* const* a, const A* const* g, int r, int64_t n, A* pooled);

  // probs[i] = exp((x[i] - max) * inv_temperature); returns the sum (ascending lanes, fixed order).
  A (*softmax)(const A* x, int64_t n, double inv_temperature, A* probs);
};

// The plain definition, scalar. Instantiated for float (test oracle) and double (math mode runs on it).
template <typename A>
const Kernels<A>& reference_kernels();

// The table for A on this machine: double gives the math back end, float the vector one.
template <typename A>
const Kernels<A>& kernels();

// Instruction levels of the vector back end, best first, as this CPU has them ("AVX3_ZEN4", "AVX2", "SSE4",
// ...), and the one in use. set_instruction_level restricts dispatch to `name` or below before any kernel
// ran; false if unknown or absent.
std::vector<std::string> instruction_levels();
std::string instruction_level();
// Names the arithmetic of native mode: equal strings mean equal bits for equal inputs. Whatever keeps
// computed values (prefix identities, the store) binds it. The version counts changes of any order or
// rounding.
inline constexpr int kKernelVersion = 2;
std::string numeric_profile();
bool set_instruction_level(const std::string& name);

// ---- selection (scalar, shared by both modes)

// Indices of the k largest of n scores (ties: lower index; -inf never chosen), ascending, into out; returns
// how many. scratch: n ints.
template <typename A>
int64_t select_topk(const A* scores, int64_t n, int64_t k, int32_t* scratch, int32_t* out);

// Candidate blocks (model specification 3.4): block score = max of its visible scores, the newest visible
// block forced in, the best `blocks` kept (ties: lower block). Marks allowed[j] = 1 for every visible entry
// of a kept block. n visible entries, n >= 1.
template <typename A>
void candidate_pool(const A* scores, int64_t n, int blocks, int block_size, int32_t* scratch,
                    uint8_t* allowed);

// Routing of one row: logits [E] -> ids[k] ascending by id, weights[k] (model specification 4). scoring: 0
// sqrt-softplus, 1 softmax, 2 sigmoid.
struct RouterParams {
  int experts = 0, k = 0, scoring = 0;
  bool normalise = true;
  double scale = 1.5, temperature = 1.0;
};
template <typename A>
void route(const A* logits, const A* bias, const RouterParams& p, A* scratch, int32_t* ids, A* weights);

// Index of the largest value, lowest index on ties.
template <typename A>
int64_t argmax(const A* x, int64_t n);

}  // namespace deepinfer
