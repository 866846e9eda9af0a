// Gradients in float against the golden components (bound of the fixtures' README: 1e-4 of the
// largest entry of the tensor), and the same lines in double against central differences.
#include "ops/gradients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "base/storage.h"
#include "ops/cross_entropy.h"
#include "weights/safetensors.h"

namespace k3 {
namespace {

using Values = std::vector<float>;

struct Component {
  explicit Component(const std::string& name)
      : file(SafetensorsFile::open(
            DiskStorage(), std::string(K3_FIXTURES) + "/components/" + name + ".safetensors")) {}
  const Values& operator[](const std::string& name) const {
    const auto found = read.find(name);
    return found != read.end() ? found->second
                               : read.emplace(name, file.floats(name)).first->second;
  }
  std::vector<int64_t> ids(const std::string& name) const { return file.integers(name); }
  int64_t dim(const std::string& name, size_t i) const { return file.info(name).shape[i]; }
  SafetensorsFile file;
  mutable std::map<std::string, Values> read;
};

void expect_gradient(const Values& got, const Component& c, const std::string& name) {
  const Values& golden = c[name];
  ASSERT_EQ(got.size(), golden.size()) << name;
  float largest = 0;
  for (const float g : golden) largest = std::max(largest, std::abs(g));
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], golden[i], 1e-4f * largest) << name << " at " << i;
}

template <class T>
T sigmoid(T x) {
  return 1 / (1 + std::exp(-x));
}
Values map(const Values& x, const std::function<double(double)>& f) {
  Values y;
  for (const float v : x) y.push_back(static_cast<float>(f(v)));
  return y;
}
Values like(const Values& x) { return Values(x.size(), 0.0f); }

// ---- golden components --------------------------------------------------------------------------

TEST(Gradients, RmsNorm) {
  const Component c("rmsnorm"), g("rmsnorm_gated");
  Values dx = like(c["x"]), dw = like(c["weight"]);
  const int64_t n = c.dim("x", 1);
  for (int64_t t = 0; t < c.dim("x", 0); ++t)
    rms_norm_backward(&c["x"][static_cast<size_t>(t * n)], c["weight"].data(), 1e-5f, n,
                      &c["d_out"][static_cast<size_t>(t * n)], &dx[static_cast<size_t>(t * n)],
                      dw.data());
  expect_gradient(dx, c, "grad_x");
  expect_gradient(dw, c, "grad_weight");

  const Values s = map(g["gate"], sigmoid<double>);
  Values gx = like(g["x"]), gw = like(g["weight"]), gg = like(g["gate"]);
  const int64_t d = g.dim("x", 2);
  for (size_t at = 0; at < g["x"].size(); at += static_cast<size_t>(d))
    rms_norm_gated_backward(&g["x"][at], g["weight"].data(), &s[at], 1e-5f, d, &g["d_out"][at],
                            &gx[at], gw.data(), &gg[at]);
  expect_gradient(gx, g, "grad_x");
  expect_gradient(gw, g, "grad_weight");
  expect_gradient(gg, g, "grad_gate");
}

TEST(Gradients, Situ) {
  for (const bool bounded : {true, false}) {
    const Component c(bounded ? "situ" : "situ_nolinear");
    const Values t = map(c["gate"], [](double x) { return std::tanh(x / 4); });
    const Values s = map(c["gate"], sigmoid<double>);
    const Values w = bounded ? map(c["up"], [](double x) { return std::tanh(x / 25); }) : c["up"];
    Values dgate = like(t), dup = like(t);
    situ_backward(t.data(), s.data(), w.data(), 4.0f, bounded ? 25.0f : 0.0f,
                  static_cast<int64_t>(t.size()), c["d_out"].data(), dgate.data(), dup.data());
    expect_gradient(dgate, c, "grad_gate");
    expect_gradient(dup, c, "grad_up");
  }
}

// Both decays, and within KDA.
void decay_backward(const Component& c, const std::string& raw, const Values& log_decay,
                    const Values& dg, int64_t tokens, int64_t heads, int64_t d, Values& draw,
                    Values& dbias, Values& dA, bool bounded) {
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < heads; ++h) {
      const size_t at = static_cast<size_t>((t * heads + h) * d), bias = static_cast<size_t>(h * d);
      const float a = std::exp(c["A_log"][static_cast<size_t>(h)]);
      Values s(static_cast<size_t>(d));
      for (size_t i = 0; i < s.size(); ++i) {
        const float z = c[raw][at + i] + c["dt_bias"][bias + i];
        s[i] = sigmoid(bounded ? a * z : z);
      }
      if (bounded)
        decay_bounded_backward(&c[raw][at], &c["dt_bias"][bias], s.data(), a, -5.0f, d, &dg[at],
                               &draw[at], &dbias[bias], &dA[static_cast<size_t>(h)]);
      else
        decay_softplus_backward(&log_decay[at], s.data(), a, d, &dg[at], &draw[at], &dbias[bias],
                                &dA[static_cast<size_t>(h)]);
    }
}

