#include "model/feed_forward.h"

#include <algorithm>
#include <vector>

#include "ops/gradients.h"
#include "ops/tape.h"

namespace k3 {
namespace {

constexpr int64_t kGroupRows = 512;  // (token, expert) pairs computed at once
constexpr int64_t kWaveRows = 4096;  // pairs whose outputs wait for their turn in the sum

// Calls body(begin, end) for the slabs of `rows`; for all at once when everything is kept anyway.
template <class F>
void each_slab(const Context& ctx, int64_t rows, F&& body) {
  const int64_t slab = ctx.tape ? rows : kSlab;
  for (int64_t begin = 0; begin < rows; begin += slab) body(begin, std::min(rows, begin + slab));
}

// down(act(gate x, up x)); `also` is computed from x beside gate and up.
void mlp(Context& ctx, const ModelConfig& c, const MlpWeights& w, const Rows& x, const Rows& out,
         const std::vector<std::pair<WeightView, Rows>>& also = {}) {
  Scratch::Frame frame(ctx.scratch);
  std::vector<Product> products;
  const Rows gate = ctx.scratch.rows(x.rows, w.gate_proj.rows),
             up = ctx.scratch.rows(x.rows, w.gate_proj.rows);
  const bool present = w.gate_proj.rows > 0;  // a model may have no shared experts
  Operand in;
  if (present || !also.empty())
    in = prepare(ctx, x, present ? w.gate_proj.layout : also[0].first.layout);
  for (const auto& [weight, y] : also) products.push_back({weight, in, y});
  if (present) {
    products.push_back({w.gate_proj, in, gate});
    products.push_back({w.up_proj, in, up});
  }
  matmul(ctx, products);
  if (!present) {
    for (int64_t i = 0; i < out.rows; ++i)
      std::memset(out.row(i), 0, static_cast<size_t>(out.cols) * sizeof(float));
    if (ctx.tape) ctx.tape->start(ctx, out);
    return;
  }
  const Rows inner = activate(ctx, c, gate, up);
  matmul(ctx, {{w.down_proj, prepare(ctx, inner, w.down_proj.layout), out}});
}

int64_t mlp_scratch_bytes(const ModelConfig& c, int64_t rows, int64_t inner) {
  return 2 * Scratch::rows_cost(rows, inner) + prepare_cost(rows, c.hidden_size) +
         prepare_cost(rows, inner);
}

// The routed experts of one layer over one chunk.
class RoutedExperts {
 public:
  RoutedExperts(Context& ctx, const ModelConfig& c, int64_t layer, ExpertStore& store,
                const Routing& routing)
      : ctx_(ctx), c_(c), routing_(routing), lease_(begin(layer, store)) {}

  // y[t] = sum over the token's experts, ascending, of weight * expert(x[t]).
  void run(const Rows& x, const Rows& y) {
    for (int64_t t = 0; t < y.rows; ++t)
      std::memset(y.row(t), 0, static_cast<size_t>(y.cols) * sizeof(float));
    const int64_t pairs = routing_.tokens * routing_.k;
    const Rows outputs =
        ctx_.scratch.rows(ctx_.tape ? pairs : wave_rows(routing_.tokens, routing_.k), y.cols);
    const auto experts = static_cast<int64_t>(ids_.size());
    Operand in;
    for (int64_t begin = 0; begin < experts;) {
      int64_t end = begin, rows = 0;
      while (end < experts && (end == begin || rows + count(end) <= outputs.rows))
        rows += count(end++);
      const int64_t base = first_[static_cast<size_t>(begin)];
      for (std::vector<int64_t> ready; !(ready = lease_.next(kGroupRows, end)).empty();) {
        if (!in.cols) in = prepare(ctx_, x, lease_.weights(ready[0]).w1.layout);
        compute(ready, in, base, outputs);
        lease_.release(ready);
      }
      sum(begin, end, base, outputs, y);
      begin = end;
    }
    if (ctx_.tape) sum_back(outputs, y);
  }

