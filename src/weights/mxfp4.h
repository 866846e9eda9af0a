// Packing floats as MXFP4: what export writes and quantisation-aware training sees.
//
//   pack_mxfp4(row, 3584, Mxfp4Rule::kEven, nibbles, scales);      // 1792 and 112 bytes
//
// A block of 32 columns shares the scale 2^(e-127); each value over it goes to the nearest of
// {0, 0.5, 1, 1.5, 2, 3, 4, 6} and its negatives, ties to the even code, saturating at 6
// (OCP Microscaling v1.0; numerics.md 8, training.md 6). Rules for e, of the block's largest
// magnitude amax:
//   kEven   floor(log2 amax) - 2, one more where amax, rounded to bfloat16, has a significand of at
//           least 1.75: the rule of the released quantiser's library
//   kFloor  floor(log2 amax) - 2: OCP's
//   kRceil  the least power of two under which nothing exceeds 6
// kEven and kFloor give values that are representable back unchanged, bit for bit. A block of zeros
// has e = 0; e stays within 0 .. 254. NaN and infinity must not come. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace k3 {

enum class Mxfp4Rule : uint8_t { kEven, kFloor, kRceil };
const char* name(Mxfp4Rule rule);  // "even"
std::optional<Mxfp4Rule> mxfp4_rule(std::string_view name);

// One row of `cols`, a multiple of 32: cols/2 bytes, low nibble the even column, and cols/32
// scales.
void pack_mxfp4(const float* row, int64_t cols, Mxfp4Rule rule, std::byte* nibbles,
                std::byte* scales);
// The values that these bytes stand for.
void unpack_mxfp4(const std::byte* nibbles, const std::byte* scales, int64_t cols, float* row);

}  // namespace k3
