// The vector back end: one table of kernels per instruction set, and the choice between them at run time.
// The operations are in the -inl.h files, which this file compiles once per instruction set.
#define HWY_WANT_AVX3_DL
// SSSE3 without SSE4 is a machine nobody serves from; it falls to the scalar lanes.
#define HWY_DISABLED_TARGETS (HWY_SSSE3)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/native.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/attention-inl.h"
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
      .attend = Attend,
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

template <>
const Kernels<float>& kernels<float>() {
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
  for (int64_t t : levels()) names.push_back(hwy::TargetName(t));
  return names;
}

std::string instruction_level() {
  return kernels<float>().name;
}

bool set_instruction_level(const std::string& name) {
  int64_t allowed = 0;
  bool found = false;
  for (int64_t t : levels()) {
    found = found || name == hwy::TargetName(t);
    if (found) allowed |= t;
  }
  if (!found) return false;
  hwy::SetSupportedTargetsForTest(allowed);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return true;
}

}  // namespace deepinfer
#endif  // HWY_ONCE
