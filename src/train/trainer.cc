#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "weights/safetensors.h"

namespace k3 {
namespace {

constexpr int64_t kInferenceChunk = 64;

std::string bias_name(int64_t layer) {
  return fmt::format("model.layers.{}.block_sparse_moe.gate.e_score_correction_bias", layer);
}

std::string rule_text(const std::optional<Mxfp4Rule>& rule) { return rule ? name(*rule) : "none"; }

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace

// What the forward passes of one step show: who was chosen, how large logits and sums grew.
class Trainer::Observations : public Observer {
 public:
  explicit Observations(Trainer& trainer) : trainer_(trainer) {
    const ModelConfig& c = trainer.model_config_;
    const auto layers = static_cast<size_t>(c.num_hidden_layers);
    moe_index_.resize(layers, -1);
    for (int64_t i = 0, next = 0; i < c.num_hidden_layers; ++i)
      if (c.is_moe(i)) moe_index_[static_cast<size_t>(i)] = next++;
    for (const QuantileBalancer& b : trainer.balancers_) histograms_.emplace_back(b);
    loads_.resize(static_cast<size_t>(c.moe_layers()),
                  std::vector<int64_t>(static_cast<size_t>(c.num_experts), 0));
    logits_.resize(layers);
    block_squares_.resize(layers);
  }

  void see(std::string_view what, int layer, int64_t, const Rows& values) override {
    const auto at = static_cast<size_t>(layer);
    if (what == "router_scores" && !histograms_.empty()) {
      auto& histogram = histograms_[static_cast<size_t>(moe_index_[at])];
      for (int64_t i = 0; i < values.rows; ++i)
        histogram.add({values.row(i), static_cast<size_t>(values.cols)});
    } else if (what == "max_logit") {
      auto& most = logits_[at];
      const bool first = most.empty();
      most.resize(static_cast<size_t>(values.cols));
      for (size_t h = 0; h < most.size(); ++h)
        most[h] = first ? values.data[h] : std::max(most[h], values.data[h]);
    } else if (what == "hidden") {
      const ModelConfig& c = trainer_.model_config_;
      const int64_t block = c.attn_res_block_size;
      if (block && ((layer + 1) % block == 0 || layer + 1 == c.num_hidden_layers)) {
        Context ctx = trainer_.context();
        const double norm = gradient_norm(ctx, {values});
        block_squares_[at] += norm * norm / static_cast<double>(values.cols);
      }
      if (layer == 0) rows_ += values.rows;
    }
  }
  void see_ids(std::string_view what, int layer, int64_t, const int32_t* ids, int64_t rows,
               int64_t cols) override {
    if (what != "topk_ids") return;
    auto& load = loads_[static_cast<size_t>(moe_index_[static_cast<size_t>(layer)])];
    for (int64_t i = 0; i < rows * cols; ++i) ++load[static_cast<size_t>(ids[i])];
  }

  void report(StepReport& r) const {
    const ModelConfig& c = trainer_.model_config_;
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
      const auto at = static_cast<size_t>(i);
      if (moe_index_[at] >= 0)
        r.moe.push_back({i, load_balance(loads_[static_cast<size_t>(moe_index_[at])])});
      if (!logits_[at].empty())
        r.max_logit.push_back({i, *std::max_element(logits_[at].begin(), logits_[at].end())});
      if (block_squares_[at] > 0)
        r.block_norm.push_back(std::sqrt(block_squares_[at] / static_cast<double>(rows_)));
    }
  }
  const std::vector<QuantileBalancer::Histogram>& histograms() const { return histograms_; }
  const std::vector<float>& logits(int64_t layer) const {
    return logits_[static_cast<size_t>(layer)];
  }

