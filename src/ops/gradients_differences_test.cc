// The lines of gradients.h in double, against central differences of the plain definitions.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "ops/cross_entropy.h"
#include "ops/gradients.h"
#include "ops/gradients_testing.h"

namespace k3 {
namespace {

using Doubles = std::vector<double>;

// Compares `gradient` with central differences of f in each element of x. With steps of 1e-5 the
// differences err by about 1e-10 (third derivatives) and 1e-11 (rounding) at values of order one.
void check_differences(Doubles& x, const Doubles& gradient, const std::function<double()>& f) {
  const double h = 1e-5;
  for (size_t i = 0; i < x.size(); ++i) {
    const double kept = x[i];
    x[i] = kept + h;
    const double up = f();
    x[i] = kept - h;
    const double down = f();
    x[i] = kept;
    ASSERT_NEAR((up - down) / (2 * h), gradient[i], 2e-8 * (1 + std::abs(gradient[i]))) << i;
  }
}

Doubles normal(size_t n, std::mt19937& random) {
  std::normal_distribution<double> d;
  Doubles x(n);
  for (double& v : x) v = d(random);
  return x;
}

TEST(Gradients, SiluAgreesWithDifferences) {
  std::mt19937 random(1);
  Doubles gate = normal(9, random), up = normal(9, random);
  const Doubles dy = normal(9, random);
  const auto f = [&] {
    double sum = 0;
    for (size_t i = 0; i < 9; ++i) sum += dy[i] * gate[i] * sigmoid(gate[i]) * up[i];
    return sum;
  };
  Doubles s, dgate(9, 0.0), dup(9, 0.0);
  for (const double g : gate) s.push_back(sigmoid(g));
  silu_mul_backward(gate.data(), s.data(), up.data(), 9, dy.data(), dgate.data(), dup.data());
  check_differences(gate, dgate, f);
  check_differences(up, dup, f);
}

TEST(Gradients, L2NormAndKdaAgreeWithDifferences) {
  std::mt19937 random(2);
  const size_t d = 5, tokens = 7;
  Doubles q = normal(tokens * d, random), k = normal(tokens * d, random);
  Doubles v = normal(tokens * d, random), g(tokens * d), beta(tokens);
  std::uniform_real_distribution<double> uniform;
  for (double& x : g) x = -4.9 * uniform(random);
  for (double& x : beta) x = uniform(random);
  Doubles start = normal(d * d, random);
  const Doubles dout = normal(tokens * d, random), dlast = normal(d * d, random);
  const auto unit = [&](const Doubles& x) {
    Doubles y = x;
    for (size_t t = 0; t < tokens; ++t) {
      double squares = 1e-6;
      for (size_t i = 0; i < d; ++i) squares += x[t * d + i] * x[t * d + i];
      for (size_t i = 0; i < d; ++i) y[t * d + i] /= std::sqrt(squares);
    }
    return y;
  };
  const auto f = [&] {  // numerics.md 4, as it stands there
    const Doubles kn = unit(k);
    Doubles S = start;
    double sum = 0;
    for (size_t t = 0; t < tokens; ++t) {
      Doubles e(&v[t * d], &v[t * d] + d);
      for (size_t i = 0; i < d; ++i)
        for (size_t j = 0; j < d; ++j) {
          S[i * d + j] *= std::exp(g[t * d + i]);
          e[j] -= kn[t * d + i] * S[i * d + j];
        }
      for (size_t i = 0; i < d; ++i)
        for (size_t j = 0; j < d; ++j) {
          S[i * d + j] += kn[t * d + i] * beta[t] * e[j];
          sum += dout[t * d + j] * q[t * d + i] * S[i * d + j];
        }
    }
    for (size_t i = 0; i < d * d; ++i) sum += dlast[i] * S[i];
    return sum;
  };
  const Doubles kn = unit(k);
  Doubles alpha, dq(q.size(), 0.0), dkn(q.size(), 0.0), dv(q.size(), 0.0), dg(q.size(), 0.0);
  Doubles dbeta(tokens, 0.0), dS = dlast, dk(q.size(), 0.0);
  for (const double x : g) alpha.push_back(std::exp(x));
  KdaBackward<double> a;
  a.tokens = tokens;
  a.d = a.stride = d;
  a.q = q.data();
  a.k = kn.data();
  a.v = v.data();
  a.alpha = alpha.data();
  a.beta = beta.data();
  a.start = start.data();
  a.dout = dout.data();
  a.dq = dq.data();
  a.dk = dkn.data();
  a.dv = dv.data();
  a.dg = dg.data();
  a.dbeta = dbeta.data();
  a.dS = dS.data();
  kda_backward(a);
  for (size_t t = 0; t < tokens; ++t)
    l2_norm_backward(&k[t * d], 1e-6, 1.0, static_cast<int64_t>(d), &dkn[t * d], &dk[t * d]);
  check_differences(q, dq, f);
  check_differences(k, dk, f);
  check_differences(v, dv, f);
  check_differences(g, dg, f);
  check_differences(beta, dbeta, f);
  check_differences(start, dS, f);
}

TEST(Gradients, AttentionAgreesWithDifferences) {
  std::mt19937 random(3);
  const int64_t tokens = 6, kd = 4, vd = 3;
  Doubles q = normal(static_cast<size_t>(tokens * kd), random), k = normal(q.size(), random);
  Doubles v = normal(static_cast<size_t>(tokens * vd), random);
  const Doubles dout = normal(v.size(), random);
  Attention<double> a;
  a.tokens = tokens;
  a.key_dim = a.q_stride = a.k_stride = kd;
  a.value_dim = a.v_stride = a.out_stride = vd;
  a.q = q.data();
  a.k = k.data();
  a.v = v.data();
  a.scale = 0.5;
  a.exp = [](const double* x, int64_t n, double* y) {
    for (int64_t i = 0; i < n; ++i) y[i] = std::exp(x[i]);
  };
  const auto f = [&] {  // the plain definition
    double sum = 0;
    for (int64_t i = 0; i < tokens; ++i) {
      Doubles p;
      double total = 0;
      for (int64_t j = 0; j <= i; ++j) {
        double dot = 0;
        for (int64_t c = 0; c < kd; ++c)
          dot += q[static_cast<size_t>(i * kd + c)] * k[static_cast<size_t>(j * kd + c)];
        p.push_back(std::exp(0.5 * dot));
        total += p.back();
      }
      for (int64_t j = 0; j <= i; ++j)
        for (int64_t c = 0; c < vd; ++c)
          sum += dout[static_cast<size_t>(i * vd + c)] * p[static_cast<size_t>(j)] / total *
                 v[static_cast<size_t>(j * vd + c)];
    }
    return sum;
  };
  Doubles out(v.size()), top(6), total(6), dq(q.size(), 0.0), dk(q.size(), 0.0), dv(v.size(), 0.0);
  const double largest = attention_forward(a, out.data(), top.data(), total.data());
  EXPECT_EQ(largest, *std::max_element(top.begin(), top.end()));
  double sum = 0;
  for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
  EXPECT_NEAR(sum, f(), 1e-12);
  attention_backward(a, out.data(), top.data(), total.data(), dout.data(), dq.data(), dk.data(),
                     dv.data());
  check_differences(q, dq, f);
  check_differences(k, dk, f);
  check_differences(v, dv, f);
}

TEST(Gradients, RmsNormsAgreeWithDifferences) {
  std::mt19937 random(5);
  const int64_t n = 7;
  Doubles x = normal(7, random), w = normal(7, random), gate = normal(7, random);
  const Doubles dy = normal(7, random);
  const auto f = [&](bool gated) {
    double squares = 0, sum = 0;
    for (const double v : x) squares += v * v;
    for (size_t i = 0; i < 7; ++i)
      sum += dy[i] * w[i] * x[i] / std::sqrt(squares / 7 + 1e-3) * (gated ? sigmoid(gate[i]) : 1);
    return sum;
  };
  Doubles dx(7, 0.0), dw(7, 0.0);
  rms_norm_backward(x.data(), w.data(), 1e-3, n, dy.data(), dx.data(), dw.data());
  check_differences(x, dx, [&] { return f(false); });
  check_differences(w, dw, [&] { return f(false); });

  Doubles s, gx(7, 0.0), gw(7, 0.0), gg(7, 0.0);
  for (const double g : gate) s.push_back(sigmoid(g));
  rms_norm_gated_backward(x.data(), w.data(), s.data(), 1e-3, n, dy.data(), gx.data(), gw.data(),
                          gg.data());
  check_differences(x, gx, [&] { return f(true); });
  check_differences(w, gw, [&] { return f(true); });
  check_differences(gate, gg, [&] { return f(true); });
}

TEST(Gradients, SituAgreesWithDifferences) {
  std::mt19937 random(6);
  for (const double linear : {3.0, 0.0}) {
    Doubles gate = normal(9, random), up = normal(9, random);
    for (double& g : gate) g *= 4;  // into the bound
    const Doubles dy = normal(9, random);
    const auto bounded = [&](double u) { return linear == 0 ? u : std::tanh(u / linear); };
    const auto f = [&] {
      double sum = 0;
      for (size_t i = 0; i < 9; ++i)
        sum += dy[i] * 2 * std::tanh(gate[i] / 2) * sigmoid(gate[i]) * (linear == 0 ? 1 : linear) *
               bounded(up[i]);
      return sum;
    };
    Doubles t, s, w, dgate(9, 0.0), dup(9, 0.0);
    for (const double g : gate) t.push_back(std::tanh(g / 2)), s.push_back(sigmoid(g));
    for (const double u : up) w.push_back(bounded(u));
    situ_backward(t.data(), s.data(), w.data(), 2.0, linear, 9, dy.data(), dgate.data(),
                  dup.data());
    check_differences(gate, dgate, f);
    check_differences(up, dup, f);
  }
}

TEST(Gradients, DecaysAgreeWithDifferences) {
  std::mt19937 random(7);
  for (const bool bounded : {true, false}) {
    Doubles raw = normal(8, random), bias = normal(8, random), A = {0.3};
    const Doubles dg = normal(8, random);
    const auto f = [&] {
      double sum = 0;
      for (size_t i = 0; i < 8; ++i) {
        const double a = std::exp(A[0]), z = raw[i] + bias[i];
        sum += dg[i] * (bounded ? -5 * sigmoid(a * z) : -a * std::log1p(std::exp(z)));
      }
      return sum;
    };
    Doubles s, g, draw(8, 0.0), dbias(8, 0.0), dA(1, 0.0);
    const double a = std::exp(A[0]);
    for (size_t i = 0; i < 8; ++i) {
      const double z = raw[i] + bias[i];
      s.push_back(sigmoid(bounded ? a * z : z));
      g.push_back(-a * std::log1p(std::exp(z)));
    }
    if (bounded)
      decay_bounded_backward(raw.data(), bias.data(), s.data(), a, -5.0, 8, dg.data(), draw.data(),
                             dbias.data(), dA.data());
    else
      decay_softplus_backward(g.data(), s.data(), a, 8, dg.data(), draw.data(), dbias.data(),
                              dA.data());
    check_differences(raw, draw, f);
    check_differences(bias, dbias, f);
    check_differences(A, dA, f);
  }
}

TEST(Gradients, ShortConvolutionAgreesWithDifferences) {
  std::mt19937 random(8);
  const int64_t tokens = 6, n = 3, taps = 4;
  Doubles x = normal(18, random), history = normal(9, random), w = normal(12, random);
  const Doubles dy = normal(18, random);
  const auto f = [&] {
    const Doubles c = convolve(x, history, w, tokens, n, taps);
    double sum = 0;
    for (size_t i = 0; i < c.size(); ++i) sum += dy[i] * c[i] * sigmoid(c[i]);
    return sum;
  };
  const Doubles c = convolve(x, history, w, tokens, n, taps);
  Doubles s, dx(18, 0.0), dw(12, 0.0), dhistory(9, 0.0);
  for (const double v : c) s.push_back(sigmoid(v));
  short_conv_backward(x.data(), history.data(), c.data(), s.data(), w.data(), tokens, n, taps, n,
                      dy.data(), dx.data(), dw.data(), dhistory.data());
  check_differences(x, dx, f);
  check_differences(w, dw, f);
  check_differences(history, dhistory, f);
}

TEST(Gradients, AttentionResidualsAgreeWithDifferences) {
  std::mt19937 random(9);
  const size_t n = 5, count = 3;
  Doubles v = normal(count * n, random), query = normal(n, random);
  const Doubles dh = normal(n, random);
  const auto f = [&] {
    Doubles score, p(count);
    for (size_t b = 0; b < count; ++b) {
      double squares = 0, dot = 0;
      for (size_t i = 0; i < n; ++i) {
        squares += v[b * n + i] * v[b * n + i];
        dot += query[i] * v[b * n + i];
      }
      score.push_back(dot / std::sqrt(squares / static_cast<double>(n) + 1e-3));
    }
    softmax(score.data(), static_cast<int64_t>(count), p.data());
    double sum = 0;
    for (size_t b = 0; b < count; ++b)
      for (size_t i = 0; i < n; ++i) sum += dh[i] * p[b] * v[b * n + i];
    return sum;
  };
  Doubles dv(v.size(), 0.0), dquery(n, 0.0);
  const double* from[] = {&v[0], &v[n], &v[2 * n]};
  double* to[] = {&dv[0], &dv[n], &dv[2 * n]};
  mix_residuals_backward(from, static_cast<int64_t>(count), query.data(), 1e-3,
                         static_cast<int64_t>(n), softmax<double>, dh.data(), to, dquery.data());
  check_differences(v, dv, f);
  check_differences(query, dquery, f);
}

TEST(Gradients, RouterAgreesWithDifferences) {
  std::mt19937 random(10);
  const int32_t ids[] = {1, 4, 5};
  for (const bool soft : {true, false})
    for (const bool renormalize : {true, false}) {
      Doubles logits = normal(6, random);
      const Doubles dp = normal(3, random);
      const auto scores = [&] {
        Doubles s(6);
        softmax(logits.data(), 6, s.data());
        if (!soft)
          for (size_t e = 0; e < 6; ++e) s[e] = sigmoid(logits[e]);
        return s;
      };
      const auto f = [&] {
        const Doubles s = scores();
        const double total = s[1] + s[4] + s[5];
        double sum = 0;
        for (size_t i = 0; i < 3; ++i)
          sum += dp[i] * 2.5 * s[static_cast<size_t>(ids[i])] / (renormalize ? total : 1);
        return sum;
      };
      Doubles dlogits(6, 0.0);
      router_backward(scores().data(), 6, soft, ids, 3, renormalize, 2.5, dp.data(),
                      dlogits.data());
      check_differences(logits, dlogits, f);
    }
}

// The loss's own lines run in float (a softmax of the kernels'), so the differences of the plain
// definition are taken in double and the bound is float's.
TEST(Gradients, CrossEntropyAgreesWithDifferences) {
  std::mt19937 random(4);
  Doubles logits = normal(2 * 8, random);
  const int32_t targets[] = {5, 0};
  MemoryAccount account(1 << 20);
  ThreadPool pool(2);
  Scratch scratch(account, 1 << 16);
  Context ctx{pool, kernels(best_isa()), scratch};
  const Rows rows = scratch.rows(2, 8), nll = scratch.rows(2, 1);
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t c = 0; c < 8; ++c)
      rows.row(i)[c] = static_cast<float>(logits[static_cast<size_t>(i * 8 + c)]);
  cross_entropy(ctx, rows, targets, 2.0f, nll);
  const auto f = [&] {
    double sum = 0;
    for (size_t i = 0; i < 2; ++i) {
      double total = 0;
      for (size_t c = 0; c < 8; ++c) total += std::exp(logits[i * 8 + c]);
      sum += std::log(total) - logits[i * 8 + static_cast<size_t>(targets[i])];
    }
    return sum;
  };
  EXPECT_NEAR(*nll.row(0) + *nll.row(1), f(), 1e-6);
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t c = 0; c < 8; ++c) {
      double& x = logits[static_cast<size_t>(i * 8 + c)];
      const double kept = x, h = 1e-5;
      x = kept + h;
      const double up = f();
      x = kept - h;
      const double down = f();
      x = kept;
      EXPECT_NEAR(rows.row(i)[c], 2 * (up - down) / (2 * h), 1e-6) << i << " " << c;
    }
}

}  // namespace
}  // namespace k3
