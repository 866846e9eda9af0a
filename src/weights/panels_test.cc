#include "weights/panels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace k3 {
namespace {

using Bytes = std::vector<std::byte>;

const std::pair<int64_t, int64_t> kShapes[] = {{1, 1},   {1, 32},  {15, 31}, {16, 32}, {17, 33},
                                               {32, 64}, {48, 96}, {33, 7},  {16, 2},  {64, 130},
                                               {5, 257}, {96, 40}, {31, 1}};

std::vector<float> numbers(int64_t count, unsigned seed, bool bf16) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) {
    v = normal(rng) * std::exp2f(static_cast<float>(rng() % 20) - 10);
    if (bf16) v = bf16_to_f32(f32_to_bf16(v));
  }
  return x;
}

// The bytes of `x`, placed one byte past an aligned address, as they lie in a read buffer.
struct Stored {
  Bytes buffer;
  const std::byte* data() const { return buffer.data() + 1; }
};
Stored store(const std::vector<float>& x, Dtype dtype) {
  const auto size = static_cast<size_t>(element_bytes(dtype));
  Stored s;
  s.buffer.resize(1 + x.size() * size);
  for (size_t i = 0; i < x.size(); ++i) {
    const uint16_t half = f32_to_bf16(x[i]);
    std::memcpy(s.buffer.data() + 1 + i * size,
                dtype == Dtype::kBf16 ? static_cast<const void*>(&half) : &x[i], size);
  }
  return s;
}

std::vector<float> transposed(const std::vector<float>& x, int64_t rows, int64_t cols) {
  std::vector<float> y(x.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) y[c * rows + r] = x[r * cols + c];
  return y;
}

// A buffer for a layout, filled with a value that no packing leaves behind.
struct Packed {
  WeightView view;
  Bytes data, scales;
  Packed(Layout layout, int64_t rows, int64_t cols) : view{layout, rows, cols} {
    data.assign(static_cast<size_t>(view.data_bytes()), std::byte{0xee});
    scales.assign(static_cast<size_t>(view.scale_bytes()), std::byte{0xee});
    view.data = data.data();
    view.scales = scales.data();
  }
  std::vector<float> values() const {
    std::vector<float> out(static_cast<size_t>(view.rows * view.cols));
    unpack(view, out.data());
    return out;
  }
};

TEST(Panels, Bf16RoundTripAndDefinition) {
  for (const auto& [rows, cols] : kShapes) {
    const auto x = numbers(rows * cols, 1, true);
    Packed p(Layout::kBf16Panels, rows, cols);
    pack_bf16_panels(store(x, Dtype::kBf16).data(), rows, cols, p.data.data());
    EXPECT_EQ(p.values(), x) << rows << "x" << cols;
    // The layout of format.h, spelled out, padding included.
    const int64_t pairs = ceil_div(cols, 2);
    for (int64_t r = 0; r < round_up(rows, 16); ++r)
      for (int64_t c = 0; c < pairs * 2; ++c) {
        uint16_t half;
        std::memcpy(&half,
                    p.data.data() + (((r / 16) * pairs + c / 2) * 16 + r % 16) * 4 + c % 2 * 2, 2);
        ASSERT_EQ(half, r < rows && c < cols ? f32_to_bf16(x[r * cols + c]) : 0) << r << "," << c;
      }
  }
}

TEST(Panels, AnyRunOfPanelsMayBePackedAlone) {
  const int64_t rows = 72, cols = 70;
  const auto x = numbers(rows * cols, 3, true);
  const Stored stored = store(x, Dtype::kBf16);
  Packed whole(Layout::kBf16Panels, rows, cols), parts(Layout::kBf16Panels, rows, cols);
  pack_bf16_panels(stored.data(), rows, cols, whole.data.data());
  Packed whole8(Layout::kInt8Panels, rows, cols), parts8(Layout::kInt8Panels, rows, cols);
  quantize_int8_panels(Dtype::kBf16, stored.data(), rows, cols, whole8.data.data(),
                       whole8.scales.data());
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{3, 5}, {0, 1}, {1, 3}}) {
    const int64_t count = std::min(rows, end * 16) - begin * 16;
    pack_bf16_panels(stored.data() + begin * 16 * cols * 2, count, cols,
                     parts.data.data() + begin * panel_bytes(Layout::kBf16Panels, cols));
    quantize_int8_panels(
        Dtype::kBf16, stored.data() + begin * 16 * cols * 2, count, cols,
        parts8.data.data() + begin * panel_bytes(Layout::kInt8Panels, cols),
        parts8.scales.data() + begin * panel_scale_bytes(Layout::kInt8Panels, cols));
  }
  EXPECT_EQ(whole.data, parts.data);
  EXPECT_EQ(whole8.data, parts8.data);
  EXPECT_EQ(whole8.scales, parts8.scales);
}

