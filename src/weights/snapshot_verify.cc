// What `k3 inspect` needs of a snapshot: its sums, and a look at every byte.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "base/threads.h"
#include "weights/snapshot.h"

namespace k3 {
namespace {

constexpr size_t kWindow = size_t{8} << 20;

// How many of `count` elements have every exponent bit set: the NaNs and infinities.
template <class T>
int64_t count_bad(const std::byte* data, int64_t count, T exponent) {
  int64_t bad = 0;
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    bad += (value & exponent) == exponent;
  }
  return bad;
}

struct Finding {
  int64_t count = 0;
  int64_t first = -1;  // element
  const char* what = "";
  void note(int64_t element, const char* kind) {
    if (count++ == 0) {
      first = element;
      what = kind;
    }
  }
};

const char* bad_kind(Dtype dtype, const std::byte* element) {
  uint32_t bits = 0;
  if (dtype == Dtype::kBf16) {
    uint16_t half;
    std::memcpy(&half, element, 2);
    bits = uint32_t{half} << 16;
  } else {
    std::memcpy(&bits, element, 4);
  }
  if ((bits & 0x7f800000) != 0x7f800000) return nullptr;
  return bits & 0x007fffff ? "NaN" : "infinity";
}

}  // namespace

// Walks each shard front to back in windows of a few megabytes.
class DataVerifier {
 public:
  DataVerifier(const Snapshot& snapshot, const std::function<void(uint64_t, uint64_t)>& progress)
      : s_(snapshot), progress_(progress) {
    std::vector<std::vector<Item>> items(s_.shards());
    for (size_t i = 0; i < s_.dense_.size(); ++i)
      if (s_.dense_[i].found) add(items, s_.dense_[i].ref, i);
    for (size_t i = 0; i < s_.experts_.size(); ++i)
      if (s_.experts_[i].found()) add(items, s_.expert_tensor(i), s_.dense_.size() + i);
    items_ = std::move(items);
  }

  std::vector<std::string> run(int threads) {
    std::vector<std::vector<std::string>> found(items_.size());
    ThreadPool pool(std::max(threads, 1));
    pool.parallel_for(static_cast<int64_t>(items_.size()), 1, [&](int64_t begin, int64_t end) {
      try {
        for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
          found[i] = verify_shard(i);
      } catch (...) {
        stop_ = true;  // the other threads need not read their terabyte first
        throw;
      }
    });
    std::vector<std::string> all;
    size_t more = 0;
    for (auto& lines : found)
      for (std::string& line : lines) {
        if (all.size() < Snapshot::kMaxProblems) {
          all.push_back(std::move(line));
        } else {
          ++more;
        }
      }
    if (more) all.push_back(fmt::format("{}: and {} more problems", s_.dir(), more));
    return all;
  }

 private:
  struct Item {
    uint64_t offset, bytes;
    size_t id;  // dense tensors first, then Snapshot::experts_
    Dtype dtype;
  };

  void add(std::vector<std::vector<Item>>& items, const TensorRef& ref, size_t id) {
    items[ref.shard].push_back({ref.offset, ref.bytes, id, ref.dtype});
    total_ += ref.bytes;
  }

  bool is_scale(const Item& item) const {
    return item.id >= s_.dense_.size() && s_.mxfp4_ && (item.id - s_.dense_.size()) % 2 == 1;
  }

  std::string tensor_name(const Item& item) const {
    if (item.id < s_.dense_.size()) return s_.stored_name(s_.dense_[item.id].expected.name);
    const size_t i = item.id - s_.dense_.size();
    const auto experts = static_cast<size_t>(s_.config_.num_experts);
    ExpertName name;
    name.layer = s_.moe_layer_[i / 6 / experts];
    name.expert = static_cast<int32_t>(i / 6 % experts);
    name.matrix = static_cast<ExpertMatrixId>(i / 2 % 3);
    name.kind = !s_.mxfp4_ ? ExpertTensorKind::kPlain
                : i % 2    ? ExpertTensorKind::kScale
                           : ExpertTensorKind::kPacked;
    return s_.stored_name(expert_tensor_name(name));
  }

  std::vector<std::string> verify_shard(size_t shard) {
    std::vector<Item>& items = items_[shard];
    if (items.empty()) return {};  // also a shard that could not be opened
    std::sort(items.begin(), items.end(),
              [](const Item& a, const Item& b) { return a.offset < b.offset; });
    const File& file = s_.shard(shard);
    const size_t align = file.direct_alignment();
    std::vector<std::byte> buffer(kWindow + 3 * align);
    const size_t skip = (align - reinterpret_cast<uintptr_t>(buffer.data()) % align) % align;
    const std::span<std::byte> room(buffer.data() + skip, kWindow + 2 * align);

    std::vector<std::string> lines;
    std::vector<Finding> findings(items.size());
    for (size_t i = 0; i < items.size() && !stop_;) {
      // One window: from the first unread byte, over as many tensors as fit whole, or a part of
      // one.
      if (items[i].bytes > kWindow) {
        read_large(file, items[i], room, findings[i]);
        ++i;
        continue;
      }
      const uint64_t begin = items[i].offset;
      size_t end = i;
      while (end < items.size() && items[end].offset + items[end].bytes - begin <= kWindow) ++end;
      const uint64_t length = items[end - 1].offset + items[end - 1].bytes - begin;
      const size_t at = file.read_direct(begin, length, room);
      for (; i < end; ++i)
        check(items[i], room.data() + at + (items[i].offset - begin), 0, items[i].bytes,
              findings[i]);
      advance(length);
    }
    for (size_t i = 0; i < items.size(); ++i)
      if (findings[i].count) lines.push_back(line(file, items[i], findings[i]));
    return lines;
  }

