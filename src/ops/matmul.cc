#include "ops/matmul.h"

#include <algorithm>
#include <vector>

namespace k3 {
namespace {

// Weight bytes one task should stream at least, so that handing it out costs nothing beside it.
constexpr int64_t kTaskBytes = 96 << 10;
// Tasks per thread at most: enough that a thread which lost its core leaves its share to the
// others.
constexpr int64_t kTasksPerThread = 6;

// With this few tokens a product is as fast as its weights arrive.
constexpr int64_t kStreamedTokens = 2;

struct Task {
  int32_t product;
  int64_t begin, end;  // panels
};

int64_t panel_bytes(const WeightView& w) {
  return (w.data_bytes() + w.scale_bytes()) / std::max<int64_t>(1, w.panels());
}

}  // namespace

const char* name(Activations activations) {
  switch (activations) {
    case Activations::k16:
      return "16";
    case Activations::kInt8:
      return "int8";
    case Activations::kMxfp8:
      return "mxfp8";
    case Activations::kFp32:
      return "fp32";
  }
  return "?";
}

ActivationForm activation_form(Activations activations, Layout layout) {
  if (layout == Layout::kF32Panels || layout == Layout::kBf16Panels) return ActivationForm::kF32;
  if (activations == Activations::k16) return ActivationForm::kInt16;
  if (activations == Activations::kInt8) return ActivationForm::kInt8;
  return ActivationForm::kF32;
}

int64_t prepare_cost(int64_t tokens, int64_t cols) {
  return std::max(Scratch::cost<std::byte>(tokens * quantized_bytes(ActivationForm::kInt16, cols)),
                  Scratch::rows_cost(tokens, cols));
}

Operand prepare(Context& ctx, const Rows& x, Layout layout) {
  Operand operand;
  operand.form = activation_form(ctx.activations, layout);
  operand.tokens = x.rows;
  operand.cols = x.cols;
  if (operand.form == ActivationForm::kF32) {
    Rows values = x;
    const bool block_format = layout == Layout::kInt8Panels || layout == Layout::kMxfp4Rows;
    if (block_format && ctx.activations == Activations::kMxfp8) {
      values = ctx.scratch.rows(x.rows, x.cols);
      ctx.each_row(x.rows, 16,
                   [&](int64_t i) { ctx.kernels.round_mxfp8(x.row(i), x.cols, values.row(i)); });
    }
    operand.f32 = values.data;
    operand.f32_stride = values.stride;
    return operand;
  }
  const int64_t bytes = quantized_bytes(operand.form, x.cols);
  std::byte* out = ctx.scratch.take<std::byte>(x.rows * bytes);
  ctx.each_row(x.rows, 16, [&](int64_t i) {
    ctx.kernels.quantize(operand.form, layout, x.row(i), x.cols, out + i * bytes);
  });
  operand.quantized = out;
  operand.quantized_stride = bytes;
  return operand;
}

Operand slice(const Operand& x, int64_t begin, int64_t count) {
  Operand part = x;
  part.tokens = count;
  if (x.f32) part.f32 += begin * x.f32_stride;
  if (x.quantized) part.quantized += begin * x.quantized_stride;
  return part;
}

Operand gather(Context& ctx, const Operand& x, std::span<const int32_t> rows) {
  Operand out = x;
  out.tokens = static_cast<int64_t>(rows.size());
  if (x.form == ActivationForm::kF32) {
    const Rows copy = ctx.scratch.rows(out.tokens, x.cols);
    ctx.each_row(out.tokens, 32, [&](int64_t i) {
      std::memcpy(copy.row(i), x.f32 + rows[static_cast<size_t>(i)] * x.f32_stride,
                  static_cast<size_t>(x.cols) * sizeof(float));
    });
    out.f32 = copy.data;
    out.f32_stride = copy.stride;
    return out;
  }
  const auto bytes = static_cast<size_t>(x.quantized_stride);
  std::byte* copy = ctx.scratch.take<std::byte>(out.tokens * x.quantized_stride);
  ctx.each_row(out.tokens, 32, [&](int64_t i) {
    std::memcpy(copy + static_cast<size_t>(i) * bytes,
                x.quantized + rows[static_cast<size_t>(i)] * x.quantized_stride, bytes);
  });
  out.quantized = copy;
  return out;
}

void matmul(Context& ctx, std::span<const Product> products) {
  int64_t work = 0;
  for (const Product& p : products) work += p.weight.panels() * panel_bytes(p.weight) * p.x.tokens;
  const int64_t share = std::max(work / (ctx.pool.size() * kTasksPerThread) + 1, kTaskBytes);
  std::vector<Task> tasks;
  tasks.reserve(products.size() + static_cast<size_t>(ctx.pool.size() * kTasksPerThread));
  for (size_t i = 0; i < products.size(); ++i) {
    const Product& p = products[i];
    assert(p.x.cols == p.weight.cols && p.y.rows == p.x.tokens && p.y.cols == p.weight.rows);
    if (p.x.tokens == 0) continue;
    const int64_t panels = p.weight.panels();
    const int64_t step =
        std::max<int64_t>(1, share / std::max<int64_t>(1, panel_bytes(p.weight) * p.x.tokens));
    const int64_t pieces = ceil_div(panels, step);
    for (int64_t k = 0; k < pieces; ++k)
      tasks.push_back({static_cast<int32_t>(i), panels * k / pieces, panels * (k + 1) / pieces});
  }
  // Each thread claims its next task before it runs the one it has, and has its first lines
  // fetched.
  const auto count = static_cast<int64_t>(tasks.size());
  std::atomic<int64_t> next{0};
  const auto run_tasks = [&](int) {
    int64_t current = next.fetch_add(1, std::memory_order_relaxed);
    while (current < count) {
      const int64_t following = next.fetch_add(1, std::memory_order_relaxed);
      if (following < count) {
        const Task& task = tasks[static_cast<size_t>(following)];
        const Product& p = products[static_cast<size_t>(task.product)];
        if (p.x.tokens <= kStreamedTokens) ctx.kernels.prefetch(p.weight, task.begin, task.end);
      }
      const Task& task = tasks[static_cast<size_t>(current)];
      const Product& p = products[static_cast<size_t>(task.product)];
      ctx.kernels.matmul(p.weight, p.x, p.y.data, p.y.stride, task.begin, task.end);
      current = following;
    }
  };
  if (count == 1)
    run_tasks(0);
  else
    ctx.pool.share(run_tasks);
}

void rms_norm(Context& ctx, const Rows& x, const float* w, float eps, const Rows& y) {
  ctx.each_row(x.rows, 8,
               [&](int64_t i) { ctx.kernels.rms_norm(x.row(i), w, eps, x.cols, y.row(i)); });
}

}  // namespace k3
