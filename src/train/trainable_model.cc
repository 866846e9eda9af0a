#include "train/trainable_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/random.h"
#include "weights/panels.h"

namespace k3 {
namespace {

bool kept_in_float(const std::string& name) {
  return name.ends_with("A_log") || name.ends_with("dt_bias") ||
         name.ends_with("e_score_correction_bias");
}

// Tensors of one parameter start on cache lines.
int64_t padded(int64_t floats) { return round_up(floats, 16); }

void round_to_bf16(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = bf16_to_f32(f32_to_bf16(x[i]));
}

// Nearly normal, from sums and products alone, so that every machine draws the same: the sum of
// twelve uniform numbers has mean 6 and deviation 1.
float normal(SplitMix64& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random.uniform();
  return static_cast<float>(sum);
}

uint64_t seed_of(const std::string& name, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325 ^ seed;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

TrainableModel::TrainableModel(const ModelConfig& config, MemoryAccount& account,
                               const Options& options, int64_t chunk)
    : config_(config), options_(options) {
  list_parameters();
  place_masters(account);
  bind(account, chunk);
}

void TrainableModel::list_parameters() {
  for (const ExpectedTensor& t : expected_tensors(config_)) {
    Parameter p;
    p.name = t.name;
    p.shape = t.shape;
    p.part = t.part;
    p.dtype = kept_in_float(t.name) ? Dtype::kF32 : options_.dtype;
    p.learns = !t.name.ends_with("e_score_correction_bias");
    parameters_.push_back(std::move(p));
  }
  if (options_.experts) check_mxfp4_sizes(config_, "config.json");
  for (int32_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
    if (!config_.is_moe(layer)) continue;
    for (int32_t e = 0; e < config_.num_experts; ++e)
      for (const auto matrix : {ExpertMatrixId::kW1, ExpertMatrixId::kW2, ExpertMatrixId::kW3}) {
        Parameter p;
        p.expert = ExpertName{layer, e, matrix, ExpertTensorKind::kPlain};
        p.name = expert_tensor_name(*p.expert);
        p.shape = expert_tensor_shape(config_, matrix, ExpertTensorKind::kPlain);
        p.dtype = options_.dtype;
        p.part = Part::kExperts;
        parameters_.push_back(std::move(p));
      }
  }
  for (size_t i = 0; i < parameters_.size(); ++i) index_[parameters_[i].name] = i;
}

void TrainableModel::place_masters(MemoryAccount& account) {
  int64_t floats = 0, rounded = 0;
  const auto is_rounded = [&](const Parameter& p) {
    return p.dtype == Dtype::kBf16 || (p.expert && options_.experts);
  };
  for (const Parameter& p : parameters_) {
    floats += padded(p.shape.elements());
    if (is_rounded(p)) rounded += padded(p.shape.elements());
  }
  const auto buffer = [&](const char* tag, int64_t count) {
    return Buffer(account, tag, static_cast<uint64_t>(count) * sizeof(float));
  };
  masters_ = buffer("masters", floats);
  gradients_ = buffer("gradients", floats);
  values_ = buffer("weights", rounded);
  float *master = masters_.as<float>(), *gradient = gradients_.as<float>();
  float* values = values_.as<float>();
  for (Parameter& p : parameters_) {
    const int64_t rows = p.shape.rank() < 2 ? 1 : p.shape[0];
    const int64_t cols = p.shape.elements() / rows;
    p.master = {master, rows, cols, cols};
    p.gradient = {gradient, rows, cols, cols};
    p.values = is_rounded(p) ? Rows{values, rows, cols, cols} : p.master;
    master += padded(p.elements());
    gradient += padded(p.elements());
    if (is_rounded(p)) values += padded(p.elements());
  }
}

void TrainableModel::add_matrix(const WeightView& view, const Parameter& p, int64_t first_row) {
  Matrix m;
  m.view = view;
  m.data = const_cast<std::byte*>(view.data);
  m.scales = const_cast<std::byte*>(view.scales);
  m.values = p.values.slice(first_row, first_row + view.rows);
  m.gradient = p.gradient.slice(first_row, first_row + view.rows);
  matrices_.push_back(m);
}

// Gives every matrix of the layout and every expert its place, and the vectors theirs.
void TrainableModel::bind(MemoryAccount& account, int64_t chunk) {
  Model::Weights weights;
  weights.trunk = std::make_unique<TrunkLayout>(
      config_, [&](const std::string& name) { return parameter(name).dtype; });
  TrunkLayout& layout = *weights.trunk;

  const Layout plain = options_.dtype == Dtype::kF32 ? Layout::kF32Panels : Layout::kBf16Panels;
  const auto expert_view = [&](const Parameter& p) {
    return WeightView{options_.experts ? Layout::kMxfp4Rows : plain, p.shape[0], p.shape[1],
                      nullptr, nullptr};
  };
  int64_t bytes = 0;
  for (const TrunkUnit& unit : layout.units) bytes += round_up(unit.bytes, 64);
  for (const Parameter& p : parameters_)
    if (p.expert) {
      const WeightView view = expert_view(p);
      bytes += round_up(view.data_bytes(), 64) + round_up(view.scale_bytes(), 64);
    }
  packed_ = Buffer(account, "weights", static_cast<uint64_t>(bytes));
  std::byte* next = packed_.data();

  for (TrunkUnit& unit : layout.units) {
    const auto located = [&](WeightView view) {
      view.data = next + reinterpret_cast<intptr_t>(view.data);
      return view;
    };
    for (PlacedMatrix& placed : unit.matrices) {
      const Parameter& p = parameter(placed.name);
      if (!placed.absorbed) {
        add_matrix(*placed.target = located(placed.resident.view), p, placed.first_row);
        continue;
      }
      MlaWeights& w = *placed.absorbed;
      w.k_up = located(placed.resident.view);
      w.v_up = located(placed.resident.values);
      const int64_t nope = config_.qk_nope_head_dim, rows = nope + config_.v_head_dim;
      for (int64_t h = 0; h < config_.num_attention_heads; ++h) {
        add_matrix(w.v_up_of(h), p, h * rows + nope);
        matrices_.back().absorbed = true;
        Matrix k = matrices_.back();
        k.view = w.k_up_of(h);
        k.data = const_cast<std::byte*>(k.view.data);
        k.values = p.values.slice(h * rows, h * rows + nope);
        k.transposed = true;
        matrices_.push_back(k);
      }
    }
    next += round_up(unit.bytes, 64);
  }

  weights.experts.resize(static_cast<size_t>(config_.num_hidden_layers));
  for (Parameter& p : parameters_) {
    if (!p.expert) continue;
    WeightView view = expert_view(p);
    view.data = next;
    next += round_up(view.data_bytes(), 64);
    if (view.scale_bytes()) view.scales = next;
    next += round_up(view.scale_bytes(), 64);
    add_matrix(view, p, 0);
    if (options_.experts) matrices_.back().mxfp4 = &p;
    auto& layer = weights.experts[static_cast<size_t>(p.expert->layer)];
    layer.resize(static_cast<size_t>(config_.num_experts));
    ExpertWeights& e = layer[static_cast<size_t>(p.expert->expert)];
    (p.expert->matrix == ExpertMatrixId::kW1   ? e.w1
     : p.expert->matrix == ExpertMatrixId::kW2 ? e.w2
                                               : e.w3) = view;
  }

  derived_ =
      Buffer(account, "weights", static_cast<uint64_t>(2 * layout.vector_floats) * sizeof(float));
  float* values = derived_.as<float>();
  for (const TrunkLayout::Vector& v : layout.vectors) {
    using Form = TrunkLayout::Form;
    const bool site = v.form == Form::kMixQuery;
    Derived d{v, &parameter(site ? v.name + "_norm.weight" : v.name),
              site ? &parameter(v.name + "_proj.weight") : nullptr, values,
              values + layout.vector_floats};
    values += round_up(v.count, 16);
    *v.target = d.values;
    derived_vectors_.push_back(d);
  }
  weights.embedding = parameter("model.embed_tokens.weight").values;
  model_.emplace(config_, std::move(weights), account, chunk);
}

Parameter& TrainableModel::parameter(const std::string& name) {
  return parameters_[index_.at(name)];
}

void TrainableModel::initialize(uint64_t seed, float deviation) {
  for (Parameter& p : parameters_) {
    SplitMix64 random(seed_of(p.name, seed));
    float* x = p.master.data;
    const int64_t n = p.elements();
    const auto ends = [&](const char* end) { return p.name.ends_with(end); };
    if (ends("norm.weight") || ends("layernorm.weight") || ends("_res_norm.weight")) {
      std::fill_n(x, n, 1.0f);
    } else if (ends("A_log") || ends("e_score_correction_bias") || ends("_res_proj.weight")) {
      std::fill_n(x, n, 0.0f);
    } else if (ends("dt_bias")) {
      // Inverse softplus of a step that is spread evenly on a logarithmic scale over [1e-3, 0.1].
      for (int64_t i = 0; i < n; ++i) {
        const double dt = std::max(1e-4, 1e-3 * std::pow(100.0, random.uniform()));
        x[i] = static_cast<float>(dt + std::log(-std::expm1(-dt)));
      }
    } else if (ends("conv1d.weight")) {
      const double bound = 1 / std::sqrt(static_cast<double>(config_.short_conv_kernel_size));
      for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(bound * (2 * random.uniform() - 1));
    } else {
      for (int64_t i = 0; i < n; ++i) x[i] = deviation * normal(random);
    }
  }
}

void TrainableModel::load(const Snapshot& snapshot) {
  if (snapshot.has_vision())
    throw InputError(snapshot.dir(), "tensors", "a text model: the vision tower is not trained",
                     "vision_tower tensors");
  for (Parameter& p : parameters_) {
    const auto finite = [&] {
      for (int64_t i = 0; i < p.elements(); ++i)
        if (!std::isfinite(p.master.data[i]))
          throw InputError(snapshot.dir(), "tensor '" + snapshot.stored_name(p.name) + "'",
                           "finite values", fmt::format("{} at element {}", p.master.data[i], i));
    };
    if (!p.expert) {
      const std::vector<float> values = snapshot.floats(p.name);  // A_log may be longer: padding
      std::copy_n(values.begin(), p.elements(), p.master.data);
      finite();
      continue;
    }
    const ExpertRef e = snapshot.expert(p.expert->layer, p.expert->expert);
    const ExpertMatrix& m = p.expert->matrix == ExpertMatrixId::kW1   ? e.w1
                            : p.expert->matrix == ExpertMatrixId::kW2 ? e.w2
                                                                      : e.w3;
    const auto read = [&](const TensorRef& ref) {
      std::vector<std::byte> bytes(ref.bytes);
      snapshot.shard(ref.shard).read(ref.offset, bytes);
      return bytes;
    };
    const std::vector<std::byte> data = read(m.data);
    if (!snapshot.mxfp4_experts()) {
      widen_to_float(m.data.dtype, data.data(), p.elements(), p.master.data);
    } else {
      const std::vector<std::byte> scales = read(m.scale);
      for (int64_t r = 0; r < m.rows; ++r)
        unpack_mxfp4(data.data() + r * m.cols / 2, scales.data() + r * m.cols / kBlock, m.cols,
                     p.master.row(r));
    }
    finite();
  }
}

void TrainableModel::refresh(Context& ctx) {
  // Experts under a rule get their values when they are packed.
  ctx.each_row(static_cast<int64_t>(parameters_.size()), 1, [&](int64_t i) {
    const Parameter& p = parameters_[static_cast<size_t>(i)];
    if (p.values.data != p.master.data && !(p.expert && options_.experts))
      round_to_bf16(p.master.data, p.elements(), p.values.data);
  });
  ctx.each_row(static_cast<int64_t>(matrices_.size()), 1, [&](int64_t i) {
    const Matrix& m = matrices_[static_cast<size_t>(i)];
    const WeightView& v = m.view;
    if (m.mxfp4) {
      for (int64_t r = 0; r < v.rows; ++r) {
        std::byte *nibbles = m.data + r * v.cols / 2, *scales = m.scales + r * v.cols / kBlock;
        pack_mxfp4(m.mxfp4->master.row(r), v.cols, *options_.experts, nibbles, scales);
        unpack_mxfp4(nibbles, scales, v.cols, m.values.row(r));
      }
      return;
    }
    const auto* floats = reinterpret_cast<const std::byte*>(m.values.data);
    if (v.layout == Layout::kF32Panels) {
      if (m.transposed)
        pack_f32_panels_transposed(Dtype::kF32, floats, m.values.stride, v.rows, v.cols, m.data);
      else
        pack_f32_panels(Dtype::kF32, floats, v.rows, v.cols, m.data);
      return;
    }
    std::vector<uint16_t> half(static_cast<size_t>(m.values.rows * m.values.cols));
    for (size_t k = 0; k < half.size(); ++k) half[k] = f32_to_bf16(m.values.data[k]);
    const auto* bytes = reinterpret_cast<const std::byte*>(half.data());
    if (m.transposed)
      pack_bf16_panels_transposed(bytes, m.values.stride, v.rows, v.cols, m.data);
    else
      pack_bf16_panels(bytes, v.rows, v.cols, m.data);
  });
  for (const Derived& d : derived_vectors_)
    TrunkLayout::derive(config_, d.vector, d.stored->values.data,
                        d.proj ? d.proj->values.data : nullptr, d.values);
}

void TrainableModel::learn(Tape& tape) const {
  for (const Matrix& m : matrices_)
    if (!m.absorbed) tape.learn(m.view.data, {m.values, m.gradient});
  const Parameter& embedding = parameters_[index_.at("model.embed_tokens.weight")];
  tape.learn(embedding.values.data, embedding.gradient.data);
  using Form = TrunkLayout::Form;
  for (const Derived& d : derived_vectors_) {
    const bool direct = d.vector.form == Form::kPlain || d.vector.form == Form::kExp;
    tape.learn(d.values, direct ? d.stored->gradient.data : d.gradient);
  }
}

void TrainableModel::clear_gradients(Context& ctx) {
  const auto floats = static_cast<int64_t>(gradients_.size() / sizeof(float));
  ctx.pool.parallel_for(floats, int64_t{1} << 16, [&](int64_t begin, int64_t end) {
    std::fill(gradients_.as<float>() + begin, gradients_.as<float>() + end, 0.0f);
  });
  for (const Derived& d : derived_vectors_) std::fill_n(d.gradient, d.vector.count, 0.0f);
}

void TrainableModel::finish_gradients() {
  using Form = TrunkLayout::Form;
  for (const Derived& d : derived_vectors_) {
    if (d.vector.form == Form::kConvolution)
      for (int64_t i = 0; i < d.vector.count; ++i)
        d.stored->gradient.data[i] += d.gradient[TrunkLayout::convolution_place(config_, i)];
    if (d.vector.form == Form::kMixQuery)
      for (int64_t i = 0; i < d.vector.count; ++i) {
        d.stored->gradient.data[i] += d.gradient[i] * d.proj->values.data[i];
        d.proj->gradient.data[i] += d.gradient[i] * d.stored->values.data[i];
      }
  }
}

std::vector<float> last_logits(Context& ctx, Model& model, SequenceState& state,
                               std::span<const int32_t> ids) {
  const ModelConfig& c = model.config();
  std::vector<float> logits;
  while (!ids.empty()) {
    Scratch::Frame frame(ctx.scratch);
    const size_t take = std::min(ids.size(), static_cast<size_t>(model.chunk()));
    const bool last = take == ids.size();
    const int64_t row[] = {static_cast<int64_t>(take) - 1};
    Batch batch;
    batch.add(state, ids.first(take));
    const Rows hidden = ctx.scratch.rows(1, c.hidden_size);
    model.forward(ctx, batch, {row, last ? 1u : 0u}, hidden);
    if (last) {
      const Rows out = ctx.scratch.rows(1, c.vocab_size);
      model.logits(ctx, hidden, out);
      logits.assign(out.data, out.data + c.vocab_size);
    }
    ids = ids.subspan(take);
  }
  return logits;
}

}  // namespace k3
