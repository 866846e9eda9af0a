// Threads that read weights while others compute.
//
//   Reader reader(account, 4, 4 << 20);
//   Completion done;
//   reader.submit(Reader::kExperts, done, [&](Reader::Lane& lane) {
//     lane.read(file, offset, destination);        // direct, retried, counted
//   });
//   done.wait();                                   // rethrows what a job threw
//
// Jobs of the same priority run in the order they were submitted; experts go before trunk. Each
// thread has one staging buffer of `staging_bytes` (plus alignment), for bytes that are repacked on
// their way. A read that fails with WorkError is tried again twice, with a pause, before it counts
// as failed. Ownership: the Reader owns its threads and staging (tag "staging"); a Completion must
// outlive its jobs, and its destructor waits for them. Thread rule: submit from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/memory.h"
#include "base/storage.h"

namespace k3 {

class Completion {
 public:
  Completion() = default;
  ~Completion();
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  bool done() const { return pending_.load(std::memory_order_acquire) == 0; }
  void wait();  // until no job is pending; throws the first job's failure, once

 private:
  friend class Reader;
  void begin();
  void end(std::exception_ptr error);

  std::atomic<int64_t> pending_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr error_;
};

class Reader {
 public:
  enum Priority { kExperts, kTrunk };

  Reader(MemoryAccount& account, int threads, size_t staging_bytes);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  // What a job works with, on its thread.
  class Lane {
   public:
    // Reads into the staging buffer (length <= staging_bytes) and returns the bytes.
    std::span<const std::byte> stage(const File& file, uint64_t offset, size_t length);
    // Reads straight into `out` as File::read_direct does; returns where the byte at offset lies.
    size_t read(const File& file, uint64_t offset, size_t length, std::span<std::byte> out);

   private:
    friend class Reader;
    Reader* reader_ = nullptr;
    std::span<std::byte> staging_;
  };

  void submit(Priority priority, Completion& completion, std::function<void(Lane&)> job);

  // Reads bytes [begin, end) of a file to where they will be used, in pieces. `to` receives the
  // aligned block that `begin` lies in, so the byte at begin comes to lie begin %
  // file.direct_alignment() bytes after it, and has room for span_bytes(begin, end). `check`, if
  // given, sees the bytes of each piece and where in the file they begin, always a multiple of 4096
  // but for the first.
  using Check = std::function<void(uint64_t offset, std::span<const std::byte> bytes)>;
  void submit_span(Priority priority, Completion& completion, const File& file, uint64_t begin,
                   uint64_t end, std::byte* to, const Check& check = {});
  static int64_t span_bytes(uint64_t begin, uint64_t end);

  // Calls read() up to three times while it throws WorkError, with a pause between; counts retries.
  // For the reads that are done on other threads than the Reader's.
  template <class F>
  auto retrying(F&& read) {
    for (int attempt = 1;; ++attempt) {
      try {
        return read();
      } catch (const WorkError&) {
        if (attempt == kTries) throw;
        ++retries_;
        std::this_thread::sleep_for(kPause);
      }
    }
  }

  // What was read, in order of completion; null stops recording. For measuring the same reads
  // without the work that depends on them. Call while no job is pending.
  struct Extent {
    const File* file;
    uint64_t offset;
    size_t length;
  };
  void record(std::vector<Extent>* log) { log_ = log; }

  size_t staging_bytes() const { return staging_bytes_; }
  uint64_t bytes_read() const { return bytes_read_.load(); }  // asked for, not counting alignment
  uint64_t retries() const { return retries_.load(); }
  const char* io_mode() const { return buffered_.load() ? "buffered" : "direct"; }

  // What a Reader of this shape takes from the account.
  static uint64_t memory_bytes(int threads, size_t staging_bytes);

 private:
  struct Job {
    Completion* completion;
    std::function<void(Lane&)> run;
  };
  void serve(int index);

  static constexpr int kTries = 3;
  static constexpr std::chrono::milliseconds kPause{20};

  const size_t staging_bytes_;
  Buffer staging_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> queues_[2];
  bool stop_ = false;
  std::vector<Extent>* log_ = nullptr;
  std::atomic<uint64_t> bytes_read_{0}, retries_{0};
  std::atomic<bool> buffered_{false};
  std::vector<std::thread> threads_;
};

}  // namespace k3