 private:
  Trainer& trainer_;
  std::vector<int64_t> moe_index_;
  std::vector<QuantileBalancer::Histogram> histograms_;
  std::vector<std::vector<int64_t>> loads_;
  std::vector<std::vector<float>> logits_;  // by layer and head, of MLA
  std::vector<double> block_squares_;       // by the layer that ends a block
  int64_t rows_ = 0;
};

Trainer::Trainer(const ModelConfig& model, const TrainConfig& config, const TokenDataset& data,
                 MemoryAccount& account, ThreadPool& pool, const Kernels& kernels)
    : model_config_(model),
      config_(config),
      data_(data),
      account_(account),
      pool_(pool),
      kernels_(kernels),
      scratch_(account, static_cast<int64_t>(account.limit()), Scratch::kGrowing),
      learner_(model, account, {config.dtype, config.experts}, kInferenceChunk),
      tape_(account, scratch_),
      packer_(data, {.length = config.length,
                     .seed = config.seed,
                     .held_out = config.held_out,
                     .whole = config.whole}),
      fingerprint_(data.fingerprint()) {
  learner_.learn(tape_);
  for (const Parameter& p : learner_.parameters()) {
    rules_.push_back(update_rule(model, p.name, p.master.rows, config.optimizer));
    moments_.push_back(p.learns ? OptimizerState(account, rules_.back(), p.elements())
                                : OptimizerState());
  }
  int64_t most = 0;
  for (size_t i = 0; i < rules_.size(); ++i) {
    const Parameter& p = learner_.parameters()[i];
    if (!p.learns) continue;
    largest_first_.push_back(i);
    most = std::max(most, update_cost(p.master.rows, p.master.cols));
  }
  std::stable_sort(largest_first_.begin(), largest_first_.end(), [&](size_t a, size_t b) {
    return learner_.parameters()[a].elements() > learner_.parameters()[b].elements();
  });
  for (int i = 0; i < pool.size(); ++i) movers_.push_back(std::make_unique<Mover>(account, most));
  if (!config.quantile_balancing) return;
  for (int64_t i = 0; i < model.num_hidden_layers; ++i) {
    if (!model.is_moe(i)) continue;
    balancers_.emplace_back(model.num_experts, model.num_experts_per_token);
    biases_.push_back(learner_.parameter(bias_name(i)).master);
  }
}

void Trainer::balancers_from_masters() {
  for (size_t i = 0; i < balancers_.size(); ++i)
    balancers_[i].set_bias({biases_[i].data, static_cast<size_t>(biases_[i].cols)});
}

void Trainer::initialize() {
  learner_.initialize(config_.seed, config_.deviation);
  Context ctx = context();
  learner_.refresh(ctx);
}

void Trainer::load(const Snapshot& snapshot) {
  learner_.load(snapshot);
  balancers_from_masters();
  Context ctx = context();
  learner_.refresh(ctx);
}

namespace {

// The documents of some rows as a batch, and what is to be learnt from them.
struct Documents {
  Documents(const std::vector<PackedRow>& rows, size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) {
      const PackedRow& row = rows[r];
      for (size_t i = 0; i < row.starts.size(); ++i) {
        const auto from = static_cast<size_t>(row.starts[i]);
        const size_t to =
            i + 1 < row.starts.size() ? static_cast<size_t>(row.starts[i + 1]) : row.ids.size();
        batch.add(std::span(row.ids).subspan(from, to - from));
      }
      targets.insert(targets.end(), row.targets.begin(), row.targets.end());
    }
  }
  Batch batch;
  std::vector<int32_t> targets;
};

int64_t count_targets(const std::vector<PackedRow>& rows) {
  int64_t count = 0;
  for (const PackedRow& row : rows)
    for (const int32_t t : row.targets) count += t >= 0;
  return count;
}

}  // namespace

