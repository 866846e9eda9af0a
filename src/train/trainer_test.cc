// Whole runs in small: resuming, threads, recomputation and export change no bit; what goes wrong
// is said before anything moves.
#include "train/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/random.h"
#include "engine/engine.h"
#include "train/export.h"

namespace k3 {
namespace {

const char* const kFolder = "model";

// Documents of ids that follow one another by a rule, so that there is something to learn.
void write_tokens(Storage& storage, int64_t documents, int64_t length) {
  TokenWriter writer(storage, "tokens", 500);
  SplitMix64 random(1);
  for (int64_t d = 0; d < documents; ++d) {
    std::vector<int32_t> ids = {static_cast<int32_t>(random.below(400))};
    while (static_cast<int64_t>(ids.size()) < length)
      ids.push_back((ids.back() * 3 + static_cast<int32_t>(random.below(2))) % 400);
    writer.add(ids);
  }
  writer.commit();
}

struct Bench {
  explicit Bench(const std::string& extra = "", int threads = 2, int64_t documents = 40,
                 int64_t length = 30)
      : model_json(
            read_text(DiskStorage(), std::string(K3_FIXTURES) + "/tiny-text/model/config.json")),
        model(parse_config(model_json, "config.json")),
        config(parse_train_config(config_text(extra), "run.json")),
        pool(threads) {
    write_tokens(storage, documents, length);
    data.emplace(TokenDataset::open(storage, {"tokens"}, model.vocab_size));
  }
  // `extra` holds members that are added to the rest or replace them.
  static std::string config_text(const std::string& extra) {
    auto text = nlohmann::json::parse(R"({"data": [{"file": "tokens", "as": "tokens"}], "steps": 8,
        "batch": 4, "micro_batch": 2, "length": 40, "held_out": 0.1})");
    text.update(nlohmann::json::parse("{" + extra + "}"));
    return text.dump();
  }
  std::unique_ptr<Trainer> trainer() {
    return std::make_unique<Trainer>(model, config, *data, account, pool, kernels(best_isa()));
  }

  MemoryStorage storage;
  std::string model_json;
  ModelConfig model;
  TrainConfig config;
  std::optional<TokenDataset> data;
  MemoryAccount account{uint64_t{2} << 30};
  ThreadPool pool;
};

std::vector<float> masters(Trainer& trainer) {
  std::vector<float> all;
  for (const Parameter& p : trainer.learner().parameters())
    all.insert(all.end(), p.master.data, p.master.data + p.elements());
  return all;
}

TEST(Trainer, LearnsAndReports) {
  Bench bench(R"("validation": {"every": 4}, "optimizer": {"kind": "muon"},
                  "schedule": {"peak": 0.01})");
  const auto trainer = bench.trainer();
  trainer->initialize();
  const double before = trainer->validate();
  EXPECT_NEAR(before, std::log(512.0), 0.1);  // nothing is known yet
  StepReport r;
  while (trainer->steps_done() < 8) r = trainer->step();
  EXPECT_LT(trainer->validate(), before - 0.02);
  EXPECT_EQ(r.step, 8);
  EXPECT_EQ(r.moe.size(), 8u);
  EXPECT_EQ(r.max_logit.size(), 3u);   // MLA layers
  EXPECT_EQ(r.block_norm.size(), 3u);  // nine layers in blocks of three
  EXPECT_GT(r.tokens, 100);
  EXPECT_NEAR(r.update_rms.at("kda"), 0.18, 0.08);  // Muon's is AdamW's by its scale
  EXPECT_EQ(trainer->validate(), trainer->validate());
}

TEST(Trainer, ResumingIsNotInterrupting) {
  for (const char* kind : {"muon", "adamw"}) {
    const std::string extra = std::string(R"("optimizer": {"kind": ")") + kind +
                              R"("}, "quantization": {"experts": "even"})";
    Bench bench(extra);
    const auto whole = bench.trainer();
    whole->initialize();
    for (int i = 0; i < 3; ++i) whole->step();
    whole->save(bench.storage, "checkpoint");
    std::vector<double> losses;
    while (whole->steps_done() < 8) losses.push_back(whole->step().loss);

    Bench other(extra);
    const auto resumed = other.trainer();
    resumed->restore(bench.storage, "checkpoint");
    EXPECT_EQ(resumed->steps_done(), 3);
    for (const double loss : losses) EXPECT_EQ(resumed->step().loss, loss);
    EXPECT_EQ(masters(*whole), masters(*resumed)) << kind;
    whole->save(bench.storage, "a");
    resumed->save(bench.storage, "b");
    EXPECT_EQ(bench.storage.get("a"), bench.storage.get("b"));
  }
}

