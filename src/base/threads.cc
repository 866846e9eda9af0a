#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

namespace k3 {
namespace {

// Long enough to bridge two matrix products of a small model, short enough to leave a core to
// others.
constexpr auto kSpin = std::chrono::microseconds(100);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns once `value` differs from `old`.
uint32_t wait_change(std::atomic<uint32_t>& value, uint32_t old) {
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      const uint32_t now = value.load(std::memory_order_acquire);
      if (now != old) return now;
      pause();
    }
  } while (std::chrono::steady_clock::now() < until);
  for (;;) {
    value.wait(old, std::memory_order_acquire);
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
  }
}

}  // namespace

ThreadPool::ThreadPool(int threads) : size_(threads < 1 ? 1 : threads) {
  for (int i = 1; i < size_; ++i) workers_.emplace_back([this, i] { worker(i); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (auto& thread : workers_) thread.join();
}

void ThreadPool::execute(int index) {
  try {
    (*work_)(index);
  } catch (...) {
    std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void ThreadPool::worker(int index) {
  uint32_t seen = 0;
  for (;;) {
    seen = wait_change(epoch_, seen);
    if (stop_) return;
    execute(index);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

void ThreadPool::run(const std::function<void(int)>& work) {
  work_ = &work;
  pending_.store(static_cast<uint32_t>(size_ - 1), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  if (size_ > 1) epoch_.notify_all();
  execute(0);
  for (uint32_t left = pending_.load(std::memory_order_acquire); left != 0;)
    left = wait_change(pending_, left);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

int hardware_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace k3
