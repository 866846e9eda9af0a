#include "model/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/gradients.h"
#include "ops/tape.h"

namespace k3 {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// Keeps the topk_group groups whose two best scores sum highest; the others become -inf.
void mask_groups(const ModelConfig& c, std::vector<float>& pick) {
  const int64_t groups = c.num_expert_group, size = c.num_experts / groups;
  std::vector<std::pair<float, int64_t>> score;
  for (int64_t g = 0; g < groups; ++g) {
    float best = kMasked, second = kMasked;
    for (int64_t e = g * size; e < (g + 1) * size; ++e) {
      const float p = pick[static_cast<size_t>(e)];
      if (p > best)
        second = best, best = p;
      else if (p > second)
        second = p;
    }
    score.emplace_back(size > 1 ? best + second : best, g);
  }
  std::stable_sort(score.begin(), score.end(), [](auto& a, auto& b) { return a.first > b.first; });
  for (int64_t i = c.topk_group; i < groups; ++i) {
    const int64_t g = score[static_cast<size_t>(i)].second;
    std::fill(pick.begin() + g * size, pick.begin() + (g + 1) * size, kMasked);
  }
}

void route_token(const Kernels& kernels, const ModelConfig& c, float* logits, const float* bias,
                 int32_t* ids, float* weights) {
  const int64_t experts = c.num_experts, k = c.num_experts_per_token;
  if (c.router_activation == RouterActivation::kSigmoid)
    kernels.sigmoid(logits, experts, logits);
  else
    kernels.softmax(logits, experts, logits);
  const float* score = logits;
  std::vector<float> pick(score, score + experts);
  if (bias) kernels.add(bias, experts, pick.data());
  if (c.num_expert_group > 1 && c.num_expert_group > c.topk_group) mask_groups(c, pick);
  std::vector<int32_t> order(static_cast<size_t>(experts));
  for (int64_t e = 0; e < experts; ++e) order[static_cast<size_t>(e)] = static_cast<int32_t>(e);
  std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int32_t a, int32_t b) {
    const float pa = pick[static_cast<size_t>(a)], pb = pick[static_cast<size_t>(b)];
    return pa > pb || (pa == pb && a < b);
  });
  std::sort(order.begin(), order.begin() + k);
  float sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    ids[i] = order[static_cast<size_t>(i)];
    weights[i] = score[ids[i]];
    sum += weights[i];
  }
  const bool renormalize = c.moe_renormalize && k > 1;
  for (int64_t i = 0; i < k; ++i) {
    if (renormalize) weights[i] = weights[i] / (sum + 1e-20f);
    weights[i] = weights[i] * c.routed_scaling_factor;
  }
}

}  // namespace

void route(Context& ctx, const ModelConfig& c, int layer, const Rows& logits, const float* bias,
           const Routing& routing, int64_t begin) {
  ctx.each_row(logits.rows, 8, [&](int64_t i) {
    float* row = logits.row(i);
    for (int64_t e = 0; e < logits.cols; ++e)
      if (!std::isfinite(row[e]))
        throw WorkError(
            fmt::format("layer {}: the router's logit of expert {} for token {} of the batch is {}",
                        layer, e, begin + i, row[e]));
    route_token(ctx.kernels, c, row, bias, routing.ids + (begin + i) * routing.k,
                routing.weights + (begin + i) * routing.k);
  });
  ctx.observe("router_scores", layer, begin, logits);
  if (!ctx.tape) return;
  const Rows weights{routing.weights + begin * routing.k, logits.rows, routing.k, routing.k};
  ctx.tape->record(ctx, {weights}, [=, &c, tape = ctx.tape](Context& back) {
    const Rows dp = tape->gradient(weights), dlogits = tape->gradient(logits);
    back.each_row(logits.rows, 32, [&](int64_t i) {
      router_backward(logits.row(i), logits.cols, c.router_activation == RouterActivation::kSoftmax,
                      routing.ids + (begin + i) * routing.k, routing.k, c.moe_renormalize,
                      c.routed_scaling_factor, dp.row(i), dlogits.row(i));
    });
  });
}

}  // namespace k3
