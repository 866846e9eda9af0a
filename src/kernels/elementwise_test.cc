#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "kernels/kernels_testing.h"

namespace k3 {
namespace {

using namespace testing;

constexpr float kInf = std::numeric_limits<float>::infinity();

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

// The distance in units of the last place of the float nearest to `exact`.
double ulps(float got, double exact) {
  if (std::isinf(got)) return std::abs(exact) > 3.4028235e38 ? 0 : 1e9;
  const double magnitude = std::max(std::abs(exact), 0x1p-126);
  return std::abs(got - exact) / std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

// Every kernel of vectors as a function of up to three inputs of n channels; the result is n (or 1)
// floats.
struct Op {
  const char* name;
  std::function<void(const Kernels&, const float*, const float*, const float*, int64_t, float*)>
      run;
};
const Op kOps[] = {
    {"rms_norm", [](const Kernels& k, auto a, auto b, auto, int64_t n,
                    float* y) { k.rms_norm(a, b, 1e-5f, n, y); }},
    {"rms_norm_gated", [](const Kernels& k, auto a, auto b, auto c, int64_t n,
                          float* y) { k.rms_norm_gated(a, b, c, 1e-5f, n, y); }},
    {"l2_norm", [](const Kernels& k, auto a, auto, auto, int64_t n,
                   float* y) { k.l2_norm(a, 1e-6f, 0.25f, n, y); }},
    {"mix_residuals",
     [](const Kernels& k, auto a, auto b, auto c, int64_t n, float* y) {
       const float* v[] = {a, b, c, a};
       k.mix_residuals(v, 1 + n % 4, c, 1e-5f, n, y);
     }},
    {"sigmoid",
     [](const Kernels& k, auto a, auto, auto, int64_t n, float* y) { k.sigmoid(a, n, y); }},
    {"mul_sigmoid", [](const Kernels& k, auto a, auto b, auto, int64_t n,
                       float* y) { k.mul_sigmoid(a, b, n, y); }},
    {"silu_mul",
     [](const Kernels& k, auto a, auto b, auto, int64_t n, float* y) { k.silu_mul(a, b, n, y); }},
    {"situ_mul", [](const Kernels& k, auto a, auto b, auto, int64_t n,
                    float* y) { k.situ_mul(a, b, 4, n % 2 == 0 ? 25 : 0, n, y); }},
    {"add",
     [](const Kernels& k, auto a, auto b, auto, int64_t n, float* y) {
       std::copy(b, b + n, y);
       k.add(a, n, y);
     }},
    {"add_scaled",
     [](const Kernels& k, auto a, auto b, auto, int64_t n, float* y) {
       std::copy(b, b + n, y);
       k.add_scaled(a, 0.3f, n, y);
     }},
    {"dot",
     [](const Kernels& k, auto a, auto b, auto, int64_t n, float* y) {
       std::fill(y, y + n, 0.0f);
       y[0] = k.dot(a, b, n);
     }},
    {"exp", [](const Kernels& k, auto a, auto, auto, int64_t n, float* y) { k.exp(a, n, y); }},
    {"softmax",
     [](const Kernels& k, auto a, auto, auto, int64_t n, float* y) { k.softmax(a, n, y); }},
    {"decay_bounded", [](const Kernels& k, auto a, auto b, auto, int64_t n,
                         float* y) { k.decay_bounded(a, b, 0.7f, -5, n, y); }},
    {"decay_softplus", [](const Kernels& k, auto a, auto b, auto, int64_t n,
                          float* y) { k.decay_softplus(a, b, 0.7f, n, y); }},
};

TEST(Elementwise, EveryTargetEqualsTheScalarOne) {
  Random random(1);
  for (const Op& op : kOps) {
    for (int64_t n = 1; n <= 150; n += n < 70 ? 1 : 13) {
      const Floats a = heavy_floats(n, random), b = heavy_floats(n, random),
                   c = heavy_floats(n, random);
      Floats expected(n);
      op.run(kernels(Isa::kScalar), a.data(), b.data(), c.data(), n, expected.data());
      for (int64_t i = 0; i < n; ++i) ASSERT_FALSE(std::isnan(expected[i])) << op.name;
      for (const Isa isa : isas()) {
        Floats y(n);
        op.run(kernels(isa), a.data(), b.data(), c.data(), n, y.data());
        ASSERT_TRUE(same_bits(y.data(), expected.data(), n)) << op.name << " " << name(isa) << n;
      }
    }
  }
}

// Every 8161st float there is, of both signs.
TEST(Elementwise, TranscendentalsAreAccurateOverTheWholeRange) {
  constexpr int64_t kCount = 16 * 16384;
  Floats x(2 * kCount), y(2 * kCount);
  for (int64_t i = 0; i < 2 * kCount; ++i) {
    const auto bits = static_cast<uint32_t>(i / 2 * 8161) | (i % 2 == 0 ? 0u : 0x80000000u);
    x[i] = std::bit_cast<float>(bits);
    if (!std::isfinite(x[i])) x[i] = std::copysign(50.0f * static_cast<float>(i) / kCount, -x[i]);
  }
  const Kernels& k = kernels(Isa::kScalar);
  const int64_t n = x.size();
  double worst = 0;

  k.exp(x.data(), n, y.data());
  for (int64_t i = 0; i < n; ++i) worst = std::max(worst, ulps(y[i], std::exp(double{x[i]})));
  EXPECT_LE(worst, 2) << "exp";

  worst = 0;
  k.sigmoid(x.data(), n, y.data());
  for (int64_t i = 0; i < n; ++i) worst = std::max(worst, ulps(y[i], logistic(double{x[i]})));
  EXPECT_LE(worst, 3) << "sigmoid";  // exp, a sum, a division

  // tanh shows in SiTU's linear half when gate * sigmoid(gate) is held at one.
  worst = 0;
  Floats ones(n);
  std::fill(ones.begin(), ones.end(), 60.0f);
  k.situ_mul(ones.data(), x.data(), 1, 1, n, y.data());  // tanh(60) sigmoid(60) == 1
  for (int64_t i = 0; i < n; ++i) worst = std::max(worst, ulps(y[i], std::tanh(double{x[i]})));
  EXPECT_LE(worst, 3) << "tanh";

  // softplus shows in -log(alpha): alpha = exp(-softplus), relative error (1 + softplus) ulps.
  worst = 0;
  const Floats zero(n);
  k.decay_softplus(x.data(), zero.data(), 1, n, y.data());
  for (int64_t i = 0; i < n; ++i) {
    const double s = x[i] > 40 ? double{x[i]} : std::log1p(std::exp(double{x[i]}));
    worst = std::max(worst, ulps(y[i], std::exp(-s)) / (1 + std::min(s, 104.0)));
  }
  EXPECT_LE(worst, 3) << "softplus";
}

TEST(Elementwise, SpecialValues) {
  for (const Isa isa : isas()) {
    const Kernels& k = kernels(isa);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float x[] = {0.0f, -0.0f, -kInf, kInf, -1000, 1000, nan, -103.9f};
    float y[8];
    k.exp(x, 8, y);
    EXPECT_EQ(y[0], 1);
    EXPECT_EQ(y[1], 1);
    EXPECT_EQ(y[2], 0);
    EXPECT_EQ(y[3], kInf);
    EXPECT_EQ(y[4], 0);
    EXPECT_EQ(y[5], kInf);
    EXPECT_TRUE(std::isnan(y[6]));
    EXPECT_EQ(y[7], 0x1p-149f) << "a subnormal result was flushed";
    k.sigmoid(x, 7, y);
    EXPECT_EQ(y[0], 0.5f);
    EXPECT_EQ(y[2], 0);
    EXPECT_EQ(y[3], 1);
    EXPECT_TRUE(std::isnan(y[6]));
    const float masked[] = {-kInf, 1, -kInf, 1};
    k.softmax(masked, 4, y);
    EXPECT_EQ(y[0], 0);
    EXPECT_EQ(y[1], 0.5f);
    const float tiny[] = {1e-30f, -1e-40f, 0.0f, -0.0f};
    const float open[] = {60, 60, 60, 60};
    k.situ_mul(open, tiny, 1, 1, 4, y);
    EXPECT_TRUE(same_bits(y, tiny, 4)) << "tanh of a tiny x is x";
  }
}

// A sum of n terms has n/16 fma a lane and four levels of the tree.
double sum_roundings(int64_t n) { return std::ceil(static_cast<double>(n) / 16) + 4; }

TEST(Elementwise, SumsAgreeWithDouble) {
  Random random(2);
  const Kernels& k = kernels(Isa::kScalar);
  for (const int64_t n : {1, 15, 16, 17, 100, 1000, 7168}) {
    const Floats a = heavy_floats(n, random), b = heavy_floats(n, random),
                 c = heavy_floats(n, random);
    Floats y(n);
    double sum = 0, magnitude = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) {
      sum += double{a[i]} * b[i];
      magnitude += std::abs(double{a[i]} * b[i]);
      squares += double{a[i]} * a[i];
    }
    EXPECT_NEAR(k.dot(a.data(), b.data(), n), sum, gamma(sum_roundings(n)) * magnitude);

    // The root halves the relative error of the sum, the mean and the added eps (two roundings);
    // then root, inverse, two products.
    const double norm_error = gamma((sum_roundings(n) + 2) / 2 + 4);
    k.rms_norm(a.data(), b.data(), 1e-5f, n, y.data());
    for (int64_t i = 0; i < n; ++i) {
      const double exact = b[i] * (a[i] / std::sqrt(squares / static_cast<double>(n) + 1e-5f));
      ASSERT_NEAR(y[i], exact, norm_error * std::abs(exact) + 1e-45);
    }
    // Then a sigmoid of 3 ulp (6 half ulps) and a product.
    k.rms_norm_gated(a.data(), b.data(), c.data(), 1e-5f, n, y.data());
    for (int64_t i = 0; i < n; ++i) {
      const double exact = b[i] * (a[i] / std::sqrt(squares / static_cast<double>(n) + 1e-5f)) *
                           logistic(double{c[i]});
      ASSERT_NEAR(y[i], exact, (norm_error + gamma(7)) * std::abs(exact) + 1e-44);
    }
    k.l2_norm(a.data(), 1e-6f, 0.25f, n, y.data());
    for (int64_t i = 0; i < n; ++i) {
      const double exact = 0.25 * a[i] / std::sqrt(squares + 1e-6f);
      ASSERT_NEAR(y[i], exact, norm_error * std::abs(exact) + 1e-45);
    }

    // exp of a difference d: the difference errs by |d| u, exp by 2 ulp = 4 u; then the sum and the
    // division. Both numerator and sum have the first error.
    k.softmax(a.data(), n, y.data());
    const double top = *std::max_element(a.data(), a.data() + n);
    double total = 0;
    for (int64_t i = 0; i < n; ++i) total += std::exp(a[i] - top);
    for (int64_t i = 0; i < n; ++i) {
      const double exact = std::exp(a[i] - top) / total;
      const double d = std::min(top - a[i], 104.0);
      ASSERT_NEAR(y[i], exact, gamma(2 * d + 8 + 105 + sum_roundings(n)) * exact + 0x1p-148);
    }
  }
}

// A score errs by gamma_(sum) of its magnitude plus the norm's share; as the exponent of a weight
// that is its relative error, in numerator and sum alike; `count` fma follow.
TEST(MixResiduals, AgreesWithDouble) {
  Random random(3);
  const Kernels& k = kernels(Isa::kScalar);
  for (const int64_t n : {7, 64, 1000}) {
    for (const int64_t count : {1, 2, 9, 64}) {
      std::vector<Floats> vectors;
      std::vector<const float*> v;
      for (int64_t j = 0; j < count; ++j) {  // small ones show eps
        vectors.push_back(normal_floats(n, random, j % 2 == 0 ? 0.003f : 1.0f));
      }
      for (const Floats& vector : vectors) v.push_back(vector.data());
      const Floats query = normal_floats(n, random, 0.3f);
      Floats y(n);
      k.mix_residuals(v.data(), count, query.data(), 1e-5f, n, y.data());
      std::vector<double> score;
      double worst = 0;
      for (int64_t j = 0; j < count; ++j) {
        double c = 0, magnitude = 0, squares = 0;
        for (int64_t i = 0; i < n; ++i) {
          c += double{v[static_cast<size_t>(j)][i]} * query[i];
          magnitude += std::abs(double{v[static_cast<size_t>(j)][i]} * query[i]);
          squares += double{v[static_cast<size_t>(j)][i]} * v[static_cast<size_t>(j)][i];
        }
        const double rms = std::sqrt(squares / static_cast<double>(n) + 1e-5f);
        score.push_back(c / rms);
        worst = std::max(worst, gamma(2 * sum_roundings(n) + 6) * magnitude / rms);
      }
      const double top = *std::max_element(score.begin(), score.end());
      double total = 0, spread = 0;
      for (double& s : score) {
        spread = std::max(spread, top - s);
        total += (s = std::exp(s - top));
      }
      for (int64_t i = 0; i < n; ++i) {
        double exact = 0, magnitude = 0;
        for (int64_t j = 0; j < count; ++j) {
          const double term = score[static_cast<size_t>(j)] / total * v[static_cast<size_t>(j)][i];
          exact += term;
          magnitude += std::abs(term);
        }
        const double weight_error =
            std::expm1(4 * worst) +
            gamma(2 * spread + 8 + sum_roundings(count) + static_cast<double>(count));
        ASSERT_NEAR(y[i], exact, weight_error * magnitude) << n << " " << count;
      }
    }
  }
}

TEST(ShortConv, EveryTargetAndEveryCutAgree) {
  Random random(4);
  for (const int64_t channels : {1, 16, 24, 50}) {
    for (const int64_t width : {1, 2, 3, 4}) {
      const int64_t tokens = 9, stride = channels + 5;
      Floats x((tokens - 1) * stride + channels);
      for (float& value : x) value = random.heavy();
      const Floats w = normal_floats(width * channels, random);
      const Floats history = heavy_floats((width - 1) * channels, random);
      std::vector<float> expected, expected_history;
      for (const Isa isa : isas()) {
        for (int64_t cut = 0; cut <= tokens; ++cut) {
          Floats y(x.size()), carried = copy(history);
          const Kernels& k = kernels(isa);
          k.short_conv(x.data(), cut, stride, channels, width, w.data(), carried.data(), y.data());
          if (cut < tokens) {
            k.short_conv(x.data() + cut * stride, tokens - cut, stride, channels, width, w.data(),
                         carried.data(), y.data() + cut * stride);
          }
          if (expected.empty()) {
            expected.assign(y.begin(), y.end());
            expected_history.assign(carried.begin(), carried.end());
          }
          ASSERT_TRUE(same_bits(y.data(), expected.data(), y.size()) &&
                      same_bits(carried.data(), expected_history.data(), carried.size()))
              << name(isa) << " channels " << channels << " width " << width << " cut " << cut;
        }
      }
      // width fma, then silu: a sigmoid of 3 ulp whose argument errs too (|x sigmoid'| <= 0.23),
      // and a product.
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t c = 0; c < channels; ++c) {
          double sum = 0, magnitude = 0;
          for (int64_t j = 0; j < width; ++j) {
            const int64_t row = t - width + 1 + j;
            const double raw =
                row < 0 ? history[(row + width - 1) * channels + c] : x[row * stride + c];
            sum += raw * w[j * channels + c];
            magnitude += std::abs(raw * w[j * channels + c]);
          }
          const double exact = sum * logistic(sum);
          const double error =
              1.1 * gamma(static_cast<double>(width)) * magnitude + gamma(7) * std::abs(exact);
          ASSERT_NEAR(expected[static_cast<size_t>(t * stride + c)], exact, error + 1e-45);
        }
      }
    }
  }
}

TEST(Elementwise, MapsMayBeDoneInPlace) {
  Random random(5);
  const int64_t n = 53;
  const Floats a = heavy_floats(n, random), b = heavy_floats(n, random),
               c = heavy_floats(n, random);
  for (const Op& op : kOps) {
    if (std::string(op.name) == "dot" || std::string(op.name).starts_with("add")) continue;
    for (const Isa isa : isas()) {
      Floats apart(n), in_place = copy(a);
      op.run(kernels(isa), a.data(), b.data(), c.data(), n, apart.data());
      op.run(kernels(isa), in_place.data(), b.data(), c.data(), n, in_place.data());
      ASSERT_TRUE(same_bits(apart.data(), in_place.data(), n)) << op.name << " " << name(isa);
    }
  }
}

TEST(Dispatch, NamesAndOrder) {
  const std::vector<Isa> all = isas();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all.front(), Isa::kScalar);
  EXPECT_EQ(all.back(), best_isa());
  for (const Isa isa : all) {
    EXPECT_TRUE(supported(isa));
    EXPECT_EQ(kernels(isa).isa, isa);
  }
  EXPECT_STREQ(name(Isa::kAvx512), "avx512");
}

}  // namespace
}  // namespace k3
