// Released row-major matrices turned into the panels that the kernels compute on (format.h).
//
//   // All rows at once, or any run of whole panels by any thread:
//   pack_bf16_panels(rows, 3072, 7168, out);
//   pack_bf16_panels(rows + 16 * p * 7168 * 2, 16, 7168, out + p * panel_bytes(Layout::kBf16Panels,
//   7168));
//
// Sources are the released bytes and may be unaligned; a source row follows the last without a gap.
// Each function packs `rows` rows that start a panel; rows that the last panel lacks become the
// layout's padding. Ownership: callers own all buffers. Thread rule: pure; split a matrix at
// panels. Errors: none, arguments are checked by assertions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weights/format.h"

namespace k3 {

// Of one panel of 16 rows.
int64_t panel_bytes(Layout layout, int64_t cols);        // data
int64_t panel_scale_bytes(Layout layout, int64_t cols);  // scales

// From BF16 to BF16, unchanged.
void pack_bf16_panels(const std::byte* bf16, int64_t rows, int64_t cols, std::byte* out);

// From F32 unchanged, or from BF16 widened.
void pack_f32_panels(Dtype from, const std::byte* data, int64_t rows, int64_t cols, std::byte* out);

// From F32 or BF16 to blocks of 32 columns. Per row and block: scale = amax / 127 rounded to fp16
// (at most 65504), byte = 128 + rint(x / scale) clamped to 1..255; where the scale is 0, byte 128.
void quantize_int8_panels(Dtype from, const std::byte* data, int64_t rows, int64_t cols,
                          std::byte* out, std::byte* scales);

// The transpose: result[r][c] = data[c * stride + r] (stride in elements). So W^T of the rows
// [b, b + n) of a [*, w] matrix is rows = w, cols = n, data + b * w, stride = w; a thread that
// takes panels from p starts 16 * p elements later.
void pack_bf16_panels_transposed(const std::byte* bf16, int64_t stride, int64_t rows, int64_t cols,
                                 std::byte* out);
void pack_f32_panels_transposed(Dtype from, const std::byte* data, int64_t stride, int64_t rows,
                                int64_t cols, std::byte* out);
void quantize_int8_panels_transposed(Dtype from, const std::byte* data, int64_t stride,
                                     int64_t rows, int64_t cols, std::byte* out, std::byte* scales);

// The values of any layout as [rows][cols] floats: the plain definition, for tests and references.
void unpack(const WeightView& weight, float* out);

}  // namespace k3