TEST(Gradients, Decay) {
  for (const bool bounded : {true, false}) {
    const Component c(bounded ? "decay_bounded" : "decay_softplus");
    Values draw = like(c["raw"]), dbias = like(c["dt_bias"]), dA = like(c["A_log"]);
    decay_backward(c, "raw", c["log_decay"], c["d_log_decay"], c.dim("raw", 0), c.dim("raw", 1),
                   c.dim("raw", 2), draw, dbias, dA, bounded);
    expect_gradient(draw, c, "grad_raw");
    expect_gradient(dbias, c, "grad_dt_bias");
    expect_gradient(dA, c, "grad_A_log");
  }
}

TEST(Gradients, ShortConvolution) {
  const Component c("short_conv");
  const int64_t tokens = c.dim("x", 0), n = c.dim("x", 1), taps = c.dim("weight", 2);
  // The fixture keeps `taps` rows of history, [channel][row]; the oldest meets no tap.
  Values w(static_cast<size_t>(taps * n)), history(static_cast<size_t>((taps - 1) * n));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < taps; ++j)
      w[static_cast<size_t>(j * n + i)] = c["weight"][static_cast<size_t>(i * taps + j)];
    for (int64_t j = 0; j + 1 < taps; ++j)
      history[static_cast<size_t>(j * n + i)] = c["state0"][static_cast<size_t>(i * taps + j + 1)];
  }
  Values conv = like(c["x"]);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < taps; ++j) {
        const int64_t from = t - taps + 1 + j;
        conv[static_cast<size_t>(t * n + i)] +=
            w[static_cast<size_t>(j * n + i)] *
            (from >= 0 ? c["x"][static_cast<size_t>(from * n + i)]
                       : history[static_cast<size_t>((from + taps - 1) * n + i)]);
      }
  const Values s = map(conv, sigmoid<double>);
  // The state after the last token holds the last rows of x: their gradient arrives there too.
  Values dx = like(c["x"]), dw = like(w), dhistory = like(history);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < taps; ++j)
      dx[static_cast<size_t>((tokens - taps + j) * n + i)] +=
          c["d_state"][static_cast<size_t>(i * taps + j)];
  short_conv_backward(c["x"].data(), history.data(), conv.data(), s.data(), w.data(), tokens, n,
                      taps, n, c["d_y"].data(), dx.data(), dw.data(), dhistory.data());
  Values grad_weight = like(c["weight"]), grad_state = like(c["state0"]);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < taps; ++j)
      grad_weight[static_cast<size_t>(i * taps + j)] = dw[static_cast<size_t>(j * n + i)];
    for (int64_t j = 0; j + 1 < taps; ++j)
      grad_state[static_cast<size_t>(i * taps + j + 1)] = dhistory[static_cast<size_t>(j * n + i)];
  }
  expect_gradient(dx, c, "grad_x");
  expect_gradient(grad_weight, c, "grad_weight");
  expect_gradient(grad_state, c, "grad_state0");
}

// The forward's softmax, in whatever number.
template <class T>
void softmax(const T* x, int64_t n, T* p) {
  const T top = *std::max_element(x, x + n);
  T total = 0;
  for (int64_t i = 0; i < n; ++i) total += std::exp(x[i] - top);
  for (int64_t i = 0; i < n; ++i) p[i] = std::exp(x[i] - top) / total;
}

