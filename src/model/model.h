// The decoder: embedding, layers, output mix and norm, head.
//
//   Model model(snapshot, reader, account, options);
//   Batch batch;
//   batch.add(state, ids);
//   Rows hidden = ...;                                    // one row per wanted token
//   model.forward(ctx, batch, wanted, hidden);            // appends ids to the states
//   model.logits(ctx, hidden, logits);
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
#include "model/residuals.h"
#include "model/trunk.h"
#include "ops/matmul.h"
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

  const ModelConfig& config() const { return config_; }
  int64_t chunk() const { return chunk_; }

  // Runs the batch (at most chunk() tokens) and writes the final normed hidden vector of the wanted
  // rows of the batch, ascending. Hidden rows are [wanted, H].
  void forward(Context& ctx, const Batch& batch, std::span<const int64_t> wanted,
               const Rows& hidden);

  // logits [rows, vocab] of final normed hidden vectors, following a forward() pass.
  void logits(Context& ctx, const Rows& hidden, const Rows& logits);

  ExpertStore* experts() { return experts_ ? &*experts_ : nullptr; }
  const Trunk& trunk() const { return trunk_; }

  // Bytes of embedding rows read so far; all else goes through the Reader.
  uint64_t embedding_bytes() const { return embedding_bytes_; }

  // What the planner adds up: activations of a chunk, and scratch.
  static int64_t activation_bytes(const ModelConfig& config, int64_t chunk);
  static int64_t scratch_bytes(const ModelConfig& config, int64_t chunk, int64_t wanted,
                               int threads);

 private:
  void embed(Context& ctx, const Batch& batch, const Rows& out);
  void decoder_layer(Context& ctx, int64_t layer, Residuals& residuals, const Batch& batch,
                     const Rows& x);

  const Snapshot& snapshot_;
  Reader& reader_;
  const ModelConfig& config_;
  const int64_t chunk_;
  Trunk trunk_;
  std::optional<ExpertStore> experts_;
  Buffer activations_;
  std::atomic<uint64_t> embedding_bytes_{0};
  std::vector<int64_t> kind_index_;  // layer -> its rank among layers of its attention kind
};

// The two sublayers of a decoder layer, alone (the oracle tests feed them stored inputs).
// x, out: rows [begin, begin + x.rows) of the batch, already normed.
void attention(Context& ctx, const ModelConfig& config, const AttentionWeights& w, int layer,
               int64_t kind_index, const Batch& batch, int64_t begin, const Rows& x,
               const Rows& out);

}  // namespace k3
