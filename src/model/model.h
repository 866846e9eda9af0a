// The decoder: embedding, layers, output mix and norm, head.
//
//   Model model(snapshot, reader, account, options);
//   Batch batch;
//   batch.add(state, ids);
//   Rows hidden = ...;                                    // one row per wanted token
//   model.forward(ctx, batch, wanted, hidden);            // appends ids to the states
//   model.logits(ctx, hidden, logits);
//
//   Batch documents;                                      // to learn from: segments without state
//   documents.add(ids);
//   double nll = model.loss(ctx, documents, targets);                 // the sum over the targets
//   nll = model.gradients(ctx, tape, documents, targets, {1.0f / count});
//
// One definition for prefill, decode, and many sequences at once; layers run over the whole batch
// (layer-major), so each weight is leased once per pass. Maths: numerics.md 3-6. Ownership: the
// model owns weights and activations; states are the caller's. Thread rule: one pass at a time.
// Errors: InputError for weights that are wrong, WorkError for reads that failed or a value that is
// not finite; after an error the states of the batch are spoilt and must be dropped.
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "model/batch.h"
#include "model/embedding.h"
#include "model/residuals.h"
#include "model/trunk.h"
#include "ops/matmul.h"
#include "ops/tape.h"
#include "weights/expert_store.h"

namespace k3 {

class Model {
 public:
  struct Options {
    Trunk::Options trunk;
    ExpertStore::Options experts;
    int64_t chunk = 512;  // most tokens of one forward pass
  };
  Model(const Snapshot& snapshot, Reader& reader, MemoryAccount& account, const Options& options);
  // Of weights that lie in memory and are not this object's: a model that learns.
  struct Weights {
    std::unique_ptr<TrunkLayout> trunk;               // views filled in
    std::vector<std::vector<ExpertWeights>> experts;  // [layer][expert], empty for dense layers
    Rows embedding;
  };
  Model(const ModelConfig& config, Weights weights, MemoryAccount& account, int64_t chunk);

  const ModelConfig& config() const { return config_; }
  int64_t chunk() const { return chunk_; }

  // Runs the batch (at most chunk() tokens) and writes the final normed hidden vector of the wanted
  // rows of the batch, ascending. Hidden rows are [wanted, H].
  void forward(Context& ctx, const Batch& batch, std::span<const int64_t> wanted,
               const Rows& hidden);

  // logits [rows, vocab] of final normed hidden vectors, following a forward() pass.
  void logits(Context& ctx, const Rows& hidden, const Rows& logits);

  // The loss of next tokens over documents, summed: targets[i] is the id after row i of the batch,
  // or -1 where there is none to learn. In nats.
  double loss(Context& ctx, const Batch& batch, std::span<const int32_t> targets);
  // The same, and `scale` times its gradient is added to the weights that the tape knows.
  // `recompute` keeps what enters each layer alone and makes the rest again on the way back: less
  // memory, the same bits, a third more work.
  struct Learning {
    float scale = 1;
    bool recompute = false;
  };
  double gradients(Context& ctx, Tape& tape, const Batch& batch, std::span<const int32_t> targets,
                   const Learning& learning);

  ExpertStore* experts() { return experts_ ? &*experts_ : nullptr; }
  const Trunk& trunk() const { return trunk_; }

  // Bytes of embedding rows read so far; all else goes through the Reader.
  uint64_t embedding_bytes() const { return embedding_.bytes_read(); }

  // What the planner adds up: activations of a chunk, and scratch.
  static int64_t activation_bytes(const ModelConfig& config, int64_t chunk);
  static int64_t scratch_bytes(const ModelConfig& config, int64_t chunk, int64_t wanted,
                               int threads);

 private:
  void check();
  void decoder_layer(Context& ctx, int64_t layer, Residuals& residuals, const Batch& batch,
                     const Rows& x);
  // One layer over documents; without a tape, nothing but its sum is kept.
  Residuals learning_layer(Context& ctx, int64_t layer, const Residuals& below, const Batch& batch);
  // The final norm of the stack's output, and the loss of its logits.
  double head_loss(Context& ctx, const Residuals& top, std::span<const int32_t> targets,
                   float scale);
  Rows final_hidden(Context& ctx, const Residuals& top);

  const ModelConfig& config_;
  const int64_t chunk_;
  Trunk trunk_;
  std::optional<ExpertStore> experts_;
  Embedding embedding_;
  Buffer activations_;
  std::vector<int64_t> kind_index_;  // layer -> its rank among layers of its attention kind
};

// The two sublayers of a decoder layer, alone (the oracle tests feed them stored inputs).
// x, out: rows [begin, begin + x.rows) of the batch, already normed.
void attention(Context& ctx, const ModelConfig& config, const AttentionWeights& w, int layer,
               int64_t kind_index, const Batch& batch, int64_t begin, const Rows& x,
               const Rows& out);

}  // namespace k3
