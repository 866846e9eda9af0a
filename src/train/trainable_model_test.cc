// The whole model's gradients against the official code's, in float64 (fixtures' train.*), and that
// neither threads nor recomputation change a bit of them.
#include "train/trainable_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/storage.h"
#include "weights/safetensors.h"

namespace k3 {
namespace {

// A fixture model, its parameters in float32, and one forward and backward pass over its ids.
struct Fixture {
  explicit Fixture(const std::string& name, int threads = 2)
      : dir(std::string(K3_FIXTURES) + "/" + name),
        snapshot(Snapshot::open(disk, dir + "/model")),
        pool(threads),
        scratch(account, int64_t{1} << 30, Scratch::kGrowing),
        learner(snapshot.config(), account, {Dtype::kF32, std::nullopt}, 64),
        tape(account, scratch) {
    const auto json = nlohmann::json::parse(read_text(disk, dir + "/train.json"));
    ids = json["tokens"].get<std::vector<int32_t>>();
    loss = json["loss"];
    learner.load(snapshot);
    learner.refresh(ctx);
    learner.learn(tape);
  }
  // The documents' next-token loss, a mean, and its gradients.
  double run(bool recompute = false, std::vector<int64_t> borders = {}) {
    Batch batch;
    std::vector<int32_t> targets;
    borders.push_back(static_cast<int64_t>(ids.size()));
    int64_t begin = 0;
    for (const int64_t end : borders) {
      batch.add(
          std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
      for (int64_t i = begin; i < end; ++i)
        targets.push_back(i + 1 < end ? ids[static_cast<size_t>(i) + 1] : -1);
      begin = end;
    }
    const auto count = static_cast<float>(ids.size() - borders.size());
    learner.clear_gradients(ctx);
    const double sum =
        learner.model().gradients(ctx, tape, batch, targets, {1.0f / count, recompute});
    learner.finish_gradients();
    EXPECT_EQ(scratch.used(), 0);
    return sum / count;
  }
  std::vector<float> all_gradients() {
    std::vector<float> all;
    for (const Parameter& p : learner.parameters())
      all.insert(all.end(), p.gradient.data, p.gradient.data + p.elements());
    return all;
  }

  DiskStorage disk;
  std::string dir;
  Snapshot snapshot;
  MemoryAccount account{uint64_t{2} << 30};
  ThreadPool pool;
  Scratch scratch;
  Context ctx{pool, kernels(best_isa()), scratch, Activations::kFp32};
  TrainableModel learner;
  Tape tape;
  std::vector<int32_t> ids;
  double loss = 0;
};

// Bounds of the fixtures' README: of the largest entry of the same tensor.
void expect_golden_gradients(const std::string& name, float bound) {
  Fixture f(name);
  EXPECT_NEAR(f.run(), f.loss, 1e-4);
  const SafetensorsFile golden = SafetensorsFile::open(f.disk, f.dir + "/train.safetensors");
  size_t compared = 0;
  float worst = 0;
  for (const Parameter& p : f.learner.parameters()) {
    const std::string key = "grad." + f.snapshot.stored_name(p.name);
    if (!golden.has(key)) {
      for (int64_t i = 0; i < p.elements(); ++i)
        ASSERT_EQ(p.gradient.data[i], 0.0f) << p.name << " has a gradient that it should not have";
      continue;
    }
    const std::vector<float> want = golden.floats(key);
    ASSERT_GE(static_cast<int64_t>(want.size()), p.elements()) << p.name;
    float largest = 0, off = 0;
    for (const float w : want) largest = std::max(largest, std::abs(w));
    for (int64_t i = 0; i < p.elements(); ++i)
      off = std::max(off, std::abs(p.gradient.data[i] - want[static_cast<size_t>(i)]));
    EXPECT_LE(off, bound * largest) << p.name;
    worst = std::max(worst, off / largest);
    ++compared;
  }
  size_t gradients = 0;
  for (const auto& [key, info] : golden.tensors()) gradients += key.starts_with("grad.");
  EXPECT_EQ(compared, gradients);
  std::printf("%s: %zu gradients, worst %.1e of the largest entry\n", name.c_str(), compared,
              static_cast<double>(worst));
}

TEST(TrainableModel, GradientsAreTheOfficialOnes) {
  expect_golden_gradients("tiny-text", 4e-3f);
  expect_golden_gradients("tiny-linear", 1e-3f);
}

TEST(TrainableModel, RecomputationChangesNoBit) {
  for (const char* name : {"tiny-text", "tiny-linear"}) {
    Fixture f(name);
    const double loss = f.run(false, {17});
    const std::vector<float> kept = f.all_gradients();
    EXPECT_EQ(f.run(true, {17}), loss);
    EXPECT_EQ(f.all_gradients(), kept) << name;
  }
}

TEST(TrainableModel, ThreadsChangeNoBit) {
  Fixture one("tiny-text", 1), three("tiny-text", 3);
  EXPECT_EQ(one.run(false, {17}), three.run(false, {17}));
  EXPECT_EQ(one.all_gradients(), three.all_gradients());
}

}  // namespace
}  // namespace k3
