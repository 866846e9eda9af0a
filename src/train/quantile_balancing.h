// Quantile Balancing: the router's bias that gives every expert its share (training.md 4.3; K3
// report, section 2.3.3 and appendices C, D).
//
//   QuantileBalancer balancer(896, 16);
//   for (each micro-batch) {
//     route with balancer.bias();                         // fixed for the whole step
//     for (each token) histogram.add(scores);             // one histogram a thread
//   }
//   for (histograms) balancer.absorb(histogram);
//   balancer.update();                                     // once, after the optimiser's step
//
// A token's threshold alpha is its (k+1)-th largest biased score: expert j would take the token if
// its bias exceeded r_j = alpha - s_j. The new bias of an expert is the quantile of its r that the
// target load m k / n asks for, read off a histogram of 1,000 bins, less the mean over experts. So
// the batch is never routed by a bias that it chose itself, and nothing plays the part of a
// learning rate. Counts are integers: neither order nor threads change the result. Padding tokens
// are left out by not adding them. Thread rule: a histogram belongs to one thread; the rest to one
// at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace k3 {

class QuantileBalancer {
 public:
  static constexpr int64_t kBins = 1000;

  QuantileBalancer(int64_t experts, int64_t chosen);

  // Added to the scores to choose experts, never to weigh them; what is exported as
  // e_score_correction_bias.
  std::span<const float> bias() const { return bias_; }
  void set_bias(std::span<const float> bias);  // of a checkpoint; the counts begin anew

  // Of the tokens that one thread has seen in this step.
  class Histogram {
   public:
    explicit Histogram(const QuantileBalancer& balancer);
    void add(std::span<const float> scores);  // raw scores of one token, [experts]

   private:
    friend class QuantileBalancer;
    const QuantileBalancer* balancer_;
    std::vector<uint32_t> counts_;  // [experts][bins]
    std::vector<float> biased_;
    int64_t tokens_ = 0;
  };

  void absorb(const Histogram& histogram);
  void update();  // without tokens since the last one: nothing changes

 private:
  void restart();
  float threshold(std::span<const float> scores, std::vector<float>& biased) const;

  const int64_t experts_, chosen_;
  std::vector<float> bias_;
  float low_ = 0, width_ = 0;     // of the bins, from the bias
  std::vector<uint64_t> counts_;  // [experts][bins]
  int64_t tokens_ = 0;
};

// The same without bins, for small batches: scores [tokens][experts], routed with `bias`.
std::vector<float> exact_quantile_bias(std::span<const float> scores, int64_t experts,
                                       int64_t chosen, std::span<const float> bias);

// How evenly tokens went to experts.
struct LoadBalance {
  double max_violation = 0;  // largest load over the mean, less one: MaxVio
  double variation = 0;      // standard deviation over the mean
  double dead = 0;           // share of experts without a token
};
LoadBalance load_balance(std::span<const int64_t> loads);

}  // namespace k3
