#include "ops/matmul.h"

#include <algorithm>
#include <vector>

#include "ops/gemm.h"
#include "ops/gradients.h"
#include "ops/tape.h"

namespace k3 {
namespace {

// Weight bytes one task should stream at least, so that handing it out costs nothing beside it.
constexpr int64_t kTaskBytes = 48 << 10;
// Tasks per thread at most: enough that a thread which lost its core leaves its share to the
// others.
constexpr int64_t kTasksPerThread = 16;

// Tasks are whole fours of panels: the kernels take two or four side by side.
constexpr int64_t kTaskPanels = 4;

// With this few tokens a product is as fast as its weights arrive.
constexpr int64_t kStreamedTokens = 2;

struct Task {
  int32_t product;
  int64_t begin, end;  // panels
};

// Tasks 0 .. count-1 shared out: each thread has a stretch of its own, which it takes in order, so
// that it reads on where it stopped; who is done takes the last task of another's.
class Stretches {
 public:
  Stretches(int64_t count, int threads) : stretches_(static_cast<size_t>(threads)) {
    for (int t = 0; t < threads; ++t)
      stretches_[static_cast<size_t>(t)].range =
          pack(count * t / threads, count * (t + 1) / threads);
  }

  // The next task of `thread`, or -1. `following` is likely the one after it, or -1.
  int64_t take(int thread, int64_t& following) {
    const auto threads = static_cast<int>(stretches_.size());
    for (int i = 0; i < threads; ++i) {
      std::atomic<uint64_t>& range = stretches_[static_cast<size_t>((thread + i) % threads)].range;
      uint64_t old = range.load(std::memory_order_relaxed);
      for (int64_t begin; (begin = first(old)) < last(old);) {
        const int64_t end = last(old);
        const bool own = i == 0;
        const uint64_t rest = own ? pack(begin + 1, end) : pack(begin, end - 1);
        if (!range.compare_exchange_weak(old, rest, std::memory_order_relaxed)) continue;
        following = own && begin + 1 < end ? begin + 1 : -1;
        return own ? begin : end - 1;
      }
    }
    return -1;
  }

 private:
  static uint64_t pack(int64_t begin, int64_t end) {
    return static_cast<uint64_t>(begin) << 32 | static_cast<uint64_t>(end);
  }
  static int64_t first(uint64_t range) { return static_cast<int64_t>(range >> 32); }
  static int64_t last(uint64_t range) { return static_cast<int64_t>(range & 0xffffffff); }

