// Instructions by name, so that the loop is what it says; independent accumulators hide their latency. Chosen
// by what the CPU says it has, not by what the compiler was told.
#include "kernels/limits.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace deepinfer {
namespace {

constexpr int kLanes = 12;  // independent chains: more than latency times issue rate of any of these

// A loop of twelve chains whose accumulators stay in registers. They are variables of their own: elements of
// an array would be kept in memory by the barrier that keeps the work in the loop, and a store would be timed
// with every step.
#define DI_PEAK_LOOP(NAME, V, START, STEP, ADD, RESULT)                                                    \
  float NAME(int64_t n) {                                                                                  \
    V v0 = START(0), v1 = START(1), v2 = START(2), v3 = START(3), v4 = START(4), v5 = START(5),            \
      v6 = START(6), v7 = START(7), v8 = START(8), v9 = START(9), v10 = START(10), v11 = START(11);        \
    for (int64_t i = 0; i < n; ++i) {                                                                      \
      STEP(v0)                                                                                             \
      STEP(v1) STEP(v2) STEP(v3) STEP(v4) STEP(v5) STEP(v6) STEP(v7) STEP(v8) STEP(v9) STEP(v10) STEP(v11) \
    }                                                                                                      \
    v0 = ADD(ADD(ADD(v0, v1), ADD(v2, v3)), ADD(v4, v5));                                                  \
    v6 = ADD(ADD(ADD(v6, v7), ADD(v8, v9)), ADD(v10, v11));                                                \
    return static_cast<float>(RESULT(ADD(v0, v6)));                                                        \
  }

#define DI_SAME(v) v

#if defined(__x86_64__)

// Keeps an accumulator in a register and its work in the loop.
#define DI_KEEP(v) asm volatile("" : "+v"(v));

#define DI_F32X8(k) _mm256_set1_ps(static_cast<float>(k))
#define DI_FMA8(v)                                        \
  v = _mm256_fmadd_ps(v, DI_F32X8(0.999), DI_F32X8(0.5)); \
  DI_KEEP(v)
__attribute__((target("avx2,fma"))) DI_PEAK_LOOP(fp32_avx2, __m256, DI_F32X8, DI_FMA8, _mm256_add_ps,
                                                 _mm256_cvtss_f32)
#define DI_F32X16(k) _mm512_set1_ps(static_cast<float>(k))
#define DI_FMA16(v)                                         \
  v = _mm512_fmadd_ps(v, DI_F32X16(0.999), DI_F32X16(0.5)); \
  DI_KEEP(v)
    __attribute__((target("avx512f")))
    DI_PEAK_LOOP(fp32_avx512, __m512, DI_F32X16, DI_FMA16, _mm512_add_ps, _mm512_cvtss_f32)

#define DI_BF16X32 reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3c00))
#define DI_DOT_BF16(v)                             \
  v = _mm512_dpbf16_ps(v, DI_BF16X32, DI_BF16X32); \
  DI_KEEP(v)
        __attribute__((target("avx512f,avx512bf16")))
        DI_PEAK_LOOP(bf16_avx512, __m512, DI_F32X16, DI_DOT_BF16, _mm512_add_ps, _mm512_cvtss_f32)

#define DI_DOT_INT8(v)                                                  \
  v = _mm512_dpbusd_epi32(v, _mm512_set1_epi8(3), _mm512_set1_epi8(3)); \
  DI_KEEP(v)
            __attribute__((target("avx512f,avx512vnni")))
            DI_PEAK_LOOP(int8_avx512, __m512i, _mm512_set1_epi32, DI_DOT_INT8, _mm512_add_epi32,
                         _mm512_cvtsi512_si32)

// Without VNNI: bytes to words to double words, three instructions for 32 products.
#define DI_DOT_BYTES(v)                                                         \
  {                                                                             \
    __m256i w = _mm256_maddubs_epi16(_mm256_set1_epi8(3), _mm256_set1_epi8(3)); \
    DI_KEEP(w)                                                                  \
    v = _mm256_add_epi32(v, _mm256_madd_epi16(w, _mm256_set1_epi16(1)));        \
    DI_KEEP(v)                                                                  \
  }
                __attribute__((target("avx2")))
                DI_PEAK_LOOP(int8_avx2, __m256i, _mm256_set1_epi32, DI_DOT_BYTES, _mm256_add_epi32,
                             _mm256_cvtsi256_si32)

#define DI_KEEP_SCALAR(v) asm volatile("" : "+x"(v));
#else
#define DI_KEEP_SCALAR(v) asm volatile("" : "+m"(v));
#endif

#define DI_FLOAT(k) static_cast<float>(k)
#define DI_FMA1(v)       \
  v = v * 0.999f + 0.5f; \
  DI_KEEP_SCALAR(v)
#define DI_PLUS(a, b) ((a) + (b))
                    [[maybe_unused]] DI_PEAK_LOOP(fp32_portable, float, DI_FLOAT, DI_FMA1, DI_PLUS, DI_SAME)

#if defined(__x86_64__)

