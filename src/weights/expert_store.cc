#include "weights/expert_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/error.h"
#include "weights/matrix_loader.h"

namespace k3 {
namespace {

constexpr int64_t kAlign = 4096;  // direct reads; also the alignment of slots
// Tensors of one expert that lie closer than this are read together.
constexpr uint64_t kGap = 64 << 10;

// A run of bytes of one shard, and where in the slot it goes.
struct Span {
  uint32_t shard;
  uint64_t begin, end;  // in the file
  int64_t slot_offset;  // of the aligned block that `begin` lies in
};

// How one expert is laid out in its slot.
struct ExpertLayout {
  std::vector<Span> spans;  // packed experts only
  WeightView w[3];          // data and scales are offsets, exact once the file's alignment is known
  int64_t bytes = 0;
};

const ExpertMatrix& matrix(const ExpertRef& ref, int i) {
  return i == 0 ? ref.w1 : i == 1 ? ref.w2 : ref.w3;
}
const char* matrix_name(int i) { return i == 0 ? "w1" : i == 1 ? "w2" : "w3"; }

const std::byte* offset(int64_t value) {
  return reinterpret_cast<const std::byte*>(static_cast<intptr_t>(value));
}

// MXFP4: the released bytes as they lie, merged where they are neighbours.
ExpertLayout packed_layout(const Snapshot& snapshot, const ExpertRef& ref) {
  std::vector<const TensorRef*> tensors;
  for (int i = 0; i < 3; ++i) {
    tensors.push_back(&matrix(ref, i).data);
    tensors.push_back(&matrix(ref, i).scale);
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorRef* a, const TensorRef* b) {
    return a->shard != b->shard ? a->shard < b->shard : a->offset < b->offset;
  });
  ExpertLayout layout;
  for (const TensorRef* t : tensors) {
    auto& spans = layout.spans;
    if (!spans.empty() && spans.back().shard == t->shard && t->offset <= spans.back().end + kGap)
      spans.back().end = std::max(spans.back().end, t->offset + t->bytes);
    else
      spans.push_back({t->shard, t->offset, t->offset + t->bytes, 0});
  }
  for (Span& span : layout.spans) {
    span.slot_offset = layout.bytes;
    layout.bytes += Reader::span_bytes(span.begin, span.end);
  }
  const auto place = [&](const TensorRef& t) {
    for (const Span& span : layout.spans) {
      if (span.shard != t.shard || t.offset < span.begin || t.offset >= span.end) continue;
      const auto align = static_cast<uint64_t>(snapshot.shard(t.shard).direct_alignment());
      return offset(span.slot_offset + static_cast<int64_t>(t.offset - span.begin / align * align));
    }
    assert(false);
    return offset(0);
  };
  for (int i = 0; i < 3; ++i) {
    const ExpertMatrix& m = matrix(ref, i);
    layout.w[i] = {Layout::kMxfp4Rows, m.rows, m.cols, place(m.data), place(m.scale)};
  }
  return layout;
}

// Plain experts are packed into panels on arrival.
ExpertLayout plain_layout(const ExpertRef& ref) {
  ExpertLayout layout;
  for (int i = 0; i < 3; ++i) {
    const ExpertMatrix& m = matrix(ref, i);
    WeightView& view = layout.w[i];
    view.layout = m.data.dtype == Dtype::kF32 ? Layout::kF32Panels : Layout::kBf16Panels;
    view.rows = m.rows;
    view.cols = m.cols;
    view.data = offset(layout.bytes);
    layout.bytes += round_up(view.data_bytes(), 64);
  }
  return layout;
}

ExpertLayout layout_of(const Snapshot& snapshot, const ExpertRef& ref) {
  return snapshot.mxfp4_experts() ? packed_layout(snapshot, ref) : plain_layout(ref);
}

std::string expert_matrix_name(int64_t layer, int64_t id, int i) {
  return fmt::format("model.layers.{}.block_sparse_moe.experts.{}.{}", layer, id, matrix_name(i));
}

// A scale byte of 255 is NaN; a finite model has none.
void refuse_nan_scales(const Snapshot& snapshot, const ExpertRef& ref, const ExpertWeights& weights,
                       int64_t layer, int64_t id) {
  const WeightView* views[3] = {&weights.w1, &weights.w2, &weights.w3};
  for (int i = 0; i < 3; ++i) {
    const auto bytes = static_cast<size_t>(views[i]->scale_bytes());
    const void* found = std::memchr(views[i]->scales, 255, bytes);
    if (!found) continue;
    const auto at = static_cast<const std::byte*>(found) - views[i]->scales;
    throw InputError(
        snapshot.shard(matrix(ref, i).scale.shard).path(),
        fmt::format("tensor '{}'",
                    snapshot.stored_name(expert_matrix_name(layer, id, i) + ".weight_scale")),
        "scale bytes below 255", fmt::format("255 (NaN) at byte {}", at));
  }
}

}  // namespace

