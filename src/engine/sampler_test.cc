#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "engine/stop_strings.h"

namespace k3 {
namespace {

std::vector<double> frequencies(SamplingOptions o, const std::vector<float>& logits,
                                int draws = 20000, std::vector<bool> drawable = {},
                                std::vector<int32_t> generated = {}) {
  Sampler sampler(o, std::move(drawable));
  std::vector<double> count(logits.size(), 0);
  for (int i = 0; i < draws; ++i)
    count[static_cast<size_t>(sampler.sample(logits, generated))] += 1.0 / draws;
  return count;
}

// A share of 20,000 draws has a standard deviation of at most 0.0036; five of them.
constexpr double kBound = 0.018;

TEST(Sampler, DrawsTheSoftmax) {
  const std::vector<float> logits = {0.0f, 1.0f, 2.0f, -1.0f};
  double sum = 0;
  for (const float l : logits) sum += std::exp(l / 0.7);
  const auto got = frequencies({.temperature = 0.7f, .seed = 5}, logits);
  for (size_t i = 0; i < logits.size(); ++i)
    EXPECT_NEAR(got[i], std::exp(logits[i] / 0.7) / sum, kBound);
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowerIdOnATie) {
  Sampler sampler({.temperature = 0});
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 3, 2}, {}), 1);
}

TEST(Sampler, TopKTopPAndMinPCut) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f),
                                     std::log(0.05f)};
  auto got = frequencies({.top_k = 2}, logits);
  EXPECT_NEAR(got[0], 0.625, kBound);
  EXPECT_EQ(got[2] + got[3], 0);
  got = frequencies({.top_p = 0.75f}, logits);  // 0.5 + 0.3 reaches it
  EXPECT_NEAR(got[1], 0.375, kBound);
  EXPECT_EQ(got[2] + got[3], 0);
  got = frequencies({.top_p = 1e-6f}, logits);
  EXPECT_NEAR(got[0], 1, 1e-9);
  got = frequencies({.min_p = 0.2f}, logits);  // at least 0.1
  EXPECT_GT(got[2], 0.1);
  EXPECT_EQ(got[3], 0);
}

TEST(Sampler, WhatMayNotBeDrawnIsNever) {
  const auto got = frequencies({}, {9, 0, 0, 9}, 2000, {false, true, true, false});
  EXPECT_EQ(got[0] + got[3], 0);
  EXPECT_THROW(frequencies({}, {1, 1}, 1, {false, false}), InputError);
  // A mask shorter than the vocabulary leaves the rest out.
  EXPECT_EQ(frequencies({}, {0, 9}, 100, {true})[1], 0);
}

TEST(Sampler, PenaltiesLowerWhatWasGenerated) {
  const std::vector<float> logits = {2, 2, -2};
  EXPECT_LT(frequencies({.repetition_penalty = 2}, logits, 20000, {}, {0})[0],
            frequencies({}, logits)[0] - 0.1);
  EXPECT_LT(frequencies({.presence_penalty = 1}, logits, 20000, {}, {0})[0], 0.35);
  EXPECT_LT(frequencies({.frequency_penalty = 1}, logits, 20000, {}, {0, 0, 0})[0], 0.12);
}

TEST(Sampler, TheSeedDecides) {
  const std::vector<float> logits(100, 0.0f);
  const auto draw = [&](uint64_t seed) {
    Sampler sampler({.seed = seed});
    std::vector<int32_t> ids;
    for (int i = 0; i < 20; ++i) ids.push_back(sampler.sample(logits, ids));
    return ids;
  };
  EXPECT_EQ(draw(3), draw(3));
  EXPECT_NE(draw(3), draw(4));
}

TEST(Sampler, OptionsOutOfRangeAreNamed) {
  EXPECT_THROW(check_sampling({.temperature = -1}), InputError);
  EXPECT_THROW(check_sampling({.temperature = NAN}), InputError);
  EXPECT_THROW(check_sampling({.top_p = 0}), InputError);
  EXPECT_THROW(check_sampling({.top_p = 1.5f}), InputError);
  EXPECT_THROW(check_sampling({.top_k = -1}), InputError);
  EXPECT_THROW(check_sampling({.min_p = 1}), InputError);
  EXPECT_THROW(check_sampling({.repetition_penalty = 0}), InputError);
}

TEST(StopStrings, CutAtTheFirstHoweverTheTextArrives) {
  const std::string text = "one two threethree END four";
  for (size_t step = 1; step <= text.size(); ++step) {
    StopStrings stop({"thrEE", "END", "threex"});
    std::string out;
    for (size_t i = 0; i < text.size() && !stop.hit(); i += step)
      out += stop.push(text.substr(i, step));
    out += stop.flush();
    EXPECT_TRUE(stop.hit());
    EXPECT_EQ(out, "one two threethree ") << step;
  }
}

TEST(StopStrings, WhatOnlyLookedLikeAStopIsGivenBack) {
  StopStrings stop({"abcd"});
  EXPECT_EQ(stop.push("xab"), "x");
  EXPECT_EQ(stop.push("c"), "");
  EXPECT_EQ(stop.push("abc"), "abc");
  EXPECT_EQ(stop.flush(), "abc");
  EXPECT_FALSE(stop.hit());
  EXPECT_THROW(StopStrings({""}), InputError);
}

}  // namespace
}  // namespace k3