StepReport Trainer::step() {
  const auto began = std::chrono::steady_clock::now();
  StepReport r;
  r.step = steps_done_ + 1;
  std::vector<PackedRow> rows;
  const Packer::Position before = packer_.position();
  for (int64_t i = 0; i < config_.batch; ++i) {
    rows.push_back(packer_.next());
    r.tokens += static_cast<int64_t>(rows.back().ids.size());
  }
  r.targets = count_targets(rows);
  try {
    if (r.targets == 0)
      throw WorkError(
          fmt::format("step {}: its {} rows hold nothing to learn", r.step, rows.size()));
    Observations seen(*this);
    Context ctx = context(&seen);
    learner_.clear_gradients(ctx);
    const float scale = 1.0f / static_cast<float>(r.targets);
    for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(config_.micro_batch)) {
      const Documents docs(rows, begin,
                           std::min(rows.size(), begin + static_cast<size_t>(config_.micro_batch)));
      r.loss += learner_.model().gradients(ctx, tape_, docs.batch, docs.targets,
                                           {scale, config_.recompute});
    }
    r.loss /= static_cast<double>(r.targets);
    learner_.finish_gradients();
    seen.report(r);
    move(r);
    for (size_t i = 0; i < balancers_.size(); ++i) {
      balancers_[i].absorb(seen.histograms()[i]);
      balancers_[i].update();
      std::copy(balancers_[i].bias().begin(), balancers_[i].bias().end(), biases_[i].data);
    }
    clip_logits(seen);
    Context quiet = context();
    learner_.refresh(quiet);
  } catch (const Error&) {
    packer_.seek(before);
    throw;
  }
  ++steps_done_;
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return r;
}

// Squares of floats do not overflow a double, so a finite norm means finite gradients.
void Trainer::check_finite(const StepReport& r) const {
  if (std::isfinite(r.loss) && std::isfinite(r.gradient_norm)) return;
  const auto stop = [&](const std::string& what, double value) {
    throw WorkError(fmt::format("step {}: {} is {}; no weight was moved", r.step, what, value));
  };
  for (const Parameter& p : learner_.parameters())
    for (int64_t i = 0; i < p.elements(); ++i)
      if (!std::isfinite(p.gradient.data[i]))
        stop(fmt::format("the gradient of '{}' at element {}", p.name, i), p.gradient.data[i]);
  stop("the loss", r.loss);
}

void Trainer::move(StepReport& r) {
  Context ctx = context();
  r.rate = learning_rate(config_.schedule, steps_done_);
  std::vector<Rows> gradients;
  for (const Parameter& p : learner_.parameters())
    if (p.learns) gradients.push_back(p.gradient);
  r.gradient_norm = gradient_norm(ctx, gradients);
  check_finite(r);
  if (config_.clip > 0) clip_gradients(ctx, gradients, r.gradient_norm, config_.clip);

  // A parameter a task, on one thread each: most matrices are small.
  std::vector<std::vector<double>> rms(rules_.size());
  std::atomic<size_t> next{0};
  pool_.run([&](int thread) {
    Mover& mover = *movers_[static_cast<size_t>(thread)];
    Context own{mover.pool, kernels_, mover.scratch};
    for (size_t k; (k = next.fetch_add(1)) < largest_first_.size();) {
      const size_t i = largest_first_[k];
      Parameter& p = learner_.parameters()[i];
      rms[i] = update(own, config_.optimizer, rules_[i], r.rate, p.master, p.gradient, moments_[i]);
    }
  });
  std::map<std::string, std::pair<double, double>> squares;  // sum and count
  for (size_t i = 0; i < rules_.size(); ++i) {
    const Parameter& p = learner_.parameters()[i];
    auto& [sum, count] = squares[name(p.part)];
    for (const double value : rms[i]) {
      const double share = static_cast<double>(p.elements()) / static_cast<double>(rms[i].size());
      sum += value * value * share;
      count += share;
    }
  }
  for (const auto& [part, s] : squares)
    if (s.second > 0) r.update_rms[part] = std::sqrt(s.first / s.second);
}

