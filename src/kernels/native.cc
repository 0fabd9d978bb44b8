// The vector back end: one table of kernels per instruction set, and the choice between them at run time.
// The operations are in the -inl.h files, which this file compiles once per instruction set.
#define HWY_WANT_AVX3_DL
// SSSE3 without SSE4 is a machine nobody serves from; it falls to the scalar lanes.
#define HWY_DISABLED_TARGETS (HWY_SSSE3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/native.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/attend_bf16.h"
#include "kernels/attention-inl.h"
#include "kernels/bf16.h"
#include "kernels/kernels.h"
#include "kernels/linear-inl.h"
#include "kernels/reference.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer {
namespace HWY_NAMESPACE {

const Kernels<float>& NativeTable() {
  static const Kernels<float> table = {
      .name = hwy::TargetName(HWY_TARGET),
      .linear = Linear,
      .prepared_bytes = PreparedBytes,
      .prepare = Prepare,
      .linear_prepared = LinearPrepared,
      .decode_row = DecodeRow,
      .rms_norm = RmsNorm,
      .sum_squares = SumSquares,
      .hc_coefficients = reference::hc_coefficients<float>,  // 24 numbers: scalar
      .hc_collapse = HcCollapse,
      .hc_expand = HcExpand,
      .hc_mean = HcMean,
      .rope = Rope,
      .encode_record = EncodeRecord,
      .decode_record = DecodeRecord,
      .index_scores = IndexScores,
      .index_prepared_bytes = IndexPreparedBytes,
      .prepare_index = PrepareIndex,
      .index_scores_prepared = IndexScoresPrepared,
      .attend = Attend,
      .gathered_bytes = reference_kernels<float>().gathered_bytes,
      .gather_records = reference_kernels<float>().gather_records,
      .attend_gathered = reference_kernels<float>().attend_gathered,
      .swiglu = Swiglu,
      .add = AddTo,
      .round = Round,
      .engram_stream = EngramStream,
      .compress_pool = CompressPool,
      .softmax = Softmax,
  };
  return table;
}

}  // namespace HWY_NAMESPACE
}  // namespace deepinfer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace deepinfer {

HWY_EXPORT(NativeTable);

template <>
const Kernels<double>& kernels<double>() {
  return reference_kernels<double>();
}

namespace {

// The level with bf16 products is the byte-product level of Highway with some entries replaced.
constexpr const char* kBf16Level = "AVX3_ZEN4";
// Set by set_instruction_level alone, as Highway's own choice is.
bool bf16_refused = false;

bool bf16_level() {
  static const bool there = bf16::available() && (hwy::SupportedTargets() & HWY_TARGETS & HWY_AVX3_DL) != 0;
  return there;
}

const Kernels<float>& bf16_table() {
  // Its plain side, whatever is chosen later.
  static const Kernels<float>& plain = HWY_DYNAMIC_DISPATCH(NativeTable)();
  static const Kernels<float> table = [] {
    Kernels<float> t = plain;
    t.name = kBf16Level;
    t.linear = [](const MatrixView& w, const float* x, int64_t ldx, const int32_t* rows, int64_t T,
                  int64_t row0, int64_t row1, float* y, int64_t ldy,
                  Out out) { bf16::linear(w, x, ldx, rows, T, row0, row1, y, ldy, out, plain); };
    t.prepared_bytes = [](WeightFormat f, int64_t cols) {
      return f == WeightFormat::kMxfp4 ? plain.prepared_bytes(f, cols) : bf16::prepared_bytes(f, cols);
    };
    t.prepare = [](WeightFormat f, int64_t cols, const float* x, int64_t col, int64_t n, uint8_t* row) {
      if (f == WeightFormat::kMxfp4) return plain.prepare(f, cols, x, col, n, row);
      return bf16::prepare(x, col, n, row);
    };
    t.linear_prepared = [](const MatrixView& w, const uint8_t* x, int64_t stride, const int32_t* rows,
                           int64_t T, int64_t row0, int64_t row1, float* y, int64_t ldy, Out out) {
      if (w.format == WeightFormat::kMxfp4)
        return plain.linear_prepared(w, x, stride, rows, T, row0, row1, y, ldy, out);
      bf16::linear_prepared(w, x, stride, rows, T, row0, row1, y, ldy, out, plain);
    };
    t.attend = [](const float* q, const float* rows, int64_t n, int64_t D, int heads, double scale,
                  const float* sink, float* scratch,
                  float* out) { bf16::attend(q, rows, n, D, heads, scale, sink, scratch, out, plain); };
    t.gathered_bytes = bf16::gathered_bytes;
    t.gather_records = bf16::gather_records;
    t.attend_gathered = [](const float* q, const uint8_t* rows, int64_t n, int64_t D, int heads, double scale,
                           const float* sink, float* scratch, float* out) {
      return bf16::attend_gathered(q, rows, n, D, heads, scale, sink, scratch, out, plain);
    };
    return t;
  }();
  return table;
}

}  // namespace

template <>
const Kernels<float>& kernels<float>() {
  if (bf16_level() && !bf16_refused) return bf16_table();
  return HWY_DYNAMIC_DISPATCH(NativeTable)();
}

namespace {

// Levels this program holds and this CPU runs, best first, whatever is chosen at the moment. The static level
// is always among them.
std::vector<int64_t> levels() {
  static const int64_t supported =
      hwy::SupportedTargets();  // asked before any restriction: set_instruction_level comes through here
  std::vector<int64_t> found;
  for (int64_t t = HWY_TARGETS & (supported | HWY_STATIC_TARGET); t != 0; t &= t - 1)
    found.push_back(t & ~(t - 1));
  return found;
}

}  // namespace

std::vector<std::string> instruction_levels() {
  std::vector<std::string> names;
  if (bf16_level()) names.push_back(kBf16Level);
  for (int64_t t : levels()) names.push_back(hwy::TargetName(t));
  return names;
}

std::string instruction_level() {
  return kernels<float>().name;
}

std::string numeric_profile() {
  return instruction_level() + " kernels " + std::to_string(kKernelVersion);
}

bool set_instruction_level(const std::string& name) {
  int64_t allowed = 0;
  const bool with_bf16 = bf16_level() && name == kBf16Level;
  bool found = with_bf16;
  for (int64_t t : levels()) {
    found = found || name == hwy::TargetName(t);
    if (found) allowed |= t;
  }
  if (!found) return false;
  bf16_refused = !with_bf16;
  hwy::SetSupportedTargetsForTest(allowed);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return true;
}

}  // namespace deepinfer
#endif  // HWY_ONCE
