#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/kernels_testing.h"

namespace k3 {
namespace {

using namespace testing;

struct Case {
  Layout layout;
  ActivationForm form;
};
constexpr Case kCases[] = {
    {Layout::kF32Panels, ActivationForm::kF32},   {Layout::kBf16Panels, ActivationForm::kF32},
    {Layout::kInt8Panels, ActivationForm::kF32},  {Layout::kInt8Panels, ActivationForm::kInt16},
    {Layout::kInt8Panels, ActivationForm::kInt8}, {Layout::kMxfp4Rows, ActivationForm::kF32},
    {Layout::kMxfp4Rows, ActivationForm::kInt16}, {Layout::kMxfp4Rows, ActivationForm::kInt8},
    {Layout::kBf16Rows, ActivationForm::kF32},
};
std::string label(const Case& c) {
  const char* form = c.form == ActivationForm::kF32     ? "f32"
                     : c.form == ActivationForm::kInt16 ? "int16"
                                                        : "int8";
  return std::string(name(c.layout)) + " x " + form;
}
bool legal(const Case& c, int64_t cols) {
  return c.layout != Layout::kMxfp4Rows || cols % kBlock == 0;
}

// Activations in the form a case wants; rows of x are wider than needed, the last one is not.
struct Tokens {
  int64_t tokens, cols;
  Floats x;
  int64_t x_stride;
  Guarded<std::byte> quantized;
  int64_t quantized_stride = 0;
  ActivationForm form;

