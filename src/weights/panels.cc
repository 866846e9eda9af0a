#include "weights/panels.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <limits>

namespace k3 {
namespace {

constexpr int64_t kRows = kPanelRows;
constexpr uint16_t kMaxHalf = 0x7bff;  // 65504

// Four dwords in one register; the compiler's vector extensions, so no instruction set is named.
using Quad [[gnu::vector_size(16)]] = uint32_t;

using Signed [[gnu::vector_size(16)]] = int32_t;
using Reals [[gnu::vector_size(16)]] = float;

Quad load_quad(const void* from) {
  Quad q;
  std::memcpy(&q, from, sizeof q);
  return q;
}
void store_quad(void* to, Quad q) { std::memcpy(to, &q, sizeof q); }

// `yes` in the lanes where the comparison held.
template <class V>
V select(Signed held, V yes, V no) {
  const Quad mask = std::bit_cast<Quad>(held);
  return std::bit_cast<V>((mask & std::bit_cast<Quad>(yes)) | (~mask & std::bit_cast<Quad>(no)));
}

// out[dword][row] = in[row][dword] for 16 rows of `dwords`, `row_bytes` apart.
void transpose_dwords(const std::byte* in, int64_t row_bytes, int64_t dwords, std::byte* out) {
  const int64_t whole = dwords / kRows * kRows;
  for (int64_t d = 0; d < whole; d += kRows) {
    // Four rows at a time over a whole cache line each: rows a power of two apart share cache sets,
    // and more of them at once would push each other out.
    for (int64_t r = 0; r < kRows; r += 4) {
      const std::byte* row = in + r * row_bytes + d * 4;
      std::byte* to = out + d * kRows * 4 + r * 4;
      for (int64_t i = 0; i < kRows; i += 4) {
        const Quad a = load_quad(row + i * 4), b = load_quad(row + row_bytes + i * 4);
        const Quad c = load_quad(row + 2 * row_bytes + i * 4);
        const Quad e = load_quad(row + 3 * row_bytes + i * 4);
        const Quad ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5);
        const Quad ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
        const Quad ce0 = __builtin_shufflevector(c, e, 0, 4, 1, 5);
        const Quad ce1 = __builtin_shufflevector(c, e, 2, 6, 3, 7);
        std::byte* at = to + i * kRows * 4;
        store_quad(at, __builtin_shufflevector(ab0, ce0, 0, 1, 4, 5));
        store_quad(at + kRows * 4, __builtin_shufflevector(ab0, ce0, 2, 3, 6, 7));
        store_quad(at + 2 * kRows * 4, __builtin_shufflevector(ab1, ce1, 0, 1, 4, 5));
        store_quad(at + 3 * kRows * 4, __builtin_shufflevector(ab1, ce1, 2, 3, 6, 7));
      }
    }
  }
  for (int64_t d = whole; d < dwords; ++d)
    for (int64_t r = 0; r < kRows; ++r)
      std::memcpy(out + (d * kRows + r) * 4, in + r * row_bytes + d * 4, 4);
}

uint16_t load_half(const std::byte* from) {
  uint16_t half;
  std::memcpy(&half, from, 2);
  return half;
}

float load_float(Dtype dtype, const std::byte* from) {
  if (dtype == Dtype::kBf16) return bf16_to_f32(load_half(from));
  float value;
  std::memcpy(&value, from, 4);
  return value;
}

void pack_bf16_panel(const std::byte* in, int64_t rows, int64_t cols, std::byte* out) {
  const int64_t row_bytes = cols * 2;
  if (rows == kRows) {
    transpose_dwords(in, row_bytes, cols / 2, out);
  } else {
    std::memset(out, 0, static_cast<size_t>(panel_bytes(Layout::kBf16Panels, cols)));
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t d = 0; d < cols / 2; ++d)
        std::memcpy(out + (d * kRows + r) * 4, in + r * row_bytes + d * 4, 4);
  }
  if (cols % 2 == 0) return;
  std::byte* last = out + cols / 2 * kRows * 4;
  std::memset(last, 0, kRows * 4);
  for (int64_t r = 0; r < rows; ++r) std::memcpy(last + r * 4, in + (r + 1) * row_bytes - 2, 2);
}

// The values of a panel's columns [begin, begin + count), as tile[column][row]; rows the panel
// lacks are zero. Element (row, column) lies at row * row_step + column * col_step.
struct Source {
  Dtype dtype;
  const std::byte* data;
  int64_t row_step, col_step;  // in elements

