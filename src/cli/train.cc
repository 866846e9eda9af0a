// k3 train: trains a model from a config, or fine-tunes a snapshot.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "kernels/ceilings.h"
#include "train/sources.h"
#include "train/step_plot.h"
#include "train/trainer.h"

namespace k3::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct TrainOptions {
  std::string config, out, init, ram;
  int threads = 0;
  bool resume = false, json = false, quiet = false;
};

Json json_of(const StepReport& r) {
  Json moe = Json::array(), logits = Json::array();
  for (const auto& l : r.moe)
    moe.push_back({{"layer", l.layer},
                   {"max_vio", l.balance.max_violation},
                   {"variation", l.balance.variation},
                   {"dead", l.balance.dead}});
  for (const auto& l : r.max_logit) logits.push_back({{"layer", l.layer}, {"largest", l.largest}});
  Json rms = Json::object();
  for (const auto& [part, value] : r.update_rms) rms[part] = value;
  return {{"step", r.step},
          {"loss", r.loss},
          {"grad_norm", r.gradient_norm},
          {"lr", r.rate},
          {"tokens", r.tokens},
          {"targets", r.targets},
          {"seconds", r.seconds},
          {"update_rms", rms},
          {"moe", moe},
          {"max_attention_logit", logits},
          {"block_rms", r.block_norm}};
}

constexpr double kProbeSeconds = 0.1;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The folder of a run, its config, and what it has written so far.
class TrainRun {
 public:
  explicit TrainRun(const TrainOptions& o)
      : o_(o),
        config_(parse_train_config(read_text(disk_, o.config, uint64_t{1} << 20), o.config)),
        progress_(o.quiet) {}

  void run() {
    open_folder();
    load_model();
    const auto data = open_data();
    const uint64_t limit =
        o_.ram.empty() ? available_memory() / 10 * 9 : parse_size(o_.ram, "--ram");
    MemoryAccount account(limit);
    pool_ = std::make_unique<ThreadPool>(o_.threads ? o_.threads : hardware_threads());
    Trainer trainer(model_, config_, data, account, *pool_, kernels(best_isa()));
    begin(trainer);
    metrics_.open(path("metrics.jsonl"), std::ios::app);
    while (trainer.steps_done() < config_.steps) step(trainer);
    save(trainer);
    finish(trainer, account);
  }

 private:
  std::string path(const std::string& name) const { return o_.out + "/" + name; }
  bool has_checkpoint() const { return fs::exists(path("checkpoint.safetensors")); }

  void open_folder() {
    std::error_code failed;
    const bool taken = fs::exists(path("metrics.jsonl"), failed) || has_checkpoint();
    if (taken && !o_.resume)
      throw InputError("--out", "folder", "a new one, or --resume to go on with the run in it",
                       o_.out);
    fs::create_directories(path("data"), failed);
    if (failed) throw InputError("--out", "folder", "one that can be made", o_.out);
  }

  // config.json of the model and its tokenizer, copied beside the checkpoint.
  void load_model() {
    if (!o_.init.empty()) {
      snapshot_ = std::make_unique<Snapshot>(Snapshot::open(disk_, o_.init));
      if (!config_.model_json.empty())
        throw InputError(o_.config, "model", "nothing, since --init brings its own", "a model");
      config_.model_path = o_.init + "/config.json";
      config_.model_json = read_text(disk_, config_.model_path, kMaxConfigBytes);
    } else if (config_.model_json.empty()) {
      // A run that began with --init is resumed without it.
      if (!has_checkpoint())
        throw InputError(o_.config, "model", "a model's config, or --init with a snapshot",
                         "neither");
      config_.model_path = path("config.json");
      config_.model_json = read_text(disk_, config_.model_path, kMaxConfigBytes);
    }
    model_ = parse_config(config_.model_json, config_.model_path);
    write_text(disk_, path("config.json"), config_.model_json);
    std::string folder = config_.tokenizer;
    if (folder.empty() && fs::exists(o_.init + "/tiktoken.model")) folder = o_.init;
    if (folder.empty() && fs::exists(path("tiktoken.model"))) folder = o_.out;
    if (folder.empty()) return;
    tokenizer_ = std::make_unique<Tokenizer>(Tokenizer::load(disk_, folder));
    check_vocabulary(*tokenizer_, folder, model_);
    config_.tokenizer = folder;
    if (folder != o_.out) copy_tokenizer(disk_, folder, o_.out);
  }

