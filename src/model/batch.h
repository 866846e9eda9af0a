// What one forward pass computes on: segments of token sequences, laid end to end.
//
//   Batch batch;
//   batch.add(state_a, prompt_ids);         // prefill of 4,000 tokens
//   batch.add(state_b, {next});             // beside a decode step
//   model.forward(ctx, batch, ...);
//
// Prefill, decode and many requests at once are the same call. A token's result does not depend on
// what else is in the batch. Segments without a state are documents of training, all or none in a
// batch: they are computed in the forms that have a way back (chunks of KDA, expanded heads of
// MLA). Ownership: states and ids are the caller's and outlive the batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/sequence_state.h"

namespace k3 {

struct Segment {
  SequenceState* state = nullptr;
  std::span<const int32_t> ids;
  int64_t begin = 0;  // first row in the batch
  int64_t start = 0;  // position of that row in its sequence
  int64_t end() const { return begin + static_cast<int64_t>(ids.size()); }
};

class Batch {
 public:
  void add(SequenceState& state, std::span<const int32_t> ids) {
    segments_.push_back({&state, ids, tokens_, state.length()});
    tokens_ += static_cast<int64_t>(ids.size());
  }
  // A document to learn from: no state before it and none kept after it.
  void add(std::span<const int32_t> ids) {
    segments_.push_back({nullptr, ids, tokens_, 0});
    tokens_ += static_cast<int64_t>(ids.size());
  }
  int64_t tokens() const { return tokens_; }
  const std::vector<Segment>& segments() const { return segments_; }
  bool training() const { return !segments_.empty() && !segments_[0].state; }

  // A run of rows of one segment.
  struct Run {
    const Segment* segment;
    int64_t row;  // first row, counted from `begin` of runs()
    int64_t count;
    int64_t position;  // of that row in its sequence
  };
  // The parts of segments within rows [begin, end) of the batch.
  std::vector<Run> runs(int64_t begin, int64_t end) const {
    std::vector<Run> out;
    for (const Segment& s : segments_) {
      const int64_t from = std::max(begin, s.begin), to = std::min(end, s.end());
      if (from < to) out.push_back({&s, from - begin, to - from, s.start + (from - s.begin)});
    }
    return out;
  }

 private:
  std::vector<Segment> segments_;
  int64_t tokens_ = 0;
};

}  // namespace k3
