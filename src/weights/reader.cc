#include "weights/reader.h"

#include <algorithm>
#include <cstring>

#include "weights/format.h"

namespace k3 {
namespace {

constexpr size_t kAlign = 4096;

// Room for `bytes` read from an unaligned place.
size_t lane_bytes(size_t bytes) {
  return static_cast<size_t>(round_up(static_cast<int64_t>(bytes), kAlign)) + 2 * kAlign;
}

}  // namespace

Completion::~Completion() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done(); });
}

void Completion::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done(); });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Completion::begin() { pending_.fetch_add(1, std::memory_order_acq_rel); }

void Completion::end(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  if (error && !error_) error_ = std::move(error);
  pending_.fetch_sub(1, std::memory_order_acq_rel);
  changed_.notify_all();
}

uint64_t Reader::memory_bytes(int threads, size_t staging_bytes) {
  return Buffer::rounded(static_cast<uint64_t>(threads) * lane_bytes(staging_bytes));
}

Reader::Reader(MemoryAccount& account, int threads, size_t staging_bytes)
    : staging_bytes_(staging_bytes),
      staging_(account, "staging", memory_bytes(threads, staging_bytes)) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this, i] { serve(i); });
}

Reader::~Reader() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Reader::submit(Priority priority, Completion& completion, std::function<void(Lane&)> job) {
  completion.begin();
  {
    std::lock_guard lock(mutex_);
    queues_[priority].push_back({&completion, std::move(job)});
  }
  wake_.notify_one();
}

int64_t Reader::span_bytes(uint64_t begin, uint64_t end) {
  return static_cast<int64_t>(round_up(static_cast<int64_t>(end), kAlign) -
                              begin / kAlign * kAlign + kAlign);
}

void Reader::submit_span(Priority priority, Completion& completion, const File& file,
                         uint64_t begin, uint64_t end, std::byte* to, const Check& check) {
  // Pieces begin at block borders of the file, so that they meet without overlap.
  const uint64_t piece = staging_bytes_ / kAlign * kAlign + kAlign;
  const auto align = static_cast<uint64_t>(file.direct_alignment());
  const uint64_t base = begin / align * align;
  while (begin < end) {
    const uint64_t stop = std::min(end, begin / kAlign * kAlign + piece);
    std::byte* at = to + (begin / align * align - base);
    submit(priority, completion, [&file, begin, stop, at, check](Lane& lane) {
      const size_t length = stop - begin;
      const size_t skip = lane.read(file, begin, length, {at, length + 2 * kAlign});
      if (check) check(begin, {at + skip, length});
    });
    begin = stop;
  }
}

void Reader::serve(int index) {
  Lane lane;
  lane.reader_ = this;
  const size_t each = lane_bytes(staging_bytes_);
  std::byte* base = staging_.data() + static_cast<size_t>(index) * each;
  base += (kAlign - reinterpret_cast<uintptr_t>(base) % kAlign) % kAlign;
  lane.staging_ = {base, lane_bytes(staging_bytes_) - kAlign};
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock,
                 [&] { return stop_ || !queues_[kExperts].empty() || !queues_[kTrunk].empty(); });
      auto& queue = queues_[kExperts].empty() ? queues_[kTrunk] : queues_[kExperts];
      if (queue.empty()) return;  // stopping, and nothing is left that somebody may wait for
      job = std::move(queue.front());
      queue.pop_front();
    }
    std::exception_ptr error;
    try {
      job.run(lane);
    } catch (...) {
      error = std::current_exception();
    }
    job.run = nullptr;  // what it captured must not outlive the completion
    job.completion->end(std::move(error));
  }
}

std::span<const std::byte> Reader::Lane::stage(const File& file, uint64_t offset, size_t length) {
  const size_t at = read(file, offset, length, staging_);
  return staging_.subspan(at, length);
}

size_t Reader::Lane::read(const File& file, uint64_t offset, size_t length,
                          std::span<std::byte> out) {
  return reader_->retrying([&] {
    const size_t at = file.read_direct(offset, length, out);
    reader_->bytes_read_ += length;
    if (reader_->log_) {
      std::lock_guard lock(reader_->mutex_);
      reader_->log_->push_back({&file, offset, length});
    }
    if (file.io_mode()[0] == 'b') reader_->buffered_ = true;
    return at;
  });
}

}  // namespace k3
