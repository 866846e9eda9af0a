#include "model/trunk.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <map>

#include "base/error.h"
#include "kernels/kernels.h"
#include "weights/matrix_loader.h"

namespace k3 {
namespace {

// Rows of lm_head that make one unit are chosen so that it is no larger than this.
constexpr int64_t kHeadSlabBytes = int64_t{256} << 20;

constexpr int64_t kDirectBytes = 4096;  // direct reads begin and end at multiples

}  // namespace

// Lays out one unit's matrices and notes the vectors of its layer.
class Binder {
 public:
  Binder(const Snapshot& snapshot, TrunkLayout& layout, bool int8)
      : snapshot_(&snapshot),
        config_(snapshot.config()),
        tensor_([&snapshot](const std::string& name) { return snapshot.tensor(name); }),
        layout_(layout),
        int8_(int8) {}
  Binder(const ModelConfig& config, TrunkLayout& layout,
         const std::function<Dtype(const std::string&)>& dtype)
      : config_(config), layout_(layout), int8_(false) {
    for (ExpectedTensor& t : expected_tensors(config)) shapes_.emplace(t.name, t.shape);
    tensor_ = [this, dtype](const std::string& name) {
      TensorRef ref;
      ref.dtype = dtype(name);
      ref.shape = shapes_.at(name);
      ref.bytes = static_cast<uint64_t>(ref.shape.elements() * element_bytes(ref.dtype));
      return ref;
    };
  }
  bool training() const { return !snapshot_; }
  TensorRef tensor(const std::string& name) const { return tensor_(name); }

  void start_unit() { layout_.units.emplace_back(); }

  // A matrix as stored, in the trunk's layout; `keep` leaves it unquantised.
  void matrix(const std::string& name, WeightView& target, bool keep = false) {
    const TensorRef ref = tensor_(name);
    rows_of(name, ref, target, 0, ref.shape[0], keep);
  }
  void rows_of(const std::string& name, const TensorRef& ref, WeightView& target, int64_t first,
               int64_t rows, bool keep) {
    PlacedMatrix placed{name, {}, {}, &target, first, nullptr};
    WeightView& view = placed.resident.view;
    view.layout = layout_of(ref.dtype, keep);
    view.rows = rows;
    view.cols = ref.shape[1];
    placed.streamed.view = view;
    TrunkUnit& unit = layout_.units.back();
    place(view, 1, unit.bytes);
    if (snapshot_ && view.layout == Layout::kBf16Panels && readable_in_place(ref))
      place_rows(ref, first, placed.streamed.view, unit.stream_bytes);
    else
      place(placed.streamed.view, 1, unit.stream_bytes);
    target = view;
    add(std::move(placed), rows * ref.shape[1] * element_bytes(ref.dtype));
  }

  // kv_b_proj [heads * (nope + v), latent], split and absorbed head by head.
  void kv_b(const std::string& name, MlaWeights& w) {
    const ModelConfig& c = config_;
    const TensorRef ref = tensor_(name);
    const Layout layout = layout_of(ref.dtype, false);
    w.k_up = {layout, c.kv_lora_rank, c.qk_nope_head_dim, nullptr, nullptr};
    w.v_up = {layout, c.v_head_dim, c.kv_lora_rank, nullptr, nullptr};
    w.k_up_data = w.k_up.data_bytes();
    w.k_up_scales = w.k_up.scale_bytes();
    w.v_up_data = w.v_up.data_bytes();
    w.v_up_scales = w.v_up.scale_bytes();
    PlacedMatrix placed{name, {w.k_up, w.v_up}, {w.k_up, w.v_up}, nullptr, 0, &w};
    TrunkUnit& unit = layout_.units.back();
    for (auto& [at, bytes] :
         {std::pair<PlacedMatrix::Place&, int64_t&>{placed.resident, unit.bytes},
          {placed.streamed, unit.stream_bytes}}) {
      place(at.view, c.num_attention_heads, bytes);
      place(at.values, c.num_attention_heads, bytes);
    }
    add(std::move(placed), static_cast<int64_t>(ref.bytes));
  }

