// The next token from its logits.
//
//   Sampler sampler({.temperature = 0.7f, .top_p = 0.95f, .seed = 7});
//   int32_t id = sampler.sample(logits, history);
//
// Order: ids that may not be drawn are removed; repetition, presence and frequency penalties;
// temperature; top-k; top-p; min-p; then one draw. Temperature 0 is greedy: the largest logit, the
// lower id on a tie. The same seed and logits give the same ids on every machine: probabilities use
// the program's own exp, sums run in order of descending logit, and the generator is SplitMix64.
// Thread rule: a Sampler belongs to one sequence.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/random.h"
#include "kernels/kernels.h"

namespace k3 {

struct SamplingOptions {
  float temperature = 1.0f;         // 0 = greedy
  float top_p = 1.0f;               // in (0, 1]
  int64_t top_k = 0;                // 0 = off
  float min_p = 0.0f;               // in [0, 1)
  float repetition_penalty = 1.0f;  // > 0
  float presence_penalty = 0.0f, frequency_penalty = 0.0f;
  uint64_t seed = 0;
};

// Throws InputError naming the option that is out of range.
void check_sampling(const SamplingOptions& options);

class Sampler {
 public:
  // `drawable` says which ids may be drawn at all (those the tokenizer has); empty = all.
  explicit Sampler(const SamplingOptions& options, std::vector<bool> drawable = {});

  // `generated`: ids drawn so far; the penalties count these. Logits must be finite.
  int32_t sample(std::span<const float> logits, std::span<const int32_t> generated);

 private:
  SamplingOptions options_;
  std::vector<bool> drawable_;
  SplitMix64 random_;
};

}  // namespace k3