  TokenDataset open_data() {
    if (!has_checkpoint()) {
      tokenize_sources(disk_, config_, tokenizer_.get(), model_.vocab_size, path("data"),
                       [&](const std::string& file, uint64_t done, uint64_t total) {
                         progress_.show("tokenising " + fs::path(file).filename().string(), done,
                                        total, "bytes");
                       });
      progress_.clear();
    }
    return TokenDataset::open(disk_, shard_paths(config_, path("data")), model_.vocab_size);
  }

  // Goes on from the checkpoint, or begins and writes the first one, so that there always is one.
  void begin(Trainer& trainer) {
    if (has_checkpoint()) {
      trainer.restore(disk_, path("checkpoint.safetensors"));
    } else {
      if (snapshot_)
        trainer.load(*snapshot_);
      else
        trainer.initialize();
      save(trainer);
    }
    saved_ = trainer.steps_done();
    for (const Json& line : forget_what_comes_again("metrics.jsonl")) note(line);
    forget_what_comes_again("samples.jsonl");
  }

  // What was written after the checkpoint happens again: the lines of a log up to it, which alone
  // are kept.
  std::vector<Json> forget_what_comes_again(const std::string& name) {
    std::vector<Json> lines;
    if (!fs::exists(path(name))) return lines;
    std::string kept;
    std::ifstream old(path(name));
    for (std::string line; std::getline(old, line);) {
      Json json = Json::parse(line, nullptr, false);
      if (json.is_discarded() || !json.contains("step") || json["step"] > saved_) break;
      kept += line + "\n";
      lines.push_back(std::move(json));
    }
    old.close();
    write_text(disk_, path(name), kept);
    return lines;
  }

  void note(const Json& line) {
    if (line.contains("validation_loss"))
      validation_.push_back({line["step"], line["validation_loss"]});
    if (!line.contains("loss")) return;
    const int64_t step = line["step"];
    training_.push_back({step, line["loss"]});
    double sum = 0, most = 0;
    for (const Json& layer : line["moe"]) {
      sum += layer["max_vio"].get<double>();
      most = std::max(most, layer["max_vio"].get<double>());
    }
    mean_violation_.push_back({step, sum / static_cast<double>(line["moe"].size())});
    worst_violation_.push_back({step, most});
    rates_.push_back(line["tokens"].get<double>() / line["seconds"].get<double>());
    fractions_.push_back(line["peak_fraction"]);
  }

  // What all threads together multiply and add at best, measured again every minute: shared
  // machines change.
  void measure_peak() {
    const auto now = std::chrono::steady_clock::now();
    if (peak_ > 0 && now - measured_ < std::chrono::minutes(1)) return;
    measured_ = now;
    std::vector<double> rates(static_cast<size_t>(pool_->size()));
    pool_->run([&](int t) {
      rates[static_cast<size_t>(t)] = fma_ceiling(best_isa(), kProbeSeconds).rate();
    });
    peak_ = std::accumulate(rates.begin(), rates.end(), 0.0);
    peaks_.push_back(peak_);
  }

  void step(Trainer& trainer) {
    measure_peak();
    StepReport r;
    try {
      r = trainer.step();
    } catch (const WorkError& error) {
      throw WorkError(
          fmt::format("{}; the checkpoint of step {} is kept in {}", error.what(), saved_, o_.out));
    }
    Json line = json_of(r);
    const double rate = static_cast<double>(r.tokens) / r.seconds;
    const double work = trainer.flops(r.tokens, r.targets), fraction = work / r.seconds / peak_;
    line["tokens_per_second"] = rate;
    line["peak_fraction"] = fraction;
    const auto due = [&](int64_t every) {
      return every && (r.step % every == 0 || r.step == config_.steps);
    };
    if (due(config_.validate_every)) line["validation_loss"] = trainer.validate();
    note(line);
    metrics_ << line.dump() << "\n" << std::flush;
    if (!metrics_) throw WorkError(path("metrics.jsonl") + ": writing failed");
    progress_.show("training", static_cast<uint64_t>(r.step), static_cast<uint64_t>(config_.steps),
                   "steps",
                   fmt::format("loss {:.4f}, {:.0f} tokens/s, {:.0f} % of the peak", r.loss, rate,
                               100 * fraction));
    if (due(config_.sample_every)) sample(trainer, r.step);
    if (config_.checkpoint_every && r.step % config_.checkpoint_every == 0) save(trainer);
  }