TEST(Gradients, AttentionResiduals) {
  for (const char* name : {"attn_res", "attn_res_one_block"}) {
    const Component c(name);
    const int64_t tokens = c.dim("out", 0), n = c.dim("out", 1);
    const int64_t blocks = c.dim("block_residual", 1);
    Values dblock = like(c["block_residual"]), dsum = like(c["prefix_sum"]);
    Values query = c["norm_weight"], dquery = like(query);
    for (size_t i = 0; i < query.size(); ++i) query[i] *= c["proj_weight"][i];
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<const float*> v;
      std::vector<float*> dv;
      for (int64_t b = 0; b < blocks; ++b) {
        v.push_back(&c["block_residual"][static_cast<size_t>((t * blocks + b) * n)]);
        dv.push_back(&dblock[static_cast<size_t>((t * blocks + b) * n)]);
      }
      v.push_back(&c["prefix_sum"][static_cast<size_t>(t * n)]);
      dv.push_back(&dsum[static_cast<size_t>(t * n)]);
      mix_residuals_backward(v.data(), blocks + 1, query.data(), 1e-5f, n, softmax<float>,
                             &c["d_out"][static_cast<size_t>(t * n)], dv.data(), dquery.data());
    }
    // query = norm * proj, so each gets the other's share.
    Values dnorm = dquery, dproj = dquery;
    for (size_t i = 0; i < dquery.size(); ++i) {
      dnorm[i] *= c["proj_weight"][i];
      dproj[i] *= c["norm_weight"][i];
    }
    expect_gradient(dblock, c, "grad_block_residual");
    expect_gradient(dsum, c, "grad_prefix_sum");
    expect_gradient(dnorm, c, "grad_norm_weight");
    expect_gradient(dproj, c, "grad_proj_weight");
  }
}

TEST(Gradients, Router) {
  struct Case {
    const char* name;
    bool softmax, renormalize;
    float factor;
  };
  for (const Case& r :
       {Case{"router", false, true, 1}, Case{"router_grouped", false, true, 2.5f},
        Case{"router_softmax", true, true, 1}, Case{"router_norenorm", false, false, 2.446f},
        Case{"router_top1", false, true, 1}}) {
    const Component c(r.name);
    const int64_t tokens = c.dim("x", 0), n = c.dim("x", 1), experts = c.dim("weight", 0);
    const int64_t k = c.dim("topk_weights", 1);
    const std::vector<int64_t> chosen = c.ids("topk_ids");
    Values dx = like(c["x"]), dw = like(c["weight"]);
    for (int64_t t = 0; t < tokens; ++t) {
      const float* x = &c["x"][static_cast<size_t>(t * n)];
      std::vector<double> logits;
      for (int64_t e = 0; e < experts; ++e) {
        double sum = 0;
        for (int64_t i = 0; i < n; ++i)
          sum += double{x[i]} * c["weight"][static_cast<size_t>(e * n + i)];
        logits.push_back(sum);
      }
      double total = 0;
      for (const double l : logits) total += std::exp(l);
      Values score, dlogits(static_cast<size_t>(experts), 0.0f);
      for (const double l : logits)
        score.push_back(static_cast<float>(r.softmax ? std::exp(l) / total : sigmoid(l)));
      std::vector<int32_t> ids;
      for (int64_t i = 0; i < k; ++i)
        ids.push_back(static_cast<int32_t>(chosen[static_cast<size_t>(t * k + i)]));
      router_backward(score.data(), experts, r.softmax, ids.data(), k, r.renormalize, r.factor,
                      &c["d_topk_weights"][static_cast<size_t>(t * k)], dlogits.data());
      for (int64_t e = 0; e < experts; ++e)
        for (int64_t i = 0; i < n; ++i) {
          dx[static_cast<size_t>(t * n + i)] +=
              dlogits[static_cast<size_t>(e)] * c["weight"][static_cast<size_t>(e * n + i)];
          dw[static_cast<size_t>(e * n + i)] += dlogits[static_cast<size_t>(e)] * x[i];
        }
    }
    expect_gradient(dx, c, "grad_x");
    expect_gradient(dw, c, "grad_weight");
  }
}