  static int64_t wave_rows(int64_t tokens, int64_t k) {
    return std::max(tokens, std::min(tokens * k, kWaveRows));
  }
  static int64_t scratch_bytes(const ModelConfig& c, int64_t tokens) {
    const int64_t pairs = std::min(kGroupRows, tokens * c.num_experts_per_token);
    return Scratch::rows_cost(wave_rows(tokens, c.num_experts_per_token), c.expert_width()) +
           prepare_cost(tokens, c.expert_width()) + prepare_cost(pairs, c.expert_width()) +
           2 * Scratch::rows_cost(pairs, c.moe_intermediate_size) +
           prepare_cost(pairs, c.moe_intermediate_size);
  }

 private:
  // Sorts the (token, expert) pairs by expert and leases the experts.
  ExpertStore::Lease begin(int64_t layer, ExpertStore& store) {
    const int64_t pairs = routing_.tokens * routing_.k;
    std::vector<int32_t> load(static_cast<size_t>(c_.num_experts), 0);
    for (int64_t i = 0; i < pairs; ++i) ++load[static_cast<size_t>(routing_.ids[i])];
    std::vector<int64_t> next(load.size());
    int64_t at = 0;
    for (size_t e = 0; e < load.size(); ++e) {
      next[e] = at;
      if (load[e] == 0) continue;
      ids_.push_back(static_cast<int32_t>(e));
      first_.push_back(at);
      at += load[e];
    }
    first_.push_back(at);
    tokens_.resize(static_cast<size_t>(pairs));
    place_.resize(static_cast<size_t>(pairs));
    for (int64_t i = 0; i < pairs; ++i) {
      const int64_t to = next[static_cast<size_t>(routing_.ids[i])]++;
      tokens_[static_cast<size_t>(to)] = static_cast<int32_t>(i / routing_.k);
      place_[static_cast<size_t>(i)] = to;
    }
    return store.lease(layer, ids_);
  }

  int64_t count(int64_t expert) const {
    return first_[static_cast<size_t>(expert) + 1] - first_[static_cast<size_t>(expert)];
  }

  // The outputs of the experts in `ready`, at outputs.row(pair - base), at most kGroupRows at a
  // time.
  void compute(const std::vector<int64_t>& ready, const Operand& in, int64_t base,
               const Rows& outputs) {
    std::vector<Piece> pieces;
    int64_t rows = 0;
    for (const int64_t expert : ready) {
      const int64_t last = first_[static_cast<size_t>(expert) + 1];
      for (int64_t at = first_[static_cast<size_t>(expert)]; at < last;) {
        const int64_t n = ctx_.tape ? last - at : std::min({last - at, kSlab, kGroupRows - rows});
        pieces.push_back({expert, at, n, rows});
        rows += n;
        at += n;
        if (rows == kGroupRows && !ctx_.tape) {
          compute_pieces(pieces, rows, in, base, outputs);
          pieces.clear();
          rows = 0;
        }
      }
    }
    if (rows) compute_pieces(pieces, rows, in, base, outputs);
  }

  struct Piece {
    int64_t expert, first, count;  // pairs [first, first + count) of one expert
    int64_t row;                   // where they begin in the group
  };

  void compute_pieces(const std::vector<Piece>& pieces, int64_t rows, const Operand& in,
                      int64_t base, const Rows& outputs) {
    Scratch::Frame frame(ctx_.scratch);
    const Rows gate = ctx_.scratch.rows(rows, c_.moe_intermediate_size);
    const Rows up = ctx_.scratch.rows(rows, c_.moe_intermediate_size);
    const bool one = routing_.tokens == 1;
    Operand all = in;
    if (!one) {
      std::vector<int32_t> tokens;
      for (const Piece& p : pieces)
        tokens.insert(tokens.end(), tokens_.begin() + p.first, tokens_.begin() + p.first + p.count);
      all = gather(ctx_, in, tokens);
    }
    std::vector<Product> products;
    for (const Piece& p : pieces) {
      const ExpertWeights& w = lease_.weights(p.expert);
      const Operand x = one ? all : slice(all, p.row, p.count);
      products.push_back({w.w1, x, gate.slice(p.row, p.row + p.count)});
      products.push_back({w.w3, x, up.slice(p.row, p.row + p.count)});
    }
    matmul(ctx_, products);
    const Rows acts = activate(ctx_, c_, gate, up);
    products.clear();
    const Operand inner = prepare(ctx_, acts, lease_.weights(pieces[0].expert).w2.layout);
    for (const Piece& p : pieces)
      products.push_back({lease_.weights(p.expert).w2, slice(inner, p.row, p.count),
                          outputs.slice(p.first - base, p.first - base + p.count)});
    matmul(ctx_, products);
  }

