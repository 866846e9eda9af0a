// Sixteen lanes as two ymm registers. Included by target_avx2.cc only; see simd_scalar.h, which
// says in plain loops what each operation means.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"

#define K3_INLINE __attribute__((always_inline)) inline

namespace k3::avx2 {
namespace {

constexpr Isa kIsa = Isa::kAvx2;

// Register tiles: what fits 16 registers.
constexpr int kTilePanels = 1, kTileTokens = 3;
constexpr int kFarPanels = 2, kFarTokens = 1;
constexpr int kStreamTokens = 4;
constexpr int kFewTokens = 3;
constexpr int kBlockF32Tokens = 2;
constexpr int kMlaGroups = 1, kMlaTile = 4;
constexpr int kKdaGroups = 2;
constexpr int kGemmRows = 6, kGemmVectors = 1;

struct F32x16 {
  __m256 lo, hi;
};
struct I32x16 {
  __m256i lo, hi;
};
struct Mask {
  __m256i lo, hi;
};

K3_INLINE I32x16 first_lanes(int64_t n) {
  const __m256i count = _mm256_set1_epi32(static_cast<int32_t>(n));
  return {_mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
          _mm256_cmpgt_epi32(count, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15))};
}

K3_INLINE F32x16 splat(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
K3_INLINE F32x16 load(const void* p) {
  const auto* bytes = static_cast<const unsigned char*>(p);
  return {_mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes))),
          _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + 32)))};
}
K3_INLINE F32x16 load_first(const float* p, int64_t n) {
  const I32x16 m = first_lanes(n);
  return {_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
}
K3_INLINE void store(float* p, F32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
K3_INLINE void store_first(float* p, F32x16 a, int64_t n) {
  const I32x16 m = first_lanes(n);
  _mm256_maskstore_ps(p, m.lo, a.lo);
  _mm256_maskstore_ps(p + 8, m.hi, a.hi);
}
K3_INLINE F32x16 operator+(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
K3_INLINE F32x16 operator-(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
K3_INLINE F32x16 operator*(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
K3_INLINE F32x16 operator/(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
K3_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
K3_INLINE F32x16 sqrt(F32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
K3_INLINE F32x16 max(F32x16 a, F32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
K3_INLINE F32x16 min(F32x16 a, F32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
K3_INLINE F32x16 rint(F32x16 a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, kNearest), _mm256_round_ps(a.hi, kNearest)};
}
K3_INLINE Mask less(F32x16 a, F32x16 b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_castps_si256(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
K3_INLINE F32x16 select(Mask m, F32x16 a, F32x16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(m.lo)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(m.hi))};
}

K3_INLINE I32x16 splat_i32(int32_t x) {
  const __m256i v = _mm256_set1_epi32(x);
  return {v, v};
}
K3_INLINE I32x16 spread(const void* p) {
  const __m256i four = _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  const __m256i lo = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
  const __m256i hi = _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3);
  return {_mm256_permutevar8x32_epi32(four, lo), _mm256_permutevar8x32_epi32(four, hi)};
}
K3_INLINE I32x16 load_i32(const void* p) {
  const auto* bytes = static_cast<const unsigned char*>(p);
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + 32))};
}
K3_INLINE void store_i32(void* p, I32x16 a) {
  auto* bytes = static_cast<unsigned char*>(p);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes + 32), a.hi);
}
K3_INLINE I32x16 operator+(I32x16 a, I32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
K3_INLINE I32x16 operator-(I32x16 a, I32x16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
K3_INLINE I32x16 operator&(I32x16 a, I32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
K3_INLINE I32x16 operator|(I32x16 a, I32x16 b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
template <int N>
K3_INLINE I32x16 shl(I32x16 a) {
  return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
}
template <int N>
K3_INLINE I32x16 shr(I32x16 a) {
  return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)};
}
template <int N>
K3_INLINE I32x16 sar(I32x16 a) {
  return {_mm256_srai_epi32(a.lo, N), _mm256_srai_epi32(a.hi, N)};
}
K3_INLINE I32x16 max_i32(I32x16 a, I32x16 b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
K3_INLINE Mask less(I32x16 a, I32x16 b) {
  return {_mm256_cmpgt_epi32(b.lo, a.lo), _mm256_cmpgt_epi32(b.hi, a.hi)};
}

K3_INLINE I32x16 bits(F32x16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
K3_INLINE F32x16 floats(I32x16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
K3_INLINE F32x16 to_f32(I32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
K3_INLINE I32x16 to_i32(F32x16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
K3_INLINE F32x16 load_f16(const void* p) {
  const auto* halves = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}

K3_INLINE float reduce_add(F32x16 a) {
  const __m256 b = _mm256_add_ps(a.lo, a.hi);
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
}
K3_INLINE float reduce_max(F32x16 a) {
  const __m256 b = _mm256_max_ps(a.lo, a.hi);
  const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_shuffle_ps(d, d, 1)));
}
K3_INLINE int32_t reduce_add(I32x16 a) {
  const __m256i b = _mm256_add_epi32(a.lo, a.hi);
  const __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
  const __m128i d = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(d, _mm_shuffle_epi32(d, 0xb1)));
}

K3_INLINE void store_dword_order(void* p, I32x16 a) {
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm_shuffle_epi8(bytes, order));
}

// Small weights (at most 24): two VPMADDUBSW add in 16 bits, 4 * 24 * 128 < 2^15. Others: the even
// and the odd bytes widened to 16 bits, where VPMADDWD is exact.
template <bool kSmall>
struct W;
template <>
struct W<true> {
  __m256i lo, hi;
};
template <>
struct W<false> {
  __m256i lo_even, lo_odd, hi_even, hi_odd;
};
template <bool kSmall>
struct X;
template <>
struct X<true> {
  __m256i lo, hi;  // alike, unless each lane has its own
};
template <>
struct X<false> {
  __m256i even, odd;
};
template <bool kSmall>
K3_INLINE W<kSmall> load_w(const void* p) {
  const I32x16 v = load_i32(p);
  if constexpr (kSmall) {
    return {v.lo, v.hi};
  } else {
    const __m256i even = _mm256_set1_epi16(0xff);
    return {_mm256_and_si256(v.lo, even), _mm256_srli_epi16(v.lo, 8), _mm256_and_si256(v.hi, even),
            _mm256_srli_epi16(v.hi, 8)};
  }
}
K3_INLINE void store_w(void* p, W<true> w) { store_i32(p, {w.lo, w.hi}); }
template <bool kSmall>
K3_INLINE X<kSmall> load_x(const void* p) {
  int32_t dword;
  std::memcpy(&dword, p, sizeof dword);
  const __m256i v = _mm256_set1_epi32(dword);
  if constexpr (kSmall) {
    return {v, v};
  } else {
    return {_mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8), _mm256_srai_epi16(v, 8)};
  }
}
using LaneX = X<true>;
K3_INLINE void group_x(const uint8_t* plane, LaneX& even, LaneX& odd) {
  const auto half = [plane](int first, LaneX& x) {
    const auto dword = [plane, first](int d) {
      return _mm_loadu_ps(reinterpret_cast<const float*>(plane + 16 * (2 * d + first)));
    };
    __m128 b0 = dword(0), b1 = dword(1), b2 = dword(2), b3 = dword(3);
    _MM_TRANSPOSE4_PS(b0, b1, b2, b3);
    x.lo = _mm256_castps_si256(_mm256_set_m128(b1, b0));
    x.hi = _mm256_castps_si256(_mm256_set_m128(b3, b2));
  };
  half(0, even);
  half(1, odd);
}
K3_INLINE void renew(X<true>& x) { asm("" : "+x"(x.lo), "+x"(x.hi)); }
K3_INLINE I32x16 dot2(I32x16 sum, W<true> w0, W<true> w1, X<true> x0, X<true> x1) {
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i lo =
      _mm256_add_epi16(_mm256_maddubs_epi16(w0.lo, x0.lo), _mm256_maddubs_epi16(w1.lo, x1.lo));
  const __m256i hi =
      _mm256_add_epi16(_mm256_maddubs_epi16(w0.hi, x0.hi), _mm256_maddubs_epi16(w1.hi, x1.hi));
  return {_mm256_add_epi32(sum.lo, _mm256_madd_epi16(lo, ones)),
          _mm256_add_epi32(sum.hi, _mm256_madd_epi16(hi, ones))};
}
K3_INLINE I32x16 dot1(I32x16 sum, W<false> w, X<false> x) {
  return {_mm256_add_epi32(sum.lo, _mm256_add_epi32(_mm256_madd_epi16(w.lo_even, x.even),
                                                    _mm256_madd_epi16(w.lo_odd, x.odd))),
          _mm256_add_epi32(sum.hi, _mm256_add_epi32(_mm256_madd_epi16(w.hi_even, x.even),
                                                    _mm256_madd_epi16(w.hi_odd, x.odd)))};
}
K3_INLINE I32x16 dot2(I32x16 sum, W<false> w0, W<false> w1, X<false> x0, X<false> x1) {
  return dot1(dot1(sum, w0, x0), w1, x1);
}

K3_INLINE void transpose_quads(I32x16 (&a)[4]) {
  const auto half = [](__m256i& a0, __m256i& a1, __m256i& a2, __m256i& a3) {
    const __m256i b0 = _mm256_unpacklo_epi32(a0, a1), b1 = _mm256_unpackhi_epi32(a0, a1);
    const __m256i b2 = _mm256_unpacklo_epi32(a2, a3), b3 = _mm256_unpackhi_epi32(a2, a3);
    a0 = _mm256_unpacklo_epi64(b0, b2);
    a1 = _mm256_unpackhi_epi64(b0, b2);
    a2 = _mm256_unpacklo_epi64(b1, b3);
    a3 = _mm256_unpackhi_epi64(b1, b3);
  };
  half(a[0].lo, a[1].lo, a[2].lo, a[3].lo);
  half(a[0].hi, a[1].hi, a[2].hi, a[3].hi);
}
K3_INLINE I32x16 sum_quads(const I32x16 (&a)[4]) {
  const auto half = [](__m256i a0, __m256i a1, __m256i a2, __m256i a3) {
    return _mm256_hadd_epi32(_mm256_hadd_epi32(a0, a1), _mm256_hadd_epi32(a2, a3));
  };
  return {half(a[0].lo, a[1].lo, a[2].lo, a[3].lo), half(a[0].hi, a[1].hi, a[2].hi, a[3].hi)};
}
K3_INLINE void transpose_fours(I32x16 (&a)[4]) {
  const auto low = [](__m256i x, __m256i y) { return _mm256_permute2x128_si256(x, y, 0x20); };
  const auto high = [](__m256i x, __m256i y) { return _mm256_permute2x128_si256(x, y, 0x31); };
  const I32x16 r0 = {low(a[0].lo, a[1].lo), low(a[2].lo, a[3].lo)};
  const I32x16 r1 = {high(a[0].lo, a[1].lo), high(a[2].lo, a[3].lo)};
  const I32x16 r2 = {low(a[0].hi, a[1].hi), low(a[2].hi, a[3].hi)};
  const I32x16 r3 = {high(a[0].hi, a[1].hi), high(a[2].hi, a[3].hi)};
  a[0] = r0;
  a[1] = r1;
  a[2] = r2;
  a[3] = r3;
}
K3_INLINE I32x16 load_fours(const uint8_t* p0, const uint8_t* p1, const uint8_t* p2,
                            const uint8_t* p3) {
  const auto at = [](const uint8_t* p) { return reinterpret_cast<const __m128i*>(p); };
  return {_mm256_loadu2_m128i(at(p1), at(p0)), _mm256_loadu2_m128i(at(p3), at(p2))};
}

K3_INLINE void unpack_nibbles(I32x16 v, W<true>& low, W<true>& high) {
  const __m256i table = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  const __m256i nibble = _mm256_set1_epi8(15);
  low.lo = _mm256_shuffle_epi8(table, _mm256_and_si256(v.lo, nibble));
  low.hi = _mm256_shuffle_epi8(table, _mm256_and_si256(v.hi, nibble));
  high.lo = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(v.lo, 4), nibble));
  high.hi = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(v.hi, 4), nibble));
}
// VPERMPS looks at three bits: the magnitude; the fourth is the sign.
template <int K>
K3_INLINE F32x16 nibble_value(I32x16 v) {
  const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
  const __m256i sign = _mm256_set1_epi32(INT32_MIN);
  const auto half = [&](__m256i dwords) {
    const __m256 magnitude = _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(dwords, 4 * K));
    const __m256i negative = _mm256_and_si256(_mm256_slli_epi32(dwords, 28 - 4 * K), sign);
    return _mm256_or_ps(magnitude, _mm256_castsi256_ps(negative));
  };
  return {half(v.lo), half(v.hi)};
}

}  // namespace
}  // namespace k3::avx2
