#include "weights/snapshot.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/threads.h"

namespace k3 {
namespace {

constexpr uint16_t kNowhere = 0xffff;
constexpr size_t kMaxShards = 1 << 14;
constexpr uint64_t kMaxOffset = uint64_t{1} << 48;
constexpr uint32_t kUnknown = ~uint32_t{0};
constexpr uint64_t kMaxIndexBytes = uint64_t{1} << 30;
constexpr Dtype kPlaceDtypes[] = {Dtype::kU8, Dtype::kBf16, Dtype::kF32};

uint64_t place_bits(uint32_t shard, Dtype dtype, uint64_t offset) {
  const auto code = std::find(std::begin(kPlaceDtypes), std::end(kPlaceDtypes), dtype);
  return offset | static_cast<uint64_t>(code - std::begin(kPlaceDtypes)) << 48 |
         uint64_t{shard} << 50;
}

// Lines about one file or one pass; what passes the limit is only counted.
struct Problems {
  std::vector<std::string> lines;
  size_t more = 0;

  void add(std::string line) {
    if (lines.size() < Snapshot::kMaxProblems) {
      lines.push_back(std::move(line));
    } else {
      ++more;
    }
  }
  void add(std::string_view file, std::string_view tensor, std::string_view expected,
           std::string_view found) {
    add(InputError(file, fmt::format("tensor '{}'", printable(tensor)), expected, found).what());
  }
  void append(Problems other) {
    for (std::string& line : other.lines) add(std::move(line));
    more += other.more;
  }
};

}  // namespace

// Opens in three passes: the index gives every tensor's shard, the headers (in parallel) every
// tensor's place, and what neither gave is missing. A tensor is a slot: the dense ones first, then
// three for each matrix of each routed expert (packed, scale, plain).
class SnapshotOpener {
 public:
  SnapshotOpener(const Storage& storage, const std::string& dir) : storage_(storage) {
    s_.dir_ = dir;
    while (s_.dir_.size() > 1 && s_.dir_.back() == '/') s_.dir_.pop_back();
  }

  Snapshot run(std::vector<std::string>* problems) {
    const std::string config_path = path("config.json");
    s_.config_ = parse_config(read_text(storage_, config_path, kMaxConfigBytes), config_path);
    make_slots();
    read_index();
    settle_form(config_path);
    find_missing();
    read_headers();
    Problems all;
    all.append(std::move(missing_));
    all.append(std::move(unexpected_));
    for (Problems& shard : shard_problems_) all.append(std::move(shard));
    if (!problems && !all.lines.empty()) throw InputError(all.lines.front());
    if (problems) {
      *problems = std::move(all.lines);
      if (all.more) problems->push_back(fmt::format("{}: and {} more problems", s_.dir_, all.more));
    }
    return std::move(s_);
  }

 private:
  struct Parsed {
    uint32_t slot = kUnknown;
    bool vision = false, prefixed = false;
  };

  std::string path(const std::string& file) const { return s_.dir_ + "/" + file; }

  void make_slots() {
    std::vector<ExpectedTensor> expected = expected_tensors(s_.config_);
    text_dense_ = expected.size();
    for (ExpectedTensor& t : expected_vision_tensors(s_.config_)) expected.push_back(std::move(t));
    for (ExpectedTensor& tensor : expected) {
      s_.names_.emplace(tensor.name, static_cast<uint32_t>(s_.dense_.size()));
      s_.dense_.push_back({std::move(tensor), {}, false});
    }
    const ModelConfig& c = s_.config_;
    s_.moe_index_.assign(static_cast<size_t>(c.num_hidden_layers), -1);
    for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
      if (!c.is_moe(layer)) continue;
      s_.moe_index_[static_cast<size_t>(layer)] = static_cast<int32_t>(s_.moe_layer_.size());
      s_.moe_layer_.push_back(static_cast<int32_t>(layer));
    }
    experts_ = s_.moe_layer_.size() * static_cast<size_t>(c.num_experts);
    shard_of_.assign(s_.dense_.size() + experts_ * 9, kNowhere);
  }