  // Adds the outputs of experts [begin, end) to their tokens, ascending within a token.
  void sum(int64_t begin, int64_t end, int64_t base, const Rows& outputs, const Rows& y) {
    const int64_t limit = first_[static_cast<size_t>(end)];
    if (begin == end) return;
    ctx_.each_row(routing_.tokens, 16, [&](int64_t t) {
      for (int64_t i = t * routing_.k; i < (t + 1) * routing_.k; ++i) {
        const int64_t pair = place_[static_cast<size_t>(i)];
        if (pair >= base && pair < limit)
          ctx_.kernels.add_scaled(outputs.row(pair - base), routing_.weights[i], y.cols, y.row(t));
      }
    });
  }

  // A pair's output takes its weight's share of the token's gradient; the weight, their product.
  void sum_back(const Rows& outputs, const Rows& y) {
    ctx_.tape->record(
        ctx_, {y}, [=, r = routing_, place = place_, tape = ctx_.tape](Context& back) {
          const Rows dy = tape->gradient(y), d_outputs = tape->gradient(outputs);
          float* d_weights = tape->gradient(r.weights);
          back.each_row(r.tokens, 16, [&](int64_t t) {
            for (int64_t i = t * r.k; i < (t + 1) * r.k; ++i) {
              const int64_t pair = place[static_cast<size_t>(i)];
              back.kernels.add_scaled(dy.row(t), r.weights[i], y.cols, d_outputs.row(pair));
              d_weights[i] += back.kernels.dot(dy.row(t), outputs.row(pair), y.cols);
            }
          });
        });
  }