  void tile(int64_t rows, int64_t begin, int64_t count, float (*out)[kRows]) const {
    const bool bf16 = dtype == Dtype::kBf16;
    if (rows == kRows && count == kBlock && col_step == 1) {
      bf16 ? block_of_bf16(begin, out) : block_of_f32(begin, out);
    } else {
      bf16 ? fill<uint16_t>(rows, begin, count, out, bf16_to_f32)
           : fill<float>(rows, begin, count, out, [](float x) { return x; });
    }
  }
  // A whole block of a row-major source goes through the dword transposition.
  void block_of_f32(int64_t begin, float (*out)[kRows]) const {
    transpose_dwords(data + begin * 4, row_step * 4, kBlock, reinterpret_cast<std::byte*>(out));
  }
  void block_of_bf16(int64_t begin, float (*out)[kRows]) const {
    alignas(64) uint32_t pairs[kBlock / 2][kRows];
    transpose_dwords(data + begin * 2, row_step * 2, kBlock / 2,
                     reinterpret_cast<std::byte*>(pairs));
    for (int64_t i = 0; i < kBlock / 2; ++i)
      for (int64_t r = 0; r < kRows; r += 4) {
        const Quad pair = load_quad(&pairs[i][r]);
        store_quad(&out[2 * i][r], pair << 16);
        store_quad(&out[2 * i + 1][r], pair & 0xffff0000);
      }
  }
  template <class T, class F>
  void fill(int64_t rows, int64_t begin, int64_t count, float (*out)[kRows], F&& widen) const {
    const auto at = [&](int64_t r, int64_t c) {
      T value;
      std::memcpy(&value, data + (r * row_step + (begin + c) * col_step) * int64_t{sizeof(T)},
                  sizeof(T));
      return widen(value);
    };
    if (rows < kRows) std::fill_n(&out[0][0], count * kRows, 0.0f);
    if (row_step == 1) {
      for (int64_t c = 0; c < count; ++c)
        for (int64_t r = 0; r < rows; ++r) out[c][r] = at(r, c);
    } else {
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < count; ++c) out[c][r] = at(r, c);
    }
  }
};

// One block of one panel: 32 columns as tile[column][row] to 512 bytes and 16 scales.
void quantize_block(const float (*tile)[kRows], std::byte* out, std::byte* scales) {
  for (int64_t r = 0; r < kRows; r += 4) {
    const auto load = [&](int64_t c) { return std::bit_cast<Reals>(load_quad(&tile[c][r])); };
    Quad amax{};  // magnitudes compare as the integers of their bits
    for (int64_t c = 0; c < kBlock; ++c) {
      const Quad x = std::bit_cast<Quad>(load(c)) & 0x7fffffff;
      amax = select(std::bit_cast<Signed>(amax) < std::bit_cast<Signed>(x), x, amax);
    }
    Reals divisor;
    for (int64_t i = 0; i < 4; ++i) {
      const uint16_t half =
          std::min(f32_to_f16(std::bit_cast<float>(uint32_t{amax[i]}) / 127), kMaxHalf);
      std::memcpy(scales + (r + i) * 2, &half, 2);
      divisor[i] = half ? f16_to_f32(half) : std::numeric_limits<float>::infinity();
    }
    for (int64_t d = 0; d < kBlock / 4; ++d) {
      Quad bytes{};
      for (int64_t b = 0; b < 4; ++b) {
        Reals q = load(dword_column(d, b)) / divisor;
        q = select(q > -127.0f, q, Reals{} - 127.0f);  // so a NaN becomes -127
        q = select(q < 127.0f, q, Reals{} + 127.0f);
        // Adding 1.5 * 2^23 leaves the integer nearest to q, ties to even, in the low bits.
        constexpr float kMagic = 12582912.0f;
        const Quad rounded = std::bit_cast<Quad>(q + kMagic) - std::bit_cast<uint32_t>(kMagic);
        bytes |= (rounded + 128) << static_cast<uint32_t>(8 * b);
      }
      store_quad(out + (d * kRows + r) * 4, bytes);
    }
  }
}

void quantize_panels(Source from, int64_t rows, int64_t cols, std::byte* out, std::byte* scales) {
  alignas(64) float tile[kBlock][kRows];
  for (int64_t row = 0; row < rows; row += kRows) {
    for (int64_t c = 0; c < cols; c += kBlock) {
      const int64_t count = std::min(kBlock, cols - c);
      if (count < kBlock) std::fill_n(&tile[0][0], kBlock * kRows, 0.0f);
      from.tile(std::min(kRows, rows - row), c, count, tile);
      quantize_block(tile, out, scales);
      out += kBlock * kRows;
      scales += kRows * 2;
    }
    from.data += kRows * from.row_step * element_bytes(from.dtype);
  }
}

void widen_panels(Source from, int64_t rows, int64_t cols, std::byte* out) {
  alignas(64) float tile[kBlock][kRows];
  for (int64_t row = 0; row < rows; row += kRows) {
    for (int64_t c = 0; c < cols; c += kBlock) {
      const int64_t count = std::min(kBlock, cols - c);
      from.tile(std::min(kRows, rows - row), c, count, tile);
      std::memcpy(out, tile, static_cast<size_t>(count * kRows * 4));
      out += count * kRows * 4;
    }
    from.data += kRows * from.row_step * element_bytes(from.dtype);
  }
}

}  // namespace

int64_t panel_bytes(Layout layout, int64_t cols) {
  return WeightView{layout, kRows, cols}.data_bytes();
}