  Tokens(const Case& c, int64_t n, int64_t width, Random& random)
      : tokens(n),
        cols(width),
        x(n == 0 ? 0 : (n - 1) * (width + 3) + width),
        x_stride(width + 3),
        quantized(c.form == ActivationForm::kF32 ? 0 : n * quantized_bytes(c.form, width)),
        form(c.form) {
    for (float& value : x) value = random.heavy();
    if (form == ActivationForm::kF32) return;
    quantized_stride = quantized_bytes(form, cols);
    for (int64_t t = 0; t < n; ++t) {
      kernels(Isa::kScalar)
          .quantize(form, c.layout, x.data() + t * x_stride, cols,
                    quantized.data() + t * quantized_stride);
    }
  }
  // Tokens first .. first+count-1.
  Operand operand(int64_t first, int64_t count) const {
    Operand o;
    o.form = form;
    o.tokens = count;
    o.cols = cols;
    if (form == ActivationForm::kF32) {
      o.f32 = x.data() + first * x_stride;
      o.f32_stride = x_stride;
    } else {
      o.quantized = quantized.data() + first * quantized_stride;
      o.quantized_stride = quantized_stride;
    }
    return o;
  }
  // The documented layout of a quantized token.
  int64_t planes() const { return form == ActivationForm::kInt16 ? 2 : 1; }
  int32_t q(int64_t t, int64_t col) const {
    const auto* token = reinterpret_cast<const int8_t*>(quantized.data()) + t * quantized_stride;
    const int64_t block = col / 32;
    for (int64_t p = 0; p < 32; ++p) {
      if (dword_column(p / 4, p % 4) != col % 32) continue;
      const int8_t* high = token + (block / 4 * planes() * 8 + p / 4) * 16 + block % 4 * 4 + p % 4;
      return planes() == 1 ? *high : 256 * high[0] + high[128];
    }
    return 0;
  }
  const std::byte* factors(int64_t t, int64_t block) const {
    return quantized.data() + t * quantized_stride + ceil_div(cols, 128) * planes() * 128 +
           block / 4 * 32 + block % 4 * 4;
  }
  float scale(int64_t t, int64_t block) const {
    float s;
    std::memcpy(&s, factors(t, block), 4);
    return s;
  }
  int32_t correction(int64_t t, int64_t block) const {
    int32_t c;
    std::memcpy(&c, factors(t, block) + 16, 4);
    return c;
  }
};

constexpr float kUntouched = -12345.0f;

// y of the first `count` tokens, with a stride and a fence that the kernel must leave alone.
std::vector<float> product(Isa isa, const Matrix& m, const Tokens& x, int64_t first, int64_t count,
                           int64_t panel_begin, int64_t panel_end) {
  const int64_t stride = m.rows + 1;
  Floats y(count == 0 ? 0 : (count - 1) * stride + m.rows);
  std::fill(y.begin(), y.end(), kUntouched);
  kernels(isa).matmul(m.view(), x.operand(first, count), y.data(), stride, panel_begin, panel_end);
  std::vector<float> dense;
  for (int64_t t = 0; t < count; ++t) {
    for (int64_t r = 0; r < m.rows; ++r) {
      const float value = y[t * stride + r];
      if (r >= panel_begin * 16 && r < panel_end * 16) {
        dense.push_back(value);
      } else {
        EXPECT_EQ(value, kUntouched) << "row " << r;
      }
    }
    if (t + 1 < count) {
      EXPECT_EQ(y[t * stride + m.rows], kUntouched);
    }
  }
  return dense;
}

std::vector<float> product(Isa isa, const Matrix& m, const Tokens& x, int64_t count) {
  return product(isa, m, x, 0, count, 0, m.view().panels());
}

constexpr int64_t kMostTokens = 64;
const int64_t kCols[] = {1, 24, 32, 40, 48, 64, 77, 96, 128, 160, 512, 544, 1056, 3584};

TEST(Matmul, EveryTargetAndBatchEqualsTheScalarOne) {
  Random random(1);
  int64_t next_rows = 1;
  std::set<int64_t> rows_seen;
  for (const Case& c : kCases) {
    for (const int64_t cols : kCols) {
      if (!legal(c, cols)) continue;
      for (int64_t i = 0; i < (cols > 1000 ? 3 : 8); ++i) {
        const int64_t rows = next_rows;
        next_rows = next_rows % 50 + 1;
        rows_seen.insert(rows);
        SCOPED_TRACE(label(c) + " rows " + std::to_string(rows) + " cols " + std::to_string(cols));
        const Matrix m = random_matrix(c.layout, rows, cols, random);
        const Tokens x(c, kMostTokens, cols, random);
        const std::vector<float> expected = product(Isa::kScalar, m, x, kMostTokens);
        for (const Isa isa : isas()) {
          for (int64_t count = 0; count <= kMostTokens; count += count < 37 ? 1 : 27) {
            if (isa == Isa::kScalar && count % 7 != 1) continue;
            if (cols > 1000 && count % 5 != i && count > 8) continue;
            const std::vector<float> got = product(isa, m, x, count);
            ASSERT_TRUE(same_bits(got.data(), expected.data(), count * rows))
                << name(isa) << " tokens " << count;
          }
        }
      }
    }
  }
  EXPECT_EQ(rows_seen.size(), 50u);
}

TEST(Matmul, PanelRangesEqualTheWhole) {
  Random random(2);
  for (const Case& c : kCases) {
    for (const int64_t rows : {16, 40, 135, 208}) {
      const int64_t cols = 96;
      const Matrix m = random_matrix(c.layout, rows, cols, random);
      const Tokens x(c, 100, cols, random);
      const int64_t panels = m.view().panels();
      for (const int64_t tokens : {1, 2, 3, 5, 6, 7, 13, 100}) {
        const std::vector<float> whole = product(Isa::kScalar, m, x, tokens);
        for (const Isa isa : isas()) {
          for (int64_t cut = 0; cut <= panels; ++cut) {
            const int64_t row = std::min(cut * 16, rows);
            const auto left = product(isa, m, x, 0, tokens, 0, cut);
            const auto right = product(isa, m, x, 0, tokens, cut, panels);
            for (int64_t t = 0; t < tokens; ++t) {
              ASSERT_TRUE(same_bits(left.data() + t * row, whole.data() + t * rows, row) &&
                          same_bits(right.data() + t * (rows - row), whole.data() + t * rows + row,
                                    rows - row))
                  << label(c) << " " << name(isa) << " rows " << rows << " cut " << cut;
            }
          }
        }
      }
    }
  }
}

TEST(Matmul, TokensTogetherEqualEachAlone) {
  Random random(3);
  for (const Case& c : kCases) {
    const Matrix m = random_matrix(c.layout, 37, 160, random);
    const Tokens x(c, 200, 160, random);
    for (const Isa isa : isas()) {
      const auto together = product(isa, m, x, 200);
      for (int64_t t = 0; t < 200; ++t) {
        const auto alone = product(isa, m, x, t, 1, 0, m.view().panels());
        ASSERT_TRUE(same_bits(alone.data(), together.data() + t * 37, 37))
            << label(c) << " " << name(isa) << " token " << t;
      }
    }
  }
}

// A result is chains of n/2 fma and one sum, each rounding once: |error| <= gamma_(n/2+1) sum |w
// x|. Block formats: 16 fma, a sum, then one fma per block.
TEST(Matmul, F32OperandAgreesWithDouble) {
  Random random(4);
  for (const Case& c : kCases) {
    if (c.form != ActivationForm::kF32) continue;
    for (const int64_t cols : {24, 32, 160, 3584}) {
      if (!legal(c, cols)) continue;
      const int64_t rows = 19, tokens = 3;
      const Matrix m = random_matrix(c.layout, rows, cols, random);
      const Tokens x(c, tokens, cols, random);
      const auto y = product(Isa::kScalar, m, x, tokens);
      const bool blocks = c.layout == Layout::kInt8Panels || c.layout == Layout::kMxfp4Rows;
      const double roundings = blocks ? 17 + std::ceil(cols / 32.0) : cols / 2 + 2;
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t r = 0; r < rows; ++r) {
          double sum = 0, magnitude = 0;
          for (int64_t i = 0; i < cols; ++i) {
            const double term = double{m.at(r, i)} * m.factor(r, i) * x.x[t * x.x_stride + i];
            sum += term;
            magnitude += std::abs(term);
          }
          ASSERT_NEAR(y[static_cast<size_t>(t * rows + r)], sum, gamma(roundings) * magnitude)
              << label(c) << " cols " << cols;
        }
      }
    }
  }
}

