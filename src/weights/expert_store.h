// The routed experts: leased by id after routing, read from disk when they are not cached.
//
//   ExpertStore store(snapshot, reader, account, {.slots_per_layer = 12, .in_flight = 16});
//   ExpertStore::Lease lease = store.lease(layer, {3, 17, 40});   // ascending ids
//   for (std::vector<int64_t> ready; !(ready = lease.next(8)).empty();) {
//     for (int64_t i : ready) use(lease.weights(i));              // in order of arrival
//     lease.release(ready);                                      // their slots may be reused now
//   }
//
// Each MoE layer has a cache of its own, least recently used out first: a global one holds nothing
// below one whole working set, because an expert comes back no sooner than a token later. Beside
// the caches, `in_flight` slots receive what is being read; a slot joins the layer's cache when its
// expert is released, in exchange for the one that goes. Reads are direct, one job per piece of a
// contiguous span, in order of file offset within what is in flight.
// MXFP4 experts are kept as the released bytes; plain ones are packed into panels on arrival. Scale
// bytes of 255 and NaN or infinite weights are refused when first read, naming the tensor.
// Ownership: the store owns the slots (tag "experts"). Thread rule: one lease at a time, used from
// one thread. Errors: next() throws what the read threw; the lease then ends and the store stays
// usable.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "weights/format.h"
#include "weights/reader.h"
#include "weights/snapshot.h"

namespace k3 {

struct ExpertWeights {
  WeightView w1, w2, w3;  // gate, down, up
};

class ExpertStore {
 public:
  struct Options {
    int64_t slots_per_layer = 0;  // cached experts a layer
    int64_t in_flight = 16;       // at least 1
  };
  ExpertStore(const Snapshot& snapshot, Reader& reader, MemoryAccount& account, Options options);
  // Experts that all lie in memory of the caller's, [layer][expert]: a model that learns.
  explicit ExpertStore(std::vector<std::vector<ExpertWeights>> resident);
  ~ExpertStore();

  class Lease {
   public:
    Lease(Lease&& other) noexcept;
    ~Lease();
    // Up to `most` experts below index `limit` that have arrived and were not handed out yet, as
    // indexes into the leased ids; waits for at least one. Empty when all were handed out.
    std::vector<int64_t> next(int64_t most, int64_t limit);
    const ExpertWeights& weights(int64_t index) const;
    void release(const std::vector<int64_t>& indexes);

   private:
    friend class ExpertStore;
    struct Item;
    Lease(ExpertStore& store, int64_t layer, std::span<const int32_t> ids);
    void start_reads();

    ExpertStore* store_;
    int64_t layer_;
    std::vector<Item> items_;
    std::vector<int64_t> to_read_;  // items to read, next last
    std::deque<int64_t> resident_;  // handed out before anything that is read
  };
  Lease lease(int64_t layer, std::span<const int32_t> ascending_ids);

  uint64_t experts_read() const { return experts_read_; }
  uint64_t hits() const { return hits_; }

  // Bytes of one slot, and of all for these options.
  static int64_t slot_bytes(const Snapshot& snapshot);
  static int64_t memory_bytes(const Snapshot& snapshot, Options options);

 private:
  struct Entry {
    int32_t id = -1;
    std::byte* slot = nullptr;
    ExpertWeights weights;
    uint64_t used = 0;  // the clock at the last lease
    bool pinned = false;
  };

  // Submits the reads of one expert into `slot` and says where its matrices will lie.
  void read(int64_t layer, int64_t id, const ExpertRef& ref, std::byte* slot,
            ExpertWeights& weights, Completion& completion);
  // Slots set aside for caches that are not full yet.
  int64_t unclaimed_slots() const;

  const Snapshot* snapshot_ = nullptr;
  Reader* reader_ = nullptr;
  const Options options_;
  const int64_t moe_layers_;
  const int64_t slot_bytes_;
  Buffer buffer_;
  std::vector<std::byte*> free_;            // slots that hold nothing
  std::vector<std::vector<Entry>> caches_;  // by layer
  uint64_t clock_ = 0, experts_read_ = 0, hits_ = 0;
};

}  // namespace k3
