// The residual stream going up the stack: a running sum, or Attention Residuals over closed blocks.
//
// With Attention Residuals (numerics.md 3; arXiv 2603.15031) the sum is cut into blocks of layers;
// every sublayer sees a softmax-weighted mix of the closed blocks and the open sum, per token, and
// adds its output to the open sum. Without them mix() gives the sum itself. Nothing here outlives a
// forward pass. Ownership: rows live in the storage given at construction; when training, in
// scratch: with a tape every sum has a place of its own, and a copy of this object is the stream at
// that height.
#pragma once

#include <vector>

#include "model/layer_weights.h"
#include "ops/context.h"

namespace k3 {

class Residuals {
 public:
  Residuals(const ModelConfig& config, float* storage, int64_t tokens);
  // Floats of storage for `tokens` rows.
  static int64_t floats(const ModelConfig& config, int64_t tokens);
  // For training: sums are taken from scratch, `sum` is the first.
  Residuals(const ModelConfig& config, const Rows& sum);

  // The embedding at first, then with what sublayers added.
  Rows sum() const { return sum_; }
  // Where sums go that are made without a tape: the sum stays there when scratch is given back.
  void make_room(const Rows& room) { room_ = room; }

  // What a sublayer sees, for rows [begin, end).
  void mix(Context& ctx, MixQuery query, int64_t begin, int64_t end, const Rows& out) const;
  // At the first layer of a block the sum is closed and a new one begins. Closing before the mix of
  // that layer or after it is the same: the mixed set does not change.
  void close_block(int64_t layer);
  // The sum grows by a sublayer's output for rows [begin, begin + delta.rows); all, when training.
  void add(Context& ctx, int64_t begin, const Rows& delta);
  // Every row has been added since the last close_block(); mix() sees the open sum again.
  void settle() { fresh_ = false; }

  int64_t blocks() const { return static_cast<int64_t>(closed_.size()); }
  Rows block(int64_t i) const { return closed_[static_cast<size_t>(i)]; }

  static constexpr int64_t kMaxBlocks = 63;

 private:
  static int64_t block_count(const ModelConfig& config);

  int64_t block_size_;
  float eps_;
  std::vector<Rows> storage_;  // empty when training
  std::vector<Rows> closed_;
  Rows sum_, room_;
  bool fresh_ = false;  // the open sum holds nothing yet
};

}  // namespace k3