// The integer forms have no tolerance: the sums of a block are exact, here in int64, and one fma
// per block follows.
TEST(Matmul, IntegerOperandIsExactPerBlock) {
  Random random(5);
  for (const Case& c : kCases) {
    if (c.form == ActivationForm::kF32) continue;
    for (const int64_t cols : {24, 32, 96, 160, 512, 3584}) {
      if (!legal(c, cols)) continue;
      const int64_t rows = 21, tokens = 3;
      const Matrix m = random_matrix(c.layout, rows, cols, random);
      const Tokens x(c, tokens, cols, random);
      const auto y = product(Isa::kScalar, m, x, tokens);
      const int64_t times = c.layout == Layout::kMxfp4Rows ? 2 : 1;  // weights in halves
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t r = 0; r < rows; ++r) {
          float acc = 0;
          for (int64_t b = 0; b < ceil_div(cols, 32); ++b) {
            int64_t d = 0;
            for (int64_t i = b * 32; i < std::min(b * 32 + 32, cols); ++i) {
              d += static_cast<int64_t>(times * m.at(r, i)) * x.q(t, i);
            }
            acc = std::fma(static_cast<float>(d), x.scale(t, b) * m.factor(r, b * 32), acc);
          }
          const float got = y[static_cast<size_t>(t * rows + r)];
          ASSERT_TRUE(same_bits(&got, &acc, 1)) << label(c) << " cols " << cols << " row " << r;
        }
      }
    }
  }
}