// QK-Clip (K2, arXiv 2507.20534; training.md 5.3): scales the query and key rows of a head whose
// largest logit exceeded the threshold, half each, so that it would have met it.
void Trainer::clip_logits(const Observations& seen) {
  if (config_.qk_clip == 0) return;
  const ModelConfig& c = model_config_;
  const int64_t nope = c.qk_nope_head_dim, width = c.qk_head_dim(), v = c.v_head_dim;
  const auto scale = [](const Rows& w, int64_t begin, int64_t count, float factor) {
    for (int64_t i = begin; i < begin + count; ++i)
      for (int64_t j = 0; j < w.cols; ++j) w.row(i)[j] *= factor;
  };
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    const std::vector<float>& most = seen.logits(layer);
    const std::string at = fmt::format("model.layers.{}.self_attn.", layer);
    for (size_t h = 0; h < most.size(); ++h) {
      if (most[h] <= config_.qk_clip) continue;
      const float ratio = config_.qk_clip / most[h], root = std::sqrt(ratio);
      const auto head = static_cast<int64_t>(h);
      const Rows q =
          learner_.parameter(at + (c.q_lora_rank ? "q_b_proj.weight" : "q_proj.weight")).master;
      const Rows kv = learner_.parameter(at + "kv_b_proj.weight").master;
      scale(q, head * width, nope, root);
      scale(q, head * width + nope, width - nope, ratio);
      scale(kv, head * (nope + v), nope, root);
    }
  }
}

double Trainer::validate() {
  Packer held(data_, {.length = config_.length,
                      .seed = config_.seed,
                      .held_out = config_.held_out,
                      .validation = true,
                      .whole = config_.whole});
  std::vector<PackedRow> rows;
  for (int64_t i = 0; i < config_.validation_rows && held.position().epoch == 0; ++i)
    rows.push_back(held.next());
  Context ctx = context();
  double sum = 0;
  for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(config_.micro_batch)) {
    const Documents docs(rows, begin,
                         std::min(rows.size(), begin + static_cast<size_t>(config_.micro_batch)));
    sum += learner_.model().loss(ctx, docs.batch, docs.targets);
  }
  return sum / static_cast<double>(std::max<int64_t>(1, count_targets(rows)));
}

std::vector<int32_t> Trainer::continuation(std::span<const int32_t> ids, int64_t count,
                                           int32_t end) {
  Context ctx = context();
  SequenceState state(model_config_, account_);
  std::vector<int32_t> out;
  std::vector<float> logits = last_logits(ctx, learner_.model(), state, ids);
  while (static_cast<int64_t>(out.size()) < count) {
    const auto next =
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (next == end) break;
    out.push_back(next);
    logits = last_logits(ctx, learner_.model(), state, {&out.back(), 1});
  }
  return out;
}

double Trainer::flops(int64_t tokens, int64_t targets) const {
  const auto head = static_cast<double>(model_config_.vocab_size * model_config_.hidden_size);
  double stack = 0;
  for (const Parameter& p : learner_.parameters()) {
    if (p.shape.rank() != 2 || p.part == Part::kEmbed || p.part == Part::kHead) continue;
    const double share = p.expert ? static_cast<double>(model_config_.num_experts_per_token) /
                                        static_cast<double>(model_config_.num_experts)
                                  : 1;
    stack += share * static_cast<double>(p.elements());
  }
  return 6 * (stack * static_cast<double>(tokens) + head * static_cast<double>(targets));
}

void Trainer::save(Storage& storage, const std::string& path) const {
  std::vector<TensorSpec> specs;
  std::vector<std::span<const std::byte>> data;
  const auto add = [&](const std::string& name, const float* values, int64_t count) {
    specs.push_back({name, Dtype::kF32, {count}});
    data.push_back(std::as_bytes(std::span(values, static_cast<size_t>(count))));
  };
  for (size_t i = 0; i < rules_.size(); ++i) {
    const Parameter& p = learner_.parameters()[i];
    add("master." + p.name, p.master.data, p.elements());
    if (!p.learns) continue;
    add("first." + p.name, moments_[i].first.as<float>(), p.elements());
    if (moments_[i].second) add("second." + p.name, moments_[i].second.as<float>(), p.elements());
  }
  const Packer::Position at = packer_.position();
  SafetensorsWriter writer(storage, path, specs,
                           {{"format", "k3 checkpoint 1"},
                            {"config", config_.identity},
                            {"data", hex(fingerprint_)},
                            {"step", fmt::format("{}", steps_done_)},
                            {"position", fmt::format("{} {} {}", at.epoch, at.document, at.offset)},
                            {"precision", config_.dtype == Dtype::kF32 ? "f32" : "bf16"},
                            {"experts", rule_text(config_.experts)}});
  for (const auto& bytes : data) writer.append(bytes);
  writer.finish();
}

