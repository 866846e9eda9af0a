// What every operation is handed: threads, kernels, scratch memory, the arithmetic, an observer.
//
//   Rows h = ctx.scratch.rows(tokens, hidden);       // valid until the enclosing Scratch::Frame
//   ends rms_norm(ctx, x, weight, eps, h);
//
// Activations are rows of float, one row a token. Rows are views: scratch or a Buffer owns them.
// Thread rule: a Context belongs to one forward pass at a time.
#pragma once

#include <cassert>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/memory.h"
#include "base/threads.h"
#include "kernels/kernels.h"

namespace k3 {

// A view of [rows, cols] floats, `stride` floats from one row to the next.
struct Rows {
  float* data = nullptr;
  int64_t rows = 0, cols = 0, stride = 0;

  float* row(int64_t i) const { return data + i * stride; }
  Rows slice(int64_t begin, int64_t end) const { return {row(begin), end - begin, cols, stride}; }
  Rows columns(int64_t begin, int64_t end) const {
    return {data + begin, rows, end - begin, stride};
  }
};

// A stack of temporary arrays. A Frame gives back all that was taken since it began, unless a tape
// still needs it.
class Scratch {
 public:
  // Planned: `bytes` at once. Growing: charged as it is used, up to `bytes`.
  enum Kind { kPlanned, kGrowing };
  Scratch(MemoryAccount& account, int64_t bytes, Kind kind = kPlanned)
      : buffer_(kind == kPlanned
                    ? Buffer(account, "scratch", static_cast<uint64_t>(bytes))
                    : Buffer::reserved(account, "scratch", static_cast<uint64_t>(bytes))) {}

  class Frame {
   public:
    explicit Frame(Scratch& scratch) : scratch_(scratch), mark_(scratch.used_) {}
    ~Frame() {
      if (!scratch_.kept_) scratch_.used_ = mark_;
    }
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

   private:
    Scratch& scratch_;
    int64_t mark_;
  };

  // Bytes that `take<T>(count)` uses up: what the planner adds up.
  template <class T>
  static constexpr int64_t cost(int64_t count) {
    return round_up(count * static_cast<int64_t>(sizeof(T)), 64);
  }
  template <class T>
  T* take(int64_t count) {
    const int64_t bytes = cost<T>(count);
    if (used_ + bytes > static_cast<int64_t>(buffer_.size()))
      throw WorkError("scratch memory: the plan of this forward pass was too small");
    buffer_.commit(static_cast<uint64_t>(used_ + bytes));
    T* at = reinterpret_cast<T*>(buffer_.data() + used_);
    used_ += bytes;
    return at;
  }
  Rows rows(int64_t count, int64_t cols) {
    const int64_t stride = row_stride(cols);
    return {take<float>(count * stride), count, cols, stride};
  }
  // While kept, frames that end give nothing back.
  void keep(bool kept) { kept_ = kept; }
  const std::byte* base() const { return buffer_.data(); }
  int64_t used() const { return used_; }
  int64_t size() const { return static_cast<int64_t>(buffer_.size()); }

  // Rows start on cache lines.
  static constexpr int64_t row_stride(int64_t cols) { return round_up(cols, 16); }
  static constexpr int64_t rows_cost(int64_t count, int64_t cols) {
    return cost<float>(count * row_stride(cols));
  }

 private:
  Buffer buffer_;
  int64_t used_ = 0;
  bool kept_ = false;
};

// How activations meet block-format weights (--activations); kFp32 is also the exact arithmetic.
enum class Activations : uint8_t { k16, kInt8, kMxfp8, kFp32 };
const char* name(Activations activations);

// Sees intermediate values as they are made: `k3 trace` and the oracle tests. Names are those of
// the golden files; `first_row` is the token of the batch that values.row(0) belongs to; layer is
// -1 outside the stack.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void see(std::string_view name, int layer, int64_t first_row, const Rows& values) = 0;
  virtual void see_ids(std::string_view name, int layer, int64_t first_row, const int32_t* ids,
                       int64_t rows, int64_t cols) = 0;
};

class Tape;  // ops/tape.h

struct Context {
  ThreadPool& pool;
  const Kernels& kernels;
  Scratch& scratch;
  Activations activations = Activations::k16;
  Observer* observer = nullptr;
  Tape* tape = nullptr;  // records the operations for the way back

  // Where f(x) goes that may overwrite x: there, or beside it while a tape still needs x.
  Rows over(const Rows& x) const { return tape ? scratch.rows(x.rows, x.cols) : x; }

  void observe(std::string_view what, int layer, int64_t first_row, const Rows& values) const {
    if (observer) observer->see(what, layer, first_row, values);
  }

  // Runs body(row) for every row, in ranges of `grain` rows a task.
  template <class F>
  void each_row(int64_t rows, int64_t grain, F&& body) const {
    pool.parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body(i);
    });
  }

  // Runs body(task, work) for every task, with `floats` of work space from scratch for each thread.
  template <class F>
  void each_task(int64_t tasks, int64_t floats, F&& body) const {
    Scratch::Frame frame(scratch);
    const int64_t stride = Scratch::row_stride(floats);
    float* work = scratch.take<float>(pool.size() * stride);
    std::atomic<int64_t> next{0};
    pool.share([&](int thread) {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
        body(i, work + thread * stride);
    });
  }
};

}  // namespace k3