  void vector(const std::string& name, const float*& target, int64_t count,
              TrunkLayout::Form form = TrunkLayout::Form::kPlain) {
    layout_.vectors.push_back({name, &target, count, form});
    layout_.vector_floats += round_up(count, 16);
  }

 private:
  Layout layout_of(Dtype dtype, bool keep) const {
    if (int8_ && !keep) return Layout::kInt8Panels;
    return dtype == Dtype::kF32 ? Layout::kF32Panels : Layout::kBf16Panels;
  }
  // Offsets from `bytes` on, kept in the pointers until the unit has an address.
  static void place(WeightView& view, int64_t copies, int64_t& bytes) {
    const auto take = [&](int64_t size) {
      auto* at = reinterpret_cast<std::byte*>(bytes);
      bytes += round_up(size * copies, 64);
      return at;
    };
    view.data = take(view.data_bytes());
    if (view.scale_bytes()) view.scales = take(view.scale_bytes());
  }
  // The stored rows as they are, where direct reads put them.
  void place_rows(const TensorRef& ref, int64_t first, WeightView& view, int64_t& bytes) const {
    view.layout = Layout::kBf16Rows;
    const auto begin = ref.offset + static_cast<uint64_t>(first * view.cols) * 2;
    const auto end = begin + static_cast<uint64_t>(view.data_bytes());
    bytes = round_up(bytes, kDirectBytes);
    const auto align = static_cast<uint64_t>(snapshot_->shard(ref.shard).direct_alignment());
    view.data = reinterpret_cast<std::byte*>(bytes + static_cast<int64_t>(begin % align));
    bytes += Reader::span_bytes(begin, end);
  }
  void add(PlacedMatrix placed, int64_t disk_bytes) {
    TrunkUnit& unit = layout_.units.back();
    unit.matrices.push_back(std::move(placed));
    unit.disk_bytes += disk_bytes;
  }