// The largest sums a block can have: past 2^24 for int8 weights with 16-bit activations.
TEST(Matmul, IntegerExtremesDoNotSaturate) {
  for (const Case& c : kCases) {
    if (c.form == ActivationForm::kF32) continue;
    const int64_t rows = 16, cols = 64;
    Random random(6);
    Matrix m = random_matrix(c.layout, rows, cols, random);
    const bool mxfp4 = c.layout == Layout::kMxfp4Rows;
    for (const int sign : {-1, 1}) {
      const auto byte = static_cast<std::byte>(mxfp4      ? (sign < 0 ? 0xff : 0x77)
                                               : sign < 0 ? 0
                                                          : 255);
      std::fill(m.data.begin(), m.data.end(), byte);
      std::fill(m.scales.begin(), m.scales.end(), std::byte{mxfp4 ? uint8_t{127} : uint8_t{0x3c}});
      const int64_t weight = mxfp4 ? sign * 12 : sign < 0 ? -128 : 127;
      const float unit = mxfp4 ? 1.0f : f16_to_f32(0x3c3c);
      for (const float value : {1.0f, -1.0f}) {
        Tokens x(c, 7, cols, random);
        std::fill(x.x.begin(), x.x.end(), value);
        for (int64_t t = 0; t < 7; ++t) {
          kernels(Isa::kScalar)
              .quantize(c.form, c.layout, x.x.data() + t * x.x_stride, cols,
                        x.quantized.data() + t * x.quantized_stride);
        }
        const int64_t q = c.form == ActivationForm::kInt8 ? 127 : 32639;
        ASSERT_EQ(x.q(0, 5), value < 0 ? -q : q);
        const int64_t d = 32 * weight * x.q(0, 0);
        float expected = 0;
        for (int64_t b = 0; b < 2; ++b) {
          expected = std::fma(static_cast<float>(d), x.scale(0, b) * unit, expected);
        }
        for (const Isa isa : isas()) {
          for (const int64_t tokens : {1, 7}) {
            for (const float y : product(isa, m, x, tokens)) {
              ASSERT_EQ(y, expected) << label(c) << " " << name(isa);
            }
          }
        }
      }
    }
  }
}

// Scale bytes at the ends of their range, among them the subnormal 2^-127.
TEST(Matmul, ScaleBytesAtTheEnds) {
  Random random(7);
  for (const Case& c : kCases) {
    if (c.layout != Layout::kMxfp4Rows) continue;
    for (const int e : {0, 1, 2, 127, 253, 254}) {
      Matrix m = random_matrix(c.layout, 16, 64, random);
      std::fill(m.scales.begin(), m.scales.end(), static_cast<std::byte>(e));
      Tokens x(c, 8, 64, random);
      const auto expected = product(Isa::kScalar, m, x, 8);
      if (c.form == ActivationForm::kF32) {
        for (int64_t r = 0; r < 16; ++r) {
          double sum = 0, magnitude = 0;
          for (int64_t i = 0; i < 64; ++i) {
            const double term =
                double{m.at(r, i)} * double{e8m0_value(static_cast<uint8_t>(e))} * double{x.x[i]};
            sum += term;
            magnitude += std::abs(term);
          }
          if (magnitude < 1e38) {  // a result below the normal range rounds to units of 2^-149
            ASSERT_NEAR(expected[static_cast<size_t>(r)], sum, gamma(19) * magnitude + 0x1p-148)
                << e;
          }
        }
        ASSERT_TRUE(e != 0 || expected[0] != 0) << "a subnormal scale was flushed";
      }
      for (const Isa isa : isas()) {
        for (const int64_t tokens : {1, 8}) {
          const auto got = product(isa, m, x, tokens);
          ASSERT_TRUE(same_bits(got.data(), expected.data(), tokens * 16)) << name(isa) << " " << e;
        }
      }
    }
  }
}

TEST(Quantize, EveryTargetEqualsTheScalarOne) {
  Random random(8);
  for (const Case& c : kCases) {
    if (c.form == ActivationForm::kF32) continue;
    for (int64_t cols = 1; cols <= 200; ++cols) {
      Floats x = heavy_floats(cols, random);
      if (cols % 5 == 0) std::fill(x.begin(), x.begin() + std::min<int64_t>(cols, 32), 0.0f);
      if (cols % 7 == 0) {
        for (float& value : x) value *= 0x1p-120f;
      }
      if (cols % 11 == 0) x[cols / 2] = 3e38f;
      const int64_t used = ceil_div(cols, 128) * (c.form == ActivationForm::kInt8 ? 160 : 288);
      std::vector<std::byte> expected;
      for (const Isa isa : isas()) {
        Guarded<std::byte> out(used);  // exactly: the rounding up of quantized_bytes is not needed
        kernels(isa).quantize(c.form, c.layout, x.data(), cols, out.data());
        if (expected.empty()) expected.assign(out.begin(), out.end());
        ASSERT_EQ(std::memcmp(out.data(), expected.data(), expected.size()), 0)
            << label(c) << " " << name(isa) << " cols " << cols;
      }
    }
  }
}