  Context& ctx_;
  const ModelConfig& c_;
  const Routing& routing_;
  std::vector<int32_t> ids_;     // experts with work, ascending
  std::vector<int64_t> first_;   // their first pair, and the number of pairs at the end
  std::vector<int32_t> tokens_;  // token of each pair, pairs sorted by expert then token
  std::vector<int64_t> place_;   // pair of (token, choice)
  ExpertStore::Lease lease_;
};

void latent_moe(Context& ctx, const ModelConfig& c, int64_t layer, const FeedForwardWeights& w,
                ExpertStore& store, const Rows& x, const Rows& out) {
  Scratch::Frame frame(ctx.scratch);
  const int64_t tokens = x.rows, k = c.num_experts_per_token;
  const bool latent = w.latent_down.rows > 0;
  const Routing routing{tokens, k, ctx.scratch.take<int32_t>(tokens * k),
                        ctx.scratch.take<float>(tokens * k)};
  each_slab(ctx, tokens, [&](int64_t begin, int64_t end) {
    Scratch::Frame slab(ctx.scratch);
    const Rows logits = ctx.scratch.rows(end - begin, c.num_experts);
    matmul(ctx, {{w.router, prepare(ctx, x.slice(begin, end), w.router.layout), logits}});
    route(ctx, c, static_cast<int>(layer), logits, w.router_bias, routing, begin);
  });
  if (ctx.observer) {
    ctx.observer->see_ids("topk_ids", static_cast<int>(layer), 0, routing.ids, tokens, k);
    ctx.observe("topk_weights", static_cast<int>(layer), 0, {routing.weights, tokens, k, k});
  }
  RoutedExperts routed(ctx, c, layer, store, routing);  // reads begin here

  // Meanwhile: what the experts will see, and the shared experts.
  const Rows in = ctx.scratch.rows(tokens, c.expert_width()),
             y = ctx.scratch.rows(tokens, c.expert_width());
  each_slab(ctx, tokens, [&](int64_t begin, int64_t end) {
    const Rows from = x.slice(begin, end);
    if (!latent) copy(ctx, from, in.slice(begin, end));
    std::vector<std::pair<WeightView, Rows>> also;
    if (latent) also.emplace_back(w.latent_down, in.slice(begin, end));
    mlp(ctx, c, w.mlp, from, out.slice(begin, end), also);
  });
  routed.run(in, y);
  each_slab(ctx, tokens, [&](int64_t begin, int64_t end) {
    Scratch::Frame slab(ctx.scratch);
    Rows sum = y.slice(begin, end);
    if (w.latent_norm) sum = rms_norm(ctx, sum, w.latent_norm, c.rms_norm_eps);
    if (latent) {
      const Rows wide = ctx.scratch.rows(sum.rows, c.hidden_size);
      matmul(ctx, {{w.latent_up, prepare(ctx, sum, w.latent_up.layout), wide}});
      sum = wide;
    }
    add(ctx, sum, out.slice(begin, end));
  });
}

}  // namespace

Rows activate(Context& ctx, const ModelConfig& c, const Rows& gate, const Rows& up) {
  const Rows out = ctx.over(gate);
  const bool situ = c.hidden_activation == HiddenActivation::kSitu;
  const float beta = c.activation_situ_beta, linear_beta = c.activation_situ_linear_beta;
  ctx.each_row(gate.rows, 4, [&](int64_t i) {
    if (situ)
      ctx.kernels.situ_mul(gate.row(i), up.row(i), beta, linear_beta, gate.cols, out.row(i));
    else
      ctx.kernels.silu_mul(gate.row(i), up.row(i), gate.cols, out.row(i));
  });
  if (!ctx.tape) return out;
  ctx.tape->record(ctx, {out}, [=, tape = ctx.tape](Context& back) {
    const Rows dy = tape->gradient(out), dgate = tape->gradient(gate), dup = tape->gradient(up);
    constexpr int64_t kTokenBlock = 16;
    const int64_t n = gate.cols;
    back.each_task(ceil_div(gate.rows, kTokenBlock), 3 * n, [&](int64_t block, float* s) {
      float *t = s + n, *w = t + n;
      for (int64_t i = block * kTokenBlock; i < std::min(gate.rows, (block + 1) * kTokenBlock);
           ++i) {
        const float *g = gate.row(i), *u = up.row(i);
        back.kernels.sigmoid(g, n, s);
        if (!situ) {
          silu_mul_backward(g, s, u, n, dy.row(i), dgate.row(i), dup.row(i));
          continue;
        }
        const float inverse = 1.0f / beta, linear = linear_beta == 0 ? 1.0f : 1.0f / linear_beta;
        for (int64_t k = 0; k < n; ++k) t[k] = g[k] * inverse;
        for (int64_t k = 0; k < n; ++k) w[k] = u[k] * linear;
        back.kernels.tanh(t, n, t);
        if (linear_beta != 0) back.kernels.tanh(w, n, w);
        situ_backward(t, s, w, beta, linear_beta, n, dy.row(i), dgate.row(i), dup.row(i));
      }
    });
  });
  return out;
}

void feed_forward(Context& ctx, const ModelConfig& c, int64_t layer, const FeedForwardWeights& w,
                  ExpertStore* experts, const Rows& x, const Rows& out) {
  if (w.moe) {
    latent_moe(ctx, c, layer, w, *experts, x, out);
    return;
  }
  each_slab(ctx, x.rows, [&](int64_t begin, int64_t end) {
    mlp(ctx, c, w.mlp, x.slice(begin, end), out.slice(begin, end));
  });
}

int64_t feed_forward_scratch_bytes(const ModelConfig& c, int64_t tokens) {
  const int64_t slab = std::min(tokens, kSlab), k = c.num_experts_per_token,
                width = c.expert_width();
  const int64_t dense = mlp_scratch_bytes(c, slab, c.intermediate_size);
  if (c.moe_layers() == 0) return dense;
  const int64_t routing = Scratch::cost<int32_t>(tokens * k) + Scratch::cost<float>(tokens * k);
  const int64_t router =
      Scratch::rows_cost(slab, c.num_experts) + prepare_cost(slab, c.hidden_size);
  const int64_t shared = mlp_scratch_bytes(c, slab, c.shared_intermediate_size());
  const int64_t up = Scratch::rows_cost(slab, c.hidden_size) + prepare_cost(slab, width);
  const int64_t moe = routing + 2 * Scratch::rows_cost(tokens, width) +
                      std::max({router, shared, RoutedExperts::scratch_bytes(c, tokens) + up});
  return std::max(dense, moe);
}

}  // namespace k3