  uint32_t expert_slot(const ExpertName& e) const {
    if (e.layer >= s_.config_.num_hidden_layers || e.expert >= s_.config_.num_experts)
      return kUnknown;
    const int32_t moe = s_.moe_index_[static_cast<size_t>(e.layer)];
    if (moe < 0) return kUnknown;
    const auto expert = static_cast<size_t>(moe * s_.config_.num_experts + e.expert);
    return static_cast<uint32_t>(s_.dense_.size() + expert * 9 + static_cast<size_t>(e.matrix) * 3 +
                                 static_cast<size_t>(e.kind));
  }

  Parsed parse(std::string_view stored) const {
    Parsed result;
    if (stored.starts_with(kTextPrefix)) {
      stored.remove_prefix(kTextPrefix.size());
      result.prefixed = true;
    }
    if (const auto expert = parse_expert_name(stored)) {
      result.slot = expert_slot(*expert);
    } else if (const auto found = s_.names_.find(stored); found != s_.names_.end()) {
      result.slot = found->second;
    }
    result.vision = !result.prefixed && is_vision_name(stored);
    return result;
  }

  // The slot of a name as stored, kUnknown when its prefix is not that of the others.
  uint32_t slot(std::string_view stored) const {
    const Parsed parsed = parse(stored);
    const bool fits = parsed.vision || parsed.prefixed == !s_.prefix_.empty();
    return fits ? parsed.slot : kUnknown;
  }

  std::string slot_name(size_t slot) const {
    if (slot < s_.dense_.size()) return s_.stored_name(s_.dense_[slot].expected.name);
    return s_.stored_name(expert_tensor_name(slot_expert(slot)));
  }

  ExpertName slot_expert(size_t slot) const {
    const size_t i = slot - s_.dense_.size();
    const auto experts = static_cast<size_t>(s_.config_.num_experts);
    ExpertName name;
    name.layer = s_.moe_layer_[i / 9 / experts];
    name.expert = static_cast<int32_t>(i / 9 % experts);
    name.matrix = static_cast<ExpertMatrixId>(i / 3 % 3);
    name.kind = static_cast<ExpertTensorKind>(i % 3);
    return name;
  }

  void read_index() {
    index_path_ = path("model.safetensors.index.json");
    const std::string single = path("model.safetensors");
    if (!storage_.exists(index_path_) && storage_.exists(single)) {
      index_path_ = single;
      const auto file = storage_.open(single);
      parse_safetensors_header(*file, [&](std::string_view name, const TensorInfo&) {
        index_entry(name, "model.safetensors");
      });
    } else {
      const std::string text = read_text(storage_, index_path_, kMaxIndexBytes);
      parse_safetensors_index(text, index_path_, [&](std::string_view name, std::string_view file) {
        index_entry(name, file);
      });
    }
    sort_shards();
  }

  void index_entry(std::string_view name, std::string_view file) {
    const uint16_t shard = shard_id(file);
    const Parsed parsed = parse(name);
    // The first name that is one of ours decides, so that a stray one cannot.
    if (!parsed.vision && parsed.slot != kUnknown && !prefix_known_) {
      prefix_known_ = true;
      if (parsed.prefixed) s_.prefix_ = kTextPrefix;
    }
    const uint32_t at = slot(name);
    if (at == kUnknown) {
      unexpected_.add(index_path_, name, "a tensor that the config calls for", "one it does not");
      return;
    }
    if (shard_of_[at] != kNowhere) unexpected_.add(index_path_, name, "one entry", "two");
    shard_of_[at] = shard;
    s_.has_vision_ = s_.has_vision_ || parsed.vision;
    if (at < s_.dense_.size()) return;
    any_expert_ = true;
    if ((at - s_.dense_.size()) % 3 != 2) s_.mxfp4_ = true;
  }