  void sample(Trainer& trainer, int64_t step) {
    std::ofstream samples(path("samples.jsonl"), std::ios::app);
    for (const std::string& prompt : config_.sample_prompts) {
      const std::vector<int32_t> ids = tokenizer_->encode(prompt);
      const auto more = trainer.continuation(ids, config_.sample_tokens,
                                             end_of_document(*tokenizer_, config_.tokenizer));
      const Json line = {{"step", step}, {"prompt", prompt}, {"text", tokenizer_->decode(more)}};
      samples << line.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
    }
  }

  void save(Trainer& trainer) {
    trainer.save(disk_, path("checkpoint.safetensors"));
    saved_ = trainer.steps_done();
    write_text(
        disk_, path("loss.svg"),
        step_plot("loss (nats a token)", {{"training", "#147", StepLine::kSmoothed, training_},
                                          {"validation", "#c41", StepLine::kDots, validation_}}));
    write_text(disk_, path("balance.svg"),
               step_plot("MaxVio of the experts' loads",
                         {{"the worst layer", "#c41", StepLine::kSmoothed, worst_violation_},
                          {"mean of the layers", "#147", StepLine::kSmoothed, mean_violation_}}));
  }

  void finish(const Trainer& trainer, const MemoryAccount& account) {
    progress_.clear();
    const double rate = median(rates_), peak = median(peaks_), fraction = median(fractions_);
    Json summary = {{"steps", trainer.steps_done()},
                    {"loss", training_.empty() ? Json() : Json(training_.back().value)},
                    {"tokens_per_second", rate},
                    {"peak_gflops", peak / 1e9},
                    {"peak_fraction", fraction},
                    {"peak_account_bytes", account.peak()},
                    {"peak_rss_bytes", peak_resident_bytes()}};
    if (!validation_.empty()) summary["validation_loss"] = validation_.back().value;
    if (o_.json) {
      std::cout << summary.dump() << "\n";
      return;
    }
    std::cout << fmt::format("{} steps, loss {:.4f}", trainer.steps_done(),
                             training_.empty() ? NAN : training_.back().value);
    if (!validation_.empty())
      std::cout << fmt::format(", validation {:.4f}", validation_.back().value);
    std::cout << fmt::format(
        "; {:.0f} tokens/s, {:.0f} % of the machine's {:.0f} GFLOP/s; {} at most\n", rate,
        100 * fraction, peak / 1e9, format_size(account.peak()));
    std::cout << fmt::format("next: k3 export --from {} --out SNAPSHOT\n", o_.out);
  }

  const TrainOptions& o_;
  DiskStorage disk_;
  TrainConfig config_;
  Progress progress_;
  ModelConfig model_;
  std::unique_ptr<Snapshot> snapshot_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::ofstream metrics_;
  std::vector<StepPoint> training_, validation_, mean_violation_, worst_violation_;
  std::vector<double> rates_, fractions_, peaks_;
  std::unique_ptr<ThreadPool> pool_;
  std::chrono::steady_clock::time_point measured_;
  double peak_ = 0;
  int64_t saved_ = 0;
};

}  // namespace

void add_train(CLI::App& app) {
  auto o = std::make_shared<TrainOptions>();
  CLI::App* sub = app.add_subcommand("train", "train a model, or fine-tune a snapshot");
  sub->add_option("--config", o->config, "what to train on what, as JSON")->required();
  sub->add_option("--out", o->out, "folder for checkpoints, metrics.jsonl and the loss curve")
      ->required();
  sub->add_option("--init", o->init, "snapshot whose weights to begin with");
  sub->add_flag("--resume", o->resume, "go on with the run in --out");
  sub->add_option("--ram", o->ram, "hard ceiling on memory (default: 9/10 of what is free)");
  sub->add_option("--threads", o->threads, "threads (default: all)")->check(whole(1, 1024));
  sub->add_flag("--json", o->json, "print one JSON object at the end");
  sub->add_flag("--quiet", o->quiet, "no progress");
  sub->callback([o] { TrainRun(*o).run(); });
}

}  // namespace k3::cli