  void read_large(const File& file, const Item& item, std::span<std::byte> room, Finding& finding) {
    for (uint64_t done = 0; done < item.bytes;) {
      const uint64_t length = std::min<uint64_t>(kWindow, item.bytes - done);
      const size_t at = file.read_direct(item.offset + done, length, room);
      check(item, room.data() + at, done, length, finding);
      done += length;
      advance(length);
    }
  }

  // `data` holds `length` bytes of the tensor from byte `done`, which are whole elements.
  void check(const Item& item, const std::byte* data, uint64_t done, uint64_t length,
             Finding& finding) const {
    const auto size = static_cast<uint64_t>(element_bytes(item.dtype));
    const auto count = static_cast<int64_t>(length / size),
               first = static_cast<int64_t>(done / size);
    if (item.dtype == Dtype::kU8) {
      if (!is_scale(item) || !std::memchr(data, 255, length)) return;
      for (int64_t i = 0; i < count; ++i)
        if (data[i] == std::byte{255}) finding.note(first + i, "255 (NaN)");
      return;
    }
    const int64_t bad = item.dtype == Dtype::kBf16 ? count_bad<uint16_t>(data, count, 0x7f80)
                                                   : count_bad<uint32_t>(data, count, 0x7f800000);
    for (int64_t i = 0; bad && i < count; ++i)
      if (const char* kind = bad_kind(item.dtype, data + i * static_cast<int64_t>(size)))
        finding.note(first + i, kind);
    if (item.id < s_.dense_.size() && s_.dense_[item.id].expected.padded)
      for (int64_t i = std::max<int64_t>(0, s_.dense_[item.id].expected.elements() - first);
           i < count; ++i) {
        uint32_t bits = 0;
        std::memcpy(&bits, data + i * static_cast<int64_t>(size), size);
        if (bits & (size == 2 ? 0x7fffu : 0x7fffffffu))
          finding.note(first + i, "a number in the padding");
      }
  }

  std::string line(const File& file, const Item& item, const Finding& finding) const {
    const auto size = static_cast<uint64_t>(element_bytes(item.dtype));
    const uint64_t byte = item.offset + static_cast<uint64_t>(finding.first) * size;
    std::string found =
        fmt::format("{} at element {} (byte {})", finding.what, finding.first, byte);
    if (finding.count > 1) found += fmt::format(", {} in all", finding.count);
    const bool padding = std::string_view(finding.what).ends_with("padding");
    const char* expected = is_scale(item) ? "scale bytes below 255"
                           : padding      ? "zeros after the heads"
                                          : "finite numbers";
    return InputError(file.path(), fmt::format("tensor '{}'", tensor_name(item)), expected, found)
        .what();
  }

  void advance(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    done_ = std::min(done_ + bytes, total_);
    if (progress_) progress_(done_, total_);
  }

  const Snapshot& s_;
  const std::function<void(uint64_t, uint64_t)>& progress_;
  std::vector<std::vector<Item>> items_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  uint64_t done_ = 0, total_ = 0;
};

std::vector<std::string> Snapshot::verify_data(
    const std::function<void(uint64_t done, uint64_t total)>& progress, int threads) const {
  return DataVerifier(*this, progress).run(threads);
}

SnapshotSummary summarize(const Snapshot& s) {
  const ModelConfig& c = s.config();
  SnapshotSummary sum;
  sum.tensors = s.tensors();
  sum.kda_layers = c.count(AttentionKind::kKda);
  sum.mla_layers = c.count(AttentionKind::kMla);
  sum.moe_layers = c.moe_layers();
  sum.dense_layers = c.num_hidden_layers - sum.moe_layers;
  for (const Snapshot::Dense& dense : s.dense_) {
    if (!dense.found) continue;
    const int64_t elements = dense.expected.elements();
    const Part part = dense.expected.part;
    sum.parameters += elements;
    if (part == Part::kEmbed) {
      sum.active_parameters += c.tie_word_embeddings ? elements : c.hidden_size;
    } else if (part != Part::kVision) {
      sum.active_parameters += elements;
    }
    sum.bytes[static_cast<size_t>(part)] += dense.ref.bytes;
  }
  for (size_t i = 0; i < s.experts_.size(); ++i)
    if (s.experts_[i].found())
      sum.bytes[static_cast<size_t>(Part::kExperts)] += s.expert_tensor(i).bytes;
  const int64_t expert = 3 * c.expert_width() * c.moe_intermediate_size;
  sum.parameters += sum.moe_layers * c.num_experts * expert;
  sum.active_parameters += sum.moe_layers * c.num_experts_per_token * expert;
  for (const uint64_t bytes : sum.bytes) sum.total_bytes += bytes;
  for (size_t i = 0; i < s.shards(); ++i) {
    if (!s.files_[i]) continue;
    const std::string mode = s.files_[i]->io_mode();
    if (sum.io_mode.empty()) sum.io_mode = mode;
    if (sum.io_mode != mode) sum.io_mode = "mixed";
  }
  return sum;
}

}  // namespace k3
