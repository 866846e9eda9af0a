// Which experts a token goes to, and with what weight (numerics.md 6).
#pragma once

#include "ops/context.h"
#include "weights/config.h"

namespace k3 {

// Chosen experts of `tokens` tokens: [tokens][k], ids ascending within a token.
struct Routing {
  int64_t tokens = 0, k = 0;
  int32_t* ids = nullptr;
  float* weights = nullptr;
};

// `logits` [rows, experts] is overwritten. Fills rows [begin, begin + logits.rows) of `routing`.
// The selection bias decides who is chosen and never weighs; ties go to the lower id. Throws
// WorkError when a router logit is not finite, naming layer and token.
void route(Context& ctx, const ModelConfig& config, int layer, const Rows& logits,
           const float* bias, const Routing& routing, int64_t begin);

}  // namespace k3