  // Neighbours in the index mostly share a shard.
  uint16_t shard_id(std::string_view file) {
    if (file == last_file_ && !s_.shard_names_.empty()) return last_shard_;
    auto found = shard_ids_.find(std::string(file));
    if (found == shard_ids_.end()) {
      if (file.empty() || file.find('/') != std::string_view::npos || file == "." || file == ".." ||
          file.find('\0') != std::string_view::npos)
        throw InputError(index_path_, "weight_map", "file names",
                         fmt::format("'{}'", printable(file, 80)));
      if (s_.shard_names_.size() == kMaxShards - 1)
        throw InputError(index_path_, "weight_map", fmt::format("fewer than {} files", kMaxShards),
                         "more");
      found = shard_ids_.emplace(file, static_cast<uint16_t>(s_.shard_names_.size())).first;
      s_.shard_names_.emplace_back(file);
    }
    last_file_ = found->first;
    return last_shard_ = found->second;
  }

  // Shards are numbered by name, not by where the index first mentions them.
  void sort_shards() {
    std::vector<std::string> sorted = s_.shard_names_;
    std::sort(sorted.begin(), sorted.end());
    std::vector<uint16_t> fresh(sorted.size());
    for (size_t i = 0; i < sorted.size(); ++i)
      fresh[shard_ids_[sorted[i]]] = static_cast<uint16_t>(i);
    for (uint16_t& shard : shard_of_)
      if (shard != kNowhere) shard = fresh[shard];
    s_.shard_names_ = std::move(sorted);
  }

  // Whether the experts are packed and the tower is there is now known.
  void settle_form(const std::string& config_path) {
    if (!any_expert_) s_.mxfp4_ = s_.config_.declares_mxfp4;  // for the list of what is missing
    if (s_.mxfp4_) check_mxfp4_sizes(s_.config_, config_path);
    s_.experts_.resize(experts_ * 6);
  }

  bool wanted(size_t slot) const {
    if (slot < text_dense_) return true;
    if (slot < s_.dense_.size()) return s_.has_vision_;
    return s_.mxfp4_ == ((slot - s_.dense_.size()) % 3 != 2);
  }

  void find_missing() {
    for (size_t i = 0; i < shard_of_.size(); ++i) {
      const bool here = shard_of_[i] != kNowhere;
      if (here == wanted(i)) continue;
      if (here) {
        unexpected_.add(index_path_, slot_name(i), "packed experts only", "a plain one");
      } else {
        missing_.add(index_path_, slot_name(i), "an entry", "none");
      }
    }
  }

