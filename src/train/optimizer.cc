#include "train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/gemm.h"

namespace k3 {
namespace {

// Newton-Schulz: X <- a X + (b Y + c Y^2) X with Y = X X'.
constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
constexpr int kSteps = 5;
// The root mean square that AdamW's updates have, so that one rate serves both.
constexpr float kAdamRms = 0.2f;

double sum_of_squares(Context& ctx, const Rows& x) {
  std::vector<double> rows(static_cast<size_t>(x.rows));
  ctx.each_row(x.rows, 8, [&](int64_t i) {
    double sum = 0;
    for (int64_t j = 0; j < x.cols; ++j) sum += double{x.row(i)[j]} * x.row(i)[j];
    rows[static_cast<size_t>(i)] = sum;
  });
  double sum = 0;
  for (const double r : rows) sum += r;
  return sum;
}

double root_mean_square(Context& ctx, const Rows& x) {
  return std::sqrt(sum_of_squares(ctx, x) / static_cast<double>(x.rows * x.cols));
}

// The Gram matrix is x' x (kTransposed) or x x', whichever is the smaller.
void newton_schulz(Context& ctx, const Rows& x, Transposition gram) {
  Scratch::Frame frame(ctx.scratch);
  const bool tall = gram == kTransposed;
  const int64_t n = tall ? x.cols : x.rows;
  const Rows y = ctx.scratch.rows(n, n), z = ctx.scratch.rows(n, n);
  const Rows next = ctx.scratch.rows(x.rows, x.cols);
  for (int step = 0; step < kSteps; ++step) {
    if (tall)
      gemm(ctx, {x, kTransposed}, {x}, y);
    else
      gemm(ctx, {x}, {x, kTransposed}, y);
    gemm(ctx, {y}, {y}, z);
    ctx.each_row(n, 8, [&](int64_t i) {
      for (int64_t j = 0; j < n; ++j) z.row(i)[j] = kB * y.row(i)[j] + kC * z.row(i)[j];
    });
    if (tall)
      gemm(ctx, {x}, {z}, next);  // z is symmetric
    else
      gemm(ctx, {z}, {x}, next);
    ctx.each_row(x.rows, 8, [&](int64_t i) {
      for (int64_t j = 0; j < x.cols; ++j) x.row(i)[j] = kA * x.row(i)[j] + next.row(i)[j];
    });
  }
}

std::vector<double> adamw(Context& ctx, const OptimizerOptions& o, const UpdateRule& rule,
                          float rate, const Rows& w, const Rows& g, OptimizerState& s) {
  Scratch::Frame frame(ctx.scratch);
  const double t = static_cast<double>(s.step);
  const auto correct1 = static_cast<float>(1 / (1 - std::pow(double{o.beta1}, t)));
  const auto correct2 = static_cast<float>(1 / (1 - std::pow(double{o.beta2}, t)));
  const float decay = rule.decay ? o.weight_decay : 0.0f;
  const Rows moved = ctx.scratch.rows(w.rows, w.cols);
  ctx.each_row(w.rows, 8, [&](int64_t i) {
    float* m = s.first.as<float>() + i * w.cols;
    float* v = s.second.as<float>() + i * w.cols;
    const float* grad = g.row(i);
    float *weight = w.row(i), *u = moved.row(i);
    for (int64_t j = 0; j < w.cols; ++j) {
      m[j] = o.beta1 * m[j] + (1 - o.beta1) * grad[j];
      v[j] = o.beta2 * v[j] + (1 - o.beta2) * grad[j] * grad[j];
      u[j] = m[j] * correct1 / (std::sqrt(v[j] * correct2) + o.epsilon);
      weight[j] -= rate * (u[j] + decay * weight[j]);
    }
  });
  return {root_mean_square(ctx, moved)};
}

std::vector<double> muon(Context& ctx, const OptimizerOptions& o, const UpdateRule& rule,
                         float rate, const Rows& w, const Rows& g, OptimizerState& s) {
  std::vector<double> rms;
  const float decay = rule.decay ? o.weight_decay : 0.0f;
  int64_t first = 0;
  for (const int64_t rows : rule.blocks) {
    Scratch::Frame frame(ctx.scratch);
    const Rows x = ctx.scratch.rows(rows, w.cols);
    ctx.each_row(rows, 8, [&](int64_t i) {
      float* m = s.first.as<float>() + (first + i) * w.cols;
      const float* grad = g.row(first + i);
      for (int64_t j = 0; j < w.cols; ++j) {
        m[j] = o.momentum * m[j] + grad[j];
        x.row(i)[j] = grad[j] + o.momentum * m[j];  // Nesterov
      }
    });
    orthogonalize(ctx, x);
    const float scale = kAdamRms * std::sqrt(static_cast<float>(std::max(rows, w.cols)));
    ctx.each_row(rows, 8, [&](int64_t i) {
      float* weight = w.row(first + i);
      for (int64_t j = 0; j < w.cols; ++j) {
        x.row(i)[j] *= scale;
        weight[j] -= rate * (x.row(i)[j] + decay * weight[j]);
      }
    });
    rms.push_back(root_mean_square(ctx, x));
    first += rows;
  }
  assert(first == w.rows);
  return rms;
}

}  // namespace

OptimizerState::OptimizerState(MemoryAccount& account, const UpdateRule& rule, int64_t elements) {
  const auto bytes = static_cast<uint64_t>(elements) * sizeof(float);
  first = Buffer(account, "moments", bytes);
  if (!rule.muon) second = Buffer(account, "moments", bytes);
}

UpdateRule update_rule(const ModelConfig& c, const std::string& name, int64_t rows,
                       const OptimizerOptions& o) {
  UpdateRule rule;
  rule.decay = !name.ends_with("A_log") && !name.ends_with("dt_bias");
  const auto is = [&](std::initializer_list<const char*> ends) {
    return std::any_of(ends.begin(), ends.end(),
                       [&](const char* end) { return name.ends_with(end); });
  };
  const bool matrix = is({"_proj.weight", "_proj_with_mqa.weight", ".gate.weight", ".w1.weight",
                          ".w2.weight", ".w3.weight"});
  // b_proj has a row a head; the queries of Attention Residuals are vectors named _res_proj.
  rule.muon = o.muon && matrix && !is({".b_proj.weight", "_res_proj.weight"});
  if (!rule.muon) return rule;
  const auto heads_of = [&](std::initializer_list<int64_t> pattern) {
    for (int64_t left = rows; left > 0;)
      for (const int64_t block : pattern) {
        rule.blocks.push_back(block);
        left -= block;
      }
  };
  const bool attention = name.find(".self_attn.") != std::string::npos;
  bool kda = false;
  if (attention) {
    const size_t at = name.find("layers.") + 7;
    kda = c.attention(std::stoll(name.substr(at))) == AttentionKind::kKda;
  }
  const int64_t d = c.kda_head_dim;
  if (attention && o.per_head && kda && is({".q_proj.weight", ".k_proj.weight", ".v_proj.weight"}))
    heads_of({d});
  else if (attention && o.per_head && !kda && is({".q_proj.weight", ".q_b_proj.weight"}))
    heads_of({c.qk_head_dim()});
  else if (attention && o.per_head && is({".kv_b_proj.weight"}))
    heads_of({c.qk_nope_head_dim, c.v_head_dim});
  else if (attention && o.per_head_gates && kda &&
           is({".f_b_proj.weight", ".g_proj.weight", ".g_b_proj.weight"}))
    heads_of({d});
  else if (attention && o.per_head_gates && !kda && is({".g_proj.weight"}))
    heads_of({c.v_head_dim});
  else
    rule.blocks = {rows};
  return rule;
}

void orthogonalize(Context& ctx, const Rows& x) {
  const auto scale = static_cast<float>(1 / (std::sqrt(sum_of_squares(ctx, x)) + 1e-7));
  ctx.each_row(x.rows, 8, [&](int64_t i) {
    for (int64_t j = 0; j < x.cols; ++j) x.row(i)[j] *= scale;
  });
  newton_schulz(ctx, x, x.rows > x.cols ? kTransposed : kAsStored);
}

std::vector<double> update(Context& ctx, const OptimizerOptions& o, const UpdateRule& rule,
                           float rate, const Rows& weight, const Rows& gradient,
                           OptimizerState& s) {
  assert(weight.rows == gradient.rows && weight.cols == gradient.cols);
  assert(s.first && (rule.muon || s.second));
  ++s.step;
  return rule.muon ? muon(ctx, o, rule, rate, weight, gradient, s)
                   : adamw(ctx, o, rule, rate, weight, gradient, s);
}

int64_t update_cost(int64_t rows, int64_t cols) {
  const int64_t n = std::min(rows, cols);
  return 2 * Scratch::rows_cost(rows, cols) + 2 * Scratch::rows_cost(n, n) +
         gemm_cost(n, std::max(rows, cols));
}

float learning_rate(const Schedule& s, int64_t step) {
  if (step < s.warmup) return s.peak * static_cast<float>(step + 1) / static_cast<float>(s.warmup);
  const int64_t begin = s.form == Schedule::Form::kCosine ? s.warmup : s.steps - s.decay;
  if (step < begin) return s.peak;
  const double span = std::max<double>(1, static_cast<double>(s.steps - begin));
  const double done = std::min(1.0, static_cast<double>(step - begin) / span);
  const double left =
      s.form == Schedule::Form::kCosine ? (1 + std::cos(std::numbers::pi * done)) / 2 : 1 - done;
  return static_cast<float>(s.peak * (s.last + (1 - s.last) * left));
}

double gradient_norm(Context& ctx, const std::vector<Rows>& gradients) {
  double sum = 0;
  for (const Rows& g : gradients) sum += sum_of_squares(ctx, g);
  return std::sqrt(sum);
}

void clip_gradients(Context& ctx, const std::vector<Rows>& gradients, double norm, double limit) {
  if (norm <= limit) return;
  const auto scale = static_cast<float>(limit / norm);
  for (const Rows& g : gradients)
    ctx.each_row(g.rows, 8, [&](int64_t i) {
      for (int64_t j = 0; j < g.cols; ++j) g.row(i)[j] *= scale;
    });
}

}  // namespace k3
