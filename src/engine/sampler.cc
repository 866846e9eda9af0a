#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace k3 {
namespace {

struct Candidate {
  float logit;
  int32_t id;
};

void require(bool good, const char* option, const char* expected, double found) {
  if (!good) throw InputError(option, "value", expected, fmt::format("{}", found));
}

void penalise(const SamplingOptions& o, std::span<const int32_t> generated,
              std::vector<Candidate>& candidates) {
  if (o.repetition_penalty == 1.0f && o.presence_penalty == 0.0f && o.frequency_penalty == 0.0f)
    return;
  std::unordered_map<int32_t, int32_t> counts;
  for (const int32_t id : generated) ++counts[id];
  for (Candidate& c : candidates) {
    const auto found = counts.find(c.id);
    if (found == counts.end()) continue;
    c.logit = c.logit > 0 ? c.logit / o.repetition_penalty : c.logit * o.repetition_penalty;
    c.logit -= o.presence_penalty + o.frequency_penalty * static_cast<float>(found->second);
  }
}

}  // namespace

void check_sampling(const SamplingOptions& o) {
  require(o.temperature >= 0 && std::isfinite(o.temperature), "--temperature", "a number from 0 up",
          o.temperature);
  require(o.top_p > 0 && o.top_p <= 1, "--top-p", "a number above 0, at most 1", o.top_p);
  require(o.top_k >= 0, "--top-k", "0 (off) or a count", static_cast<double>(o.top_k));
  require(o.min_p >= 0 && o.min_p < 1, "--min-p", "a number from 0, below 1", o.min_p);
  require(o.repetition_penalty > 0 && std::isfinite(o.repetition_penalty), "--repetition-penalty",
          "a number above 0", o.repetition_penalty);
  require(std::abs(o.presence_penalty) <= 100, "--presence-penalty", "-100 to 100",
          o.presence_penalty);
  require(std::abs(o.frequency_penalty) <= 100, "--frequency-penalty", "-100 to 100",
          o.frequency_penalty);
}

Sampler::Sampler(const SamplingOptions& options, std::vector<bool> drawable)
    : options_(options), drawable_(std::move(drawable)), random_(options.seed) {
  check_sampling(options);
}

int32_t Sampler::sample(std::span<const float> logits, std::span<const int32_t> generated) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    if (drawable_.empty() || (i < drawable_.size() && drawable_[i]))
      candidates.push_back({logits[i], static_cast<int32_t>(i)});
  if (candidates.empty()) throw InputError("sampling: no token may be drawn");
  penalise(options_, generated, candidates);
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  };
  if (options_.temperature == 0)
    return std::min_element(candidates.begin(), candidates.end(), better)->id;

  const auto vocab = static_cast<int64_t>(candidates.size());
  const int64_t k = options_.top_k ? std::min(options_.top_k, vocab) : vocab;
  if (k < vocab) {
    std::nth_element(candidates.begin(), candidates.begin() + (k - 1), candidates.end(), better);
    candidates.resize(static_cast<size_t>(k));
  }
  std::sort(candidates.begin(), candidates.end(), better);
  std::vector<float> scaled(candidates.size()), weight(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i)
    scaled[i] = (candidates[i].logit - candidates[0].logit) / options_.temperature;
  kernels(Isa::kScalar).exp(scaled.data(), static_cast<int64_t>(scaled.size()), weight.data());
  double sum = 0;
  for (const float w : weight) sum += w;
  // The nucleus: the fewest best tokens whose probability reaches top_p.
  size_t keep = 0;
  double mass = 0;
  while (keep < weight.size() && (keep == 0 || mass < static_cast<double>(options_.top_p) * sum))
    mass += weight[keep++];
  while (keep > 1 && weight[keep - 1] < options_.min_p * weight[0]) mass -= weight[--keep];
  double left = random_.uniform() * mass;
  for (size_t i = 0; i + 1 < keep; ++i) {
    left -= weight[i];
    if (left < 0) return candidates[i].id;
  }
  return candidates[keep - 1].id;
}

}  // namespace k3
