// A row of x as integers, once per instruction set: what the products of mxfp4-inl.h read. Their arithmetic
// is stated there.
#if defined(DEEPINFER_KERNELS_MXFP4_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DEEPINFER_KERNELS_MXFP4_ROWS_INL_H_
#undef DEEPINFER_KERNELS_MXFP4_ROWS_INL_H_
#else
#define DEEPINFER_KERNELS_MXFP4_ROWS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "kernels/formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deepinfer {
namespace HWY_NAMESPACE {

constexpr int64_t kIntBand = 256;          // rows of x that share a decoded panel
constexpr int64_t kIntMemory = 256 << 10;  // prepared rows of one pass of linear()
constexpr int kMaxIndexHeads = 64;         // of the index scan in integers

// A row of x as integers: 32 values per block, then a float 2^(k - 1) and an int32 -12 * sum of q per block
// (what makes codes stored as w + 12 >= 0 into w). Wide machines keep the even columns of eight before the
// odd ones, as nibbles come apart.
struct IntRow {
  const int8_t* q;
  const float* scale;
  const int32_t* offset;
  HWY_INLINE IntRow(const uint8_t* row, int64_t blocks)
      : q(reinterpret_cast<const int8_t*>(row)),
        scale(reinterpret_cast<const float*>(row + blocks * 32)),
        offset(reinterpret_cast<const int32_t*>(row + blocks * 36)) {}
  IntRow() = default;
  static int64_t Bytes(int64_t blocks) { return (blocks * 40 + 63) / 64 * 64; }
};

// Returns whether nothing was rounded.
HWY_INLINE bool QuantiseBlock(const float* x, int8_t* q, float* scale, int32_t* offset) {
  const F16 lo = Load(x), hi = Load(x + 16);
  const uint32_t amax = std::bit_cast<uint32_t>(MaxLanes16(Max(Abs(lo), Abs(hi))));
  if (HWY_UNLIKELY(!(AllFinite(lo) && AllFinite(hi)))) {  // poisons the outputs, as multiplying would
    std::memset(q, 0, 32);
    *scale = std::numeric_limits<float>::quiet_NaN();
    *offset = 0;
    return false;
  }
  // Biased; keeps 2^(k - 1) a normal number. A block of zeros takes a scale from the middle of the range.
  const int exponent = amax == 0 ? 134 : std::max(static_cast<int>(amax >> 23), 8);
  *scale = std::bit_cast<float>(static_cast<uint32_t>(exponent - 6) << 23) * 0.5f;
  const F16 inverse = Set1(std::bit_cast<float>(static_cast<uint32_t>(254 - (exponent - 6)) << 23));
  const F16 a = Mul(lo, inverse), b = Mul(hi, inverse);
  const hn::Rebind<int8_t, DI> d8;
  VI sum = hn::Zero(DI());
  const VI top = hn::Set(DI(), 127), bottom = hn::Set(DI(), -127);
  bool exact = true;
  DI_LANES {
    const VI i = hn::Max(hn::Min(hn::NearestInt(a.r[k]), top), bottom),
             j = hn::Max(hn::Min(hn::NearestInt(b.r[k]), top), bottom);
    hn::StoreU(hn::DemoteTo(d8, i), d8, q + k * kStep);
    hn::StoreU(hn::DemoteTo(d8, j), d8, q + 16 + k * kStep);
    sum = hn::Add(sum, hn::Add(i, j));
    exact = exact && hn::AllTrue(DF(), hn::And(hn::Eq(hn::ConvertTo(DF(), i), a.r[k]),
                                               hn::Eq(hn::ConvertTo(DF(), j), b.r[k])));
  }
  *offset = -12 * hn::GetLane(hn::SumOfLanes(DI(), sum));
  return exact;
}

// Blocks of columns [col, col + n) of a row of `cols`, both multiples of 32; returns whether nothing was
// rounded.
HWY_MAYBE_UNUSED bool PrepareInts(int64_t cols, const float* x, int64_t col, int64_t n, uint8_t* row) {
  const int64_t blocks = cols / 32;
  bool exact = true;
  for (int64_t b = col / 32; b < (col + n) / 32; ++b, x += 32) {
    int8_t* q = reinterpret_cast<int8_t*>(row) + b * 32;
    float scale;
    int32_t offset;
    exact = QuantiseBlock(x, q, &scale, &offset) && exact;
    std::memcpy(row + blocks * 32 + b * 4, &scale, 4);
    std::memcpy(row + blocks * 36 + b * 4, &offset, 4);
#if HWY_TARGET <= HWY_AVX3
    const __m256i even_first =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    auto* at = reinterpret_cast<__m256i*>(q);
    _mm256_storeu_si256(at, _mm256_shuffle_epi8(_mm256_loadu_si256(at), even_first));
#endif
  }
  return exact;
}

// float(isum) * scale * weight_scale joins the chain. Exact but at the ends of
// the fp32 range, so fused or not is one number.
struct Chain {
  float sum = 0.0f;
  HWY_INLINE void Join(int32_t isum, float scale, float weight_scale) {
    sum += static_cast<float>(isum) * scale * weight_scale;
  }
};

alignas(64) inline constexpr uint8_t kTwiceE2m1[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                       12, 11, 10, 9,  8,  6,  4,  0};  // 2 w + 12

}  // namespace HWY_NAMESPACE
}  // namespace deepinfer
HWY_AFTER_NAMESPACE();

#endif  // DEEPINFER_KERNELS_MXFP4_ROWS_INL_H_