                        __attribute__((target("avx512f"))) uint64_t read_avx512(const uint8_t* p, size_t n) {
  __m512i a[8];
  for (__m512i& v : a) v = _mm512_setzero_si512();
  for (size_t i = 0; i < n; i += 512) {
    // Far enough ahead that the line is there when the loop comes to it; hardware prefetch ends at the page.
    _mm_prefetch(reinterpret_cast<const char*>(p + i + 4096), _MM_HINT_T0);
#pragma GCC unroll 8
    for (size_t k = 0; k < 8; ++k) a[k] = _mm512_xor_si512(a[k], _mm512_loadu_si512(p + i + 64 * k));
  }
  for (size_t k = 1; k < 8; ++k) a[0] = _mm512_xor_si512(a[0], a[k]);
  uint64_t w[8];
  _mm512_storeu_si512(w, a[0]);
  return w[0] ^ w[1] ^ w[2] ^ w[3] ^ w[4] ^ w[5] ^ w[6] ^ w[7];
}

__attribute__((target("avx2"))) uint64_t read_avx2(const uint8_t* p, size_t n) {
  __m256i a[8];
  for (__m256i& v : a) v = _mm256_setzero_si256();
  for (size_t i = 0; i < n; i += 256) {
    _mm_prefetch(reinterpret_cast<const char*>(p + i + 4096), _MM_HINT_T0);
#pragma GCC unroll 8
    for (size_t k = 0; k < 8; ++k)
      a[k] = _mm256_xor_si256(a[k], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i + 32 * k)));
  }
  for (size_t k = 1; k < 8; ++k) a[0] = _mm256_xor_si256(a[0], a[k]);
  uint64_t w[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(w), a[0]);
  return w[0] ^ w[1] ^ w[2] ^ w[3];
}

#endif

uint64_t read_portable(const uint8_t* p, size_t n) {
  uint64_t a[8] = {};
  for (size_t i = 0; i < n; i += 64) {
    for (size_t k = 0; k < 8; ++k) {
      uint64_t w;
      __builtin_memcpy(&w, p + i + 8 * k, 8);
      a[k] ^= w;
    }
  }
  return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
}

}  // namespace

std::vector<PeakLoop> peak_loops() {
  std::vector<PeakLoop> out;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    out.push_back({"fp32", "vfmadd, 512 bits", 2.0 * 16 * kLanes, fp32_avx512});
  } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    out.push_back({"fp32", "vfmadd, 256 bits", 2.0 * 8 * kLanes, fp32_avx2});
  } else {
    out.push_back({"fp32", "scalar", 2.0 * kLanes, fp32_portable});
  }
  if (__builtin_cpu_supports("avx512bf16"))
    out.push_back({"bf16", "vdpbf16ps, 512 bits", 2.0 * 32 * kLanes, bf16_avx512});
  if (__builtin_cpu_supports("avx512vnni")) {
    out.push_back({"int8", "vpdpbusd, 512 bits", 2.0 * 64 * kLanes, int8_avx512});
  } else if (__builtin_cpu_supports("avx2")) {
    out.push_back({"int8", "vpmaddubsw + vpmaddwd, 256 bits", 2.0 * 32 * kLanes, int8_avx2});
  }
#else
  out.push_back({"fp32", "scalar", 2.0 * kLanes, fp32_portable});
#endif
  return out;
}

uint64_t read_bytes(const uint8_t* data, size_t bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return read_avx512(data, bytes);
  if (__builtin_cpu_supports("avx2")) return read_avx2(data, bytes);
#endif
  return read_portable(data, bytes);
}

}  // namespace deepinfer
