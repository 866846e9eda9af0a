#include "ops/gemm.h"

#include <algorithm>

#include "ops/matmul.h"
#include "weights/panels.h"

namespace k3 {
namespace {

// to[j][i] = from[i][j].
void transpose(Context& ctx, const Rows& from, const Rows& to) {
  ctx.each_row(ceil_div(from.cols, kPanelRows), 1, [&](int64_t tile) {
    const int64_t begin = tile * kPanelRows, end = std::min(from.cols, begin + kPanelRows);
    for (int64_t i = 0; i < from.rows; ++i)
      for (int64_t j = begin; j < end; ++j) to.row(j)[i] = from.row(i)[j];
  });
}

// The columns of b [k, n] as panels of sixteen, the rows of a weight matrix b'.
void pack(Context& ctx, const Factor& b, float* panels) {
  const int64_t k = b.m(), n = b.n();
  ctx.each_row(ceil_div(n, kPanelRows), 1, [&](int64_t panel) {
    const int64_t first = panel * kPanelRows, width = std::min(kPanelRows, n - first);
    float* out = panels + panel * k * kPanelRows;
    if (b.transposition == kAsStored) {
      pack_f32_panels_transposed(Dtype::kF32,
                                 reinterpret_cast<const std::byte*>(b.rows.data + first),
                                 b.rows.stride, width, k, reinterpret_cast<std::byte*>(out));
      return;
    }
    if (width < kPanelRows) std::fill_n(out, k * kPanelRows, 0.0f);
    for (int64_t j = 0; j < width; ++j) {
      const float* row = b.rows.row(first + j);
      for (int64_t i = 0; i < k; ++i) out[i * kPanelRows + j] = row[i];
    }
  });
}

}  // namespace

void gemm(Context& ctx, const Factor& a, const Factor& b, const Rows& c) {
  Scratch::Frame frame(ctx.scratch);
  const int64_t m = a.m(), k = a.n(), n = b.n();
  assert(b.m() == k && c.rows == m && c.cols == n);
  Rows x = a.rows;
  if (a.transposition == kTransposed) {
    x = ctx.scratch.rows(m, k);
    transpose(ctx, a.rows, x);
  }
  float* panels = ctx.scratch.take<float>(round_up(n, kPanelRows) * k);
  pack(ctx, b, panels);
  WeightView weight{Layout::kF32Panels, n, k, reinterpret_cast<const std::byte*>(panels), nullptr};
  Operand operand;
  operand.tokens = m;
  operand.cols = k;
  operand.f32 = x.data;
  operand.f32_stride = x.stride;
  matmul(ctx, {{weight, operand, c}});
}

int64_t gemm_cost(int64_t m, int64_t n, int64_t k) {
  return Scratch::rows_cost(m, k) + Scratch::cost<float>(round_up(n, kPanelRows) * k);
}

}  // namespace k3
