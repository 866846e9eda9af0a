// Sixteen lanes as plain arrays: the meaning of every operation, and the target that runs anywhere.
//
// Each operation rounds as IEEE 754 says and no other way, so the vector versions agree with it to
// the bit. min and max return the second operand when either is NaN, as the instructions do. Names
// are those of the vector headers, and live in a namespace of their own with internal linkage: an
// inline function shared between targets could be linked from the wrong one.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/kernels.h"

#define K3_INLINE inline

namespace k3::scalar {
namespace {

constexpr Isa kIsa = Isa::kScalar;

// Small tiles: nothing here is fast, and unrolled loops over arrays are large.
constexpr int kTilePanels = 1, kTileTokens = 1;
constexpr int kFarPanels = 1, kFarTokens = 1;
constexpr int kStreamTokens = 2;
constexpr int kFewTokens = 2;
constexpr int kBlockF32Tokens = 1;
constexpr int kMlaGroups = 1, kMlaTile = 2;
constexpr int kKdaGroups = 1;
constexpr int kGemmRows = 4, kGemmVectors = 1;

struct F32x16 {
  float v[16];
};
struct I32x16 {
  int32_t v[16];
};
struct Mask {
  bool v[16];
};

template <class R, class F>
K3_INLINE R lanes(F f) {
  R r;
  for (int i = 0; i < 16; ++i) r.v[i] = f(i);
  return r;
}
K3_INLINE uint32_t u32(int32_t x) { return static_cast<uint32_t>(x); }
K3_INLINE int32_t i32(uint32_t x) { return static_cast<int32_t>(x); }

K3_INLINE F32x16 splat(float x) {
  return lanes<F32x16>([&](int) { return x; });
}
K3_INLINE F32x16 load(const void* p) {
  F32x16 r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
K3_INLINE F32x16 load_first(const float* p, int64_t n) {  // the other lanes are zero
  F32x16 r = {};
  std::memcpy(r.v, p, static_cast<size_t>(n) * sizeof(float));
  return r;
}
K3_INLINE void store(float* p, const F32x16& a) { std::memcpy(p, a.v, sizeof a.v); }
K3_INLINE void store_first(float* p, const F32x16& a, int64_t n) {
  std::memcpy(p, a.v, static_cast<size_t>(n) * sizeof(float));
}
K3_INLINE F32x16 operator+(const F32x16& a, const F32x16& b) {
  return lanes<F32x16>([&](int i) { return a.v[i] + b.v[i]; });
}
K3_INLINE F32x16 operator-(const F32x16& a, const F32x16& b) {
  return lanes<F32x16>([&](int i) { return a.v[i] - b.v[i]; });
}
K3_INLINE F32x16 operator*(const F32x16& a, const F32x16& b) {
  return lanes<F32x16>([&](int i) { return a.v[i] * b.v[i]; });
}
K3_INLINE F32x16 operator/(const F32x16& a, const F32x16& b) {
  return lanes<F32x16>([&](int i) { return a.v[i] / b.v[i]; });
}
K3_INLINE F32x16 fma(const F32x16& a, const F32x16& b, const F32x16& c) {
  return lanes<F32x16>([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
K3_INLINE F32x16 sqrt(const F32x16& a) {
  return lanes<F32x16>([&](int i) { return __builtin_sqrtf(a.v[i]); });
}
K3_INLINE F32x16 max(const F32x16& a, const F32x16& b) {
  return lanes<F32x16>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
K3_INLINE F32x16 min(const F32x16& a, const F32x16& b) {
  return lanes<F32x16>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
K3_INLINE F32x16 rint(const F32x16& a) {  // ties to even
  return lanes<F32x16>([&](int i) { return __builtin_rintf(a.v[i]); });
}
K3_INLINE Mask less(const F32x16& a, const F32x16& b) {
  return lanes<Mask>([&](int i) { return a.v[i] < b.v[i]; });
}
K3_INLINE F32x16 select(const Mask& m, const F32x16& a, const F32x16& b) {
  return lanes<F32x16>([&](int i) { return m.v[i] ? a.v[i] : b.v[i]; });
}

K3_INLINE I32x16 splat_i32(int32_t x) {
  return lanes<I32x16>([&](int) { return x; });
}
// Dword i of four at lanes 4i .. 4i+3.
K3_INLINE I32x16 spread(const void* p) {
  int32_t four[4];
  std::memcpy(four, p, sizeof four);
  return lanes<I32x16>([&](int i) { return four[i / 4]; });
}
K3_INLINE I32x16 load_i32(const void* p) {
  I32x16 r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
K3_INLINE void store_i32(void* p, const I32x16& a) { std::memcpy(p, a.v, sizeof a.v); }
K3_INLINE I32x16 operator+(const I32x16& a, const I32x16& b) {
  return lanes<I32x16>([&](int i) { return i32(u32(a.v[i]) + u32(b.v[i])); });
}
K3_INLINE I32x16 operator-(const I32x16& a, const I32x16& b) {
  return lanes<I32x16>([&](int i) { return i32(u32(a.v[i]) - u32(b.v[i])); });
}
K3_INLINE I32x16 operator&(const I32x16& a, const I32x16& b) {
  return lanes<I32x16>([&](int i) { return a.v[i] & b.v[i]; });
}
K3_INLINE I32x16 operator|(const I32x16& a, const I32x16& b) {
  return lanes<I32x16>([&](int i) { return a.v[i] | b.v[i]; });
}
template <int N>
K3_INLINE I32x16 shl(const I32x16& a) {
  return lanes<I32x16>([&](int i) { return i32(u32(a.v[i]) << N); });
}
template <int N>
K3_INLINE I32x16 shr(const I32x16& a) {  // zeros come in
  return lanes<I32x16>([&](int i) { return i32(u32(a.v[i]) >> N); });
}
template <int N>
K3_INLINE I32x16 sar(const I32x16& a) {  // the sign comes in
  return lanes<I32x16>([&](int i) { return a.v[i] >> N; });
}
K3_INLINE I32x16 max_i32(const I32x16& a, const I32x16& b) {
  return lanes<I32x16>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
K3_INLINE Mask less(const I32x16& a, const I32x16& b) {
  return lanes<Mask>([&](int i) { return a.v[i] < b.v[i]; });
}

K3_INLINE I32x16 bits(const F32x16& a) { return __builtin_bit_cast(I32x16, a); }
K3_INLINE F32x16 floats(const I32x16& a) { return __builtin_bit_cast(F32x16, a); }
K3_INLINE F32x16 to_f32(const I32x16& a) {
  return lanes<F32x16>([&](int i) { return static_cast<float>(a.v[i]); });
}
K3_INLINE I32x16 to_i32(const F32x16& a) {  // of values within int32
  return lanes<I32x16>([&](int i) { return static_cast<int32_t>(__builtin_rintf(a.v[i])); });
}
K3_INLINE F32x16 load_f16(const void* p) {
  uint16_t halves[16];
  std::memcpy(halves, p, sizeof halves);
  return lanes<F32x16>([&](int i) {
    const uint32_t sign = uint32_t{halves[i] & 0x8000u} << 16, rest = halves[i] & 0x7fffu;
    if (rest >= 0x7c00) return __builtin_bit_cast(float, sign | 0x7f800000 | (rest << 13));
    // Moved to the float's exponent field the value is 2^-112 of itself, subnormals included.
    const float value = __builtin_bit_cast(float, rest << 13) * 0x1p112f;
    return __builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, value));
  });
}

K3_INLINE float reduce_add(const F32x16& a) {  // the tree l+8, l+4, l+2, l+1
  F32x16 r = a;
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) r.v[i] = r.v[i] + r.v[i + half];
  }
  return r.v[0];
}
K3_INLINE float reduce_max(const F32x16& a) {
  F32x16 r = a;
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) r.v[i] = r.v[i] > r.v[i + half] ? r.v[i] : r.v[i + half];
  }
  return r.v[0];
}
K3_INLINE int32_t reduce_add(const I32x16& a) {
  int32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += a.v[i];
  return sum;
}

// Lanes that fit int8, as sixteen bytes: of each eight the even columns, then the odd.
K3_INLINE void store_dword_order(void* p, const I32x16& a) {
  int8_t bytes[16];
  for (int i = 0; i < 16; ++i)
    bytes[i / 8 * 8 + i % 2 * 4 + i % 8 / 2] = static_cast<int8_t>(a.v[i]);
  std::memcpy(p, bytes, sizeof bytes);
}

// Integer dot products. W: a dword of four unsigned weights per row; X: four activations for all
// rows. kSmall promises weights of at most 24.
template <bool kSmall>
struct W {
  uint8_t v[16][4];
};
template <bool kSmall>
struct X {
  int8_t v[4];
};
// Four activations for each lane.
struct LaneX {
  int8_t v[16][4];
};
// A plane of four blocks' activations: lane 4b + j takes the even and the odd columns of the eight
// from 8j of block b.
K3_INLINE void group_x(const uint8_t* plane, LaneX& even, LaneX& odd) {
  for (int i = 0; i < 16; ++i) {
    std::memcpy(even.v[i], plane + (i % 4 * 2 * 4 + i / 4) * 4, 4);
    std::memcpy(odd.v[i], plane + ((i % 4 * 2 + 1) * 4 + i / 4) * 4, 4);
  }
}
template <bool kSmall>
K3_INLINE W<kSmall> load_w(const void* p) {
  W<kSmall> w;
  std::memcpy(w.v, p, sizeof w.v);
  return w;
}
template <bool kSmall>
K3_INLINE void store_w(void* p, const W<kSmall>& w) {
  std::memcpy(p, w.v, sizeof w.v);
}
template <bool kSmall>
K3_INLINE X<kSmall> load_x(const void* p) {
  X<kSmall> x;
  std::memcpy(x.v, p, sizeof x.v);
  return x;
}
// Makes the compiler believe that x has changed.
K3_INLINE void renew(X<true>& x) { asm("" : : "r"(&x) : "memory"); }
template <bool kSmall>
K3_INLINE I32x16 dot2(const I32x16& sum, const W<kSmall>& w0, const W<kSmall>& w1,
                      const X<kSmall>& x0, const X<kSmall>& x1) {
  return lanes<I32x16>([&](int i) {
    int32_t s = sum.v[i];
    for (int b = 0; b < 4; ++b) s += w0.v[i][b] * x0.v[b] + w1.v[i][b] * x1.v[b];
    return s;
  });
}

K3_INLINE I32x16 dot2(const I32x16& sum, const W<true>& w0, const W<true>& w1, const LaneX& x0,
                      const LaneX& x1) {
  return lanes<I32x16>([&](int i) {
    int32_t s = sum.v[i];
    for (int b = 0; b < 4; ++b) s += w0.v[i][b] * x0.v[i][b] + w1.v[i][b] * x1.v[i][b];
    return s;
  });
}

// Within each four lanes: a[r] lane c becomes a[c] lane r.
K3_INLINE void transpose_quads(I32x16 (&a)[4]) {
  I32x16 b[4];
  for (int i = 0; i < 16; ++i) {
    for (int r = 0; r < 4; ++r) b[i % 4].v[i / 4 * 4 + r] = a[r].v[i];
  }
  for (int r = 0; r < 4; ++r) a[r] = b[r];
}
// Four lanes of a[r] become their sum, at lane r of the four.
K3_INLINE I32x16 sum_quads(const I32x16 (&a)[4]) {
  return lanes<I32x16>([&](int i) {
    int32_t sum = 0;
    for (int k = 0; k < 4; ++k) sum += a[i % 4].v[i / 4 * 4 + k];
    return sum;
  });
}
// Of whole fours of lanes: four c of a[r] becomes four r of a[c].
K3_INLINE void transpose_fours(I32x16 (&a)[4]) {
  I32x16 b[4];
  for (int i = 0; i < 16; ++i) {
    for (int r = 0; r < 4; ++r) b[i / 4].v[r * 4 + i % 4] = a[r].v[i];
  }
  for (int r = 0; r < 4; ++r) a[r] = b[r];
}
// The sixteen bytes at each of four places, side by side.
K3_INLINE I32x16 load_fours(const uint8_t* p0, const uint8_t* p1, const uint8_t* p2,
                            const uint8_t* p3) {
  I32x16 a;
  std::memcpy(a.v, p0, 16);
  std::memcpy(a.v + 4, p1, 16);
  std::memcpy(a.v + 8, p2, 16);
  std::memcpy(a.v + 12, p3, 16);
  return a;
}

// Nibbles to 12 + 2 * value.
K3_INLINE void unpack_nibbles(const I32x16& v, W<true>& low, W<true>& high) {
  constexpr uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  for (int r = 0; r < 16; ++r) {
    for (int b = 0; b < 4; ++b) {
      low.v[r][b] = kTable[(u32(v.v[r]) >> (8 * b)) & 15];
      high.v[r][b] = kTable[(u32(v.v[r]) >> (8 * b + 4)) & 15];
    }
  }
}
// The value of nibble K of each dword.
template <int K>
K3_INLINE F32x16 nibble_value(const I32x16& v) {
  return lanes<F32x16>([&](int i) { return kFp4Values[(u32(v.v[i]) >> (4 * K)) & 15]; });
}

}  // namespace
}  // namespace k3::scalar
