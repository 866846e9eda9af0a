// Number formats, and the layouts in which matrices are computed on.
//
//   WeightView w{Layout::kMxfp4Rows, 3072, 3584, packed, scales};
//
// A released dense matrix is [rows, cols] row-major, y = W x. The kernels let one SIMD lane own one
// output row, so dense matrices are held as panels of 16 rows, interleaved when they arrive from
// disk (weights/panels.h). MXFP4 experts are never re-encoded nor moved: their released bytes are
// the layout. Views do not own; whoever leased the bytes keeps them alive.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace k3 {

constexpr int64_t kPanelRows = 16;
constexpr int64_t kBlock = 32;  // columns that share a scale, in every block format

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Element types of stored tensors, as safetensors names them.
enum class Dtype : uint8_t { kU8, kBf16, kF16, kF32, kI32, kI64 };
const char* name(Dtype dtype);       // "BF16"
int64_t element_bytes(Dtype dtype);  // 2

enum class Layout : uint8_t {
  // [ceil(rows/16)][cols][16 rows] float.
  kF32Panels,
  // [ceil(rows/16)][ceil(cols/2)][16 rows] dwords; a dword holds column 2i in its low half and
  // column 2i+1 in its high half. Missing rows and the odd column are zero.
  kBf16Panels,
  // As released: [rows][cols] bf16, row after row.
  kBf16Rows,
  // Blocks of 32 columns, value = (byte - 128) * scale. data: [ceil(rows/16)][ceil(cols/32)]
  // [8 dwords][16 rows], dword order as kDwordColumns; scales: fp16
  // [ceil(rows/16)][ceil(cols/32)][16 rows]. Padding is byte 128 and scale 0.
  kInt8Panels,
  // As released: data [rows][cols/2], byte j holds column 2j in its low nibble; scales: E8M0 bytes
  // [rows][cols/32]. cols is a multiple of 32.
  kMxfp4Rows,
};
const char* name(Layout layout);

// The columns of a block of 32 behind dword d, byte b of the integer forms, weights and activations
// alike: dword 2j holds the even columns of the eight from 8j, dword 2j+1 the odd ones. It is the
// order in which the nibbles of four MXFP4 bytes come apart.
constexpr int64_t dword_column(int64_t d, int64_t b) { return d / 2 * 8 + b * 2 + d % 2; }

struct WeightView {
  Layout layout = Layout::kF32Panels;
  int64_t rows = 0, cols = 0;
  const std::byte* data = nullptr;
  const std::byte* scales = nullptr;  // kInt8Panels and kMxfp4Rows only

  int64_t panels() const { return ceil_div(rows, kPanelRows); }
  int64_t blocks() const { return ceil_div(cols, kBlock); }
  int64_t data_bytes() const;
  int64_t scale_bytes() const;
};

// The E2M1 values behind the sixteen nibble codes.
constexpr float kFp4Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                  -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// 2^(e-127) for a scale byte: 0 is the subnormal 2^-127, 255 is NaN (refused when weights are
// read).
constexpr float e8m0_value(uint8_t e) {
  if (e == 0) return std::bit_cast<float>(uint32_t{0x00400000});
  if (e == 255) return std::bit_cast<float>(uint32_t{0x7fc00000});
  return std::bit_cast<float>(uint32_t{e} << 23);
}

constexpr float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
constexpr uint16_t f32_to_bf16(float value) {  // nearest, ties to even; NaN stays NaN
  const uint32_t u = std::bit_cast<uint32_t>(value);
  if ((u & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((u >> 16) | 0x40);
  return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);  // nearest, ties to even; overflow becomes infinity

}  // namespace k3
