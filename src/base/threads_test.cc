#include "base/threads.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"

namespace k3 {
namespace {

TEST(ThreadPool, EveryItemOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (const int64_t count : {0, 1, 7, 1000}) {
      for (const int64_t grain : {1, 3, 2000}) {
        std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
        pool.parallel_for(count, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
        });
        for (const auto& h : hits) EXPECT_EQ(h.load(), 1);
      }
    }
  }
}

TEST(ThreadPool, EachThreadRunsOnce) {
  ThreadPool pool(4);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> sum{0};
    pool.run([&](int thread) { sum += 1 << (8 * thread); });
    EXPECT_EQ(sum.load(), 0x01010101);
  }
}

// Whoever comes in time takes pieces; every piece is taken once, nobody is still at work when the
// call returns, and a run in between still has every thread.
TEST(ThreadPool, ShareWaitsForThoseAloneThatHaveBegun) {
  ThreadPool pool(4);
  for (int round = 0; round < 2000; ++round) {
    std::atomic<int> next{0}, inside{0}, done{0};
    pool.share([&](int) {
      ++inside;
      while (next.fetch_add(1) < 5) ++done;
      --inside;
    });
    ASSERT_EQ(done.load(), 5);
    ASSERT_EQ(inside.load(), 0);
    if (round % 10 != 0) continue;
    std::atomic<int> ran{0};
    pool.run([&](int) { ++ran; });
    ASSERT_EQ(ran.load(), 4);
  }
  EXPECT_THROW(pool.share([](int thread) {
    if (thread == 0) throw WorkError("boom");
  }),
               WorkError);
}

TEST(ThreadPool, SleepsBetweenRunsAndWakes) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> ran{0};
    pool.run([&](int) { ++ran; });
    EXPECT_EQ(ran.load(), 3);
  }
}

TEST(ThreadPool, AnExceptionReachesTheCallerAndThePoolGoesOn) {
  ThreadPool pool(2);
  for (int thrower = 0; thrower < 2; ++thrower)
    EXPECT_THROW(pool.run([&](int thread) {
      if (thread == thrower) throw WorkError("boom");
    }),
                 WorkError);
  std::atomic<int> ran{0};
  pool.run([&](int) { ++ran; });
  EXPECT_EQ(ran.load(), 2);
}

}  // namespace
}  // namespace k3
