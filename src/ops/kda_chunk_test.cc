#include "ops/kda_chunk.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "ops/gradients.h"
#include "ops/kda_products.h"

namespace k3 {
namespace {

template <class T>
struct Case {
  int64_t tokens, d;
  std::vector<T> q, k, v, g, beta, start, dout, dlast;

  Case(int64_t n, int64_t width, double strongest, uint32_t seed) : tokens(n), d(width) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> uniform;
    const auto fill = [&](std::vector<T>& x, int64_t count, auto draw) {
      for (int64_t i = 0; i < count; ++i) x.push_back(static_cast<T>(draw()));
    };
    const auto gauss = [&] { return normal(random); };
    fill(q, n * d, gauss);
    fill(k, n * d, gauss);
    fill(v, n * d, gauss);
    // Now and then no decay at all, and the strongest there is.
    fill(g, n * d, [&] {
      const double u = uniform(random);
      return u < 0.1 ? -1e-4 : u > 0.9 ? strongest : strongest * uniform(random);
    });
    fill(beta, n,
         [&] { return uniform(random) < 0.2 ? std::round(uniform(random)) : uniform(random); });
    fill(start, d * d, gauss);
    fill(dout, n * d, gauss);
    fill(dlast, d * d, gauss);
    for (int64_t t = 0; t < n; ++t) {
      double squares = 0;
      for (int64_t i = 0; i < d; ++i) squares += double{k[at(t * d + i)]} * k[at(t * d + i)];
      for (int64_t i = 0; i < d; ++i) k[at(t * d + i)] /= static_cast<T>(std::sqrt(squares));
    }
  }
  static size_t at(int64_t i) { return static_cast<size_t>(i); }

  KdaChunks<T> chunks() const {
    KdaChunks<T> a;
    a.tokens = tokens;
    a.d = a.stride = d;
    a.q = q.data();
    a.k = k.data();
    a.v = v.data();
    a.g = g.data();
    a.beta = beta.data();
    a.exp = [](const T* x, int64_t n, T* y) {
      for (int64_t i = 0; i < n; ++i) y[i] = std::exp(x[i]);
    };
    return a;
  }
  // Outputs and the last state of the recurrence, as numerics.md 4 has it.
  std::vector<T> recurrence(std::vector<T>& S) const {
    S = start;
    std::vector<T> out(q.size(), T(0)), e(at(d));
    for (int64_t t = 0; t < tokens; ++t) {
      const T* kt = &k[at(t * d)];
      std::copy_n(&v[at(t * d)], d, e.begin());
      for (int64_t i = 0; i < d; ++i)
        for (int64_t j = 0; j < d; ++j) {
          S[at(i * d + j)] *= std::exp(g[at(t * d + i)]);
          e[at(j)] -= kt[i] * S[at(i * d + j)];
        }
      for (int64_t i = 0; i < d; ++i)
        for (int64_t j = 0; j < d; ++j) {
          S[at(i * d + j)] += kt[i] * beta[at(t)] * e[at(j)];
          out[at(t * d + j)] += q[at(t * d + i)] * S[at(i * d + j)];
        }
    }
    return out;
  }
};

struct Gradients {
  explicit Gradients(const Case<double>& c)
      : q(c.q.size()),
        k(c.q.size()),
        v(c.q.size()),
        g(c.q.size()),
        beta(c.beta.size()),
        S(c.dlast) {}
  std::vector<double> q, k, v, g, beta, S;
};

template <class T>
void expect_close(const std::vector<T>& a, const std::vector<T>& b, double bound,
                  const char* what) {
  T largest = 0;
  for (const T x : b) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], bound * static_cast<double>(largest)) << what << " at " << i;
}

