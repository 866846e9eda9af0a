#include "model/kda.h"

#include "model/kda_training.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace k3 {
namespace {

struct Projections {
  Rows q, k, v, gate, z, beta;  // z: the raw decay
  Operand z_low, gate_low;      // of low rank: each head makes its own columns of z and gate
};

// All that depends on the token alone.
Projections project(Context& ctx, const ModelConfig& c, const KdaWeights& w, const Rows& x,
                    bool training) {
  const int64_t n = x.rows, width = c.kda_width(), d = c.kda_head_dim;
  Projections p{ctx.scratch.rows(n, width),
                ctx.scratch.rows(n, width),
                ctx.scratch.rows(n, width),
                ctx.scratch.rows(n, width),
                ctx.scratch.rows(n, width),
                ctx.scratch.rows(n, c.kda_num_heads),
                {},
                {}};
  const Rows z_low = ctx.scratch.rows(n, d);
  const Operand in = prepare(ctx, x, w.q_proj.layout);
  const Operand in_low = prepare(ctx, x, w.f_a_proj.layout);
  std::vector<Product> first = {{w.q_proj, in, p.q},
                                {w.k_proj, in, p.k},
                                {w.v_proj, in, p.v},
                                {w.f_a_proj, in_low, z_low},
                                {w.b_proj, in_low, p.beta}};
  Rows gate_low;
  if (c.use_full_rank_gate) {
    first.push_back({w.g_proj, in, p.gate});
  } else {
    gate_low = ctx.scratch.rows(n, d);
    first.push_back({w.g_a_proj, in_low, gate_low});
  }
  matmul(ctx, first);
  if (training) {  // whole, with a way back
    std::vector<Product> second = {{w.f_b_proj, prepare(ctx, z_low, w.f_b_proj.layout), p.z}};
    if (!c.use_full_rank_gate)
      second.push_back({w.g_b_proj, prepare(ctx, gate_low, w.g_b_proj.layout), p.gate});
    matmul(ctx, second);
    return p;
  }
  p.z_low = prepare(ctx, z_low, w.f_b_proj.layout);
  if (!c.use_full_rank_gate) p.gate_low = prepare(ctx, gate_low, w.g_b_proj.layout);
  return p;
}

// Heads whose channels fill whole panels of the weights: one, unless heads are very small.
int64_t heads_per_task(const ModelConfig& c) {
  return kPanelRows / std::gcd(kPanelRows, c.kda_head_dim);
}

// What `heads` heads from `head` on need of the low-rank products, for one run of tokens.
void expand(const Context& ctx, const ModelConfig& c, const KdaWeights& w, const Projections& p,
            const Batch::Run& run, int64_t head, int64_t heads) {
  const auto columns = [&](const WeightView& weight, const Operand& low, const Rows& y) {
    ctx.kernels.matmul(weight, slice(low, run.row, run.count), y.row(run.row), y.stride,
                       head * c.kda_head_dim / kPanelRows,
                       ceil_div((head + heads) * c.kda_head_dim, kPanelRows));
  };
  columns(w.f_b_proj, p.z_low, p.z);
  if (!c.use_full_rank_gate) columns(w.g_b_proj, p.gate_low, p.gate);
}

// One head of one run of tokens: convolution, normalisation, decay, recurrence, gated norm. Writes
// the head's columns of `q`, `k`, `v`, `alpha` (work space) and of `out`.
struct HeadWork {
  const Projections& p;
  const Rows &q, &k, &v, &alpha, &out;
};
void run_head(const Context& ctx, const ModelConfig& c, const KdaWeights& w, int64_t kda_layer,
              const Batch::Run& run, int64_t head, const HeadWork& work) {
  const Kernels& kernels = ctx.kernels;
  const int64_t d = c.kda_head_dim, at = head * d, taps = c.short_conv_kernel_size;
  SequenceState& state = *run.segment->state;
  const Rows* raw[3] = {&work.p.q, &work.p.k, &work.p.v};
  const Rows* mixed[3] = {&work.q, &work.k, &work.v};
  const float* conv[3] = {w.q_conv, w.k_conv, w.v_conv};
  for (int i = 0; i < 3; ++i)
    kernels.short_conv(raw[i]->row(run.row) + at, run.count, raw[i]->stride, d, taps,
                       conv[i] + head * taps * d, state.history(kda_layer, i, head),
                       mixed[i]->row(run.row) + at);
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  for (int64_t t = run.row; t < run.row + run.count; ++t) {
    kernels.l2_norm(work.q.row(t) + at, kKdaL2Eps, scale, d, work.q.row(t) + at);
    kernels.l2_norm(work.k.row(t) + at, kKdaL2Eps, 1.0f, d, work.k.row(t) + at);
    const float* z = work.p.z.row(t) + at;
    if (c.gate_lower_bound)
      kernels.decay_bounded(z, w.dt_bias + at, w.decay[head], *c.gate_lower_bound, d,
                            work.alpha.row(t) + at);
    else
      kernels.decay_softplus(z, w.dt_bias + at, w.decay[head], d, work.alpha.row(t) + at);
  }
  KdaHead task;
  task.tokens = run.count;
  task.head_dim = d;
  task.q = work.q.row(run.row) + at;
  task.k = work.k.row(run.row) + at;
  task.v = work.v.row(run.row) + at;
  task.alpha = work.alpha.row(run.row) + at;
  task.stride = work.q.stride;
  task.beta = work.p.beta.row(run.row) + head;
  task.beta_stride = work.p.beta.stride;
  task.out = work.out.row(run.row) + at;
  task.out_stride = work.out.stride;
  task.state = state.recurrent(kda_layer, head);
  kernels.kda(task, 0, ceil_div(d, 16));
  for (int64_t t = run.row; t < run.row + run.count; ++t)
    kernels.rms_norm_gated(work.out.row(t) + at, w.o_norm, work.p.gate.row(t) + at, c.rms_norm_eps,
                           d, work.out.row(t) + at);
}

// Every head of every run, from the states of the runs' sequences.
void kda_runs(Context& ctx, const ModelConfig& c, const KdaWeights& w, int64_t kda_layer,
              const std::vector<Batch::Run>& runs, const Projections& p, const Rows& o) {
  const auto like = [&] { return ctx.scratch.rows(o.rows, o.cols); };
  const Rows q = like(), k = like(), v = like(), alpha = like();
  const HeadWork work{p, q, k, v, alpha, o};
  const int64_t step = heads_per_task(c), tasks = ceil_div(c.kda_num_heads, step);
  ctx.each_row(static_cast<int64_t>(runs.size()) * tasks, 1, [&](int64_t i) {
    const Batch::Run& run = runs[static_cast<size_t>(i / tasks)];
    const int64_t first = i % tasks * step, last = std::min(first + step, c.kda_num_heads);
    expand(ctx, c, w, p, run, first, last - first);
    for (int64_t head = first; head < last; ++head) run_head(ctx, c, w, kda_layer, run, head, work);
  });
}

}  // namespace

