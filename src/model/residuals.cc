#include "model/residuals.h"

#include "ops/gradients.h"
#include "ops/tape.h"

namespace k3 {

int64_t Residuals::block_count(const ModelConfig& c) {
  return c.attn_res_block_size ? ceil_div(c.num_hidden_layers, c.attn_res_block_size) : 0;
}

int64_t Residuals::floats(const ModelConfig& c, int64_t tokens) {
  return (block_count(c) + 1) * tokens * Scratch::row_stride(c.hidden_size);
}

Residuals::Residuals(const ModelConfig& c, float* storage, int64_t tokens)
    : block_size_(c.attn_res_block_size), eps_(c.rms_norm_eps) {
  const int64_t stride = Scratch::row_stride(c.hidden_size);
  for (int64_t i = 0; i <= block_count(c); ++i)
    storage_.push_back({storage + i * tokens * stride, tokens, c.hidden_size, stride});
  sum_ = storage_[0];
}

Residuals::Residuals(const ModelConfig& c, const Rows& sum)
    : block_size_(c.attn_res_block_size), eps_(c.rms_norm_eps), sum_(sum) {}

void Residuals::mix(Context& ctx, MixQuery query, int64_t begin, int64_t end,
                    const Rows& out) const {
  std::vector<Rows> values;
  for (const Rows& block : closed_) values.push_back(block.slice(begin, end));
  if (!fresh_) values.push_back(sum_.slice(begin, end));
  const auto count = static_cast<int64_t>(values.size());
  ctx.each_row(end - begin, 4, [&](int64_t i) {
    const float* v[kMaxBlocks + 1];
    for (int64_t k = 0; k < count; ++k) v[k] = values[static_cast<size_t>(k)].row(i);
    if (count == 1)  // a softmax over one value
      std::memcpy(out.row(i), v[0], static_cast<size_t>(sum_.cols) * sizeof(float));
    else
      ctx.kernels.mix_residuals(v, count, query, eps_, sum_.cols, out.row(i));
  });
  if (!ctx.tape) return;
  ctx.tape->record(ctx, {out}, [=, eps = eps_, tape = ctx.tape](Context& back) {
    const Rows dh = tape->gradient(out);
    const auto each = [&](int64_t first, int64_t last, float* dquery) {
      for (int64_t i = first; i < last; ++i) {
        const float* v[kMaxBlocks + 1];
        float* dv[kMaxBlocks + 1];
        for (int64_t k = 0; k < count; ++k) {
          v[k] = values[static_cast<size_t>(k)].row(i);
          dv[k] = tape->gradient(v[k]);
        }
        if (count == 1)
          back.kernels.add(dh.row(i), dh.cols, dv[0]);
        else
          mix_residuals_backward(v, count, query, eps, dh.cols, back.kernels.softmax, dh.row(i), dv,
                                 dquery);
      }
    };
    if (count == 1)
      back.pool.parallel_for(dh.rows, 64, [&](int64_t a, int64_t b) { each(a, b, nullptr); });
    else
      sum_over_rows(back, dh.rows, dh.cols, tape->vector(query), each);
  });
}

void Residuals::close_block(int64_t layer) {
  if (block_size_ == 0 || layer % block_size_ != 0) return;
  closed_.push_back(sum_);
  if (!storage_.empty()) sum_ = storage_[closed_.size()];
  fresh_ = true;
}

void Residuals::add(Context& ctx, int64_t begin, const Rows& delta) {
  if (ctx.tape && fresh_) {
    sum_ = delta;
    return;
  }
  const Rows before = sum_;
  if (ctx.tape) sum_ = ctx.scratch.rows(delta.rows, delta.cols);
  if (!ctx.tape && storage_.empty()) sum_ = room_;
  const bool moved = sum_.data != before.data;
  ctx.each_row(delta.rows, 16, [&](int64_t i) {
    float* to = sum_.row(begin + i);
    if (fresh_ || moved)
      std::memcpy(to, fresh_ ? delta.row(i) : before.row(i),
                  static_cast<size_t>(delta.cols) * sizeof(float));
    if (!fresh_) ctx.kernels.add(delta.row(i), delta.cols, to);
  });
  if (!ctx.tape) return;
  ctx.tape->record(ctx, {sum_}, [=, after = sum_, tape = ctx.tape](Context& back) {
    const Rows dy = tape->gradient(after);
    back.each_row(dy.rows, 16, [&](int64_t i) {
      back.kernels.add(dy.row(i), dy.cols, tape->gradient(before.row(i)));
      back.kernels.add(dy.row(i), dy.cols, tape->gradient(delta.row(i)));
    });
  });
}

}  // namespace k3
