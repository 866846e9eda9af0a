#include "model/residuals.h"

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

void Residuals::mix(Context& ctx, MixQuery query, int64_t begin, int64_t end,
                    const Rows& out) const {
  ctx.each_row(end - begin, 4, [&](int64_t i) {
    const float* values[kMaxBlocks + 1];
    int64_t count = 0;
    for (const Rows& block : closed_) values[count++] = block.row(begin + i);
    if (!fresh_) values[count++] = sum_.row(begin + i);
    if (count == 1)  // a softmax over one value
      std::memcpy(out.row(i), values[0], static_cast<size_t>(sum_.cols) * sizeof(float));
    else
      ctx.kernels.mix_residuals(values, count, query, eps_, sum_.cols, out.row(i));
  });
}

void Residuals::close_block(int64_t layer) {
  if (block_size_ == 0 || layer % block_size_ != 0) return;
  closed_.push_back(sum_);
  sum_ = storage_[closed_.size()];
  fresh_ = true;
}

void Residuals::add(Context& ctx, int64_t begin, const Rows& delta) {
  ctx.each_row(delta.rows, 16, [&](int64_t i) {
    float* to = sum_.row(begin + i);
    if (fresh_)
      std::memcpy(to, delta.row(i), static_cast<size_t>(delta.cols) * sizeof(float));
    else
      ctx.kernels.add(delta.row(i), delta.cols, to);
  });
}

}  // namespace k3
