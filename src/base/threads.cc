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

// Returns once reached(value) holds.
template <class Reached>
uint32_t wait_until(const std::atomic<uint32_t>& value, Reached reached) {
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      const uint32_t now = value.load(std::memory_order_acquire);
      if (reached(now)) return now;
      pause();
    }
  } while (std::chrono::steady_clock::now() < until);
  for (;;) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (reached(now)) return now;
    value.wait(now, std::memory_order_acquire);
  }
}

constexpr uint64_t kOpen = uint64_t{1} << 31;

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
    call_(work_, index);
  } catch (...) {
    std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

// Enters run number `epoch` if it is still open.
bool ThreadPool::join(uint32_t epoch) {
  uint64_t gate = gate_.load(std::memory_order_relaxed);
  do {
    if (gate >> 32 != epoch || (gate & kOpen) == 0) return false;
  } while (!gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire,
                                        std::memory_order_relaxed));
  return true;
}

void ThreadPool::worker(int index) {
  uint32_t seen = 0;
  for (;;) {
    seen = wait_until(epoch_, [seen](uint32_t now) { return now != seen; });
    if (stop_) return;
    if (!join(seen)) continue;
    execute(index);
    left_.fetch_add(1, std::memory_order_release);
    left_.notify_one();
  }
}

void ThreadPool::go(bool everyone) {
  if (size_ == 1) {
    call_(work_, 0);
    return;
  }
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  left_.store(0, std::memory_order_relaxed);
  gate_.store(uint64_t{epoch} << 32 | kOpen, std::memory_order_release);
  epoch_.store(epoch, std::memory_order_release);
  epoch_.notify_all();
  execute(0);
  const auto wait_for = [this](uint32_t workers) {
    wait_until(left_, [workers](uint32_t now) { return now == workers; });
  };
  if (everyone) wait_for(static_cast<uint32_t>(size_ - 1));
  wait_for(static_cast<uint32_t>(gate_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen));
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

int hardware_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace k3
