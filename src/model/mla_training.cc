#include "model/mla_training.h"

#include <algorithm>
#include <cmath>

#include "ops/attention.h"
#include "ops/tape.h"

namespace k3 {
namespace {

// One head of one document.
struct DocumentHead {
  const ModelConfig& c;
  const Batch::Run& run;
  int64_t head;
  const Rows &q, &kv, &rope;

  int64_t key_dim() const { return c.qk_head_dim(); }
  int64_t kv_column() const { return head * (c.qk_nope_head_dim + c.v_head_dim); }
  float* query(const Rows& rows) const { return rows.row(run.row) + head * key_dim(); }
  float* value(const Rows& rows) const {
    return rows.row(run.row) + kv_column() + c.qk_nope_head_dim;
  }
  float* output(const Rows& rows) const { return rows.row(run.row) + head * c.v_head_dim; }

  // [tokens][nope + rope]
  void keys(float* to) const {
    for (int64_t t = 0; t < run.count; ++t, to += key_dim()) {
      std::copy_n(kv.row(run.row + t) + kv_column(), c.qk_nope_head_dim, to);
      std::copy_n(rope.row(run.row + t), c.qk_rope_head_dim, to + c.qk_nope_head_dim);
    }
  }
  Attention<float> attention(const float* keys, const Rows& o) const {
    Attention<float> a;
    a.tokens = run.count;
    a.key_dim = a.k_stride = key_dim();
    a.value_dim = c.v_head_dim;
    a.q_stride = q.stride;
    a.v_stride = kv.stride;
    a.out_stride = o.stride;
    a.q = query(q);
    a.k = keys;
    a.v = value(kv);
    a.scale = 1.0f / std::sqrt(static_cast<float>(key_dim()));
    return a;
  }
};

}  // namespace

void mla_documents(Context& ctx, const ModelConfig& c, int layer,
                   const std::vector<Batch::Run>& runs, const Rows& q, const Rows& kv,
                   const Rows& rope, const Rows& o) {
  const int64_t heads = c.num_attention_heads, tasks = static_cast<int64_t>(runs.size()) * heads;
  int64_t most = 0;
  for (const Batch::Run& run : runs) most = std::max(most, run.count);
  const auto of_task = [=, &c](int64_t i, const std::vector<Batch::Run>& all) {
    return DocumentHead{c, all[static_cast<size_t>(i / heads)], i % heads, q, kv, rope};
  };
  // Of each head and token: the largest logit, and the sum of exponentials below it.
  const Rows top = ctx.scratch.rows(heads, q.rows), total = ctx.scratch.rows(heads, q.rows);
  const Rows largest = ctx.scratch.rows(tasks, 1);
  const int64_t work = attention_work(most, c.qk_head_dim(), c.v_head_dim);
  ctx.each_task(tasks, most * c.qk_head_dim() + work, [&](int64_t i, float* keys) {
    const DocumentHead d = of_task(i, runs);
    d.keys(keys);
    *largest.row(i) = attention_forward(ctx.kernels, d.attention(keys, o), d.output(o),
                                        top.row(d.head) + d.run.row, total.row(d.head) + d.run.row,
                                        keys + most * c.qk_head_dim());
  });
  if (ctx.observer) {
    const Rows logit = ctx.scratch.rows(1, heads);
    for (int64_t i = 0; i < tasks; ++i) {
      float& value = logit.data[i % heads];
      value = i < heads ? *largest.row(i) : std::max(value, *largest.row(i));
    }
    ctx.observe("max_logit", layer, 0, logit);
  }
  if (!ctx.tape) return;
  ctx.tape->record(ctx, {o}, [=, &c, tape = ctx.tape](Context& back) {
    const Rows dq = tape->gradient(q), dkv = tape->gradient(kv), drope = tape->gradient(rope),
               d_o = tape->gradient(o);
    // The heads' shares of the keys that are common to all.
    const Rows shared = back.scratch.rows(heads * q.rows, c.qk_rope_head_dim);
    const int64_t width = c.qk_head_dim(), nope = c.qk_nope_head_dim;
    back.each_task(tasks, 2 * most * width + work, [&](int64_t i, float* keys) {
      const DocumentHead d = of_task(i, runs);
      d.keys(keys);
      float* dk = keys + most * width;
      std::fill_n(dk, d.run.count * width, 0.0f);
      attention_backward(back.kernels, d.attention(keys, o), d.output(o),
                         top.row(d.head) + d.run.row, total.row(d.head) + d.run.row, d.output(d_o),
                         d.query(dq), dk, d.value(dkv), dk + most * width);
      for (int64_t t = 0; t < d.run.count; ++t, dk += width) {
        back.kernels.add(dk, nope, dkv.row(d.run.row + t) + d.kv_column());
        std::copy_n(dk + nope, width - nope, shared.row(d.head * q.rows + d.run.row + t));
      }
    });
    back.each_row(q.rows, 64, [&](int64_t t) {
      for (int64_t h = 0; h < heads; ++h)
        back.kernels.add(shared.row(h * q.rows + t), drope.cols, drope.row(t));
    });
  });
}

}  // namespace k3