TEST(Panels, F32FromBothTypes) {
  for (const auto& [rows, cols] : kShapes) {
    const auto x = numbers(rows * cols, 5, true);
    for (const Dtype from : {Dtype::kF32, Dtype::kBf16}) {
      Packed p(Layout::kF32Panels, rows, cols);
      pack_f32_panels(from, store(x, from).data(), rows, cols, p.data.data());
      EXPECT_EQ(p.values(), x) << rows << "x" << cols;
      for (int64_t r = rows; r < round_up(rows, 16); ++r)
        for (int64_t c = 0; c < cols; ++c) {
          float padding;
          std::memcpy(&padding, p.data.data() + ((r / 16 * cols + c) * 16 + r % 16) * 4, 4);
          ASSERT_EQ(padding, 0.0f);
        }
    }
  }
}

TEST(Panels, TransposedEqualsPackingTheTranspose) {
  for (const auto& [rows, cols] : kShapes) {  // of the result
    const auto y = numbers(rows * cols, 6, true);
    const auto x = transposed(y, rows, cols);  // [cols][rows], what is stored
    for (const Dtype from : {Dtype::kF32, Dtype::kBf16}) {
      const Stored stored = store(x, from), direct = store(y, from);
      Packed f(Layout::kF32Panels, rows, cols), g(Layout::kF32Panels, rows, cols);
      pack_f32_panels_transposed(from, stored.data(), rows, rows, cols, f.data.data());
      pack_f32_panels(from, direct.data(), rows, cols, g.data.data());
      EXPECT_EQ(f.data, g.data) << rows << "x" << cols;
      Packed q(Layout::kInt8Panels, rows, cols), r(Layout::kInt8Panels, rows, cols);
      quantize_int8_panels_transposed(from, stored.data(), rows, rows, cols, q.data.data(),
                                      q.scales.data());
      quantize_int8_panels(from, direct.data(), rows, cols, r.data.data(), r.scales.data());
      EXPECT_EQ(q.data, r.data) << rows << "x" << cols;
      EXPECT_EQ(q.scales, r.scales) << rows << "x" << cols;
    }
    Packed b(Layout::kBf16Panels, rows, cols), c(Layout::kBf16Panels, rows, cols);
    pack_bf16_panels_transposed(store(x, Dtype::kBf16).data(), rows, rows, cols, b.data.data());
    pack_bf16_panels(store(y, Dtype::kBf16).data(), rows, cols, c.data.data());
    EXPECT_EQ(b.data, c.data) << rows << "x" << cols;
  }
}

// A slice of a wider matrix: kv_b_proj holds heads x (nope + v) rows of kv_lora columns.
TEST(Panels, TransposedRowRangeOfAWiderMatrix) {
  const int64_t all = 40, width = 24, begin = 12, n = 10;
  const auto x = numbers(all * width, 7, true);
  const Stored stored = store(x, Dtype::kBf16);
  Packed p(Layout::kBf16Panels, width, n);
  pack_bf16_panels_transposed(stored.data() + begin * width * 2, width, width, n, p.data.data());
  const auto y = p.values();
  for (int64_t r = 0; r < width; ++r)
    for (int64_t c = 0; c < n; ++c) ASSERT_EQ(y[r * n + c], x[(begin + c) * width + r]);
}

// rint((x) / scale) from the definition in panels.h.
int naive_code(float x, float scale) {
  if (scale == 0) return 128;
  return 128 + static_cast<int>(std::clamp(std::nearbyint(x / scale), -127.0f, 127.0f));
}

void expect_int8(const std::vector<float>& x, int64_t rows, int64_t cols, const Packed& p) {
  const int64_t blocks = ceil_div(cols, 32);
  for (int64_t r = 0; r < round_up(rows, 16); ++r)
    for (int64_t b = 0; b < blocks; ++b) {
      float amax = 0;
      for (int64_t c = b * 32; c < std::min(cols, b * 32 + 32) && r < rows; ++c)
        amax = std::max(amax, std::fabs(x[r * cols + c]));
      const uint16_t expected = std::min<uint16_t>(f32_to_f16(amax / 127), 0x7bff);
      const int64_t block = r / 16 * blocks + b;
      uint16_t half;
      std::memcpy(&half, p.scales.data() + (block * 16 + r % 16) * 2, 2);
      ASSERT_EQ(half, expected) << r << "," << b;
      for (int64_t d = 0; d < 8; ++d)
        for (int64_t k = 0; k < 4; ++k) {
          const int64_t c = b * 32 + dword_column(d, k);
          const auto got = static_cast<int>(p.data[((block * 8 + d) * 16 + r % 16) * 4 + k]);
          const bool inside = r < rows && c < cols;
          ASSERT_EQ(got, inside ? naive_code(x[r * cols + c], f16_to_f32(half)) : 128)
              << r << "," << c;
        }
    }
}