// In double the forms differ by roundings alone: 1e-12 of the largest value (training.md 11.1, 2);
// dg, a difference of sums over the rest of the text, by ten times that.
TEST(KdaChunk, EqualsTheRecurrenceForwardAndBackward) {
  for (const int64_t tokens : {1, 15, 16, 17, 70}) {
    const Case<double> c(tokens, 8, -5, static_cast<uint32_t>(tokens));
    const KdaChunks<double> a = c.chunks();
    std::vector<double> states(static_cast<size_t>((a.chunks() + 1) * 64)), out(c.q.size()), last;
    std::copy(c.start.begin(), c.start.end(), states.begin());
    kda_chunks_forward(a, states.data(), out.data());
    expect_close(out, c.recurrence(last), 1e-12, "out");
    expect_close(std::vector<double>(states.end() - 64, states.end()), last, 1e-12, "state");

    Gradients x(c), y(c);
    kda_chunks_backward(
        a, states.data(), c.dout.data(),
        {x.q.data(), x.k.data(), x.v.data(), x.g.data(), x.beta.data(), x.S.data()});
    std::vector<double> alpha;
    for (const double g : c.g) alpha.push_back(std::exp(g));
    KdaBackward<double> r;
    r.tokens = tokens;
    r.d = r.stride = 8;
    r.q = c.q.data();
    r.k = c.k.data();
    r.v = c.v.data();
    r.alpha = alpha.data();
    r.beta = c.beta.data();
    r.start = c.start.data();
    r.dout = c.dout.data();
    r.dq = y.q.data();
    r.dk = y.k.data();
    r.dv = y.v.data();
    r.dg = y.g.data();
    r.dbeta = y.beta.data();
    r.dS = y.S.data();
    kda_backward(r);
    expect_close(x.q, y.q, 1e-12, "dq");
    expect_close(x.k, y.k, 1e-12, "dk");
    expect_close(x.v, y.v, 1e-12, "dv");
    expect_close(x.g, y.g, 1e-11, "dg");
    expect_close(x.beta, y.beta, 1e-12, "dbeta");
    expect_close(x.S, y.S, 1e-12, "dS");
  }
}

// In float, at the strongest decay for sixteen tokens on end, no factor overflows and outputs stay
// within the relative 1e-4 of training.md 11.1.
TEST(KdaChunk, FloatHoldsAtTheStrongestDecay) {
  Case<float> c(64, 16, -5, 9);
  std::fill(c.g.begin(), c.g.begin() + 32 * 16, -5.0f);
  const KdaChunks<float> a = c.chunks();
  std::vector<float> states(static_cast<size_t>((a.chunks() + 1) * 256)), out(c.q.size()), last;
  std::copy(c.start.begin(), c.start.end(), states.begin());
  kda_chunks_forward(a, states.data(), out.data());
  expect_close(out, c.recurrence(last), 1e-4, "out");
  for (const float x : states) ASSERT_TRUE(std::isfinite(x));
}

// The float products of every instruction set against the templates in double, forward and back:
// training.md 11.1 allows a relative 1e-4 in float.
TEST(KdaChunk, ProductsAreTheTemplates) {
  for (const Isa isa : isas())
    for (const auto& [tokens, d] :
         {std::pair<int64_t, int64_t>{1, 16}, {37, 17}, {64, 48}, {70, 128}}) {
      const Case<float> c(tokens, d, -5, static_cast<uint32_t>(tokens));
      Case<double> wide(tokens, d, -5, 1);
      const auto widen = [](const std::vector<float>& x) {
        return std::vector<double>(x.begin(), x.end());
      };
      wide.q = widen(c.q), wide.k = widen(c.k), wide.v = widen(c.v), wide.g = widen(c.g);
      wide.beta = widen(c.beta), wide.start = widen(c.start), wide.dout = widen(c.dout);
      wide.dlast = widen(c.dlast);
      const KdaChunks<double> b = wide.chunks();
      KdaChunks<float> a = c.chunks();
      a.exp = kernels(isa).exp;
      const auto size = static_cast<size_t>((a.chunks() + 1) * d * d);
      std::vector<double> states(size), out(c.q.size());
      std::copy(wide.start.begin(), wide.start.end(), states.begin());
      kda_chunks_forward(b, states.data(), out.data());
      Gradients y(wide);
      kda_chunks_backward(
          b, states.data(), wide.dout.data(),
          {y.q.data(), y.k.data(), y.v.data(), y.g.data(), y.beta.data(), y.S.data()});

      std::vector<float> fast_states(size), fast_out(c.q.size()),
          work(static_cast<size_t>(kda_products_work(d)));
      std::copy(c.start.begin(), c.start.end(), fast_states.begin());
      kda_chunks_forward(kernels(isa), a, fast_states.data(), fast_out.data(), work.data());
      std::vector<float> q(c.q.size()), k(q), v(q), g(q), beta(c.beta.size()), S(c.dlast);
      kda_chunks_backward(kernels(isa), a, fast_states.data(), c.dout.data(),
                          {q.data(), k.data(), v.data(), g.data(), beta.data(), S.data()},
                          work.data());
      expect_close(widen(fast_out), out, 1e-4, "out");
      expect_close(widen(fast_states), states, 1e-4, "states");
      expect_close(widen(q), y.q, 1e-4, "dq");
      expect_close(widen(k), y.k, 1e-4, "dk");
      expect_close(widen(v), y.v, 1e-4, "dv");
      expect_close(widen(g), y.g, 1e-4, "dg");
      expect_close(widen(beta), y.beta, 1e-4, "dbeta");
      expect_close(widen(S), y.S, 1e-4, "dS");
    }
}

}  // namespace
}  // namespace k3