  void read_headers() {
    const size_t shards = s_.shard_names_.size();
    s_.files_.resize(shards);
    shard_problems_.resize(shards);
    seen_.assign(shard_of_.size(), 0);
    // Two even on one core: while one thread waits for the disk the other parses.
    ThreadPool pool(std::clamp(hardware_threads(), 2, 8));
    pool.parallel_for(static_cast<int64_t>(shards), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) read_header(static_cast<uint32_t>(i));
    });
    for (size_t i = 0; i < shard_of_.size(); ++i) {
      if (shard_of_[i] == kNowhere) continue;
      if (!s_.files_[shard_of_[i]]) {
        forget(i);
      } else if (seen_[i]) {
        s_.tensors_ += wanted(i);
      } else {
        shard_problems_[shard_of_[i]].add(s_.files_[shard_of_[i]]->path(), slot_name(i),
                                          "it here, as the index says", "none");
      }
    }
  }

  // A tensor that was seen in a header before the header proved broken.
  void forget(size_t slot) {
    if (slot < s_.dense_.size()) {
      s_.dense_[slot].found = false;
    } else {
      const size_t i = slot - s_.dense_.size();
      s_.experts_[i / 3 * 2 + (i % 3 == static_cast<size_t>(ExpertTensorKind::kScale))] = {};
    }
  }

  void read_header(uint32_t shard) {
    Problems& problems = shard_problems_[shard];
    try {
      std::unique_ptr<File> file = storage_.open(path(s_.shard_names_[shard]));
      if (file->size() >= kMaxOffset)
        throw InputError(file->path(), "size", fmt::format("below {} bytes", kMaxOffset),
                         fmt::format("{} bytes", file->size()));
      parse_safetensors_header(*file, [&](std::string_view name, const TensorInfo& info) {
        header_entry(shard, file->path(), name, info, problems);
      });
      s_.files_[shard] = std::move(file);
    } catch (const InputError& error) {
      problems = {};  // what was read of a broken header says nothing
      problems.add(error.what());
    }
  }

  // Writes only slots that the index gives to this shard, so threads never meet.
  void header_entry(uint32_t shard, const std::string& file, std::string_view name,
                    const TensorInfo& info, Problems& problems) {
    const uint32_t at = slot(name);
    if (at == kUnknown || shard_of_[at] == kNowhere) {
      problems.add(file, name, "a tensor that the index names", "one it does not");
      return;
    }
    if (shard_of_[at] != shard) {
      problems.add(file, name,
                   fmt::format("it in {}, as the index says", s_.shard_names_[shard_of_[at]]),
                   "it here");
      return;
    }
    seen_[at] = 1;
    if (at < s_.dense_.size()) {
      dense_entry(shard, file, name, info, s_.dense_[at], problems);
    } else {
      expert_entry(shard, file, name, info, at, problems);
    }
  }

  static void dense_entry(uint32_t shard, const std::string& file, std::string_view name,
                          const TensorInfo& info, Snapshot::Dense& dense, Problems& problems) {
    const Shape& shape = dense.expected.shape;
    if (!is_dense_dtype(info.dtype)) {
      problems.add(file, name, "dtype BF16 or F32", k3::name(info.dtype));
    } else if (dense.expected.padded) {
      if (info.shape.elements() < shape.elements())
        problems.add(file, name, fmt::format("at least {} elements", shape.elements()),
                     "shape " + info.shape.text());
      else if (info.shape.elements() > kMaxPadded)
        problems.add(file, name, fmt::format("at most {} elements", kMaxPadded),
                     "shape " + info.shape.text());
    } else if (info.shape != shape) {
      problems.add(file, name, "shape " + shape.text(), "shape " + info.shape.text());
    }
    dense.ref = {shard, info.dtype, info.shape, info.offset, info.bytes};
    dense.found = true;
  }

  void expert_entry(uint32_t shard, const std::string& file, std::string_view name,
                    const TensorInfo& info, uint32_t at, Problems& problems) {
    const size_t i = at - s_.dense_.size();
    const auto kind = static_cast<ExpertTensorKind>(i % 3);
    const Shape shape =
        expert_tensor_shape(s_.config_, static_cast<ExpertMatrixId>(i / 3 % 3), kind);
    const bool plain = kind == ExpertTensorKind::kPlain;
    if (plain ? !is_dense_dtype(info.dtype) : info.dtype != Dtype::kU8) {
      problems.add(file, name, plain ? "dtype BF16 or F32" : "dtype U8", k3::name(info.dtype));
      return;
    }
    if (info.shape != shape) {
      problems.add(file, name, "shape " + shape.text(), "shape " + info.shape.text());
      return;
    }
    if (plain == s_.mxfp4_) return;  // already a problem of the index
    s_.experts_[i / 3 * 2 + (kind == ExpertTensorKind::kScale)].bits =
        place_bits(shard, info.dtype, info.offset);
  }

  static constexpr int64_t kMaxPadded = 1 << 20;

  const Storage& storage_;
  Snapshot s_;
  std::string index_path_;
  size_t text_dense_ = 0, experts_ = 0;
  std::vector<uint16_t> shard_of_;  // by slot, as the index says
  std::vector<uint8_t> seen_;       // by slot: its shard's header holds it
  std::unordered_map<std::string, uint16_t> shard_ids_;
  std::string_view last_file_;
  uint16_t last_shard_ = 0;
  bool prefix_known_ = false, any_expert_ = false;
  Problems missing_, unexpected_;
  std::vector<Problems> shard_problems_;
};

Snapshot Snapshot::open(const Storage& storage, const std::string& dir) {
  return open(storage, dir, nullptr);
}