TEST(Panels, Int8EqualsTheNaiveDefinition) {
  for (const auto& [rows, cols] : kShapes)
    for (const Dtype from : {Dtype::kF32, Dtype::kBf16}) {
      const auto x = numbers(rows * cols, 8, from == Dtype::kBf16);
      Packed p(Layout::kInt8Panels, rows, cols);
      quantize_int8_panels(from, store(x, from).data(), rows, cols, p.data.data(), p.scales.data());
      expect_int8(x, rows, cols, p);
    }
}

TEST(Panels, Int8AtTheEdges) {
  std::vector<float> x(16 * 64, 0.0f);  // zero blocks, tiny, huge, half steps, negative zero
  x[1] = 1e-9f;                         // below the smallest half times 127: all zero
  x[64] = 3e-6f, x[65] = 1e-6f;         // a subnormal scale
  x[128] = 1e30f, x[129] = -1e30f;      // past the largest scale
  x[192] = 127, x[193] = 0.5f, x[194] = 1.5f, x[195] = -2.5f, x[196] = -0.0f;
  x[256] = -127;
  Packed p(Layout::kInt8Panels, 16, 64);
  quantize_int8_panels(Dtype::kF32, store(x, Dtype::kF32).data(), 16, 64, p.data.data(),
                       p.scales.data());
  expect_int8(x, 16, 64, p);
  const auto y = p.values();
  EXPECT_EQ(y[1], 0.0f);
  EXPECT_EQ(y[192], 127.0f);
  EXPECT_EQ(y[193], 0.0f);  // ties to even
  EXPECT_EQ(y[194], 2.0f);
  EXPECT_EQ(y[195], -2.0f);
  EXPECT_EQ(y[256], -127.0f);
}

// NaN and infinity are refused where weights are read; here they must only not be undefined.
TEST(Panels, Int8SurvivesNonNumbers) {
  std::vector<float> x(16 * 32, 1.0f);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  x[40] = std::numeric_limits<float>::infinity();
  Packed p(Layout::kInt8Panels, 16, 32);
  quantize_int8_panels(Dtype::kF32, store(x, Dtype::kF32).data(), 16, 32, p.data.data(),
                       p.scales.data());
  EXPECT_NEAR(p.values()[2 * 32], 1.0f, 1e-3f);
}

TEST(Panels, Int8ErrorIsHalfAStep) {
  const int64_t rows = 64, cols = 256;
  const auto x = numbers(rows * cols, 9, true);
  Packed p(Layout::kInt8Panels, rows, cols);
  quantize_int8_panels(Dtype::kBf16, store(x, Dtype::kBf16).data(), rows, cols, p.data.data(),
                       p.scales.data());
  const auto y = p.values();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t b = 0; b < cols; b += 32) {
      float amax = 0;
      for (int64_t c = b; c < b + 32; ++c) amax = std::max(amax, std::fabs(x[r * cols + c]));
      // Half a step, and what rounding the scale to 11 bits may cost at the largest value.
      const float bound = amax / 127 * 0.5f + amax / 2048 * 1.01f;
      for (int64_t c = b; c < b + 32; ++c) ASSERT_NEAR(y[r * cols + c], x[r * cols + c], bound);
    }
}

TEST(Panels, Mxfp4RowsUnpackByTheFormat) {
  const int64_t rows = 3, cols = 64;
  Bytes data(rows * cols / 2), scales(rows * cols / 32);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7 + 0x21);
  const uint8_t exponents[] = {127, 0, 130, 120, 254, 1};
  std::memcpy(scales.data(), exponents, sizeof exponents);
  std::vector<float> y(rows * cols);
  unpack({Layout::kMxfp4Rows, rows, cols, data.data(), scales.data()}, y.data());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      const auto byte = static_cast<int>(data[r * 32 + c / 2]);
      const float code = kFp4Values[c % 2 ? byte >> 4 : byte & 15];
      ASSERT_EQ(y[r * cols + c], code * std::ldexp(1.0f, exponents[r * 2 + c / 32] - 127));
    }
}

}  // namespace
}  // namespace k3
