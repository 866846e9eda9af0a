#include "ops/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace k3 {
namespace {

struct Bench {
  explicit Bench(int threads) : pool(threads), account(64 << 20), scratch(account, 16 << 20) {}
  Context context(Isa isa) { return {pool, kernels(isa), scratch}; }
  ThreadPool pool;
  MemoryAccount account;
  Scratch scratch;
};

struct Values {
  Values(int64_t rows, int64_t cols, std::mt19937& random)
      : data(static_cast<size_t>(rows * (cols + 3))), view{data.data(), rows, cols, cols + 3} {
    std::normal_distribution<float> normal;
    for (float& x : data) x = normal(random);
  }
  std::vector<float> data;
  Rows view;
};

// Every form against a sum in double: an element's error is at most gamma of its chain, k + 1
// roundings, times the sum of the magnitudes.
TEST(Gemm, EveryTranspositionAgreesWithDouble) {
  std::mt19937 random(1);
  Bench bench(2);
  const int64_t shapes[][3] = {{1, 1, 1}, {5, 17, 3}, {16, 16, 16}, {33, 40, 65}, {70, 31, 130}};
  for (const auto& [m, n, k] : shapes) {
    for (const Transposition ta : {kAsStored, kTransposed}) {
      for (const Transposition tb : {kAsStored, kTransposed}) {
        for (const Sum add : {kReplace, kAdd}) {
          const Values a(ta ? k : m, ta ? m : k, random), b(tb ? n : k, tb ? k : n, random);
          Values c(m, n, random);
          const std::vector<float> before = c.data;
          Context ctx = bench.context(best_isa());
          gemm(ctx, {a.view, ta}, {b.view, tb}, c.view, add);
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n; ++j) {
              double sum = add ? before[static_cast<size_t>(i * c.view.stride + j)] : 0;
              double magnitude = std::abs(sum);
              for (int64_t p = 0; p < k; ++p) {
                const double term = double{ta ? a.view.row(p)[i] : a.view.row(i)[p]} *
                                    (tb ? b.view.row(j)[p] : b.view.row(p)[j]);
                sum += term;
                magnitude += std::abs(term);
              }
              const double bound = static_cast<double>(k + 2) * 0x1p-24 * magnitude;
              ASSERT_NEAR(c.view.row(i)[j], sum, bound) << m << "x" << n << "x" << k;
            }
          }
        }
      }
    }
  }
}

TEST(Gemm, ThreadsAndInstructionSetsDoNotChangeABit) {
  std::mt19937 random(2);
  const Values a(45, 77, random), b(77, 61, random);
  std::vector<float> first;
  for (const Isa isa : isas()) {
    for (const int threads : {1, 3}) {
      Bench bench(threads);
      Context ctx = bench.context(isa);
      Values c(45, 61, random);
      gemm(ctx, {a.view}, {b.view}, c.view);
      std::vector<float> dense;
      for (int64_t i = 0; i < 45; ++i) dense.insert(dense.end(), c.view.row(i), c.view.row(i) + 61);
      if (first.empty()) first = dense;
      EXPECT_EQ(dense, first) << name(isa) << " " << threads;
    }
  }
}

}  // namespace
}  // namespace k3
