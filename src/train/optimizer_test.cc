#include "train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace k3 {
namespace {

struct Bench {
  explicit Bench(int threads = 2) : pool(threads), account(64 << 20), scratch(account, 32 << 20) {}
  Context context() { return {pool, kernels(best_isa()), scratch}; }
  ThreadPool pool;
  MemoryAccount account;
  Scratch scratch;
};

struct Matrix {
  Matrix(int64_t r, int64_t c) : rows(r), cols(c), data(static_cast<size_t>(r * c)) {}
  Matrix(int64_t r, int64_t c, std::mt19937& random, float scale = 1) : Matrix(r, c) {
    std::normal_distribution<float> normal;
    for (float& x : data) x = scale * normal(random);
  }
  Rows view() { return {data.data(), rows, cols, cols}; }
  int64_t rows, cols;
  std::vector<float> data;
};

using Double = std::vector<double>;
Double wide(const Matrix& m) { return {m.data.begin(), m.data.end()}; }

// ---- an independent reference in double ---------------------------------------------------------

Double times(const Double& a, const Double& b, size_t m, size_t k, size_t n) {
  Double c(m * n, 0.0);
  for (size_t i = 0; i < m; ++i)
    for (size_t p = 0; p < k; ++p)
      for (size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + p] * b[p * n + j];
  return c;
}
Double transposed(const Double& a, size_t rows, size_t cols) {
  Double t(a.size());
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < cols; ++j) t[j * rows + i] = a[i * cols + j];
  return t;
}
double norm(const Double& a) {
  return std::sqrt(std::inner_product(a.begin(), a.end(), a.begin(), 0.0));
}
Double reference_orthogonal(Double x, size_t rows, size_t cols) {
  const double scale = 1 / (norm(x) + 1e-7);
  for (double& v : x) v *= scale;
  const bool tall = rows > cols;
  if (tall) {
    x = transposed(x, rows, cols);
    std::swap(rows, cols);
  }
  for (int step = 0; step < 5; ++step) {
    const Double y = times(x, transposed(x, rows, cols), rows, cols, rows);
    const Double yy = times(y, y, rows, rows, rows);
    Double z(y.size());
    for (size_t i = 0; i < z.size(); ++i) z[i] = -4.7750 * y[i] + 2.0315 * yy[i];
    const Double zx = times(z, x, rows, rows, cols);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + zx[i];
  }
  return tall ? transposed(x, rows, cols) : x;
}

// A perturbation of x grows at most 3.4445-fold a step (the slope of the polynomial at 0, its
// largest on [0, 1.13]): 485-fold over the five. Each step's products err by a few units of 2^-24
// in norm; eight of them are allowed.
constexpr double kOrthogonalBound = 485 * 8 * 0x1p-24;

TEST(Muon, OrthogonalizesAsTheReferenceDoes) {
  std::mt19937 random(1);
  Bench bench;
  Context ctx = bench.context();
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{32, 96}, {96, 32}, {48, 48}, {1, 7}}) {
    Matrix x(rows, cols, random);
    const Double expected =
        reference_orthogonal(wide(x), static_cast<size_t>(rows), static_cast<size_t>(cols));
    orthogonalize(ctx, x.view());
    for (size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(x.data[i], expected[i], kOrthogonalBound) << rows << "x" << cols;
  }
}

