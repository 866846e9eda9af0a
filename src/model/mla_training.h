// Attention over whole documents with keys and values of every head's own, with a way back: what
// mla_attention runs between its projections when it learns.
//
//   mla_documents(ctx, config, layer, runs, q, kv, rope, o);
//
// q: [tokens, heads * (nope + rope)]; kv: [tokens, heads * (nope + v)], kv_b_proj of the normed
// latents; rope: [tokens, rope], the keys' part that all heads share, unrotated. The way back makes
// the probabilities again from each row's largest logit and sum. Shows the observer "max_logit",
// [1, heads], which QK-Clip watches. Maths: training.md 2.
#pragma once

#include <vector>

#include "model/batch.h"
#include "ops/context.h"

namespace k3 {

void mla_documents(Context& ctx, const ModelConfig& config, int layer,
                   const std::vector<Batch::Run>& runs, const Rows& q, const Rows& kv,
                   const Rows& rope, const Rows& o);

}  // namespace k3