TEST(Trainer, RefusesACheckpointOfAnotherRun) {
  Bench bench, longer(R"("seed": 2)"), other("", 2, 41);
  const auto trainer = bench.trainer();
  trainer->initialize();
  trainer->save(bench.storage, "checkpoint");
  EXPECT_THROW(longer.trainer()->restore(bench.storage, "checkpoint"), InputError);
  EXPECT_THROW(other.trainer()->restore(bench.storage, "checkpoint"), InputError);
  std::string bytes = bench.storage.get("checkpoint");
  bench.storage.put("cut", bytes.substr(0, bytes.size() - 5));
  EXPECT_THROW(bench.trainer()->restore(bench.storage, "cut"), InputError);
}

TEST(Trainer, ThreadsChangeNoBit) {
  std::vector<float> first;
  for (const int threads : {1, 3}) {
    Bench bench(R"("quantization": {"experts": "even"})", threads);
    const auto trainer = bench.trainer();
    trainer->initialize();
    for (int i = 0; i < 3; ++i) trainer->step();
    if (first.empty()) first = masters(*trainer);
    EXPECT_EQ(masters(*trainer), first);
  }
}

TEST(Trainer, RecomputationNeedsLessMemoryAndChangesNoBit) {
  std::vector<float> first;
  uint64_t peak[2];
  for (const bool recompute : {false, true}) {
    Bench bench(recompute ? R"("recompute": true, "length": 400, "batch": 8, "micro_batch": 8)"
                          : R"("length": 400, "batch": 8, "micro_batch": 8)");
    const auto trainer = bench.trainer();
    trainer->initialize();
    trainer->step();
    peak[recompute] = bench.account.peak();
    if (first.empty()) first = masters(*trainer);
    EXPECT_EQ(masters(*trainer), first);
  }
  EXPECT_LT(peak[1], peak[0] / 2);
}

TEST(Trainer, StopsBeforeTheStepAtWhatIsNotFinite) {
  Bench bench;
  const auto trainer = bench.trainer();
  trainer->initialize();
  trainer->step();
  Parameter& p = trainer->learner().parameter("model.layers.2.self_attn.o_proj.weight");
  p.master.data[5] = NAN;
  Scratch scratch(bench.account, 1 << 20);
  Context ctx{bench.pool, kernels(best_isa()), scratch};
  trainer->learner().refresh(ctx);
  std::vector<float> before = masters(*trainer);
  try {
    trainer->step();
    FAIL() << "a NaN went through";
  } catch (const WorkError& error) {
    // The next router sees it first.
    EXPECT_NE(std::string(error.what()).find("nan"), std::string::npos) << error.what();
  }
  const std::vector<float> after = masters(*trainer);
  EXPECT_EQ(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)), 0);
  EXPECT_EQ(trainer->steps_done(), 1);

  // The head is behind every router: there the gradient's tensor is named.
  p.master.data[5] = 0;
  trainer->learner().parameter("lm_head.weight").master.data[7] = INFINITY;
  trainer->learner().refresh(ctx);
  try {
    trainer->step();
    FAIL() << "an infinity went through";
  } catch (const WorkError& error) {
    EXPECT_NE(std::string(error.what()).find("gradient of '"), std::string::npos) << error.what();
  }
}

// What a step that failed half-way left on the tape does not reach the next one.
TEST(Trainer, GoesOnAfterAStepThatFailed) {
  Bench bench, other;
  const auto whole = bench.trainer(), hurt = other.trainer();
  whole->initialize();
  hurt->initialize();
  Scratch scratch(other.account, 1 << 20);
  Context ctx{other.pool, kernels(best_isa()), scratch};
  float& weight =
      hurt->learner().parameter("model.layers.6.self_attn.o_proj.weight").master.data[5];
  const float kept = weight;
  weight = NAN;
  hurt->learner().refresh(ctx);
  EXPECT_THROW(hurt->step(), WorkError);
  weight = kept;
  hurt->learner().refresh(ctx);
  EXPECT_EQ(whole->step().loss, hurt->step().loss);
  EXPECT_EQ(masters(*whole), masters(*hurt));
}