// The eigenvalues of a symmetric matrix by Jacobi's rotations.
Double eigenvalues(Double a, size_t n) {
  for (int sweep = 0; sweep < 30; ++sweep)
    for (size_t p = 0; p < n; ++p)
      for (size_t q = p + 1; q < n; ++q) {
        const double off = a[p * n + q];
        if (std::abs(off) < 1e-14) continue;
        const double theta = (a[q * n + q] - a[p * n + p]) / (2 * off);
        const double t = (theta >= 0 ? 1 : -1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
        const double c = 1 / std::sqrt(t * t + 1), s = t * c;
        for (size_t k = 0; k < n; ++k) {
          const double akp = a[k * n + p], akq = a[k * n + q];
          a[k * n + p] = c * akp - s * akq;
          a[k * n + q] = s * akp + c * akq;
        }
        for (size_t k = 0; k < n; ++k) {
          const double apk = a[p * n + k], aqk = a[q * n + k];
          a[p * n + k] = c * apk - s * aqk;
          a[q * n + k] = s * apk + c * aqk;
        }
      }
  Double values;
  for (size_t i = 0; i < n; ++i) values.push_back(a[i * n + i]);
  return values;
}

TEST(Muon, SingularValuesAndTheSizeOfUpdates) {
  std::mt19937 random(2);
  Bench bench;
  Context ctx = bench.context();
  Matrix x(40, 100, random);
  orthogonalize(ctx, x.view());
  const Double gram = times(wide(x), transposed(wide(x), 40, 100), 40, 100, 40);
  for (const double square : eigenvalues(gram, 40)) {
    EXPECT_GT(std::sqrt(square), 0.6);
    EXPECT_LT(std::sqrt(square), 1.2);
  }
  const UpdateRule rule{true, true, {64}};
  OptimizerState state(bench.account, rule, 64 * 128);
  Matrix w(64, 128, random), g(64, 128, random);
  const auto rms = update(ctx, {}, rule, 1e-3f, w.view(), g.view(), state);
  EXPECT_GT(rms[0], 0.14);
  EXPECT_LT(rms[0], 0.22);
}

// Ten steps against the reference. The update is 0.2 sqrt(max(A, B)) times an orthogonal matrix:
// an element errs by at most that times kOrthogonalBound a step, times the rate.
TEST(Muon, TenStepsEqualTheReference) {
  std::mt19937 random(3);
  Bench bench;
  Context ctx = bench.context();
  const OptimizerOptions o;
  Matrix w(24, 40, random);
  Double rw = wide(w), rm(rw.size(), 0.0);
  const UpdateRule rule{true, true, {24}};
  OptimizerState state(bench.account, rule, 24 * 40);
  const float rate = 0.02f;
  for (int step = 0; step < 10; ++step) {
    Matrix g(24, 40, random);
    update(ctx, o, rule, rate, w.view(), g.view(), state);
    Double n(rw.size());
    for (size_t i = 0; i < n.size(); ++i) {
      rm[i] = double{o.momentum} * rm[i] + g.data[i];
      n[i] = g.data[i] + double{o.momentum} * rm[i];
    }
    const Double x = reference_orthogonal(n, 24, 40);
    for (size_t i = 0; i < n.size(); ++i)
      rw[i] -=
          double{rate} * (double{0.2f} * std::sqrt(40.0) * x[i] + double{o.weight_decay} * rw[i]);
    const double bound =
        (step + 1) * (rate * 0.2 * std::sqrt(40.0) * kOrthogonalBound + 8 * 0x1p-24);
    for (size_t i = 0; i < n.size(); ++i) ASSERT_NEAR(w.data[i], rw[i], bound) << step;
  }
}

// Per element: at most eight roundings a step of values no larger than the update, whose size is
// at most 1 / sqrt(1 - beta2) (a single large gradient), and of the weight.
TEST(AdamW, TenStepsEqualTheReference) {
  std::mt19937 random(4);
  Bench bench;
  Context ctx = bench.context();
  const OptimizerOptions o;
  Matrix w(7, 13, random);
  Double rw = wide(w), m(rw.size(), 0.0), v(rw.size(), 0.0);
  OptimizerState state(bench.account, {}, 7 * 13);
  const float rate = 0.01f;
  for (int step = 1; step <= 10; ++step) {
    Matrix g(7, 13, random, step == 5 ? 100.0f : 1.0f);
    update(ctx, o, {}, rate, w.view(), g.view(), state);
    for (size_t i = 0; i < rw.size(); ++i) {
      const double b1 = o.beta1, b2 = o.beta2;
      m[i] = b1 * m[i] + (1 - b1) * g.data[i];
      v[i] = b2 * v[i] + (1 - b2) * g.data[i] * g.data[i];
      const double mean = m[i] / (1 - std::pow(b1, step)), square = v[i] / (1 - std::pow(b2, step));
      rw[i] -= double{rate} *
               (mean / (std::sqrt(square) + double{o.epsilon}) + double{o.weight_decay} * rw[i]);
    }
    const double bound = step * 8 * 0x1p-24 * (rate / std::sqrt(1 - o.beta2) + 4);
    for (size_t i = 0; i < rw.size(); ++i) ASSERT_NEAR(w.data[i], rw[i], bound) << step;
  }
}

// training.md 11.6: scaling one head's gradient by 100 changes no head's update by more than 1e-3;
// taken whole, the matrix lets it.
TEST(Muon, PerHeadKeepsHeadsApart) {
  std::mt19937 random(5);
  Bench bench;
  Context ctx = bench.context();
  const int64_t heads = 4, d = 16, cols = 64;
  const Matrix plain(heads * d, cols, random);
  Matrix loud = plain;
  std::for_each(loud.data.begin(), loud.data.begin() + d * cols, [](float& x) { x *= 100; });
  const auto change = [&](const UpdateRule& rule) {
    std::vector<float> moved[2];
    for (int i = 0; i < 2; ++i) {
      OptimizerState state(bench.account, rule, heads * d * cols);
      Matrix w(heads * d, cols), g = i ? loud : plain;
      update(ctx, {}, rule, 1.0f, w.view(), g.view(), state);
      moved[i] = w.data;
    }
    double worst = 0;
    for (size_t i = 0; i < moved[0].size(); ++i)
      worst = std::max(worst, std::abs(double{moved[0][i]} - moved[1][i]));
    return worst;
  };
  EXPECT_LT(change({true, true, {d, d, d, d}}), 1e-3);
  EXPECT_GT(change({true, true, {heads * d}}), 0.05);
}

TEST(Optimizer, ThreadsDoNotChangeABit) {
  for (const bool muon : {false, true}) {
    std::vector<float> first;
    for (const int threads : {1, 3}) {
      std::mt19937 random(6);
      Bench bench(threads);
      Context ctx = bench.context();
      Matrix w(37, 53, random);
      const UpdateRule rule{muon, true,
                            muon ? std::vector<int64_t>{20, 17} : std::vector<int64_t>{}};
      OptimizerState state(bench.account, rule, 37 * 53);
      for (int step = 0; step < 3; ++step) {
        Matrix g(37, 53, random);
        update(ctx, {}, rule, 0.1f, w.view(), g.view(), state);
      }
      if (first.empty()) first = w.data;
      EXPECT_EQ(w.data, first);
    }
  }
}

TEST(Optimizer, TheTableOfTheReport) {
  ModelConfig c;
  c.kda_num_heads = 2;
  c.kda_head_dim = 8;
  c.num_attention_heads = 3;
  c.qk_nope_head_dim = 4;
  c.qk_rope_head_dim = 2;
  c.v_head_dim = 5;
  c.attention_kinds = {AttentionKind::kKda, AttentionKind::kMla};
  const OptimizerOptions o;
  using Blocks = std::vector<int64_t>;
  const auto rule = [&](const char* name, int64_t rows) { return update_rule(c, name, rows, o); };
  EXPECT_EQ(rule("model.layers.0.self_attn.q_proj.weight", 16).blocks, (Blocks{8, 8}));
  EXPECT_EQ(rule("model.layers.0.self_attn.v_proj.weight", 16).blocks, (Blocks{8, 8}));
  EXPECT_EQ(rule("model.layers.0.self_attn.g_proj.weight", 16).blocks, (Blocks{16}));
  EXPECT_EQ(rule("model.layers.0.self_attn.f_b_proj.weight", 16).blocks, (Blocks{16}));
  EXPECT_EQ(rule("model.layers.1.self_attn.q_b_proj.weight", 18).blocks, (Blocks{6, 6, 6}));
  EXPECT_EQ(rule("model.layers.1.self_attn.kv_b_proj.weight", 27).blocks,
            (Blocks{4, 5, 4, 5, 4, 5}));
  EXPECT_EQ(rule("model.layers.1.self_attn.kv_a_proj_with_mqa.weight", 12).blocks, (Blocks{12}));
  EXPECT_EQ(rule("model.layers.1.block_sparse_moe.gate.weight", 4).blocks, (Blocks{4}));
  EXPECT_EQ(rule("model.layers.1.block_sparse_moe.experts.3.w1.weight", 6).blocks, (Blocks{6}));
  for (const char* name :
       {"model.layers.0.self_attn.b_proj.weight", "model.layers.0.self_attn.q_conv1d.weight",
        "model.layers.0.self_attn.o_norm.weight", "model.layers.0.mlp_res_proj.weight",
        "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight",
        "model.output_attn_res_proj.weight"}) {
    EXPECT_FALSE(rule(name, 4).muon) << name;
    EXPECT_TRUE(rule(name, 4).decay) << name;
  }
  for (const char* name : {"model.layers.0.self_attn.A_log", "model.layers.0.self_attn.dt_bias"}) {
    EXPECT_FALSE(rule(name, 1).muon);
    EXPECT_FALSE(rule(name, 1).decay);
  }
  OptimizerOptions gates = o;
  gates.per_head_gates = true;
  EXPECT_EQ(update_rule(c, "model.layers.1.self_attn.g_proj.weight", 15, gates).blocks,
            (Blocks{5, 5, 5}));
  OptimizerOptions adam = o;
  adam.muon = false;
  EXPECT_FALSE(update_rule(c, "model.layers.0.self_attn.q_proj.weight", 16, adam).muon);
}

TEST(Schedule, RisesAndFalls) {
  Schedule s{Schedule::Form::kCosine, 1.0f, 0.1f, 100, 10, 0};
  EXPECT_FLOAT_EQ(learning_rate(s, 0), 0.1f);
  EXPECT_FLOAT_EQ(learning_rate(s, 9), 1.0f);
  EXPECT_FLOAT_EQ(learning_rate(s, 55), 0.55f);
  EXPECT_FLOAT_EQ(learning_rate(s, 100), 0.1f);
  s.form = Schedule::Form::kWsd;
  s.decay = 20;
  EXPECT_FLOAT_EQ(learning_rate(s, 79), 1.0f);
  EXPECT_FLOAT_EQ(learning_rate(s, 90), 0.55f);
}

TEST(Gradients, AreClippedTogether) {
  Bench bench;
  Context ctx = bench.context();
  Matrix a(2, 2), b(1, 1);
  a.data = {3, 0, 0, 0};
  b.data = {4};
  const std::vector<Rows> all = {a.view(), b.view()};
  EXPECT_DOUBLE_EQ(gradient_norm(ctx, all), 5.0);
  clip_gradients(ctx, all, 5.0, 10.0);
  EXPECT_EQ(a.data[0], 3.0f);
  clip_gradients(ctx, all, 5.0, 1.0);
  EXPECT_FLOAT_EQ(a.data[0], 0.6f);
  EXPECT_FLOAT_EQ(b.data[0], 0.8f);
}

}  // namespace
}  // namespace k3
