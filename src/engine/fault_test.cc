// Disks that fail, files that lie: one line that names the place, and the engine lives on.

#include <gtest/gtest.h>

#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "engine/engine.h"

namespace k3 {
namespace {

const std::string kModel = std::string(K3_FIXTURES) + "/tiny-text/model";

// The fixture model in memory, so that a test may change bytes.
const std::vector<std::string> kFiles = {
    "config.json", "model.safetensors.index.json", "model-00001-of-000003.safetensors",
    "model-00002-of-000003.safetensors", "model-00003-of-000003.safetensors"};
void copy_model(MemoryStorage& storage) {
  for (const std::string& file : kFiles) {
    std::ifstream in(kModel + "/" + file, std::ios::binary);
    std::ostringstream all;
    all << in.rdbuf();
    storage.put("model/" + file, all.str());
  }
}
EngineOptions options() {
  EngineOptions o;
  o.model_dir = "model";
  o.ram = uint64_t{1} << 30;
  o.threads = 2;
  return o;
}

std::vector<float> last_logits(Engine& engine) {
  const std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> out;
  SequenceState state = engine.new_sequence();
  const Engine::Feed feed{&state, ids, false};
  engine.run({&feed, 1},
             [&](const Engine::Logits& l) { out.assign(l.values.begin(), l.values.end()); });
  return out;
}

std::string failure(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Faults, AReadErrorIsRetried) {
  MemoryStorage storage;
  copy_model(storage);
  Engine sound(storage, options());
  const std::vector<float> want = last_logits(sound);
  std::atomic<int> failures{0};
  std::mutex mutex;
  std::set<std::pair<std::string, uint64_t>> failed;
  FaultyStorage faulty(storage, [&](const FaultyStorage::Read& read) {
    // Every fifth read after the headers fails, but no place twice: a retry could be a fifth again.
    if (read.index <= 200 || read.index % 5 != 0) return;
    std::lock_guard lock(mutex);
    if (!failed.emplace(read.path, read.offset).second) return;
    ++failures;
    throw WorkError("injected read error");
  });
  Engine engine(faulty, options());
  EXPECT_EQ(last_logits(engine), want);
  EXPECT_GT(failures.load(), 3);
  EXPECT_EQ(engine.statistics().retries, static_cast<uint64_t>(failures.load()));
}

TEST(Faults, ADeadExpertFailsTheRequestAndNotTheEngine) {
  MemoryStorage storage;
  copy_model(storage);
  Engine sound(storage, options());
  const std::vector<float> want = last_logits(sound);
  std::atomic<bool> dead{false};
  FaultyStorage faulty(storage, [&](const FaultyStorage::Read& read) {
    if (dead) throw WorkError(read.path + ": read failed: injected");
  });
  Engine engine(faulty, options());
  dead = true;
  EXPECT_NE(failure([&] { last_logits(engine); }).find("injected"), std::string::npos);
  dead = false;
  EXPECT_EQ(last_logits(engine), want);
}

// Overwrites one byte of a tensor's data in the shard that holds it.
void poke(MemoryStorage& storage, const std::string& name, size_t at,
          std::initializer_list<int> bytes) {
  const Snapshot snapshot = Snapshot::open(storage, "model");
  const ModelConfig& c = snapshot.config();
  TensorRef ref;
  if (snapshot.has(name)) {
    ref = snapshot.tensor(name);
  } else {
    for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer)
      if (name == "w2 scale of layer " + std::to_string(layer))
        ref = snapshot.expert(layer, 3).w2.scale;
  }
  const std::string path = snapshot.shard(ref.shard).path();
  std::string content = storage.get(path);
  for (const int byte : bytes) content[ref.offset + at++] = static_cast<char>(byte);
  storage.put(path, content);
}

TEST(Faults, NanWeightsAreNamedWhenFirstRead) {
  MemoryStorage storage;
  copy_model(storage);
  poke(storage, "model.layers.2.self_attn.k_proj.weight", 2 * 70, {0xc0, 0x7f});
  const std::string line = failure([&] { Engine engine(storage, options()); });
  EXPECT_NE(line.find("layers.2.self_attn.k_proj.weight"), line.npos) << line;
  EXPECT_NE(line.find("[1, 6]"), line.npos) << line;
  EXPECT_EQ(line.find('\n'), line.npos);
}

TEST(Faults, InfiniteNormsAreNamed) {
  MemoryStorage storage;
  copy_model(storage);
  poke(storage, "model.layers.1.input_layernorm.weight", 0, {0x80, 0x7f});
  const std::string line = failure([&] { Engine engine(storage, options()); });
  EXPECT_NE(line.find("layers.1.input_layernorm.weight"), line.npos) << line;
}

TEST(Faults, AScaleByteOf255IsNamedWhenFirstRead) {
  MemoryStorage storage;
  copy_model(storage);
  poke(storage, "w2 scale of layer 4", 5, {255});
  Engine engine(storage, options());
  std::string line;
  // Some prompt reaches expert 3 of layer 4.
  for (int32_t id = 0; id < 64 && line.empty(); ++id)
    line = failure([&] {
      SequenceState state = engine.new_sequence();
      const Engine::Feed feed{&state, {&id, 1}, false};
      engine.run({&feed, 1}, [](const Engine::Logits&) {});
    });
  EXPECT_NE(line.find("layers.4.block_sparse_moe.experts.3.w2.weight_scale"), line.npos) << line;
  EXPECT_NE(line.find("byte 5"), line.npos) << line;
}

TEST(Faults, IdsOutsideTheVocabulary) {
  MemoryStorage storage;
  copy_model(storage);
  Engine engine(storage, options());
  for (const int32_t id : {-1, 512, 1 << 30}) {
    SequenceState state = engine.new_sequence();
    const Engine::Feed feed{&state, {&id, 1}, false};
    EXPECT_THROW(engine.run({&feed, 1}, [](const Engine::Logits&) {}), InputError);
  }
}

TEST(Faults, BelowTheFloorNamesIt) {
  MemoryStorage storage;
  copy_model(storage);
  EngineOptions o = options();
  o.ram = 1 << 20;
  const std::string line = failure([&] { Engine engine(storage, o); });
  EXPECT_NE(line.find("below the floor"), line.npos) << line;
}

}  // namespace
}  // namespace k3
