// A fixed set of threads that run one function at a time, together with the caller.
//
//   ThreadPool pool(2);
//   pool.run([&](int thread) { ... });                        // once on each of the pool.size()
//   threads pool.parallel_for(n, grain, [&](int64_t begin, int64_t end) { ... });
//
// parallel_for hands out ranges of at most `grain` items from a shared counter, so a thread that
// lost its core holds up only the range it has. Who computes a range never changes a result here:
// every output is written by exactly one range.
//
// Waiting threads spin for a few microseconds and then sleep in the kernel (std::atomic::wait): a
// spinning barrier collapses when another job takes a core. Thread rule: one run at a time, from
// one thread; calls do not nest. An exception thrown by the function reaches the caller of run.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace k3 {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // at least 1; 1 means the caller alone
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  void run(const std::function<void(int)>& work);

  template <class F>
  void parallel_for(int64_t count, int64_t grain, F&& body) {
    if (count <= 0) return;
    if (size_ == 1 || count <= grain) {
      body(int64_t{0}, count);
      return;
    }
    std::atomic<int64_t> next{0};
    run([&](int) {
      for (;;) {
        const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= count) return;
        body(begin, begin + grain < count ? begin + grain : count);
      }
    });
  }

 private:
  void worker(int index);
  void execute(int index);

  const int size_;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<uint32_t> epoch_{0};    // bumped to start a run
  std::atomic<uint32_t> pending_{0};  // workers still in the run
  std::atomic<bool> stop_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::vector<std::thread> workers_;
};

// What the machine has, within the process's affinity mask.
int hardware_threads();

}  // namespace k3