  const Snapshot* snapshot_ = nullptr;  // null when training: nothing is streamed
  const ModelConfig& config_;
  std::map<std::string, Shape> shapes_;
  std::function<TensorRef(const std::string&)> tensor_;
  TrunkLayout& layout_;
  const bool int8_;
};

namespace {

void bind_kda(Binder& binder, const ModelConfig& c, const std::string& at, KdaWeights& w) {
  using Form = TrunkLayout::Form;
  binder.matrix(at + "q_proj.weight", w.q_proj);
  binder.matrix(at + "k_proj.weight", w.k_proj);
  binder.matrix(at + "v_proj.weight", w.v_proj);
  if (c.use_full_rank_gate) {
    binder.matrix(at + "g_proj.weight", w.g_proj);
  } else {
    binder.matrix(at + "g_a_proj.weight", w.g_a_proj, true);
    binder.matrix(at + "g_b_proj.weight", w.g_b_proj, true);
  }
  binder.matrix(at + "f_a_proj.weight", w.f_a_proj, true);
  binder.matrix(at + "f_b_proj.weight", w.f_b_proj, true);
  binder.matrix(at + "b_proj.weight", w.b_proj, true);
  binder.matrix(at + "o_proj.weight", w.o_proj);
  const int64_t taps = c.kda_width() * c.short_conv_kernel_size;
  binder.vector(at + "q_conv1d.weight", w.q_conv, taps, Form::kConvolution);
  binder.vector(at + "k_conv1d.weight", w.k_conv, taps, Form::kConvolution);
  binder.vector(at + "v_conv1d.weight", w.v_conv, taps, Form::kConvolution);
  binder.vector(at + "A_log", w.decay, c.kda_num_heads, Form::kExp);
  binder.vector(at + "dt_bias", w.dt_bias, c.kda_width());
  binder.vector(at + "o_norm.weight", w.o_norm, c.kda_head_dim);
}

void bind_mla(Binder& binder, const ModelConfig& c, const std::string& at, MlaWeights& w) {
  if (c.q_lora_rank) {
    binder.matrix(at + "q_a_proj.weight", w.q_a_proj);
    binder.vector(at + "q_a_layernorm.weight", w.q_a_norm, c.q_lora_rank);
    binder.matrix(at + "q_b_proj.weight", w.q_b_proj);
  } else {
    binder.matrix(at + "q_proj.weight", w.q_proj);
  }
  binder.matrix(at + "kv_a_proj_with_mqa.weight", w.kv_a_proj);
  binder.vector(at + "kv_a_layernorm.weight", w.kv_a_norm, c.kv_lora_rank);
  binder.kv_b(at + "kv_b_proj.weight", w);
  if (binder.training()) binder.matrix(at + "kv_b_proj.weight", w.kv_b_proj);
  if (c.mla_use_output_gate) binder.matrix(at + "g_proj.weight", w.g_proj);
  binder.matrix(at + "o_proj.weight", w.o_proj);
}

void bind_mlp(Binder& binder, const std::string& at, MlpWeights& w) {
  binder.matrix(at + "gate_proj.weight", w.gate_proj);
  binder.matrix(at + "up_proj.weight", w.up_proj);
  binder.matrix(at + "down_proj.weight", w.down_proj);
}

void bind_feed_forward(Binder& binder, const ModelConfig& c, const std::string& at,
                       FeedForwardWeights& w) {
  if (!w.moe) {
    bind_mlp(binder, at + "mlp.", w.mlp);
    return;
  }
  const std::string moe = at + "block_sparse_moe.";
  binder.matrix(moe + "gate.weight", w.router, true);
  binder.vector(moe + "gate.e_score_correction_bias", w.router_bias, c.num_experts);
  if (c.routed_expert_hidden_size) {
    binder.matrix(moe + "routed_expert_down_proj.weight", w.latent_down);
    binder.matrix(moe + "routed_expert_up_proj.weight", w.latent_up);
    if (c.latent_moe_use_norm)
      binder.vector(moe + "routed_expert_norm.weight", w.latent_norm, c.routed_expert_hidden_size);
  }
  if (c.num_shared_experts) bind_mlp(binder, moe + "shared_experts.", w.mlp);
}

}  // namespace

TrunkLayout::TrunkLayout(const Snapshot& snapshot, bool int8) {
  Binder binder(snapshot, *this, int8);
  bind(binder, snapshot.config());
}

TrunkLayout::TrunkLayout(const ModelConfig& config,
                         const std::function<Dtype(const std::string&)>& dtype) {
  Binder binder(config, *this, dtype);
  bind(binder, config);
}

void TrunkLayout::bind(Binder& binder, const ModelConfig& c) {
  attention.resize(static_cast<size_t>(c.num_hidden_layers));
  feed_forward.resize(attention.size());
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    const std::string at = fmt::format("model.layers.{}.", i);
    AttentionWeights& a = attention[static_cast<size_t>(i)];
    a.kind = c.attention(i);
    binder.start_unit();
    if (c.attn_res_block_size)
      binder.vector(at + "self_attention_res", a.mix, c.hidden_size, Form::kMixQuery);
    binder.vector(at + "input_layernorm.weight", a.input_norm, c.hidden_size);
    if (a.kind == AttentionKind::kKda)
      bind_kda(binder, c, at + "self_attn.", a.kda);
    else
      bind_mla(binder, c, at + "self_attn.", a.mla);

    FeedForwardWeights& f = feed_forward[static_cast<size_t>(i)];
    f.moe = c.is_moe(i);
    binder.start_unit();
    if (c.attn_res_block_size) binder.vector(at + "mlp_res", f.mix, c.hidden_size, Form::kMixQuery);
    binder.vector(at + "post_attention_layernorm.weight", f.norm, c.hidden_size);
    bind_feed_forward(binder, c, at, f);
  }
  if (c.attn_res_block_size)
    binder.vector("model.output_attn_res", output_mix, c.hidden_size, Form::kMixQuery);
  binder.vector("model.norm.weight", final_norm, c.hidden_size);

