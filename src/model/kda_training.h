// KDA over whole documents, with a way back: what kda_attention runs between its projections when
// it learns.
//
//   kda_documents(ctx, config, weights, runs, {q, k, v, z, beta, gate}, o);
//
// The same convolution, normalisation, decay, delta rule and gated norm as the recurrence, from a
// state of zero at the start of each run. With K3's bounded decay the delta rule runs in chunks
// (ops/kda_chunk.h), with Kimi-Linear's unbounded one as the recurrence. The way back makes all of
// it again from the projections, head by head: nothing else is kept.
#pragma once

#include <vector>

#include "model/batch.h"
#include "model/layer_weights.h"
#include "ops/context.h"

namespace k3 {

constexpr float kKdaL2Eps = 1e-6f;  // numerics.md 2

// [tokens, P]; beta [tokens, heads], a sigmoid already.
struct KdaInputs {
  Rows q, k, v;  // before the convolution
  Rows z;        // the raw decay
  Rows beta, gate;
};

void kda_documents(Context& ctx, const ModelConfig& config, const KdaWeights& w,
                   const std::vector<Batch::Run>& runs, const KdaInputs& in, const Rows& o);

}  // namespace k3