// Weights that do not move, the same batch twice: what the first step clips, the second one meets.
TEST(Trainer, QkClipBringsLogitsToTheThreshold) {
  Bench bench(R"("optimizer": {"qk_clip": 0.05}, "schedule": {"peak": 1e-30, "warmup": 0},
                  "batch": 1, "micro_batch": 1, "held_out": 0, "precision": "f32",
                  "quantile_balancing": false, "length": 29)",
              2, 1, 30);
  const auto trainer = bench.trainer();
  trainer->initialize();
  for (const char* name : {"q_b_proj", "kv_b_proj"})
    for (const int layer : {3, 7, 8}) {
      const Rows w = trainer->learner()
                         .parameter(fmt::format("model.layers.{}.self_attn.{}.weight", layer, name))
                         .master;
      for (int64_t i = 0; i < w.rows * w.cols; ++i) w.data[i] *= 30;
    }
  Scratch scratch(bench.account, 1 << 20);
  Context ctx{bench.pool, kernels(best_isa()), scratch};
  trainer->learner().refresh(ctx);
  const StepReport loud = trainer->step(), quiet = trainer->step();
  // Only the first of the three sees the same input after the clip; it changes what follows.
  EXPECT_GT(loud.max_logit[0].largest, 0.1f);
  EXPECT_LE(quiet.max_logit[0].largest, 0.05f * (1 + 1e-5f));
  EXPECT_GE(quiet.max_logit[0].largest, 0.05f * (1 - 1e-5f));
}

// The export holds the very weights that the trainer computes with, and the engine computes the
// very logits.
TEST(Trainer, ExportIsTheTrainedFunction) {
  const std::vector<int32_t> ids = {5, 16, 48, 145, 35, 106, 318, 155, 66, 199};
  for (const bool quantized : {true, false}) {
    Bench bench(quantized ? R"("quantization": {"experts": "even"})" : "");
    const auto trainer = bench.trainer();
    trainer->initialize();
    for (int i = 0; i < 3; ++i) trainer->step();
    TrainableModel& learner = trainer->learner();
    ExportOptions options{learner.options().experts, 200 << 10};
    write_snapshot(bench.storage, learner, bench.model_json, kFolder, options);

    const Snapshot snapshot = Snapshot::open(bench.storage, kFolder);
    EXPECT_GT(snapshot.shards(), 2u);
    EXPECT_EQ(snapshot.mxfp4_experts(), quantized);
    TrainableModel again(bench.model, bench.account, learner.options(), 64);
    again.load(snapshot);
    for (size_t i = 0; i < learner.parameters().size(); ++i) {
      const Parameter &a = learner.parameters()[i], &b = again.parameters()[i];
      for (int64_t k = 0; k < a.elements(); ++k)
        ASSERT_EQ(a.values.data[k], b.master.data[k]) << a.name;
    }

    Scratch scratch(bench.account, 64 << 20);
    Context ctx{bench.pool, kernels(best_isa()), scratch,
                quantized ? Activations::kMxfp8 : Activations::kFp32};
    SequenceState state(bench.model, bench.account);
    EngineOptions o;
    o.model_dir = kFolder;
    o.ram = uint64_t{1} << 30;
    o.activations = Activations::kMxfp8;
    o.exact = !quantized;
    Engine engine(bench.storage, o);
    SequenceState other = engine.new_sequence();
    for (const int32_t id : ids) {
      const std::vector<float> own = last_logits(ctx, learner.model(), state, {&id, 1});
      const Engine::Feed feed{&other, {&id, 1}, false};
      engine.run({&feed, 1}, [&](const Engine::Logits& l) {
        EXPECT_EQ(std::vector<float>(l.values.begin(), l.values.end()), own);
      });
    }
  }
}

// The documents' forward and the inference forward are different forms of one model.
TEST(Trainer, LossIsThatOfTheInferenceForward) {
  Bench bench(R"("validation": {"every": 1, "rows": 1}, "precision": "f32")");
  const auto trainer = bench.trainer();
  trainer->initialize();
  trainer->step();
  const double loss = trainer->validate();
  Packer held(*bench.data,
              {.length = 40, .seed = 1, .held_out = bench.config.held_out, .validation = true});
  const PackedRow row = held.next();
  Scratch scratch(bench.account, 64 << 20);
  Context ctx{bench.pool, kernels(best_isa()), scratch, Activations::kFp32};
  double sum = 0, count = 0;
  std::optional<SequenceState> state;
  for (size_t i = 0; i < row.ids.size(); ++i) {
    if (std::find(row.starts.begin(), row.starts.end(), static_cast<int64_t>(i)) !=
        row.starts.end())
      state.emplace(bench.model, bench.account);
    const auto logits = last_logits(ctx, trainer->learner().model(), *state, {&row.ids[i], 1});
    double total = 0;
    for (const float l : logits) total += std::exp(double{l});
    sum += std::log(total) - logits[static_cast<size_t>(row.targets[i])];
    ++count;
  }
  EXPECT_NEAR(loss, sum / count, 1e-5);
}

}  // namespace
}  // namespace k3
