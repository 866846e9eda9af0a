#include "ops/cross_entropy.h"

#include <algorithm>
#include <cmath>

namespace k3 {

void cross_entropy(Context& ctx, const Rows& logits, std::span<const int32_t> targets, float scale,
                   const Rows& nll) {
  assert(static_cast<int64_t>(targets.size()) >= logits.rows);
  ctx.each_row(logits.rows, 4, [&](int64_t i) {
    float* row = logits.row(i);
    const int32_t target = targets[static_cast<size_t>(i)];
    // -log p = (largest - own) + log sum, where the largest one's p is 1 / sum.
    const int64_t top = std::max_element(row, row + logits.cols) - row;
    const double below = double{row[top]} - row[target];
    ctx.kernels.softmax(row, logits.cols, row);
    *nll.row(i) = static_cast<float>(below - std::log(double{row[top]}));
    for (int64_t c = 0; c < logits.cols; ++c) row[c] *= scale;
    row[target] -= scale;
  });
}

double log_sum_exp(std::span<const float> x) {
  const double largest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const float v : x) sum += std::exp(v - largest);
  return std::log(sum) + largest;
}

}  // namespace k3
