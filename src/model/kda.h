// Kimi Delta Attention: a gated delta-rule recurrence with a per-channel decay.
//
//   kda_attention(ctx, config, weights.kda, layer, kda_layer, batch, begin, x, out);
//
// `layer` counts all layers, `kda_layer` the KDA ones. x, out: [rows, H], the normed input and the
// output of rows [begin, begin + rows) of the batch. Reads and advances the recurrent matrices and
// convolution histories of the batch's sequences, so the rows of a sequence must come in order.
// Maths: numerics.md 4; Kimi Linear (arXiv 2510.26692) eq. 1; the bounded decay of Kimi K3 (arXiv
// 2607.24653). Inference runs the recurrence itself, which cut anywhere gives the same bits;
// documents of training run in chunks (kda_training.h).
#pragma once

#include "model/batch.h"
#include "model/layer_weights.h"
#include "ops/matmul.h"

namespace k3 {

void kda_attention(Context& ctx, const ModelConfig& config, const KdaWeights& w, int layer,
                   int64_t kda_layer, const Batch& batch, int64_t begin, const Rows& x,
                   const Rows& out);
int64_t kda_scratch_bytes(const ModelConfig& config, int64_t rows);

}  // namespace k3
