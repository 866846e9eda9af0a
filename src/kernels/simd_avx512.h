// Sixteen lanes as one zmm register. Included by target_avx512.cc only; see simd_scalar.h, which
// says in plain loops what each operation means.
#pragma once

// The unmasked intrinsics of g++ 12 pass a register they leave undefined on purpose.
#pragma GCC diagnostic push
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"

#define K3_INLINE __attribute__((always_inline)) inline

namespace k3::avx512 {
namespace {

constexpr Isa kIsa = Isa::kAvx512;

// Register tiles: what fits 32 registers.
constexpr int kTilePanels = 2, kTileTokens = 6;  // many tokens
constexpr int kFarPanels = 4, kFarTokens = 2;    // few tokens, panels far apart
constexpr int kStreamTokens = 4;                 // MXFP4 rows far apart up to here
constexpr int kFewTokens = 4;
constexpr int kBlockF32Tokens = 6;
constexpr int kMlaGroups = 3, kMlaTile = 8;
constexpr int kKdaGroups = 4;
constexpr int kGemmRows = 8, kGemmVectors = 3;

struct F32x16 {
  __m512 v;
};
struct I32x16 {
  __m512i v;
};
struct Mask {
  __mmask16 v;
};

K3_INLINE __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }

K3_INLINE F32x16 splat(float x) { return {_mm512_set1_ps(x)}; }
K3_INLINE F32x16 load(const void* p) { return {_mm512_loadu_ps(p)}; }
K3_INLINE F32x16 load_first(const float* p, int64_t n) {
  return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
}
K3_INLINE void store(float* p, F32x16 a) { _mm512_storeu_ps(p, a.v); }
K3_INLINE void store_first(float* p, F32x16 a, int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), a.v);
}
K3_INLINE F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
K3_INLINE F32x16 operator-(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
K3_INLINE F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
K3_INLINE F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
K3_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
K3_INLINE F32x16 sqrt(F32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
K3_INLINE F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
K3_INLINE F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
K3_INLINE F32x16 rint(F32x16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
K3_INLINE Mask less(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
K3_INLINE F32x16 select(Mask m, F32x16 a, F32x16 b) {
  return {_mm512_mask_blend_ps(m.v, b.v, a.v)};
}

K3_INLINE I32x16 splat_i32(int32_t x) { return {_mm512_set1_epi32(x)}; }
// Dword i of four at lanes 4i .. 4i+3.
K3_INLINE I32x16 spread(const void* p) {
  const __m512i four = _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  const __m512i which = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return {_mm512_castps_si512(_mm512_permutevar_ps(_mm512_castsi512_ps(four), which))};
}
K3_INLINE I32x16 load_i32(const void* p) { return {_mm512_loadu_si512(p)}; }
K3_INLINE void store_i32(void* p, I32x16 a) { _mm512_storeu_si512(p, a.v); }
K3_INLINE I32x16 operator+(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
K3_INLINE I32x16 operator-(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
K3_INLINE I32x16 operator&(I32x16 a, I32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
K3_INLINE I32x16 operator|(I32x16 a, I32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
template <int N>
K3_INLINE I32x16 shl(I32x16 a) {
  return {_mm512_slli_epi32(a.v, N)};
}
template <int N>
K3_INLINE I32x16 shr(I32x16 a) {
  return {_mm512_srli_epi32(a.v, N)};
}
template <int N>
K3_INLINE I32x16 sar(I32x16 a) {
  return {_mm512_srai_epi32(a.v, N)};
}
K3_INLINE I32x16 max_i32(I32x16 a, I32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
K3_INLINE Mask less(I32x16 a, I32x16 b) { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }

K3_INLINE I32x16 bits(F32x16 a) { return {_mm512_castps_si512(a.v)}; }
K3_INLINE F32x16 floats(I32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
K3_INLINE F32x16 to_f32(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
K3_INLINE I32x16 to_i32(F32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
K3_INLINE F32x16 load_f16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}

K3_INLINE float reduce_add(F32x16 a) {
  const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
}
K3_INLINE float reduce_max(F32x16 a) {
  const __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_shuffle_ps(d, d, 1)));
}
K3_INLINE int32_t reduce_add(I32x16 a) { return _mm512_reduce_add_epi32(a.v); }

// Lanes that fit int8, as sixteen bytes: of each eight the even columns, then the odd.
K3_INLINE void store_dword_order(void* p, I32x16 a) {
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm_shuffle_epi8(_mm512_cvtepi32_epi8(a.v), order));
}

// Integer dot products. W: a dword of four unsigned weights per row; X: four activations for all
// rows. kSmall promises weights of at most 24.
template <bool kSmall>
struct W {
  __m512i v;
};
template <bool kSmall>
struct X {
  __m512i v;
};
template <bool kSmall>
K3_INLINE W<kSmall> load_w(const void* p) {
  return {_mm512_loadu_si512(p)};
}
template <bool kSmall>
K3_INLINE void store_w(void* p, W<kSmall> w) {
  _mm512_storeu_si512(p, w.v);
}
template <bool kSmall>
K3_INLINE X<kSmall> load_x(const void* p) {
  int32_t dword;
  std::memcpy(&dword, p, sizeof dword);
  return {_mm512_set1_epi32(dword)};
}
// Makes the compiler believe that x has changed.
K3_INLINE void renew(X<true>& x) { asm("" : "+v"(x.v)); }
template <bool kSmall>
K3_INLINE I32x16 dot2(I32x16 sum, W<kSmall> w0, W<kSmall> w1, X<kSmall> x0, X<kSmall> x1) {
  return {_mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum.v, w0.v, x0.v), w1.v, x1.v)};
}

using LaneX = X<true>;  // four activations for each lane
K3_INLINE void group_x(const uint8_t* plane, LaneX& even, LaneX& odd) {
  const __m512i low = _mm512_loadu_si512(plane), high = _mm512_loadu_si512(plane + 64);
  const __m512i order = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
  even.v = _mm512_permutex2var_epi32(low, order, high);
  odd.v = _mm512_permutex2var_epi32(low, _mm512_add_epi32(order, _mm512_set1_epi32(4)), high);
}

// Within each four lanes: a[r] lane c becomes a[c] lane r.
K3_INLINE void transpose_quads(I32x16 (&a)[4]) {
  const __m512i b0 = _mm512_unpacklo_epi32(a[0].v, a[1].v);
  const __m512i b1 = _mm512_unpackhi_epi32(a[0].v, a[1].v);
  const __m512i b2 = _mm512_unpacklo_epi32(a[2].v, a[3].v);
  const __m512i b3 = _mm512_unpackhi_epi32(a[2].v, a[3].v);
  a[0].v = _mm512_unpacklo_epi64(b0, b2);
  a[1].v = _mm512_unpackhi_epi64(b0, b2);
  a[2].v = _mm512_unpacklo_epi64(b1, b3);
  a[3].v = _mm512_unpackhi_epi64(b1, b3);
}
// Four lanes of a[r] become their sum, at lane r of the four.
K3_INLINE I32x16 sum_quads(const I32x16 (&a)[4]) {
  const auto pairs = [](__m512i x, __m512i y) {
    return _mm512_add_epi32(_mm512_unpacklo_epi32(x, y), _mm512_unpackhi_epi32(x, y));
  };
  const __m512i low = pairs(a[0].v, a[1].v), high = pairs(a[2].v, a[3].v);
  return {_mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high))};
}
// Of whole fours of lanes: four c of a[r] becomes four r of a[c].
K3_INLINE void transpose_fours(I32x16 (&a)[4]) {
  const __m512i b0 = _mm512_shuffle_i32x4(a[0].v, a[1].v, 0x44);
  const __m512i b1 = _mm512_shuffle_i32x4(a[0].v, a[1].v, 0xee);
  const __m512i b2 = _mm512_shuffle_i32x4(a[2].v, a[3].v, 0x44);
  const __m512i b3 = _mm512_shuffle_i32x4(a[2].v, a[3].v, 0xee);
  a[0].v = _mm512_shuffle_i32x4(b0, b2, 0x88);
  a[1].v = _mm512_shuffle_i32x4(b0, b2, 0xdd);
  a[2].v = _mm512_shuffle_i32x4(b1, b3, 0x88);
  a[3].v = _mm512_shuffle_i32x4(b1, b3, 0xdd);
}
// The sixteen bytes at each of four places, side by side.
K3_INLINE I32x16 load_fours(const uint8_t* p0, const uint8_t* p1, const uint8_t* p2,
                            const uint8_t* p3) {
  const auto at = [](const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  };
  __m512i a = _mm512_castsi128_si512(at(p0));
  a = _mm512_inserti32x4(a, at(p1), 1);
  a = _mm512_inserti32x4(a, at(p2), 2);
  return {_mm512_inserti32x4(a, at(p3), 3)};
}

// Nibbles to 12 + 2 * value. VPERMB ignores the upper index bits, so the high nibble needs no mask.
K3_INLINE void unpack_nibbles(I32x16 v, W<true>& low, W<true>& high) {
  const __m512i table = _mm512_broadcast_i32x4(
      _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
  low.v = _mm512_permutexvar_epi8(v.v, table);
  high.v = _mm512_permutexvar_epi8(_mm512_srli_epi16(v.v, 4), table);
}
// The value of nibble K of each dword.
template <int K>
K3_INLINE F32x16 nibble_value(I32x16 v) {
  const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                      -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(v.v, 4 * K), table)};
}

}  // namespace
}  // namespace k3::avx512
