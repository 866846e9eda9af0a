// A fixed set of threads that work on one thing at a time, together with the caller.
//
//   ThreadPool pool(2);
//   pool.parallel_for(n, grain, [&](int64_t begin, int64_t end) { ... });
//   pool.share([&](int thread) { while (take_a_piece()) ...; });  // on those that come in time
//   pool.run([&](int thread) { ... });                            // once on each of pool.size()
//
// Work that is handed out in pieces goes through share or parallel_for: whoever finds no piece left
// is done, and the caller waits for those alone that have begun. A thread whose core is taken by
// another job then costs its share of the speed and nothing more. Who computes a piece never
// changes a result: every output is written by exactly one piece.
//
// Waiting threads spin for a moment and then sleep in the kernel (std::atomic::wait). Thread rule:
// one call at a time, from one thread; calls do not nest. An exception thrown by the function
// reaches the caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
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

  // Calls work(index) on the caller, index 0, and on each worker that arrives before the caller's
  // call returns.
  template <class F>
  void share(F&& work) {
    begin(work, false);
  }

  // Calls work(index) once on every thread.
  template <class F>
  void run(F&& work) {
    begin(work, true);
  }

  // Hands out ranges of at most `grain` items.
  template <class F>
  void parallel_for(int64_t count, int64_t grain, F&& body) {
    if (count <= 0) return;
    if (size_ == 1 || count <= grain) {
      body(int64_t{0}, count);
      return;
    }
    std::atomic<int64_t> next{0};
    share([&](int) {
      for (;;) {
        const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= count) return;
        body(begin, begin + grain < count ? begin + grain : count);
      }
    });
  }

 private:
  using Call = void (*)(void* work, int index);

  template <class F>
  void begin(F& work, bool everyone) {
    work_ = const_cast<void*>(static_cast<const void*>(&work));
    call_ = [](void* w, int index) { (*static_cast<F*>(w))(index); };
    go(everyone);
  }
  void go(bool everyone);
  void worker(int index);
  void execute(int index);
  bool join(uint32_t epoch);

  const int size_;
  void* work_ = nullptr;
  Call call_ = nullptr;
  // The run's number; workers sleep on it.
  alignas(64) std::atomic<uint32_t> epoch_{0};
  // epoch << 32 | open << 31 | workers that joined: who joins has done so before the gate closes.
  alignas(64) std::atomic<uint64_t> gate_{0};
  alignas(64) std::atomic<uint32_t> left_{0};  // workers that joined and have finished
  std::atomic<bool> stop_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::vector<std::thread> workers_;
};

// What the machine has, within the process's affinity mask.
int hardware_threads();

}  // namespace k3
