#include "weights/format.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace k3 {
namespace {

// The number behind half bits, from the definition.
double half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Format, EveryHalfWidensExactlyAndComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = f16_to_f32(half);
    const double expected = half_value(half);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value))));
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), expected) << bits;
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
    ASSERT_EQ(f32_to_f16(value), half) << bits;
  }
}

// Between neighbours the nearer is chosen, on the middle the even one: checked on the middle of
// every pair of neighbours and on the floats next to it, which decides all others.
TEST(Format, HalfRoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const auto low = static_cast<uint16_t>(bits), high = static_cast<uint16_t>(bits + 1);
    const double above = high == 0x7c00 ? 65536 : half_value(high);
    const auto middle = static_cast<float>((half_value(low) + above) / 2);
    const uint16_t even = bits % 2 == 0 ? low : high;
    ASSERT_EQ(f32_to_f16(middle), even) << bits;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), low) << bits;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, HUGE_VALF)), high) << bits;
    ASSERT_EQ(f32_to_f16(-middle), even | 0x8000) << bits;
  }
  EXPECT_EQ(f32_to_f16(HUGE_VALF), 0x7c00);
  EXPECT_EQ(f32_to_f16(-HUGE_VALF), 0xfc00);
  EXPECT_EQ(f32_to_f16(1e30f), 0x7c00);
  EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(Format, EveryBf16WidensAndComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = bf16_to_f32(half);
    ASSERT_EQ(std::bit_cast<uint32_t>(value), bits << 16);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(value))));
    } else {
      ASSERT_EQ(f32_to_bf16(value), half);
    }
  }
}

TEST(Format, Bf16RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const uint32_t middle = bits << 16 | 0x8000;
    const auto low = static_cast<uint16_t>(bits), high = static_cast<uint16_t>(bits + 1);
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle)), bits % 2 ? high : low);
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle - 1)), low);
    ASSERT_EQ(f32_to_bf16(std::bit_cast<float>(middle + 1)), high);
  }
}

TEST(Format, ScaleBytesArePowersOfTwo) {
  for (int e = 0; e < 255; ++e)
    ASSERT_EQ(e8m0_value(static_cast<uint8_t>(e)), std::ldexp(1.0f, e - 127)) << e;
  EXPECT_TRUE(std::isnan(e8m0_value(255)));
}

TEST(Format, NibbleCodesFollowTheFormat) {
  for (int code = 0; code < 16; ++code) {
    const int exponent = code >> 1 & 3, mantissa = code & 1;
    const double size = exponent ? std::ldexp(1 + mantissa / 2.0, exponent - 1) : mantissa / 2.0;
    EXPECT_EQ(kFp4Values[code], code & 8 ? -size : size) << code;
    EXPECT_EQ(std::signbit(kFp4Values[code]), (code & 8) != 0) << code;
  }
}

TEST(Format, DwordOrderIsAPermutationOfTheBlock) {
  std::set<int64_t> columns;
  for (int64_t d = 0; d < 8; ++d)
    for (int64_t b = 0; b < 4; ++b) columns.insert(dword_column(d, b));
  EXPECT_EQ(columns.size(), 32u);
  EXPECT_EQ(*columns.begin(), 0);
  EXPECT_EQ(*columns.rbegin(), 31);
  // Dword 2j: the even columns of the eight from 8j, dword 2j + 1 the odd ones.
  EXPECT_EQ(dword_column(2, 1), 10);
  EXPECT_EQ(dword_column(3, 0), 9);
}

TEST(Format, SizesOfLayouts) {
  EXPECT_EQ((WeightView{Layout::kF32Panels, 17, 3}.data_bytes()), 2 * 16 * 3 * 4);
  EXPECT_EQ((WeightView{Layout::kBf16Panels, 17, 3}.data_bytes()), 2 * 16 * 2 * 4);
  EXPECT_EQ((WeightView{Layout::kInt8Panels, 17, 33}.data_bytes()), 2 * 16 * 64);
  EXPECT_EQ((WeightView{Layout::kInt8Panels, 17, 33}.scale_bytes()), 2 * 16 * 2 * 2);
  // A released expert matrix: 3072 x 3584 in 4 bits and a byte per 32 (limits.md 1).
  const WeightView w1{Layout::kMxfp4Rows, 3072, 3584};
  EXPECT_EQ(3 * (w1.data_bytes() + w1.scale_bytes()), 17'547'264);
  EXPECT_EQ(element_bytes(Dtype::kBf16), 2);
  EXPECT_STREQ(name(Dtype::kF32), "F32");
}

}  // namespace
}  // namespace k3
