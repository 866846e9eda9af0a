#include "weights/mxfp4.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "weights/format.h"

namespace k3 {
namespace {

constexpr int kBias = 127;
constexpr int kLargestExponent = 2;  // 4 = 2^2 is the largest power of two among the values

int exponent(float positive) { return std::ilogb(positive); }

int scale_exponent(float amax, Mxfp4Rule rule) {
  if (amax == 0) return -kBias;
  if (rule == Mxfp4Rule::kRceil) {
    // 6 = 1.5 * 2^2: amax fits under 2^e if amax <= 6 * 2^e.
    const int e = exponent(amax) - kLargestExponent;
    return amax > std::ldexp(6.0f, e) ? e + 1 : e;
  }
  if (rule == Mxfp4Rule::kFloor) return exponent(amax) - kLargestExponent;
  const float rounded = bf16_to_f32(f32_to_bf16(amax));
  if (rounded == 0) return -kBias;
  const int e = exponent(rounded);
  return e - kLargestExponent + (std::ldexp(rounded, -e) >= 1.75f);
}

// The code of the value nearest to `magnitude`, ties to the even one.
unsigned code(float magnitude) {
  constexpr float kBetween[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  unsigned c = 0;
  for (const float border : kBetween) {
    if (magnitude < border || (magnitude == border && c % 2 == 0)) break;
    ++c;
  }
  return c;
}

}  // namespace

const char* name(Mxfp4Rule rule) {
  return rule == Mxfp4Rule::kEven ? "even" : rule == Mxfp4Rule::kFloor ? "floor" : "rceil";
}

std::optional<Mxfp4Rule> mxfp4_rule(std::string_view text) {
  for (const Mxfp4Rule rule : {Mxfp4Rule::kEven, Mxfp4Rule::kFloor, Mxfp4Rule::kRceil})
    if (text == name(rule)) return rule;
  return std::nullopt;
}

void pack_mxfp4(const float* row, int64_t cols, Mxfp4Rule rule, std::byte* nibbles,
                std::byte* scales) {
  for (int64_t b = 0; b < cols / kBlock; ++b, row += kBlock, nibbles += kBlock / 2) {
    float amax = 0;
    for (int64_t i = 0; i < kBlock; ++i) amax = std::max(amax, std::abs(row[i]));
    const int e = std::clamp(scale_exponent(amax, rule), -kBias, kBias);
    scales[b] = static_cast<std::byte>(e + kBias);
    const auto one = [&](int64_t i) {
      // A power of two divides exactly; the double keeps subnormal scales from losing bits.
      const auto value = static_cast<float>(std::ldexp(double{row[i]}, -e));
      return code(std::abs(value)) | (std::signbit(row[i]) ? 8u : 0u);
    };
    for (int64_t i = 0; i < kBlock; i += 2)
      nibbles[i / 2] = static_cast<std::byte>(one(i) | one(i + 1) << 4);
  }
}

void unpack_mxfp4(const std::byte* nibbles, const std::byte* scales, int64_t cols, float* row) {
  for (int64_t i = 0; i < cols; ++i) {
    const auto byte = static_cast<unsigned>(nibbles[i / 2]);
    row[i] = kFp4Values[i % 2 ? byte >> 4 : byte & 15] *
             e8m0_value(static_cast<uint8_t>(scales[i / kBlock]));
  }
}

}  // namespace k3
