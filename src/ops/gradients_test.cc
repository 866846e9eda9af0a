// Gradients in float against the golden components (bound of the fixtures' README: 1e-4 of the
// largest entry of the tensor). gradients_differences_test.cc checks the same lines in double.
#include "ops/gradients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "base/storage.h"
#include "ops/gradients_testing.h"
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
  const Values conv = convolve(c["x"], history, w, tokens, n, taps);
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

}  // namespace
}  // namespace k3