  const std::string name = c.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
  const TensorRef ref = binder.tensor(name);
  const int64_t row_bytes = c.hidden_size * element_bytes(ref.dtype);
  const int64_t slab =
      std::max<int64_t>(kPanelRows, kHeadSlabBytes / row_bytes / kPanelRows * kPanelRows);
  head.resize(static_cast<size_t>(ceil_div(c.vocab_size, slab)));
  for (size_t i = 0; i < head.size(); ++i) {
    head[i].first_row = static_cast<int64_t>(i) * slab;
    binder.start_unit();
    binder.rows_of(name, ref, head[i].weight, head[i].first_row,
                   std::min(slab, c.vocab_size - head[i].first_row), false);
  }
}

int64_t TrunkLayout::convolution_place(const ModelConfig& c, int64_t i) {
  const int64_t taps = c.short_conv_kernel_size, d = c.kda_head_dim;
  const int64_t channel = i / taps, tap = i % taps;
  return (channel / d * taps + tap) * d + channel % d;
}

void TrunkLayout::derive(const ModelConfig& c, const Vector& v, const float* stored,
                         const float* proj, float* out) {
  switch (v.form) {
    case Form::kPlain:
      std::memcpy(out, stored, static_cast<size_t>(v.count) * sizeof(float));
      return;
    case Form::kExp:
      kernels(Isa::kScalar).exp(stored, v.count, out);
      return;
    case Form::kConvolution:
      for (int64_t i = 0; i < v.count; ++i) out[convolution_place(c, i)] = stored[i];
      return;
    case Form::kMixQuery:
      for (int64_t i = 0; i < v.count; ++i) out[i] = stored[i] * proj[i];
      return;
  }
}

int64_t TrunkLayout::region_bytes(const std::vector<bool>& resident, int which) const {
  int64_t bytes = 0;
  for (size_t i = 0; i < units.size(); ++i)
    if (!resident[i] && region(i) == which) bytes = std::max(bytes, units[i].stream_bytes);
  return bytes;
}

Trunk::Trunk(const Snapshot& snapshot, Reader& reader, MemoryAccount& account,
             const Options& options)
    : snapshot_(&snapshot),
      reader_(&reader),
      layout_(std::make_unique<TrunkLayout>(snapshot, options.int8)),
      resident_(options.resident),
      checked_(options.resident.size(), false) {
  assert(resident_.size() == layout_->units.size());
  load_vectors(account);
  units_.resize(layout_->units.size());
  pending_.resize(layout_->units.size());
  uint64_t total = 0, done = 0;
  for (size_t i = 0; i < units_.size(); ++i)
    if (resident_[i]) total += static_cast<uint64_t>(layout_->units[i].disk_bytes);
  // One unit ahead, so that the reader never waits for this thread.
  const auto finish = [&](size_t i) {
    pending_[i]->wait();
    pending_[i].reset();
    done += static_cast<uint64_t>(layout_->units[i].disk_bytes);
    if (options.progress) options.progress(done, total);
  };
  size_t loading = units_.size();
  for (size_t i = 0; i < units_.size(); ++i) {
    if (!resident_[i]) continue;
    units_[i] = Buffer(account, "trunk", static_cast<uint64_t>(layout_->units[i].bytes));
    pending_[i] = std::make_unique<Completion>();
    load(i, units_[i].data(), *pending_[i]);
    if (loading < units_.size()) finish(loading);
    loading = i;
  }
  if (loading < units_.size()) finish(loading);
  for (int r = 0; r < 2; ++r)
    regions_[r] =
        Buffer(account, "trunk_stream", static_cast<uint64_t>(layout_->region_bytes(resident_, r)));
  next_read_ = end_read_ = 0;
}

Trunk::Trunk(std::unique_ptr<TrunkLayout> filled)
    : layout_(std::move(filled)),
      resident_(layout_->units.size(), true),
      units_(layout_->units.size()),
      pending_(layout_->units.size()) {}

Trunk::~Trunk() { pending_.clear(); }  // waits for reads into the regions