// q * scale is within half a step of x: the roundings of limit / amax, of the product with it and
// of the scale move q by at most 3 units in 2^24 of its limit.
TEST(Quantize, IsTheNearestStep) {
  Random random(9);
  for (const Case& c : kCases) {
    if (c.form == ActivationForm::kF32) continue;
    const Tokens x(c, 4, 160, random);
    const double limit = c.form == ActivationForm::kInt8 ? 127 : 32639;
    const double times = c.layout == Layout::kMxfp4Rows ? 2 : 1;  // the stored scale is half
    for (int64_t t = 0; t < 4; ++t) {
      for (int64_t b = 0; b < 5; ++b) {
        int32_t sum = 0;
        for (int64_t i = b * 32; i < b * 32 + 32; ++i) {
          const int32_t q = x.q(t, i);
          sum += q;
          const double scale = times * x.scale(t, b);
          ASSERT_NEAR(q * scale, x.x[t * x.x_stride + i], scale * (0.5 + 3 * kUnit * limit));
          ASSERT_LE(std::abs(q), limit);
        }
        ASSERT_EQ(x.correction(t, b), sum * (c.layout == Layout::kMxfp4Rows ? -12 : -128));
      }
    }
  }
}

// All E4M3 values, and a plain search for the nearest.
TEST(RoundMxfp8, IsTheNearestE4m3UnderTheLeastScaleThatHolds) {
  std::vector<double> codes;
  for (int e = 0; e < 16; ++e) {
    for (int m = 0; m < 8; ++m) {
      if (e == 15 && m == 7) continue;  // NaN
      codes.push_back(e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10));
    }
  }
  ASSERT_EQ(codes.back(), 448);
  Random random(10);
  for (int64_t n = 1; n <= 100; ++n) {
    Floats x = heavy_floats(n, random);
    for (float& value : x) {
      if (n % 3 == 0) value = bf16_to_f32(f32_to_bf16(value));  // makes ties
      if (n % 4 == 0) value *= std::ldexp(1.0f, static_cast<int>(random.below(30)) - 15);
    }
    if (n % 9 == 0) x[0] = 448;
    Floats expected(n);
    kernels(Isa::kScalar).round_mxfp8(x.data(), n, expected.data());
    for (int64_t b = 0; b < n; b += 32) {
      double amax = 0;
      for (int64_t i = b; i < std::min(n, b + 32); ++i)
        amax = std::max(amax, std::abs(double{x[i]}));
      int e = -126;
      while (std::ldexp(448, e) < amax) ++e;
      for (int64_t i = b; i < std::min(n, b + 32); ++i) {
        const double r = std::ldexp(std::abs(double{x[i]}), -e);
        size_t best = 0;
        for (size_t k = 1; k < codes.size(); ++k) {
          const double gain = std::abs(codes[best] - r) - std::abs(codes[k] - r);
          if (gain > 0 || (gain == 0 && k % 2 == 0)) best = k;
        }
        const auto nearest = static_cast<float>(std::copysign(std::ldexp(codes[best], e), x[i]));
        ASSERT_TRUE(same_bits(&expected[i], &nearest, 1)) << x[i] << " " << expected[i];
      }
    }
    for (const Isa isa : isas()) {
      Floats y(n);
      kernels(isa).round_mxfp8(x.data(), n, y.data());
      ASSERT_TRUE(same_bits(y.data(), expected.data(), n)) << name(isa) << " n " << n;
      kernels(isa).round_mxfp8(y.data(), n, y.data());  // rounded values stay
      ASSERT_TRUE(same_bits(y.data(), expected.data(), n)) << name(isa) << " n " << n;
    }
  }
}

}  // namespace
}  // namespace k3