int64_t panel_scale_bytes(Layout layout, int64_t cols) {
  return WeightView{layout, kRows, cols}.scale_bytes();
}

void pack_bf16_panels(const std::byte* bf16, int64_t rows, int64_t cols, std::byte* out) {
  const int64_t step = panel_bytes(Layout::kBf16Panels, cols);
  for (int64_t row = 0; row < rows; row += kRows, out += step)
    pack_bf16_panel(bf16 + row * cols * 2, std::min(kRows, rows - row), cols, out);
}

void pack_f32_panels(Dtype from, const std::byte* data, int64_t rows, int64_t cols,
                     std::byte* out) {
  assert(from == Dtype::kF32 || from == Dtype::kBf16);
  const int64_t whole = from == Dtype::kF32 ? rows / kRows * kRows : 0;
  for (int64_t row = 0; row < whole; row += kRows)
    transpose_dwords(data + row * cols * 4, cols * 4, cols, out + row * cols * 4);
  widen_panels({from, data + whole * cols * 4, cols, 1}, rows - whole, cols,
               out + whole * cols * 4);
}

void quantize_int8_panels(Dtype from, const std::byte* data, int64_t rows, int64_t cols,
                          std::byte* out, std::byte* scales) {
  assert(from == Dtype::kF32 || from == Dtype::kBf16);
  quantize_panels({from, data, cols, 1}, rows, cols, out, scales);
}

void pack_bf16_panels_transposed(const std::byte* bf16, int64_t stride, int64_t rows, int64_t cols,
                                 std::byte* out) {
  for (int64_t row = 0; row < rows; row += kRows) {
    const int64_t count = std::min(kRows, rows - row);
    for (int64_t c = 0; c < cols; c += 2, out += kRows * 4) {
      // Two source rows interleave into sixteen dwords.
      uint16_t low[kRows] = {}, high[kRows] = {};
      const std::byte* at = bf16 + (c * stride + row) * 2;
      std::memcpy(low, at, static_cast<size_t>(count) * 2);
      if (c + 1 < cols) std::memcpy(high, at + stride * 2, static_cast<size_t>(count) * 2);
      uint32_t dwords[kRows];
      for (int64_t r = 0; r < kRows; ++r) dwords[r] = low[r] | uint32_t{high[r]} << 16;
      std::memcpy(out, dwords, sizeof dwords);
    }
  }
}

void pack_f32_panels_transposed(Dtype from, const std::byte* data, int64_t stride, int64_t rows,
                                int64_t cols, std::byte* out) {
  assert(from == Dtype::kF32 || from == Dtype::kBf16);
  widen_panels({from, data, 1, stride}, rows, cols, out);
}

void quantize_int8_panels_transposed(Dtype from, const std::byte* data, int64_t stride,
                                     int64_t rows, int64_t cols, std::byte* out,
                                     std::byte* scales) {
  assert(from == Dtype::kF32 || from == Dtype::kBf16);
  quantize_panels({from, data, 1, stride}, rows, cols, out, scales);
}

namespace {

float unpack_int8(const WeightView& w, int64_t row, int64_t col) {
  const int64_t panel = row / kRows, r = row % kRows, block = col / kBlock;
  int64_t at = 0;
  while (dword_column(at / 4, at % 4) != col % kBlock) ++at;
  const int64_t index = panel * w.blocks() + block;
  const std::byte q = w.data[(index * 8 + at / 4) * kRows * 4 + r * 4 + at % 4];
  const float scale = f16_to_f32(load_half(w.scales + (index * kRows + r) * 2));
  return static_cast<float>(static_cast<int>(q) - 128) * scale;
}

float unpack_one(const WeightView& w, int64_t row, int64_t col) {
  const int64_t panel = row / kRows, r = row % kRows;
  switch (w.layout) {
    case Layout::kF32Panels:
      return load_float(Dtype::kF32, w.data + ((panel * w.cols + col) * kRows + r) * 4);
    case Layout::kBf16Panels: {
      const int64_t dword = (panel * ceil_div(w.cols, 2) + col / 2) * kRows + r;
      return load_float(Dtype::kBf16, w.data + dword * 4 + col % 2 * 2);
    }
    case Layout::kBf16Rows:
      return load_float(Dtype::kBf16, w.data + (row * w.cols + col) * 2);
    case Layout::kInt8Panels:
      return unpack_int8(w, row, col);
    case Layout::kMxfp4Rows: {
      const auto byte = static_cast<unsigned>(w.data[row * (w.cols / 2) + col / 2]);
      const auto e = static_cast<uint8_t>(w.scales[row * w.blocks() + col / kBlock]);
      return kFp4Values[col % 2 ? byte >> 4 : byte & 15] * e8m0_value(e);
    }
  }
  return 0;
}

}  // namespace

void unpack(const WeightView& weight, float* out) {
  for (int64_t row = 0; row < weight.rows; ++row)
    for (int64_t col = 0; col < weight.cols; ++col) *out++ = unpack_one(weight, row, col);
}

}  // namespace k3