Snapshot Snapshot::open(const Storage& storage, const std::string& dir,
                        std::vector<std::string>* problems) {
  return SnapshotOpener(storage, dir).run(problems);
}

const Snapshot::Dense* Snapshot::find(std::string_view name) const {
  if (name.starts_with(kTextPrefix)) name.remove_prefix(kTextPrefix.size());
  if (config_.tie_word_embeddings && name == "lm_head.weight") name = "model.embed_tokens.weight";
  const auto found = names_.find(name);
  if (found == names_.end() || !dense_[found->second].found) return nullptr;
  return &dense_[found->second];
}

bool Snapshot::has(std::string_view name) const { return find(name) != nullptr; }

const TensorRef& Snapshot::tensor(std::string_view name) const {
  if (const Dense* dense = find(name)) return dense->ref;
  throw InputError(dir_, fmt::format("tensor '{}'", printable(stored_name(name))),
                   "it in the snapshot", "none");
}

std::vector<float> Snapshot::floats(std::string_view name) const {
  const TensorRef& ref = tensor(name);
  std::vector<std::byte> data(ref.bytes);
  shard(ref.shard).read(ref.offset, data);
  std::vector<float> values(static_cast<size_t>(ref.shape.elements()));
  widen_to_float(ref.dtype, data.data(), ref.shape.elements(), values.data());
  return values;
}

std::string Snapshot::stored_name(std::string_view canonical) const {
  if (canonical.starts_with(kTextPrefix) || is_vision_name(canonical))
    return std::string(canonical);
  return prefix_ + std::string(canonical);
}

size_t Snapshot::expert_slot(int64_t moe, int64_t expert, int matrix, int scale) const {
  return static_cast<size_t>(((moe * config_.num_experts + expert) * 3 + matrix) * 2 + scale);
}

TensorRef Snapshot::expert_tensor(size_t slot) const {
  const uint64_t bits = experts_[slot].bits;
  const ExpertTensorKind kind = !mxfp4_    ? ExpertTensorKind::kPlain
                                : slot % 2 ? ExpertTensorKind::kScale
                                           : ExpertTensorKind::kPacked;
  TensorRef ref;
  ref.shard = static_cast<uint32_t>(bits >> 50);
  ref.dtype = kPlaceDtypes[bits >> 48 & 3];
  ref.shape = expert_tensor_shape(config_, static_cast<ExpertMatrixId>(slot / 2 % 3), kind);
  ref.offset = bits & (kMaxOffset - 1);
  ref.bytes = static_cast<uint64_t>(ref.shape.elements() * element_bytes(ref.dtype));
  return ref;
}

ExpertRef Snapshot::expert(int64_t layer, int64_t id) const {
  const bool inside = layer >= 0 && layer < config_.num_hidden_layers && config_.is_moe(layer) &&
                      id >= 0 && id < config_.num_experts;
  if (!inside)
    throw InputError(dir_, fmt::format("layer {}, expert {}", layer, id),
                     fmt::format("an expert below {} of a MoE layer", config_.num_experts), "none");
  ExpertRef result;
  ExpertMatrix* matrices[3] = {&result.w1, &result.w2, &result.w3};
  for (int m = 0; m < 3; ++m) {
    const auto matrix = static_cast<ExpertMatrixId>(m);
    const Shape shape = expert_tensor_shape(config_, matrix, ExpertTensorKind::kPlain);
    matrices[m]->rows = shape[0];
    matrices[m]->cols = shape[1];
    for (int scale = 0; scale <= (mxfp4_ ? 1 : 0); ++scale) {
      const size_t slot = expert_slot(moe_index_[static_cast<size_t>(layer)], id, m, scale);
      if (!experts_[slot].found())
        throw InputError(dir_, fmt::format("layer {}, expert {}", layer, id), "its tensors",
                         "none");
      (scale ? matrices[m]->scale : matrices[m]->data) = expert_tensor(slot);
    }
  }
  return result;
}

}  // namespace k3
