// Gated multi-head latent attention without positional encoding (NoPE).
//
//   mla_attention(ctx, config, weights.mla, layer, mla_layer, batch, begin, x, out);
//
// `layer` counts all layers, `mla_layer` the MLA ones. x, out: [rows, H], normed input and output
// of rows [begin, begin + rows) of the batch. Appends the rows' latents to the sequences' caches
// (which must be reserved) and attends over them. kv_b_proj is absorbed into query and output, in
// prefill as in decode: one latent row serves all heads, and the bits do not depend on how the
// cache was filled. Documents of training have keys and values expanded (mla_training.h). Maths:
// numerics.md 5.
#pragma once

#include "model/batch.h"
#include "model/layer_weights.h"
#include "ops/matmul.h"

namespace k3 {

void mla_attention(Context& ctx, const ModelConfig& config, const MlaWeights& w, int layer,
                   int64_t mla_layer, const Batch& batch, int64_t begin, const Rows& x,
                   const Rows& out);
int64_t mla_scratch_bytes(const ModelConfig& config, int64_t rows, int threads);

}  // namespace k3