namespace {

const std::string& metadata(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end())
    throw InputError(file.file().path(), "metadata", "a checkpoint's \"" + key + "\"", "nothing");
  return found->second;
}

int64_t number(const SafetensorsFile& file, const std::string& key, const std::string& text) {
  char* end = nullptr;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end || value < 0)
    throw InputError(file.file().path(), "metadata \"" + key + "\"", "a whole number",
                     printable(text, 40));
  return value;
}

void read_floats(const SafetensorsFile& file, const std::string& name, float* to, int64_t count) {
  const TensorInfo& info = file.info(name);
  if (info.dtype != Dtype::kF32 || info.shape.elements() != count)
    throw InputError(file.file().path(), "tensor '" + name + "'", fmt::format("F32 [{}]", count),
                     fmt::format("{} {}", k3::name(info.dtype), info.shape.text()));
  file.file().read(info.offset, {reinterpret_cast<std::byte*>(to), info.bytes});
}

}  // namespace

CheckpointInfo checkpoint_info(const SafetensorsFile& file) {
  if (const std::string& format = metadata(file, "format"); format != "k3 checkpoint 1")
    throw InputError(file.file().path(), "metadata \"format\"", "k3 checkpoint 1",
                     printable(format, 40));
  CheckpointInfo info;
  info.step = number(file, "step", metadata(file, "step"));
  const std::string& precision = metadata(file, "precision");
  if (precision != "bf16" && precision != "f32")
    throw InputError(file.file().path(), "metadata \"precision\"", "bf16 or f32",
                     printable(precision, 40));
  info.dtype = precision == "f32" ? Dtype::kF32 : Dtype::kBf16;
  const std::string& experts = metadata(file, "experts");
  if (experts == "none") return info;
  info.experts = mxfp4_rule(experts);
  if (!info.experts)
    throw InputError(file.file().path(), "metadata \"experts\"", "none, even, floor or rceil",
                     printable(experts, 40));
  return info;
}

void load_masters(const SafetensorsFile& file, TrainableModel& learner) {
  for (Parameter& p : learner.parameters())
    read_floats(file, "master." + p.name, p.master.data, p.elements());
}

void Trainer::restore(const Storage& storage, const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(storage, path);
  const CheckpointInfo info = checkpoint_info(file);
  if (const std::string& config = metadata(file, "config"); config != config_.identity)
    throw InputError(path, "config", "that of this run (a run is resumed with what it began with)",
                     "another; start in a new folder, with --init to go on from its weights");
  if (metadata(file, "data") != hex(fingerprint_))
    throw InputError(path, "data", "the documents that the run began with", "others");
  load_masters(file, learner_);
  for (size_t i = 0; i < rules_.size(); ++i) {
    const Parameter& p = learner_.parameters()[i];
    if (!p.learns) continue;
    OptimizerState& s = moments_[i];
    s.step = info.step;
    read_floats(file, "first." + p.name, s.first.as<float>(), p.elements());
    if (s.second) read_floats(file, "second." + p.name, s.second.as<float>(), p.elements());
  }
  balancers_from_masters();
  Packer::Position at;
  const std::string& position = metadata(file, "position");
  if (std::sscanf(position.c_str(), "%ld %ld %ld", &at.epoch, &at.document, &at.offset) != 3)
    throw InputError(path, "metadata \"position\"", "three whole numbers", printable(position, 40));
  packer_.seek(at);
  steps_done_ = info.step;
  Context ctx = context();
  learner_.refresh(ctx);
}

}  // namespace k3
