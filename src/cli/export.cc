// k3 export: a trained checkpoint as a snapshot, and what each arithmetic makes of it.

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/random.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "ops/cross_entropy.h"
#include "train/export.h"
#include "train/trainer.h"

namespace k3::cli {
namespace {

namespace fs = std::filesystem;

struct ExportCommand {
  std::string from, out, experts, rule = "even", shard = "4G";
  int64_t probe = 128;
  bool json = false, quiet = false;
};

// D(p || q) of two rows of logits.
double divergence(const std::vector<float>& a, const std::vector<float>& b) {
  const double la = log_sum_exp(a), lb = log_sum_exp(b);
  double kl = 0;
  for (size_t i = 0; i < a.size(); ++i) kl += std::exp(a[i] - la) * ((a[i] - la) - (b[i] - lb));
  return kl;
}

struct Gap {
  std::string arithmetic;
  bool equal = false;
  double kl = 0;  // mean over the probe's positions
};

// Logits after each of some ids drawn at random: the trainer's own, then the engine's on the
// export.
std::vector<Gap> compare(TrainableModel& learner, Context& ctx, MemoryAccount& account,
                         const std::string& folder, int64_t probe) {
  const ModelConfig& c = learner.config();
  SplitMix64 random(1);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < probe; ++i)
    ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(c.vocab_size))));
  std::vector<std::vector<float>> own;
  SequenceState state(c, account);
  for (const int32_t id : ids) own.push_back(last_logits(ctx, learner.model(), state, {&id, 1}));
  struct Arithmetic {
    const char* name;
    Activations activations;
    bool exact;
  };
  std::vector<Gap> gaps;
  for (const Arithmetic& a :
       {Arithmetic{"mxfp8", Activations::kMxfp8, false},
        Arithmetic{"exact", Activations::kFp32, true}, Arithmetic{"16", Activations::k16, false},
        Arithmetic{"int8", Activations::kInt8, false}}) {
    DiskStorage disk;
    EngineOptions o;
    o.model_dir = folder;
    o.ram = account.limit();
    o.activations = a.activations;
    o.exact = a.exact;
    o.prompt = probe;
    o.all_logits = true;
    Engine engine(disk, o);
    SequenceState other = engine.new_sequence();
    Gap gap{a.name, true, 0};
    const Engine::Feed feed{&other, ids, true};
    engine.run({&feed, 1}, [&](const Engine::Logits& l) {
      const auto& mine = own[static_cast<size_t>(l.position)];
      const std::vector<float> theirs(l.values.begin(), l.values.end());
      gap.equal = gap.equal && mine == theirs;
      gap.kl += divergence(mine, theirs) / static_cast<double>(probe);
    });
    gaps.push_back(gap);
  }
  return gaps;
}

void run(const ExportCommand& o) {
  DiskStorage disk;
  const SafetensorsFile checkpoint =
      SafetensorsFile::open(disk, o.from + "/checkpoint.safetensors");
  const CheckpointInfo info = checkpoint_info(checkpoint);
  const std::string config_json = read_text(disk, o.from + "/config.json", kMaxConfigBytes);
  const ModelConfig config = parse_config(config_json, o.from + "/config.json");
  ExportOptions options;
  options.shard_bytes = parse_size(o.shard, "--shard-size");
  const Mxfp4Rule rule = *mxfp4_rule(o.rule);
  if (o.experts != "bf16") options.experts = info.experts ? info.experts : rule;
  if (config.moe_layers() == 0) options.experts.reset();
  if (o.experts == "bf16" && info.experts)
    throw InputError("--experts", "form",
                     "mxfp4, since the experts were trained under MXFP4 and would lose it", "bf16");
  if (o.experts.empty() && options.experts && !info.experts && !o.quiet)
    std::cerr << "experts are packed as MXFP4 (rule " << name(rule)
              << "), which they were not trained under; --experts bf16 keeps them\n";

  std::error_code failed;
  if (fs::exists(o.out + "/config.json", failed))
    throw InputError("--out", "folder", "a new one", o.out);
  fs::create_directories(o.out, failed);
  if (failed) throw InputError("--out", "folder", "one that can be made", o.out);
  MemoryAccount account(available_memory() / 10 * 9);
  TrainableModel learner(config, account, {info.dtype, options.experts}, 64);
  load_masters(checkpoint, learner);
  write_snapshot(disk, learner, config_json, o.out, options);
  copy_tokenizer(disk, o.from, o.out);

  // Read back, and run: the trainer's forward and the engine's are one function.
  Snapshot::open(disk, o.out);
  ThreadPool pool(hardware_threads());
  Scratch scratch(account, static_cast<int64_t>(account.limit()), Scratch::kGrowing);
  Context ctx{pool, kernels(best_isa()), scratch,
              options.experts ? Activations::kMxfp8 : Activations::kFp32};
  learner.refresh(ctx);
  const std::vector<Gap> gaps = compare(learner, ctx, account, o.out, o.probe);
  const std::string own = options.experts ? "mxfp8" : "exact";
  for (const Gap& g : gaps)
    if (g.arithmetic == own && !g.equal)
      throw WorkError(
          fmt::format("{}: the engine's logits under {} differ from the trainer's (mean KL {:.2e})",
                      o.out, own, g.kl));
  if (o.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Gap& g : gaps)
      list.push_back({{"arithmetic", g.arithmetic}, {"equal", g.equal}, {"kl", g.kl}});
    std::cout << nlohmann::ordered_json{{"out", o.out},
                                        {"step", info.step},
                                        {"experts",
                                         options.experts ? name(*options.experts) : "plain"},
                                        {"arithmetics", list}}
                     .dump()
              << "\n";
    return;
  }
  std::cout << fmt::format(
      "{}: step {}, experts {}\n", o.out, info.step,
      options.experts ? fmt::format("MXFP4 ({})", name(*options.experts)) : std::string("plain"));
  for (const Gap& g : gaps)
    std::cout << fmt::format("  {:6} {}\n", g.arithmetic,
                             g.equal ? std::string("the trainer's logits, bit for bit")
                                     : fmt::format("mean KL {:.2e} to the trainer", g.kl));
}

}  // namespace

void add_export(CLI::App& app) {
  auto o = std::make_shared<ExportCommand>();
  CLI::App* sub = app.add_subcommand("export", "a trained checkpoint as a snapshot");
  sub->add_option("--from", o->from, "folder of k3 train")->required();
  sub->add_option("--out", o->out, "folder for the snapshot")->required();
  sub->add_option("--experts", o->experts, "mxfp4 (default) or bf16")
      ->check(CLI::IsMember({"mxfp4", "bf16"}));
  sub->add_option("--rule", o->rule, "scale rule of MXFP4, where training did not fix it")
      ->check(CLI::IsMember({"even", "floor", "rceil"}))
      ->capture_default_str();
  sub->add_option("--shard-size", o->shard, "most bytes of a shard")->capture_default_str();
  sub->add_option("--probe", o->probe, "random tokens to compare the arithmetics on")
      ->check(whole(1, 1 << 16))
      ->capture_default_str();
  sub->add_flag("--json", o->json, "print one JSON object");
  sub->add_flag("--quiet", o->quiet, "no notes");
  sub->callback([o] { run(*o); });
}

}  // namespace k3::cli
