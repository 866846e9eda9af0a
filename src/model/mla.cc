#include "model/mla.h"

#include "model/mla_training.h"

#include <algorithm>
#include <cmath>

namespace k3 {
namespace {

constexpr float kLowRankEps = 1e-6f;  // q_a_layernorm, kv_a_layernorm: numerics.md 2
constexpr int64_t kLanesPerTask = 48;

// Queries in latent space, [rows, heads * (latent + rope)]: q_nope through the key half of
// kv_b_proj, q_rope as it is.
Rows absorb_queries(Context& ctx, const ModelConfig& c, const MlaWeights& w, const Rows& q) {
  const int64_t heads = c.num_attention_heads, latent = c.kv_lora_rank, rope = c.qk_rope_head_dim;
  const int64_t channels = latent + rope;
  const Rows absorbed = ctx.scratch.rows(q.rows, heads * channels);
  std::vector<Product> products;
  for (int64_t h = 0; h < heads; ++h) {
    const Rows nope = q.columns(h * c.qk_head_dim(), h * c.qk_head_dim() + c.qk_nope_head_dim);
    products.push_back({w.k_up_of(h), prepare(ctx, nope, w.k_up.layout),
                        absorbed.columns(h * channels, h * channels + latent)});
  }
  matmul(ctx, products);
  ctx.each_row(q.rows, 32, [&](int64_t i) {
    for (int64_t h = 0; h < heads; ++h)
      std::memcpy(absorbed.row(i) + h * channels + latent,
                  q.row(i) + h * c.qk_head_dim() + c.qk_nope_head_dim,
                  static_cast<size_t>(rope) * sizeof(float));
  });
  return absorbed;
}

// Lanes [begin, end) of a run, token-major, at one segment of its positions, or at all (-1).
struct AttendTask {
  const Batch::Run* run;
  int64_t begin, end, segment;
};

// Has each task write lane l of its run to out(task, l).
template <class Out>
void attend_tasks(Context& ctx, const ModelConfig& c, int64_t mla_layer, const Rows& q,
                  const std::vector<AttendTask>& tasks, float* scratch, Out out) {
  const int64_t heads = c.num_attention_heads, latent = c.kv_lora_rank;
  const int64_t channels = latent + c.qk_rope_head_dim;
  const int64_t floats = ctx.kernels.mla_scratch_floats(channels, latent);
  std::atomic<int64_t> next{0};
  ctx.pool.share([&](int thread) {
    const float* query[kLanesPerTask];
    float* value[kLanesPerTask];
    int64_t visible[kLanesPerTask];
    // Later tokens see more: the longest tasks go first.
    for (int64_t i; (i = next.fetch_add(1)) < static_cast<int64_t>(tasks.size());) {
      const AttendTask& task = tasks[tasks.size() - 1 - static_cast<size_t>(i)];
      for (int64_t lane = task.begin; lane < task.end; ++lane) {
        const int64_t token = lane / heads, head = lane % heads, k = lane - task.begin;
        query[k] = q.row(task.run->row + token) + head * channels;
        value[k] = out(task, lane);
        visible[k] = task.run->position + token + 1;
      }
      MlaLanes lanes;
      lanes.lanes = task.end - task.begin;
      lanes.channels = channels;
      lanes.latent = latent;
      lanes.q = query;
      lanes.out = value;
      lanes.segment = task.segment;
      lanes.visible = visible;
      lanes.pages = task.run->segment->state->pages(mla_layer);
      lanes.scale = 1.0f / std::sqrt(static_cast<float>(c.qk_head_dim()));
      lanes.scratch = scratch + thread * floats;
      ctx.kernels.mla(lanes);
    }
  });
}

// Appends the lane sets of a run at one segment.
void lane_sets(const ModelConfig& c, const Batch::Run& run, int threads, int64_t segment,
               std::vector<AttendTask>& tasks) {
  const int64_t lanes = run.count * c.num_attention_heads;
  const int64_t share = round_up(ceil_div(lanes, threads), 16);
  const int64_t step = std::min(kLanesPerTask, share);
  for (int64_t at = 0; at < lanes; at += step)
    tasks.push_back({&run, at, std::min(lanes, at + step), segment});
}

// Parts that wait to be joined, when there are fewer lane sets than threads could share.
int64_t part_rows(int threads) { return 2 * threads * kLanesPerTask; }

// One run, its segments shared out in waves and joined in order.
void attend_by_segments(Context& ctx, const ModelConfig& c, int64_t mla_layer,
                        const Batch::Run& run, const Rows& q, float* scratch, const Rows& o) {
  Scratch::Frame frame(ctx.scratch);
  const int64_t heads = c.num_attention_heads, latent = c.kv_lora_rank;
  const int64_t lanes = run.count * heads, floats = mla_part_floats(latent);
  const int64_t segments = ceil_div(run.position + run.count, kMlaSegment);
  const int64_t wave = part_rows(ctx.pool.size()) / lanes;
  const Rows joined = ctx.scratch.rows(lanes, floats);
  const Rows parts = ctx.scratch.rows(part_rows(ctx.pool.size()), floats);
  for (int64_t first = 0; first < segments; first += wave) {
    const int64_t last = std::min(segments, first + wave);
    std::vector<AttendTask> tasks;
    for (int64_t s = first; s < last; ++s) lane_sets(c, run, ctx.pool.size(), s, tasks);
    attend_tasks(ctx, c, mla_layer, q, tasks, scratch, [&](const AttendTask& task, int64_t lane) {
      return task.segment == 0 ? joined.row(lane)
                               : parts.row((task.segment - first) * lanes + lane);
    });
    ctx.each_row(lanes, 4, [&](int64_t lane) {
      for (int64_t s = std::max<int64_t>(first, 1); s < last; ++s)
        ctx.kernels.mla_join(parts.row((s - first) * lanes + lane), latent, joined.row(lane));
      if (last == segments)
        ctx.kernels.mla_finish(joined.row(lane), latent,
                               o.row(run.row + lane / heads) + lane % heads * latent);
    });
  }
}

// softmax(q . latents) latents for every (row, head) lane. q: [rows, heads * channels],
// o: [rows, heads * latent]. Who attends what does not change a bit of it.
void attend(Context& ctx, const ModelConfig& c, int64_t mla_layer,
            const std::vector<Batch::Run>& runs, const Rows& q, const Rows& o) {
  Scratch::Frame frame(ctx.scratch);
  const int64_t heads = c.num_attention_heads, latent = c.kv_lora_rank;
  const int threads = ctx.pool.size();
  float* scratch = ctx.scratch.take<float>(
      threads * ctx.kernels.mla_scratch_floats(latent + c.qk_rope_head_dim, latent));
  std::vector<AttendTask> tasks;
  int64_t longest = 0;
  for (const Batch::Run& run : runs) {
    lane_sets(c, run, threads, -1, tasks);
    longest = std::max(longest, run.position + run.count);
  }
  if (static_cast<int64_t>(tasks.size()) < 2 * threads && longest > kMlaSegment && threads > 1) {
    for (const Batch::Run& run : runs) attend_by_segments(ctx, c, mla_layer, run, q, scratch, o);
    return;
  }
  attend_tasks(ctx, c, mla_layer, q, tasks, scratch, [&](const AttendTask& task, int64_t lane) {
    return o.row(task.run->row + lane / heads) + lane % heads * latent;
  });
}

void append_latents(Context& ctx, const ModelConfig& c, const MlaWeights& w, int64_t mla_layer,
                    const std::vector<Batch::Run>& runs, const Rows& compressed) {
  const int64_t latent = c.kv_lora_rank;
  for (const Batch::Run& run : runs) {
    for (int64_t t = 0; t < run.count; ++t) {
      const float* from = compressed.row(run.row + t);
      float* to = run.segment->state->latent(mla_layer, run.position + t);
      ctx.kernels.rms_norm(from, w.kv_a_norm, kLowRankEps, latent, to);
      std::memcpy(to + latent, from + latent,
                  static_cast<size_t>(c.qk_rope_head_dim) * sizeof(float));
    }
  }
}

// kv_b_proj in query and output: one latent row serves all heads.
void attend_absorbed(Context& ctx, const ModelConfig& c, const MlaWeights& w, int64_t mla_layer,
                     const std::vector<Batch::Run>& runs, const Rows& q, const Rows& compressed,
                     const Rows& o) {
  const int64_t heads = c.num_attention_heads, latent = c.kv_lora_rank;
  append_latents(ctx, c, w, mla_layer, runs, compressed);
  const Rows absorbed = absorb_queries(ctx, c, w, q);
  const Rows o_latent = ctx.scratch.rows(q.rows, heads * latent);
  attend(ctx, c, mla_layer, runs, absorbed, o_latent);
  std::vector<Product> values;
  for (int64_t h = 0; h < heads; ++h) {
    const Rows part = o_latent.columns(h * latent, (h + 1) * latent);
    values.push_back({w.v_up_of(h), prepare(ctx, part, w.v_up.layout),
                      o.columns(h * c.v_head_dim, (h + 1) * c.v_head_dim)});
  }
  matmul(ctx, values);
}

// Keys and values of every head's own, for documents.
void attend_expanded(Context& ctx, const ModelConfig& c, const MlaWeights& w, int layer,
                     const std::vector<Batch::Run>& runs, const Rows& q, const Rows& compressed,
                     const Rows& o) {
  const int64_t latent = c.kv_lora_rank;
  const Rows latents = ctx.scratch.rows(q.rows, latent);
  rms_norm(ctx, compressed.columns(0, latent), w.kv_a_norm, kLowRankEps, latents);
  const Rows kv = ctx.scratch.rows(q.rows, w.kv_b_proj.rows);
  matmul(ctx, {{w.kv_b_proj, prepare(ctx, latents, w.kv_b_proj.layout), kv}});
  mla_documents(ctx, c, layer, runs, q, kv, compressed.columns(latent, compressed.cols), o);
}

}  // namespace

void mla_attention(Context& ctx, const ModelConfig& c, const MlaWeights& w, int layer,
                   int64_t mla_layer, const Batch& batch, int64_t begin, const Rows& x,
                   const Rows& out) {
  Scratch::Frame frame(ctx.scratch);
  const int64_t n = x.rows, heads = c.num_attention_heads;
  const std::vector<Batch::Run> runs = batch.runs(begin, begin + n);
  const Rows q = ctx.scratch.rows(n, heads * c.qk_head_dim());
  const Rows compressed = ctx.scratch.rows(n, c.kv_lora_rank + c.qk_rope_head_dim);
  const Rows gate = ctx.scratch.rows(n, heads * c.v_head_dim);
  const Operand in = prepare(ctx, x, w.o_proj.layout);
  std::vector<Product> first = {{w.kv_a_proj, in, compressed}};
  if (c.mla_use_output_gate) first.push_back({w.g_proj, in, gate});
  if (c.q_lora_rank == 0) {
    first.push_back({w.q_proj, in, q});
    matmul(ctx, first);
  } else {
    const Rows low = ctx.scratch.rows(n, c.q_lora_rank);
    first.push_back({w.q_a_proj, in, low});
    matmul(ctx, first);
    const Rows normed = rms_norm(ctx, low, w.q_a_norm, kLowRankEps);
    matmul(ctx, {{w.q_b_proj, prepare(ctx, normed, w.q_b_proj.layout), q}});
  }
  Rows o = ctx.scratch.rows(n, heads * c.v_head_dim);
  if (batch.training())
    attend_expanded(ctx, c, w, layer, runs, q, compressed, o);
  else
    attend_absorbed(ctx, c, w, mla_layer, runs, q, compressed, o);
  if (c.mla_use_output_gate) o = mul_sigmoid(ctx, o, gate);
  matmul(ctx, {{w.o_proj, prepare(ctx, o, w.o_proj.layout), out}});
}

int64_t mla_scratch_bytes(const ModelConfig& c, int64_t rows, int threads) {
  const int64_t heads = c.num_attention_heads, latent = c.kv_lora_rank;
  const int64_t channels = latent + c.qk_rope_head_dim, values = heads * c.v_head_dim;
  int64_t attention = 0;
  for (const Isa isa : isas())
    attention = std::max(attention, kernels(isa).mla_scratch_floats(channels, latent));
  return Scratch::rows_cost(rows, heads * c.qk_head_dim()) + Scratch::rows_cost(rows, channels) +
         2 * Scratch::rows_cost(rows, values) + prepare_cost(rows, c.hidden_size) +
         Scratch::rows_cost(rows, c.q_lora_rank) + prepare_cost(rows, c.q_lora_rank) +
         Scratch::rows_cost(rows, heads * channels) +
         heads * prepare_cost(rows, c.qk_nope_head_dim) + Scratch::rows_cost(rows, heads * latent) +
         heads * prepare_cost(rows, latent) + Scratch::cost<float>(attention * threads) +
         2 * Scratch::rows_cost(part_rows(threads), mla_part_floats(latent)) +
         prepare_cost(rows, values);
}

}  // namespace k3