TEST(Gradients, Kda) {
  for (const char* name : {"kda_bounded", "kda_softplus", "kda_long"}) {
    const Component c(name);
    const int64_t tokens = c.dim("q", 0), heads = c.dim("q", 1), d = c.dim("q", 2);
    const auto dd = static_cast<size_t>(d);
    const float scale = 1 / std::sqrt(static_cast<float>(d));
    Values q = c["q_unit"];  // unit rows; the recurrence takes them scaled
    for (float& x : q) x *= scale;
    const Values alpha = map(c["log_decay"], [](double g) { return std::exp(g); });
    Values dq = like(q), dk = like(q), dv = like(q), dg = like(q), dbeta = like(c["beta"]);
    Values dstate = like(c["state0"]);
    for (int64_t h = 0; h < heads; ++h) {
      // The fixture's states are [value][key].
      Values start(dd * dd), dS(dd * dd);
      const size_t base = static_cast<size_t>(h) * dd * dd;
      for (size_t i = 0; i < dd; ++i)
        for (size_t j = 0; j < dd; ++j) {
          start[i * dd + j] = c["state0"][base + j * dd + i];
          dS[i * dd + j] = c["d_state"][base + j * dd + i];
        }
      KdaBackward<float> a;
      a.tokens = tokens;
      a.d = d;
      a.stride = heads * d;
      a.beta_stride = heads;
      const auto at = h * d;
      a.q = q.data() + at;
      a.k = c["k_unit"].data() + at;
      a.v = c["v"].data() + at;
      a.alpha = alpha.data() + at;
      a.beta = c["beta_sigmoid"].data() + h;
      a.start = start.data();
      a.dout = c["d_o"].data() + at;
      a.dq = dq.data() + at;
      a.dk = dk.data() + at;
      a.dv = dv.data() + at;
      a.dg = dg.data() + at;
      a.dbeta = dbeta.data() + h;
      a.dS = dS.data();
      kda_backward(a);
      for (size_t i = 0; i < dd; ++i)
        for (size_t j = 0; j < dd; ++j) dstate[base + j * dd + i] = dS[i * dd + j];
    }
    expect_gradient(dv, c, "grad_v");
    expect_gradient(dk, c, "grad_k_unit");
    expect_gradient(dg, c, "grad_log_decay");
    expect_gradient(dbeta, c, "grad_beta_sigmoid");
    expect_gradient(dstate, c, "grad_state0");
    Values dq_unit = dq;
    for (float& x : dq_unit) x *= scale;
    expect_gradient(dq_unit, c, "grad_q_unit");

    // On through the norms, the decay and beta's sigmoid.
    Values draw_q = like(q), draw_k = like(q), draw_g = like(q), dbias = like(c["dt_bias"]);
    Values dA = like(c["A_log"]), dlogit = like(c["beta"]);
    for (size_t row = 0; row < q.size(); row += dd) {
      l2_norm_backward(&c["q"][row], 1e-6f, 1.0f, d, &dq_unit[row], &draw_q[row]);
      l2_norm_backward(&c["k"][row], 1e-6f, 1.0f, d, &dk[row], &draw_k[row]);
    }
    decay_backward(c, "g", c["log_decay"], dg, tokens, heads, d, draw_g, dbias, dA,
                   std::string(name) != "kda_softplus");
    for (size_t i = 0; i < dlogit.size(); ++i) {
      const float s = c["beta_sigmoid"][i];
      dlogit[i] = dbeta[i] * s * (1 - s);
    }
    expect_gradient(draw_q, c, "grad_q");
    expect_gradient(draw_k, c, "grad_k");
    expect_gradient(draw_g, c, "grad_g");
    expect_gradient(dbias, c, "grad_dt_bias");
    expect_gradient(dA, c, "grad_A_log");
    expect_gradient(dlogit, c, "grad_beta");
  }
}

// ---- finite differences in double ---------------------------------------------------------------

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
  const auto convolve = [&] {
    Doubles c(18, 0.0);
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < taps; ++j) {
          const int64_t from = t - taps + 1 + j;
          c[static_cast<size_t>(t * n + i)] +=
              w[static_cast<size_t>(j * n + i)] *
              (from >= 0 ? x[static_cast<size_t>(from * n + i)]
                         : history[static_cast<size_t>((from + taps - 1) * n + i)]);
        }
    return c;
  };
  const auto f = [&] {
    const Doubles c = convolve();
    double sum = 0;
    for (size_t i = 0; i < c.size(); ++i) sum += dy[i] * c[i] * sigmoid(c[i]);
    return sum;
  };
  const Doubles c = convolve();
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
  const int32_t targets[] = {5, 0, -1};
  MemoryAccount account(1 << 20);
  ThreadPool pool(2);
  Scratch scratch(account, 1 << 16);
  Context ctx{pool, kernels(best_isa()), scratch};
  const Rows rows = scratch.rows(3, 8), nll = scratch.rows(3, 1);
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t c = 0; c < 8; ++c)
      rows.row(i)[c] = i < 2 ? static_cast<float>(logits[static_cast<size_t>(i * 8 + c)]) : 1.0f;
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
  EXPECT_EQ(*nll.row(2), 0.0f);
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t c = 0; c < 8; ++c) {
      if (i == 2) {
        EXPECT_EQ(rows.row(i)[c], 0.0f);
        continue;
      }
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
