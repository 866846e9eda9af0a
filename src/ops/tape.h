// The way back: what the operations recorded on the way forward, and where gradients lie.
//
//   Tape tape(account, scratch);
//   tape.learn(weight_view, {values, gradient});          // for every matrix and vector that
//   learns { Tape::Recording on(ctx, tape); model... }           // operations record themselves
//   ... add to tape.gradient(output) ...
//   tape.backward(ctx);                                   // weights' gradients have grown
//
// While recording, scratch frames give nothing back, so every value stays where it is, and its
// gradient lies at the same offset of a mirror: a view of a value (columns, rows, an operand) has
// the same view of the gradient. An operation that makes y calls record(): y's gradient starts at
// zero, and `back` adds what it means for the gradients of what y was made from. Values must not be
// overwritten afterwards, but for sums that grow in place, whose gradient is the same before and
// after. Sums over rows run in an order that does not depend on threads.
// Memory: tag "gradients", as much as the values that were recorded. Ownership: weights are the
// caller's. Thread rule: as Context.
#pragma once

#include <functional>
#include <initializer_list>
#include <unordered_map>
#include <vector>

#include "ops/context.h"

namespace k3 {

class Tape {
 public:
  Tape(MemoryAccount& account, const Scratch& scratch)
      : values_(scratch.base()),
        mirror_(Buffer::reserved(account, "gradients", static_cast<uint64_t>(scratch.size()))) {}

  // A weight matrix as the way back needs it, row by row: the values that the forward pass computed
  // with, and their gradient, which grows.
  struct Matrix {
    Rows values, gradient;
  };
  // Known by the address of its bytes.
  void learn(const std::byte* data, const Matrix& matrix) { matrices_[data] = matrix; }
  void learn(const float* vector, float* gradient) { vectors_[vector] = gradient; }
  const Matrix& matrix(const WeightView& view) const { return matrices_.at(view.data); }
  float* vector(const float* values) const { return vectors_.at(values); }

  // Where the gradient of a value in scratch lies.
  float* gradient(const float* value) const {
    return reinterpret_cast<float*>(mirror_.data() +
                                    (reinterpret_cast<const std::byte*>(value) - values_));
  }
  Rows gradient(const Rows& value) const {
    return {gradient(value.data), value.rows, value.cols, value.stride};
  }
  Rows gradient(const Operand& value) const {
    return {gradient(value.f32), value.tokens, value.cols, value.f32_stride};
  }

  // Sets the gradient of a value to zero; of one that no operation makes, the caller does it.
  void start(Context& ctx, const Rows& value);

  using Back = std::function<void(Context&)>;
  void record(Context& ctx, std::initializer_list<Rows> made, Back back);
  // Newest first down to record `from`, then forgets them. Records nothing itself.
  void backward(Context& ctx, int64_t from = 0);
  void forget() { records_.clear(); }  // of a pass that was given up
  int64_t records() const { return static_cast<int64_t>(records_.size()); }

  class Recording {
   public:
    Recording(Context& ctx, Tape& tape) : ctx_(ctx) {
      ctx.tape = &tape;
      ctx.scratch.keep(true);
    }
    ~Recording() {
      ctx_.tape = nullptr;
      ctx_.scratch.keep(false);
    }
    Recording(const Recording&) = delete;

   private:
    Context& ctx_;
  };

 private:
  const std::byte* values_;
  Buffer mirror_;
  std::unordered_map<const std::byte*, Matrix> matrices_;
  std::unordered_map<const float*, float*> vectors_;
  std::vector<Back> records_;
};

// total[0, n) += the sums that body(begin, end, partial) adds to `partial` for blocks of rows,
// block after block.
template <class F>
void sum_over_rows(Context& ctx, int64_t rows, int64_t n, float* total, F&& body) {
  constexpr int64_t kBlockRows = 64;
  const int64_t blocks = ceil_div(rows, kBlockRows);
  Scratch::Frame frame(ctx.scratch);
  const Rows partial = ctx.scratch.rows(blocks, n);
  ctx.each_row(blocks, 1, [&](int64_t i) {
    std::memset(partial.row(i), 0, static_cast<size_t>(n) * sizeof(float));
    body(i * kBlockRows, std::min(rows, (i + 1) * kBlockRows), partial.row(i));
  });
  for (int64_t i = 0; i < blocks; ++i) ctx.kernels.add(partial.row(i), n, total);
}

}  // namespace k3