struct ExpertStore::Lease::Item {
  int32_t id = -1;
  std::byte* slot = nullptr;
  ExpertWeights weights;
  bool cached = false;   // lies in the layer's cache already
  bool reading = false;  // submitted and not handed out yet
  ExpertRef ref;
  std::unique_ptr<Completion> completion;
};

int64_t ExpertStore::slot_bytes(const Snapshot& snapshot) {
  const ModelConfig& c = snapshot.config();
  int64_t bytes = 0;
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    if (!c.is_moe(layer)) continue;
    for (int64_t e = 0; e < c.num_experts; ++e)
      bytes = std::max(bytes, layout_of(snapshot, snapshot.expert(layer, e)).bytes);
  }
  return round_up(bytes, kAlign);
}

int64_t ExpertStore::memory_bytes(const Snapshot& snapshot, Options options) {
  const int64_t slots =
      snapshot.config().moe_layers() * options.slots_per_layer + options.in_flight;
  return static_cast<int64_t>(Buffer::rounded(static_cast<uint64_t>(slots * slot_bytes(snapshot))));
}

ExpertStore::ExpertStore(const Snapshot& snapshot, Reader& reader, MemoryAccount& account,
                         Options options)
    : snapshot_(&snapshot),
      reader_(&reader),
      options_(options),
      moe_layers_(snapshot.config().moe_layers()),
      slot_bytes_(slot_bytes(snapshot)),
      caches_(static_cast<size_t>(snapshot.config().num_hidden_layers)) {
  const int64_t cached = snapshot.config().moe_layers() * options.slots_per_layer;
  buffer_ =
      Buffer(account, "experts", static_cast<uint64_t>((cached + options.in_flight) * slot_bytes_));
  for (int64_t i = cached + options.in_flight; i-- > 0;)
    free_.push_back(buffer_.data() + i * slot_bytes_);
}

ExpertStore::ExpertStore(std::vector<std::vector<ExpertWeights>> resident)
    : moe_layers_(0), slot_bytes_(0), caches_(resident.size()) {
  for (size_t layer = 0; layer < resident.size(); ++layer)
    for (size_t id = 0; id < resident[layer].size(); ++id)
      caches_[layer].push_back({static_cast<int32_t>(id), nullptr, resident[layer][id], 0, false});
}

ExpertStore::~ExpertStore() = default;

ExpertStore::Lease ExpertStore::lease(int64_t layer, std::span<const int32_t> ids) {
  ++clock_;
  return Lease(*this, layer, ids);
}

ExpertStore::Lease::Lease(ExpertStore& store, int64_t layer, std::span<const int32_t> ids)
    : store_(&store), layer_(layer), items_(ids.size()) {
  auto& cache = store.caches_[static_cast<size_t>(layer)];
  for (size_t i = 0; i < ids.size(); ++i) {
    Item& item = items_[i];
    item.id = ids[i];
    const auto found =
        std::find_if(cache.begin(), cache.end(), [&](const Entry& e) { return e.id == item.id; });
    if (found == cache.end()) {
      to_read_.push_back(static_cast<int64_t>(i));
      continue;
    }
    item.cached = true;
    item.weights = found->weights;
    found->used = store.clock_;
    found->pinned = true;
    resident_.push_back(static_cast<int64_t>(i));
    ++store.hits_;
  }
  std::reverse(to_read_.begin(), to_read_.end());
  start_reads();
}

ExpertStore::Lease::Lease(Lease&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)),
      layer_(other.layer_),
      items_(std::move(other.items_)),
      to_read_(std::move(other.to_read_)),
      resident_(std::move(other.resident_)) {}

ExpertStore::Lease::~Lease() {
  if (!store_) return;
  for (Item& item : items_) {
    item.completion.reset();  // waits for a read into the slot
    if (item.slot && !item.cached) store_->free_.push_back(item.slot);
  }
  for (Entry& entry : store_->caches_[static_cast<size_t>(layer_)]) entry.pinned = false;
}