  struct alignas(64) Stretch {
    std::atomic<uint64_t> range;
  };
  std::vector<Stretch> stretches_;
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
  if (layout == Layout::kF32Panels || layout == Layout::kBf16Panels || layout == Layout::kBf16Rows)
    return ActivationForm::kF32;
  if (activations == Activations::k16) return ActivationForm::kInt16;
  if (activations == Activations::kInt8) return ActivationForm::kInt8;
  return ActivationForm::kF32;
}

int64_t prepare_cost(int64_t tokens, int64_t cols) {
  return std::max(Scratch::cost<std::byte>(tokens * quantized_bytes(ActivationForm::kInt16, cols)),
                  Scratch::rows_cost(tokens, cols));
}

// dx += dy: of a sum that grew in place and of a copy.
static void pass_back(Context& ctx, const Rows& x, const Rows& y,
                      std::initializer_list<Rows> made) {
  ctx.tape->record(ctx, made, [=, tape = ctx.tape](Context& back) {
    const Rows dy = tape->gradient(y), dx = tape->gradient(x);
    back.each_row(x.rows, 16, [&](int64_t i) { back.kernels.add(dy.row(i), x.cols, dx.row(i)); });
  });
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
      if (ctx.tape) pass_back(ctx, x, values, {values});  // straight through the rounding
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

static Rows float_rows(const Operand& x) {
  return {const_cast<float*>(x.f32), x.tokens, x.cols, x.f32_stride};
}

Operand slice(const Operand& x, int64_t begin, int64_t count) {
  Operand part = x;
  part.tokens = count;
  if (x.f32) part.f32 += begin * x.f32_stride;
  if (x.quantized) part.quantized += begin * x.quantized_stride;
  return part;
}

// The way back of a gather: a row's gradient is the sum of its copies', in their order.
static void scatter_back(Context& ctx, const Rows& x, std::span<const int32_t> rows,
                         const Rows& copy) {
  std::vector<std::vector<int32_t>> copies(static_cast<size_t>(x.rows));
  for (size_t i = 0; i < rows.size(); ++i)
    copies[static_cast<size_t>(rows[i])].push_back(static_cast<int32_t>(i));
  ctx.tape->record(ctx, {copy}, [=, copies = std::move(copies), tape = ctx.tape](Context& back) {
    const Rows dy = tape->gradient(copy), dx = tape->gradient(x);
    back.each_row(x.rows, 16, [&](int64_t t) {
      for (const int32_t i : copies[static_cast<size_t>(t)])
        back.kernels.add(dy.row(i), x.cols, dx.row(t));
    });
  });
}

Rows gather(Context& ctx, const Rows& x, std::span<const int32_t> rows) {
  const Rows copy = ctx.scratch.rows(static_cast<int64_t>(rows.size()), x.cols);
  ctx.each_row(copy.rows, 32, [&](int64_t i) {
    std::memcpy(copy.row(i), x.row(rows[static_cast<size_t>(i)]),
                static_cast<size_t>(x.cols) * sizeof(float));
  });
  if (ctx.tape) scatter_back(ctx, x, rows, copy);
  return copy;
}

Operand gather(Context& ctx, const Operand& x, std::span<const int32_t> rows) {
  Operand out = x;
  out.tokens = static_cast<int64_t>(rows.size());
  if (x.form == ActivationForm::kF32) {
    const Rows copy = gather(ctx, float_rows(x), rows);
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

// dx += dy W, dW += dy' x.
static void matmul_back(Context& ctx, std::span<const Product> products) {
  for (const Product& p : products) ctx.tape->start(ctx, p.y);
  ctx.tape->record(ctx, {},
                   [all = std::vector<Product>(products.begin(), products.end()),
                    tape = ctx.tape](Context& back) {
                     std::vector<Gemm> inputs, weights;
                     for (const Product& p : all) {
                       if (p.x.tokens == 0) continue;
                       assert(p.x.form == ActivationForm::kF32);
                       const Rows dy = tape->gradient(p.y), dx = tape->gradient(p.x);
                       const Rows x = float_rows(p.x);
                       const Tape::Matrix& w = tape->matrix(p.weight);
                       weights.push_back({{dy, kTransposed}, {x}, w.gradient, kAdd});
                       inputs.push_back({{dy}, {w.values}, dx, kAdd});
                     }
                     gemm(back, inputs);
                     gemm(back, weights);
                   });
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
    int64_t step =
        std::max<int64_t>(1, share / std::max<int64_t>(1, panel_bytes(p.weight) * p.x.tokens));
    step = round_up(step, kTaskPanels);
    const int64_t pieces = ceil_div(panels, step);
    for (int64_t k = 0; k < pieces; ++k)
      tasks.push_back({static_cast<int32_t>(i), k * step, std::min(panels, (k + 1) * step)});
  }
  const auto count = static_cast<int64_t>(tasks.size());
  Stretches stretches(count, ctx.pool.size());
  const auto run_tasks = [&](int thread) {
    for (int64_t at, following; (at = stretches.take(thread, following)) >= 0;) {
      if (following >= 0) {  // its first lines arrive while this one runs
        const Task& task = tasks[static_cast<size_t>(following)];
        const Product& p = products[static_cast<size_t>(task.product)];
        if (p.x.tokens <= kStreamedTokens) ctx.kernels.prefetch(p.weight, task.begin, task.end);
      }
      const Task& task = tasks[static_cast<size_t>(at)];
      const Product& p = products[static_cast<size_t>(task.product)];
      ctx.kernels.matmul(p.weight, p.x, p.y.data, p.y.stride, task.begin, task.end);
    }
  };
  if (count == 1)
    run_tasks(0);
  else
    ctx.pool.share(run_tasks);
  if (ctx.tape) matmul_back(ctx, products);
}

void rms_norm(Context& ctx, const Rows& x, const float* w, float eps, const Rows& y) {
  ctx.each_row(x.rows, 8,
               [&](int64_t i) { ctx.kernels.rms_norm(x.row(i), w, eps, x.cols, y.row(i)); });
  if (!ctx.tape) return;
  ctx.tape->record(ctx, {y}, [=, tape = ctx.tape](Context& back) {
    const Rows dy = tape->gradient(y), dx = tape->gradient(x);
    sum_over_rows(back, x.rows, x.cols, tape->vector(w),
                  [&](int64_t begin, int64_t end, float* dw) {
                    for (int64_t i = begin; i < end; ++i)
                      rms_norm_backward(x.row(i), w, eps, x.cols, dy.row(i), dx.row(i), dw);
                  });
  });
}

Rows rms_norm(Context& ctx, const Rows& x, const float* w, float eps) {
  const Rows y = ctx.over(x);
  rms_norm(ctx, x, w, eps, y);
  return y;
}

Rows sigmoid(Context& ctx, const Rows& x) {
  const Rows y = ctx.over(x);
  ctx.each_row(x.rows, 64, [&](int64_t i) { ctx.kernels.sigmoid(x.row(i), x.cols, y.row(i)); });
  if (ctx.tape)
    ctx.tape->record(ctx, {y}, [=, tape = ctx.tape](Context& back) {
      const Rows dy = tape->gradient(y), dx = tape->gradient(x);
      back.each_row(x.rows, 64, [&](int64_t i) {
        for (int64_t c = 0; c < x.cols; ++c) {
          const float s = y.row(i)[c];
          dx.row(i)[c] += dy.row(i)[c] * s * (1 - s);
        }
      });
    });
  return y;
}

Rows mul_sigmoid(Context& ctx, const Rows& x, const Rows& gate) {
  const Rows y = ctx.over(x);
  ctx.each_row(x.rows, 16, [&](int64_t i) {
    ctx.kernels.mul_sigmoid(x.row(i), gate.row(i), x.cols, y.row(i));
  });
  if (ctx.tape)
    ctx.tape->record(ctx, {y}, [=, tape = ctx.tape](Context& back) {
      const Rows dy = tape->gradient(y), dx = tape->gradient(x), dgate = tape->gradient(gate);
      back.each_task(ceil_div(x.rows, 16), x.cols, [&](int64_t block, float* s) {
        for (int64_t i = block * 16; i < std::min(x.rows, block * 16 + 16); ++i) {
          back.kernels.sigmoid(gate.row(i), x.cols, s);
          for (int64_t c = 0; c < x.cols; ++c) {
            dx.row(i)[c] += dy.row(i)[c] * s[c];
            dgate.row(i)[c] += dy.row(i)[c] * x.row(i)[c] * s[c] * (1 - s[c]);
          }
        }
      });
    });
  return y;
}

void add(Context& ctx, const Rows& x, const Rows& y) {
  ctx.each_row(x.rows, 16, [&](int64_t i) { ctx.kernels.add(x.row(i), x.cols, y.row(i)); });
  if (ctx.tape) pass_back(ctx, x, y, {});
}

void copy(Context& ctx, const Rows& x, const Rows& y) {
  ctx.each_row(x.rows, 16, [&](int64_t i) {
    std::memcpy(y.row(i), x.row(i), static_cast<size_t>(x.cols) * sizeof(float));
  });
  if (ctx.tape) pass_back(ctx, x, y, {y});
}

}  // namespace k3
