// The feed-forward half of a layer: a dense MLP, or Stable LatentMoE.
//
//   feed_forward(ctx, config, layer, weights, experts, x, out);
//
// x, out: [tokens, H], the normed input and output of a whole chunk; out may be x. Routed experts
// see the latent down-projection of the token (LatentMoE, arXiv 2601.18089), the shared experts the
// full vector. With a tape, out must not be x. Each needed expert is leased once per chunk, and per
// token the outputs are summed in ascending expert id, so neither arrival nor cache nor chunk
// changes a bit. Maths: numerics.md 6.
#pragma once

#include "model/layer_weights.h"
#include "model/router.h"
#include "ops/matmul.h"
#include "weights/expert_store.h"

namespace k3 {

// Tokens that a layer works on at once outside the routed experts.
constexpr int64_t kSlab = 256;

void feed_forward(Context& ctx, const ModelConfig& config, int64_t layer,
                  const FeedForwardWeights& w, ExpertStore* experts, const Rows& x,
                  const Rows& out);
int64_t feed_forward_scratch_bytes(const ModelConfig& config, int64_t tokens);

// act(gate, up) of every row: SiTU or SiLU. May overwrite gate.
Rows activate(Context& ctx, const ModelConfig& config, const Rows& gate, const Rows& up);

}  // namespace k3
