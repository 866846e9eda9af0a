#include "train/quantile_balancing.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>

namespace k3 {
namespace {

// The (k+1)-th largest.
float after_chosen(std::vector<float>& values, int64_t chosen) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(chosen);
  std::nth_element(values.begin(), at, values.end(), std::greater<>());
  return *at;
}

void subtract_mean(std::vector<double>& values, std::vector<float>& out) {
  double sum = 0;
  for (const double v : values) sum += v;
  const double mean = sum / static_cast<double>(values.size());
  for (size_t i = 0; i < values.size(); ++i) out[i] = static_cast<float>(values[i] - mean);
}

}  // namespace

QuantileBalancer::QuantileBalancer(int64_t experts, int64_t chosen)
    : experts_(experts),
      chosen_(chosen),
      bias_(static_cast<size_t>(experts), 0.0f),
      counts_(static_cast<size_t>(experts * kBins), 0) {
  assert(0 < chosen && chosen < experts);
  restart();
}

void QuantileBalancer::set_bias(std::span<const float> bias) {
  assert(static_cast<int64_t>(bias.size()) == experts_);
  std::copy(bias.begin(), bias.end(), bias_.begin());
  restart();
}

// Scores lie in (0, 1), so alpha - s does in (min b - 1, max b + 1).
void QuantileBalancer::restart() {
  const auto [least, most] = std::minmax_element(bias_.begin(), bias_.end());
  low_ = *least - 1;
  width_ = (*most + 1 - low_) / static_cast<float>(kBins);
  std::fill(counts_.begin(), counts_.end(), 0);
  tokens_ = 0;
}

float QuantileBalancer::threshold(std::span<const float> scores, std::vector<float>& biased) const {
  for (size_t j = 0; j < scores.size(); ++j) biased[j] = scores[j] + bias_[j];
  return after_chosen(biased, chosen_);
}

QuantileBalancer::Histogram::Histogram(const QuantileBalancer& balancer)
    : balancer_(&balancer),
      counts_(static_cast<size_t>(balancer.experts_ * kBins), 0),
      biased_(static_cast<size_t>(balancer.experts_)) {}

void QuantileBalancer::Histogram::add(std::span<const float> scores) {
  assert(static_cast<int64_t>(scores.size()) == balancer_->experts_);
  const float alpha = balancer_->threshold(scores, biased_);
  for (size_t j = 0; j < scores.size(); ++j) {
    const float bin = (alpha - scores[j] - balancer_->low_) / balancer_->width_;
    const auto at = std::clamp<int64_t>(static_cast<int64_t>(bin), 0, kBins - 1);
    ++counts_[j * kBins + static_cast<size_t>(at)];
  }
  ++tokens_;
}

void QuantileBalancer::absorb(const Histogram& histogram) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += histogram.counts_[i];
  tokens_ += histogram.tokens_;
}

void QuantileBalancer::update() {
  if (tokens_ == 0) return;
  const double target =
      static_cast<double>(tokens_) * static_cast<double>(chosen_) / static_cast<double>(experts_);
  std::vector<double> quantile(bias_.size());
  for (size_t j = 0; j < quantile.size(); ++j) {
    const uint64_t* counts = counts_.data() + j * kBins;
    double before = 0;
    int64_t bin = 0;
    while (before + static_cast<double>(counts[bin]) < std::ceil(target))
      before += static_cast<double>(counts[bin++]);
    const double within =
        std::clamp((target - before) / static_cast<double>(counts[bin]), 0.0, 1.0);
    quantile[j] = low_ + (static_cast<double>(bin) + within) * width_;
  }
  subtract_mean(quantile, bias_);
  restart();
}

std::vector<float> exact_quantile_bias(std::span<const float> scores, int64_t experts,
                                       int64_t chosen, std::span<const float> bias) {
  const auto n = static_cast<size_t>(experts);
  const size_t tokens = scores.size() / n;
  std::vector<float> biased(n), alpha(tokens), margin(tokens), out(n);
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t j = 0; j < n; ++j) biased[j] = scores[t * n + j] + bias[j];
    alpha[t] = after_chosen(biased, chosen);
  }
  // -[(q+1)-th largest of s - alpha], q the target load.
  const auto q = std::min<int64_t>(static_cast<int64_t>(tokens) * chosen / experts,
                                   static_cast<int64_t>(tokens) - 1);
  std::vector<double> quantile(n);
  for (size_t j = 0; j < n; ++j) {
    for (size_t t = 0; t < tokens; ++t) margin[t] = scores[t * n + j] - alpha[t];
    quantile[j] = -double{after_chosen(margin, q)};
  }
  subtract_mean(quantile, out);
  return out;
}

LoadBalance load_balance(std::span<const int64_t> loads) {
  LoadBalance out;
  double sum = 0, squares = 0, most = 0, dead = 0;
  for (const int64_t load : loads) {
    const auto l = static_cast<double>(load);
    sum += l;
    squares += l * l;
    most = std::max(most, l);
    dead += load == 0;
  }
  const auto n = static_cast<double>(loads.size());
  const double mean = sum / n;
  if (mean == 0) return out;
  out.max_violation = most / mean - 1;
  out.variation = std::sqrt(std::max(0.0, squares / n - mean * mean)) / mean;
  out.dead = dead / n;
  return out;
}

}  // namespace k3
