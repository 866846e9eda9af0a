// The dense weights: which of them a layer has, where they lie, and the lease of a layer's share.
//
//   Trunk trunk(snapshot, reader, account, options);      // loads what is resident
//   trunk.begin_pass(true);
//   for (layer ...) {
//     { Trunk::Lease lease = trunk.attention(layer);  ... lease->... }    // then, in this order,
//     { Trunk::Lease lease = trunk.feed_forward(layer); ... }
//   }
//   for (slab ...) { Trunk::Lease lease = trunk.head(slab); ... }
//
// A unit is the attention half or the feed-forward half of a layer, or a slab of rows of lm_head. A
// unit is resident, or streamed: then it is read again in every pass, into one of two regions in
// turn, the next one while this one is computed on.
// Streaming is a property of the lease, and changes no bit of a result.
// Resident bf16 is held as panels; streamed bf16 is computed on as released, row by row, since
// repacking it costs more than a fast disk takes to read it. Or as f32 where the file says so, or
// as int8 blocks by option; the router, the decay's low-rank pair and beta stay bf16. Norms,
// biases, convolutions are always resident floats.
// NaN and infinity are looked for when a unit is read for the first time.
// Memory: tags "trunk" (resident units), "trunk_stream" (regions), "vectors". Thread rule: one
// lease at a time, in pass order. Errors: NaN or infinite weights are refused when read, naming the
// tensor.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/layer_weights.h"
#include "weights/reader.h"
#include "weights/snapshot.h"

namespace k3 {

// Where one stored matrix goes inside its unit.
struct PlacedMatrix {
  // data and scales hold offsets from the unit's start. kv_b_proj: `view` is k_up of head 0 and
  // `values` v_up of head 0.
  struct Place {
    WeightView view, values;
  };
  std::string name;
  Place resident, streamed;
  WeightView* target = nullptr;    // gets the pointers when the unit is loaded
  int64_t first_row = 0;           // row of the stored matrix that row 0 comes from
  MlaWeights* absorbed = nullptr;  // kv_b_proj, for all heads of this layer
};

struct TrunkUnit {
  std::vector<PlacedMatrix> matrices;
  int64_t bytes = 0;         // in memory, resident
  int64_t stream_bytes = 0;  // in memory, streamed
  int64_t disk_bytes = 0;    // read to fill it
};

// The dense part of a model, laid out but not loaded: what the planner adds up and Trunk fills.
struct TrunkLayout {
  TrunkLayout(const Snapshot& snapshot, bool int8);
  // Of a model that learns: as resident units of the element types that `dtype` gives each tensor,
  // and kv_b_proj whole beside its absorbed halves.
  TrunkLayout(const ModelConfig& config, const std::function<Dtype(const std::string&)>& dtype);
  TrunkLayout(const TrunkLayout&) = delete;  // units point into the layers
  TrunkLayout& operator=(const TrunkLayout&) = delete;

  std::vector<AttentionWeights> attention;
  std::vector<FeedForwardWeights> feed_forward;
  MixQuery output_mix = nullptr;
  const float* final_norm = nullptr;
  struct HeadSlab {
    int64_t first_row = 0;
    WeightView weight;
  };
  std::vector<HeadSlab> head;

  std::vector<TrunkUnit>
      units;  // attention 0, feed-forward 0, attention 1, ... then the head's slabs
  int64_t vector_floats = 0;

  // A small tensor turned into floats.
  enum class Form { kPlain, kExp, kConvolution, kMixQuery };
  struct Vector {
    std::string name;  // kMixQuery: the site, e.g. "model.layers.3.mlp_res"
    const float** target;
    int64_t count;
    Form form;
  };
  std::vector<Vector> vectors;
  // What the kernels are given of a small tensor as it is stored, count floats. kMixQuery takes the
  // site's norm and, as `proj`, its projection; the others one tensor.
  static void derive(const ModelConfig& config, const Vector& vector, const float* stored,
                     const float* proj, float* out);
  // Where element i of a stored convolution [channel][tap] comes to lie: [head][tap][channel].
  static int64_t convolution_place(const ModelConfig& config, int64_t i);

  // Bytes of the two regions when the units that are not resident are streamed.
  int64_t region_bytes(const std::vector<bool>& resident, int region) const;
  int region(size_t unit) const { return static_cast<int>(unit % 2); }

 private:
  void bind(class Binder& binder, const ModelConfig& config);
};

class Trunk {
 public:
  struct Options {
    bool int8 = false;
    std::vector<bool> resident;                                   // by unit
    std::function<void(uint64_t done, uint64_t total)> progress;  // while loading
  };
  Trunk(const Snapshot& snapshot, Reader& reader, MemoryAccount& account, const Options& options);
  // Of a layout whose views are filled in: everything resident, in memory of the caller's.
  explicit Trunk(std::unique_ptr<TrunkLayout> filled);
  ~Trunk();

  class Lease {
   public:
    explicit Lease(Trunk* trunk, size_t unit) : trunk_(trunk), unit_(unit) {}
    Lease(Lease&& other) noexcept
        : trunk_(std::exchange(other.trunk_, nullptr)), unit_(other.unit_) {}
    Lease(const Lease&) = delete;
    ~Lease() {
      if (trunk_) trunk_->release(unit_);
    }
    const AttentionWeights& attention() const { return trunk_->layout_->attention[unit_ / 2]; }
    const FeedForwardWeights& feed_forward() const {
      return trunk_->layout_->feed_forward[unit_ / 2];
    }
    const TrunkLayout::HeadSlab& head() const {
      return trunk_->layout_->head[unit_ - 2 * trunk_->layout_->attention.size()];
    }

   private:
    Trunk* trunk_;
    size_t unit_;
  };

  // Starts the stream at unit 0, through the head's slabs if the pass wants logits. A pass that was
  // given up (an exception) is ended by the next one.
  void begin_pass(bool with_head);
  Lease attention(int64_t layer) { return lease(2 * static_cast<size_t>(layer)); }
  Lease feed_forward(int64_t layer) { return lease(2 * static_cast<size_t>(layer) + 1); }
  Lease head(int64_t slab) {
    return lease(2 * layout_->attention.size() + static_cast<size_t>(slab));
  }

  const TrunkLayout& layout() const { return *layout_; }

 private:
  Lease lease(size_t unit);
  void release(size_t unit);
  void start_reads();
  void start_read(size_t unit);
  void load(size_t unit, std::byte* base, Completion& completion);
  void load_vectors(MemoryAccount& account);

  const Snapshot* snapshot_ = nullptr;
  Reader* reader_ = nullptr;
  std::unique_ptr<TrunkLayout> layout_;
  std::vector<bool> resident_;
  std::vector<bool> checked_;  // units that were read once and are finite
  Buffer vectors_;
  std::vector<Buffer> units_;
  Buffer regions_[2];
  bool region_busy_[2] = {false, false};
  size_t next_read_ = 0, end_read_ = 0;  // units still to be read ahead in this pass
  std::vector<std::unique_ptr<Completion>> pending_;
};

}  // namespace k3