void Trunk::load(size_t unit, std::byte* base, Completion& completion) {
  const ModelConfig& c = snapshot_->config();
  const auto located = [&](WeightView view) {
    view.data = base + reinterpret_cast<intptr_t>(view.data);
    if (view.scale_bytes()) view.scales = base + reinterpret_cast<intptr_t>(view.scales);
    return view;
  };
  for (const PlacedMatrix& placed : layout_->units[unit].matrices) {
    const PlacedMatrix::Place& at = resident_[unit] ? placed.resident : placed.streamed;
    MatrixSource source{snapshot_, placed.name, snapshot_->tensor(placed.name), placed.first_row};
    if (!placed.absorbed) {
      const WeightView& view = *placed.target = located(at.view);
      if (view.layout != Layout::kBf16Rows) {
        load_matrix(*reader_, Reader::kTrunk, completion, source, view);
        continue;
      }
      const intptr_t block = reinterpret_cast<intptr_t>(at.view.data) / kDirectBytes * kDirectBytes;
      load_rows(*reader_, Reader::kTrunk, completion, source, view, base + block, !checked_[unit]);
      continue;
    }
    MlaWeights& w = *placed.absorbed;
    w.k_up = located(at.view);
    w.v_up = located(at.values);
    for (int64_t h = 0; h < c.num_attention_heads; ++h) {
      source.first_row = h * (c.qk_nope_head_dim + c.v_head_dim);
      load_matrix(*reader_, Reader::kTrunk, completion, source, w.k_up_of(h), true);
      source.first_row += c.qk_nope_head_dim;
      load_matrix(*reader_, Reader::kTrunk, completion, source, w.v_up_of(h));
    }
  }
}

void Trunk::begin_pass(bool with_head) {
  for (auto& pending : pending_) pending.reset();  // waits for what a failed pass left behind
  region_busy_[0] = region_busy_[1] = false;
  next_read_ = 0;
  end_read_ = with_head ? units_.size() : 2 * layout_->attention.size();
  start_reads();
}

void Trunk::start_reads() {
  for (; next_read_ < end_read_; ++next_read_) {
    if (resident_[next_read_]) continue;
    if (region_busy_[layout_->region(next_read_)]) return;
    start_read(next_read_);
  }
}

void Trunk::start_read(size_t unit) {
  const int r = layout_->region(unit);
  region_busy_[r] = true;
  pending_[unit] = std::make_unique<Completion>();
  load(unit, regions_[r].data(), *pending_[unit]);
}

Trunk::Lease Trunk::lease(size_t unit) {
  if (!resident_[unit]) {
    if (!pending_[unit]) start_read(unit);  // the head, wanted once more in the same pass
    pending_[unit]->wait();
    checked_[unit] = true;
  }
  return Lease(this, unit);
}

void Trunk::release(size_t unit) {
  if (resident_[unit] || !pending_[unit]) return;
  pending_[unit].reset();
  region_busy_[layout_->region(unit)] = false;
  start_reads();
}

void Trunk::load_vectors(MemoryAccount& account) {
  const ModelConfig& c = snapshot_->config();
  vectors_ =
      Buffer(account, "vectors", static_cast<uint64_t>(layout_->vector_floats) * sizeof(float));
  float* next = vectors_.as<float>();
  for (const TrunkLayout::Vector& v : layout_->vectors) {
    using Form = TrunkLayout::Form;
    const auto read = [&](const std::string& name, int64_t at_least) {
      std::vector<float> values = reader_->retrying([&] { return snapshot_->floats(name); });
      if (static_cast<int64_t>(values.size()) < at_least)
        throw InputError(snapshot_->shard(snapshot_->tensor(name).shard).path(),
                         "tensor '" + snapshot_->stored_name(name) + "'",
                         fmt::format("{} values", at_least), fmt::format("{}", values.size()));
      for (size_t i = 0; i < values.size(); ++i)
        if (!std::isfinite(values[i]))
          throw InputError(snapshot_->shard(snapshot_->tensor(name).shard).path(),
                           "tensor '" + snapshot_->stored_name(name) + "'", "finite values",
                           fmt::format("{} at element {}", values[i], i));
      return values;
    };
    *v.target = next;
    if (v.form == Form::kMixQuery)
      TrunkLayout::derive(c, v, read(v.name + "_norm.weight", v.count).data(),
                          read(v.name + "_proj.weight", v.count).data(), next);
    else
      TrunkLayout::derive(c, v, read(v.name, v.count).data(), nullptr, next);
    next += round_up(v.count, 16);
  }
}

}  // namespace k3
