#include "train/quantile_balancing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace k3 {
namespace {

constexpr int64_t kExperts = 64, kChosen = 4, kTokens = 8192;

// Scores of a router that prefers some experts much: the logits of expert j lean by 2 N(0, 1).
std::vector<float> skewed_scores(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> lean(kExperts), scores(static_cast<size_t>(kTokens * kExperts));
  for (float& l : lean) l = 2 * normal(random);
  for (size_t i = 0; i < scores.size(); ++i)
    scores[i] = 1 / (1 + std::exp(-(normal(random) + lean[i % kExperts])));
  return scores;
}

std::span<const float> token(const std::vector<float>& scores, int64_t t) {
  return std::span(scores).subspan(static_cast<size_t>(t * kExperts), kExperts);
}

LoadBalance route(const std::vector<float>& scores, std::span<const float> bias) {
  std::vector<int64_t> loads(kExperts, 0), order(kExperts);
  for (int64_t t = 0; t < kTokens; ++t) {
    const auto s = token(scores, t);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + kChosen, order.end(),
                      [&](int64_t a, int64_t b) {
                        const auto i = static_cast<size_t>(a), j = static_cast<size_t>(b);
                        return s[i] + bias[i] > s[j] + bias[j];
                      });
    for (int64_t i = 0; i < kChosen; ++i)
      ++loads[static_cast<size_t>(order[static_cast<size_t>(i)])];
  }
  return load_balance(loads);
}

TEST(QuantileBalancing, LevelsASkewedRouterWithinSixSteps) {
  const std::vector<float> scores = skewed_scores(1);
  QuantileBalancer balancer(kExperts, kChosen);
  std::vector<float> exact(kExperts, 0.0f);
  const double start = route(scores, balancer.bias()).max_violation;
  EXPECT_GT(start, 5);
  double last = start, exact_last = start;
  for (int step = 0; step < 6; ++step) {
    QuantileBalancer::Histogram histogram(balancer);
    for (int64_t t = 0; t < kTokens; ++t) histogram.add(token(scores, t));
    balancer.absorb(histogram);
    balancer.update();
    exact = exact_quantile_bias(scores, kExperts, kChosen, exact);
    last = route(scores, balancer.bias()).max_violation;
    exact_last = route(scores, exact).max_violation;
    RecordProperty("max_violation_" + std::to_string(step + 1), std::to_string(last));
  }
  EXPECT_LT(last, 0.2);
  EXPECT_LT(exact_last, 0.2);
}

TEST(QuantileBalancing, TheHistogramAgreesWithTheExactFormWithinABin) {
  const std::vector<float> scores = skewed_scores(2);
  QuantileBalancer balancer(kExperts, kChosen);
  QuantileBalancer::Histogram histogram(balancer);
  for (int64_t t = 0; t < kTokens; ++t) histogram.add(token(scores, t));
  const std::vector<float> zero(kExperts, 0.0f);
  const std::vector<float> exact = exact_quantile_bias(scores, kExperts, kChosen, zero);
  balancer.absorb(histogram);
  balancer.update();
  // The range is [-1, 1] at first; each quantile and the mean are off by less than a bin.
  const double bin = 2.0 / QuantileBalancer::kBins;
  double mean = 0;
  for (size_t j = 0; j < kExperts; ++j) {
    EXPECT_NEAR(balancer.bias()[j], exact[j], 2 * bin);
    mean += balancer.bias()[j];
  }
  EXPECT_NEAR(mean / kExperts, 0, 1e-6);
}

TEST(QuantileBalancing, NeitherOrderNorThreadsMatter) {
  const std::vector<float> scores = skewed_scores(3);
  QuantileBalancer one(kExperts, kChosen), many(kExperts, kChosen);
  QuantileBalancer::Histogram whole(one);
  for (int64_t t = 0; t < kTokens; ++t) whole.add(token(scores, t));
  one.absorb(whole);
  one.update();
  std::vector<QuantileBalancer::Histogram> parts(3, QuantileBalancer::Histogram(many));
  for (int64_t t = kTokens; t-- > 0;) parts[static_cast<size_t>(t % 3)].add(token(scores, t));
  for (const auto& part : parts) many.absorb(part);
  many.update();
  EXPECT_TRUE(std::equal(one.bias().begin(), one.bias().end(), many.bias().begin()));
}

TEST(QuantileBalancing, WithoutTokensNothingChanges) {
  QuantileBalancer balancer(8, 2);
  const std::vector<float> bias = {0.1f, -0.1f, 0, 0, 0.2f, -0.2f, 0, 0};
  balancer.set_bias(bias);
  balancer.update();
  EXPECT_TRUE(std::equal(bias.begin(), bias.end(), balancer.bias().begin()));
}

TEST(LoadBalance, KnownLoads) {
  const int64_t loads[] = {0, 4, 8, 4};
  const LoadBalance b = load_balance(loads);
  EXPECT_DOUBLE_EQ(b.max_violation, 1.0);
  EXPECT_DOUBLE_EQ(b.dead, 0.25);
  EXPECT_NEAR(b.variation, std::sqrt(8.0) / 4, 1e-12);
}

}  // namespace
}  // namespace k3
