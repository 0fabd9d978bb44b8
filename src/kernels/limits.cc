// Instructions by name, so that the loop is what it says; independent accumulators hide their latency. Chosen
// by what the CPU says it has, not by what the compiler was told.
#include "kernels/limits.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace deepinfer {
namespace {

constexpr int kLanes = 12;  // independent chains: more than latency times issue rate of any of these

// Keeps the accumulators in registers and in the loop.
#define DI_KEEP(v) asm volatile("" : "+v"(v))

float fp32_portable(int64_t n) {
  float a[kLanes];
  for (int k = 0; k < kLanes; ++k) a[k] = static_cast<float>(k);
  for (int64_t i = 0; i < n; ++i) {
    for (float& v : a) {
      v = v * 0.999f + 0.5f;
      asm volatile("" : "+m"(v));
    }
  }
  float s = 0;
  for (float v : a) s += v;
  return s;
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) float fp32_avx2(int64_t n) {
  __m256 a[kLanes], m = _mm256_set1_ps(0.999f), c = _mm256_set1_ps(0.5f);
  for (int k = 0; k < kLanes; ++k) a[k] = _mm256_set1_ps(static_cast<float>(k));
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < kLanes; ++k) {
      a[k] = _mm256_fmadd_ps(a[k], m, c);
      DI_KEEP(a[k]);
    }
  }
  __m256 s = a[0];
  for (int k = 1; k < kLanes; ++k) s = _mm256_add_ps(s, a[k]);
  return _mm256_cvtss_f32(s);
}

__attribute__((target("avx512f"))) float fp32_avx512(int64_t n) {
  __m512 a[kLanes], m = _mm512_set1_ps(0.999f), c = _mm512_set1_ps(0.5f);
  for (int k = 0; k < kLanes; ++k) a[k] = _mm512_set1_ps(static_cast<float>(k));
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < kLanes; ++k) {
      a[k] = _mm512_fmadd_ps(a[k], m, c);
      DI_KEEP(a[k]);
    }
  }
  __m512 s = a[0];
  for (int k = 1; k < kLanes; ++k) s = _mm512_add_ps(s, a[k]);
  return _mm512_cvtss_f32(s);
}

__attribute__((target("avx512f,avx512bf16"))) float bf16_avx512(int64_t n) {
  __m512 a[kLanes];
  for (int k = 0; k < kLanes; ++k) a[k] = _mm512_set1_ps(static_cast<float>(k));
  __m512i bits = _mm512_set1_epi16(0x3c00);
  __m512bh x = reinterpret_cast<const __m512bh&>(bits);
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < kLanes; ++k) {
      a[k] = _mm512_dpbf16_ps(a[k], x, x);
      DI_KEEP(a[k]);
    }
  }
  __m512 s = a[0];
  for (int k = 1; k < kLanes; ++k) s = _mm512_add_ps(s, a[k]);
  return _mm512_cvtss_f32(s);
}

__attribute__((target("avx512f,avx512vnni"))) float int8_avx512(int64_t n) {
  __m512i a[kLanes], x = _mm512_set1_epi8(3);
  for (int k = 0; k < kLanes; ++k) a[k] = _mm512_set1_epi32(k);
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < kLanes; ++k) {
      a[k] = _mm512_dpbusd_epi32(a[k], x, x);
      DI_KEEP(a[k]);
    }
  }
  __m512i s = a[0];
  for (int k = 1; k < kLanes; ++k) s = _mm512_add_epi32(s, a[k]);
  return static_cast<float>(_mm512_cvtsi512_si32(s));
}

// Without VNNI: bytes to words to double words, three instructions for 32 products.
__attribute__((target("avx2"))) float int8_avx2(int64_t n) {
  __m256i a[kLanes], x = _mm256_set1_epi8(3), one = _mm256_set1_epi16(1);
  for (int k = 0; k < kLanes; ++k) a[k] = _mm256_set1_epi32(k);
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < kLanes; ++k) {
      __m256i w = _mm256_maddubs_epi16(x, x);
      DI_KEEP(w);
      a[k] = _mm256_add_epi32(a[k], _mm256_madd_epi16(w, one));
      DI_KEEP(a[k]);
    }
  }
  __m256i s = a[0];
  for (int k = 1; k < kLanes; ++k) s = _mm256_add_epi32(s, a[k]);
  return static_cast<float>(_mm256_cvtsi256_si32(s));
}

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
