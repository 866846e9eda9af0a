// A model on disk: its config, and where each tensor lies. Opening reads headers only.
//
//   Snapshot s = Snapshot::open(storage, "models/kimi-k3");
//   const TensorRef& q = s.tensor("model.layers.0.self_attn.q_proj.weight");
//   s.shard(q.shard).read(q.offset, buffer);                     // q.bytes bytes
//   const ExpertRef e = s.expert(7, 12);                         // layer 7, expert 12
//
// open() accounts for every tensor: each one the config calls for is there with the right shape and
// type, in the shard the index names, and nothing else is. Tensor names are canonical (without
// `language_model.`); stored_name() gives the name in the files.
// Units: bytes. Ownership: a Snapshot owns its open files; the Storage must outlive it. Thread
// rule: const after open, usable from many threads. Errors: InputError, one line, naming file and
// tensor.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/storage.h"
#include "weights/config.h"
#include "weights/safetensors.h"
#include "weights/tensor_names.h"

namespace k3 {

struct TensorRef {
  uint32_t shard = 0;
  Dtype dtype = Dtype::kU8;
  Shape shape;
  uint64_t offset = 0;  // in the shard file
  uint64_t bytes = 0;
};

// One matrix of a routed expert. Packed: `data` is U8 [rows, cols/2] and `scale` U8 [rows,
// cols/32]. Plain: `data` is BF16 or F32 [rows, cols] and scale.bytes is 0.
struct ExpertMatrix {
  int64_t rows = 0, cols = 0;  // of the matrix, not of the packed bytes
  TensorRef data, scale;
};
struct ExpertRef {
  ExpertMatrix w1, w2, w3;  // gate, down, up
};

// What `k3 inspect` reports.
struct SnapshotSummary {
  // Real parameters: two per packed byte, no scales, A_log without its padding, vision included.
  int64_t parameters = 0;
  // Touched by one text token: the chosen experts only, one row of the embedding (hidden_size), the
  // whole head, no vision. A tied embedding counts as the head.
  int64_t active_parameters = 0;
  int64_t kda_layers = 0, mla_layers = 0, moe_layers = 0, dense_layers = 0;
  uint64_t tensors = 0;
  std::array<uint64_t, kParts> bytes{};  // stored, by Part; scales belong to the experts
  uint64_t total_bytes = 0;
  std::string io_mode;  // "direct", "buffered", or "mixed" when the shards differ
};

class Snapshot {
 public:
  // Throws at the first problem. With `problems`, tensors that are missing, unexpected or wrong and
  // shards that cannot be read are collected there instead (at most kMaxProblems, then a count),
  // and only what makes the rest meaningless (no config, no index) still throws.
  static Snapshot open(const Storage& storage, const std::string& dir);
  static Snapshot open(const Storage& storage, const std::string& dir,
                       std::vector<std::string>* problems);
  static constexpr size_t kMaxProblems = 100;

  const std::string& dir() const { return dir_; }
  const ModelConfig& config() const { return config_; }

  bool has(std::string_view name) const;
  const TensorRef& tensor(std::string_view name) const;    // throws, naming the tensor
  std::vector<float> floats(std::string_view name) const;  // read and widened: norms, biases

  bool mxfp4_experts() const { return mxfp4_; }
  ExpertRef expert(int64_t layer, int64_t id) const;  // of a MoE layer; throws when it is missing

  bool has_vision() const { return has_vision_; }  // the tower and the projector

  size_t shards() const { return files_.size(); }
  const File& shard(size_t i) const { return *files_[i]; }  // one that no problem names
  const std::string& shard_name(size_t i) const { return shard_names_[i]; }

  std::string stored_name(std::string_view canonical) const;

  uint64_t tensors() const { return tensors_; }  // found, of those the config calls for

  // Reads every byte with direct reads from `threads` threads. Problems: NaN and infinity in BF16
  // and F32 tensors, scale bytes of 255, and A_log padding that is not zero; one line per tensor
  // with the first place and how many. `progress` gets bytes done and in all, from any thread, one
  // call at a time. Throws WorkError when a device fails.
  std::vector<std::string> verify_data(
      const std::function<void(uint64_t done, uint64_t total)>& progress = {},
      int threads = 2) const;

 private:
  friend class SnapshotOpener;
  friend class DataVerifier;
  friend SnapshotSummary summarize(const Snapshot&);

  // One dense tensor the config calls for.
  struct Dense {
    ExpectedTensor expected;
    TensorRef ref;
    bool found = false;
  };
  // Where a routed expert's tensor lies, in eight bytes: 48 of offset, 2 of dtype, 14 of shard.
  struct Place {
    uint64_t bits = ~uint64_t{0};
    bool found() const { return bits != ~uint64_t{0}; }
  };
  struct NameHash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };

  size_t expert_slot(int64_t moe_index, int64_t expert, int matrix, int scale) const;
  TensorRef expert_tensor(size_t slot) const;
  const Dense* find(std::string_view name) const;

  std::string dir_, prefix_;
  ModelConfig config_;
  std::vector<std::string> shard_names_;
  std::vector<std::unique_ptr<File>> files_;
  std::vector<Dense> dense_;
  std::unordered_map<std::string, uint32_t, NameHash, std::equal_to<>> names_;
  std::vector<int32_t> moe_index_;  // layer -> rank among the MoE layers, -1
  std::vector<int32_t> moe_layer_;  // the inverse
  std::vector<Place> experts_;      // by expert_slot
  uint64_t tensors_ = 0;
  bool mxfp4_ = false, has_vision_ = false;
};

SnapshotSummary summarize(const Snapshot& snapshot);

}  // namespace k3
