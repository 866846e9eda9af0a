// The loss of next tokens.
//
//   cross_entropy(ctx, logits, targets, 1.0f / count, nll);    // logits become their gradient
//
// nll: [rows, 1], -log softmax(logits)[target] in nats. Overwrites each row of logits with
// scale (softmax - 1[target]). Every row has a target; `targets` may be longer than there are rows.
#pragma once

#include <span>

#include "ops/context.h"

namespace k3 {

void cross_entropy(Context& ctx, const Rows& logits, std::span<const int32_t> targets, float scale,
                   const Rows& nll);

// log(sum(exp(x))) in double: -log softmax(x)[i] is that less x[i].
double log_sum_exp(std::span<const float> x);

}  // namespace k3
