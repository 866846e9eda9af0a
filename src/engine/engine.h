// A model ready to run: snapshot, plan, memory, threads, in one object.
//
//   DiskStorage disk;
//   Engine engine(disk, {.model_dir = "models/nano", .ram = 4 << 30});
//   SequenceState state = engine.new_sequence();
//   engine.run({{&state, ids}}, [&](const Engine::Logits& l) { next = argmax(l.values); });
//
// run() feeds ids to sequences in forward passes of at most plan().chunk tokens; sequences given
// together share the passes. What comes out does not depend on the chunk, the company, the threads
// or the memory. Ownership: the engine owns all; states must not outlive it. Thread rule: one run
// at a time. Errors: as Model's; after one, drop the states of that run, the engine stays usable.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/storage.h"
#include "engine/plan.h"
#include "model/model.h"

namespace k3 {

struct EngineOptions {
  std::string model_dir;
  uint64_t ram = 0;  // 0 = nine tenths of what is available
  int threads = 0;   // 0 = all of the machine
  bool int8_trunk = false;
  Activations activations = Activations::k16;
  bool exact = false;  // reference arithmetic: overrides the two above
  std::optional<Isa> isa;
  int64_t chunk = 0;  // 0 = the plan's choice
  int64_t context = 4096, batch = 1, prompt = 512;
  bool all_logits = false;
  std::function<void(const char* what, uint64_t done, uint64_t total)> progress;
};

class Engine {
 public:
  Engine(const Storage& storage, const EngineOptions& options);
  ~Engine();

  const ModelConfig& config() const { return snapshot_.config(); }
  const Snapshot& snapshot() const { return snapshot_; }
  const Plan& plan() const { return plan_; }
  const EngineOptions& options() const { return options_; }
  MemoryAccount& account() { return account_; }
  ThreadPool& pool() { return pool_; }
  const Kernels& kernels() const { return kernels_; }
  Model& model() { return *model_; }
  Reader& reader() { return *reader_; }
  Context context(Observer* observer = nullptr) {
    return {pool_, kernels_, *scratch_, options_.activations, observer};
  }

  SequenceState new_sequence() { return SequenceState(config(), account_); }
  // Throws InputError when an id is outside the vocabulary; `source` says where the ids came from.
  void check_ids(std::span<const int32_t> ids, const std::string& source = "token ids") const;

  struct Feed {
    SequenceState* state;
    std::span<const int32_t> ids;  // at least one
    bool all_logits = false;  // of every id, not the last only (needs EngineOptions.all_logits)
  };
  struct Logits {
    size_t feed;
    int64_t position;               // in the sequence
    std::span<const float> values;  // [vocab], valid during the call
  };
  using Sink = std::function<void(const Logits&)>;
  void run(std::span<const Feed> feeds, const Sink& sink, Observer* observer = nullptr,
           const std::function<void(int64_t done, int64_t total)>& progress = {});

  struct Statistics {
    uint64_t forward_calls = 0;
    std::vector<int64_t> chunks;  // tokens of each pass that fed more than one token a sequence
    uint64_t experts_read = 0, expert_hits = 0, bytes_read = 0, retries = 0;
    const char* io_mode = "direct";
  };
  Statistics statistics() const;

 private:
  EngineOptions options_;
  Snapshot snapshot_;
  Plan plan_;
  MemoryAccount account_;
  ThreadPool pool_;
  const Kernels& kernels_;
  std::optional<Reader> reader_;
  std::optional<Model> model_;
  std::optional<Scratch> scratch_;
  Buffer logits_;
  uint64_t forward_calls_ = 0;
  std::vector<int64_t> chunks_;
};

}  // namespace k3