void kda_attention(Context& ctx, const ModelConfig& c, const KdaWeights& w, int layer,
                   int64_t kda_layer, const Batch& batch, int64_t begin, const Rows& x,
                   const Rows& out) {
  Scratch::Frame frame(ctx.scratch);
  const int64_t n = x.rows, width = c.kda_width();
  const Projections p = project(ctx, c, w, x, batch.training());
  if (ctx.observer) {  // whose last rows are the convolutions' state
    ctx.observe("conv_q", layer, begin, p.q);
    ctx.observe("conv_k", layer, begin, p.k);
    ctx.observe("conv_v", layer, begin, p.v);
  }
  const Rows beta = sigmoid(ctx, p.beta), o = ctx.scratch.rows(n, width);
  const std::vector<Batch::Run> runs = batch.runs(begin, begin + n);
  if (batch.training())
    kda_documents(ctx, c, w, runs, {p.q, p.k, p.v, p.z, beta, p.gate}, o);
  else
    kda_runs(ctx, c, w, kda_layer, runs, p, o);
  matmul(ctx, {{w.o_proj, prepare(ctx, o, w.o_proj.layout), out}});
}

int64_t kda_scratch_bytes(const ModelConfig& c, int64_t rows) {
  return 10 * Scratch::rows_cost(rows, c.kda_width()) + Scratch::rows_cost(rows, c.kda_num_heads) +
         2 * Scratch::rows_cost(rows, c.kda_head_dim) + 2 * prepare_cost(rows, c.hidden_size) +
         2 * prepare_cost(rows, c.kda_head_dim) + prepare_cost(rows, c.kda_width());
}

}  // namespace k3