void ExpertStore::Lease::start_reads() {
  // What is beyond the cache slots nobody has claimed is room to read into.
  const int64_t reserved = store_->unclaimed_slots();
  std::vector<Item*> started;
  while (!to_read_.empty() && static_cast<int64_t>(store_->free_.size()) > reserved) {
    Item& item = items_[static_cast<size_t>(to_read_.back())];
    to_read_.pop_back();
    item.slot = store_->free_.back();
    store_->free_.pop_back();
    item.ref = store_->snapshot_->expert(layer_, item.id);
    item.completion = std::make_unique<Completion>();
    item.reading = true;
    started.push_back(&item);
    ++store_->experts_read_;
  }
  std::sort(started.begin(), started.end(), [](const Item* a, const Item* b) {
    return a->ref.w1.data.shard != b->ref.w1.data.shard
               ? a->ref.w1.data.shard < b->ref.w1.data.shard
               : a->ref.w1.data.offset < b->ref.w1.data.offset;
  });
  for (Item* item : started)
    store_->read(layer_, item->id, item->ref, item->slot, item->weights, *item->completion);
}

void ExpertStore::read(int64_t layer, int64_t id, const ExpertRef& ref, std::byte* slot,
                       ExpertWeights& weights, Completion& completion) {
  const ExpertLayout layout = layout_of(*snapshot_, ref);
  WeightView* views[3] = {&weights.w1, &weights.w2, &weights.w3};
  for (int i = 0; i < 3; ++i) {
    *views[i] = layout.w[i];
    views[i]->data = slot + reinterpret_cast<intptr_t>(layout.w[i].data);
    if (views[i]->scale_bytes())
      views[i]->scales = slot + reinterpret_cast<intptr_t>(layout.w[i].scales);
    if (!snapshot_->mxfp4_experts())
      load_matrix(*reader_, Reader::kExperts, completion,
                  {snapshot_, expert_matrix_name(layer, id, i) + ".weight", matrix(ref, i).data, 0},
                  *views[i]);
  }
  for (const Span& span : layout.spans)
    reader_->submit_span(Reader::kExperts, completion, snapshot_->shard(span.shard), span.begin,
                         span.end, slot + span.slot_offset);
}

int64_t ExpertStore::unclaimed_slots() const {
  int64_t claimed = 0;
  for (const auto& cache : caches_) claimed += static_cast<int64_t>(cache.size());
  return moe_layers_ * options_.slots_per_layer - claimed;
}

std::vector<int64_t> ExpertStore::Lease::next(int64_t most, int64_t limit) {
  std::vector<int64_t> ready;
  const auto room = [&] { return static_cast<int64_t>(ready.size()) < most; };
  for (auto it = resident_.begin(); it != resident_.end() && room();) {
    if (*it >= limit) {
      ++it;
      continue;
    }
    ready.push_back(*it);
    it = resident_.erase(it);
  }
  const auto take = [&](int64_t i) {
    Item& item = items_[static_cast<size_t>(i)];
    item.completion->wait();
    if (store_->snapshot_->mxfp4_experts())
      refuse_nan_scales(*store_->snapshot_, item.ref, item.weights, layer_, item.id);
    item.reading = false;
    ready.push_back(i);
  };
  int64_t waiting = -1;
  for (int64_t i = 0; i < limit && room(); ++i) {
    const Item& item = items_[static_cast<size_t>(i)];
    if (!item.reading) continue;
    if (item.completion->done())
      take(i);
    else if (waiting < 0)
      waiting = i;
  }
  if (ready.empty() && waiting >= 0) take(waiting);
  std::sort(ready.begin(), ready.end());
  return ready;
}

const ExpertWeights& ExpertStore::Lease::weights(int64_t index) const {
  return items_[static_cast<size_t>(index)].weights;
}

void ExpertStore::Lease::release(const std::vector<int64_t>& indexes) {
  auto& cache = store_->caches_[static_cast<size_t>(layer_)];
  for (const int64_t i : indexes) {
    Item& item = items_[static_cast<size_t>(i)];
    if (item.cached) {
      for (Entry& entry : cache)
        if (entry.id == item.id) entry.pinned = false;
      continue;
    }
    std::byte* slot = std::exchange(item.slot, nullptr);
    if (static_cast<int64_t>(cache.size()) < store_->options_.slots_per_layer) {
      cache.push_back({item.id, slot, item.weights, store_->clock_, false});
      continue;
    }
    Entry* oldest = nullptr;
    for (Entry& entry : cache)
      if (!entry.pinned && (!oldest || entry.used < oldest->used)) oldest = &entry;
    if (oldest) {
      store_->free_.push_back(oldest->slot);
      *oldest = {item.id, slot, item.weights, store_->clock_, false};
    } else {
      store_->free_.push_back(slot);
    }
  }
  start_reads();
}

}  // namespace k3
