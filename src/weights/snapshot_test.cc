#include "weights/snapshot.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <random>

#include "weights/snapshot_test_support.h"

namespace k3 {
namespace {

const std::string kPrefix = "language_model.";
const std::string kLayer3 = kPrefix + "model.layers.3.";
const std::string kExpert = kPrefix + "model.layers.2.block_sparse_moe.experts.5.w2.";

void expect_contains(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks " << part;
}

TEST(Snapshot, FixturesOpenAndEveryTensorIsAccountedFor) {
  const DiskStorage disk;
  const std::tuple<const char*, uint64_t, bool, bool> models[] = {
      {"tiny-text", 1002, true, false},
      {"tiny-odd", 888, true, false},
      {"tiny-linear", 353, false, false},
      {"tiny-vl", 344, true, true}};
  for (const auto& [model, tensors, packed, vision] : models) {
    const std::string dir = fixture(std::string(model) + "/model");
    const Snapshot s = Snapshot::open(disk, dir + "/");
    EXPECT_EQ(s.dir(), dir);
    EXPECT_EQ(s.tensors(), tensors) << model;
    EXPECT_EQ(s.mxfp4_experts(), packed) << model;
    EXPECT_EQ(s.has_vision(), vision) << model;
    const SnapshotSummary sum = summarize(s);
    const auto index = nlohmann::json::parse(read_disk(dir + "/model.safetensors.index.json"));
    EXPECT_EQ(index["weight_map"].size(), tensors);
    EXPECT_EQ(sum.total_bytes, index["metadata"]["total_size"].get<uint64_t>()) << model;
    EXPECT_TRUE(s.verify_data().empty());
  }
}

TEST(Snapshot, PlacesHoldTheValues) {
  EditableModel m("tiny-text");
  MemoryStorage storage;
  const Snapshot s = m.open(storage);
  const auto expect_bytes = [&](const TensorRef& ref, const std::string& name) {
    std::string data(ref.bytes, '\0');
    s.shard(ref.shard).read(ref.offset, std::as_writable_bytes(std::span(data)));
    EXPECT_EQ(data, m.tensor(name).data) << name;
    EXPECT_EQ(s.shard_name(ref.shard), m.shard_of(name));
  };
  expect_bytes(s.tensor("model.layers.3.self_attn.q_b_proj.weight"),
               kLayer3 + "self_attn.q_b_proj.weight");
  expect_bytes(s.tensor(kPrefix + "lm_head.weight"), kPrefix + "lm_head.weight");
  const ExpertRef e = s.expert(2, 5);
  EXPECT_EQ(e.w2.rows, 32);
  EXPECT_EQ(e.w2.cols, 32);
  EXPECT_EQ(e.w2.data.shape, (Shape{32, 16}));
  expect_bytes(e.w2.data, kExpert + "weight_packed");
  expect_bytes(e.w2.scale, kExpert + "weight_scale");
  expect_bytes(e.w1.data, kPrefix + "model.layers.2.block_sparse_moe.experts.5.w1.weight_packed");
  expect_bytes(e.w3.scale, kPrefix + "model.layers.2.block_sparse_moe.experts.5.w3.weight_scale");
  EXPECT_EQ(s.floats("model.norm.weight").size(), 64u);
  EXPECT_EQ(s.stored_name("model.norm.weight"), kPrefix + "model.norm.weight");
  EXPECT_TRUE(s.has("model.norm.weight"));
  EXPECT_FALSE(s.has("model.norm.bias"));
  EXPECT_EQ(error_of([&] { s.tensor("model.norm.bias"); }),
            "m: tensor 'language_model.model.norm.bias': expected it in the snapshot, found none");
  EXPECT_THROW(s.expert(0, 0), InputError);  // a dense layer
  EXPECT_THROW(s.expert(2, 16), InputError);
  EXPECT_THROW(s.expert(9, 0), InputError);
  EXPECT_THROW(s.expert(-1, 0), InputError);
}

TEST(Snapshot, PlainExpertsOfKimiLinear) {
  EditableModel m("tiny-linear");
  MemoryStorage storage;
  const Snapshot s = m.open(storage);
  const ExpertRef e = s.expert(1, 3);
  EXPECT_EQ(e.w1.rows, 48);
  EXPECT_EQ(e.w1.cols, 64);
  EXPECT_EQ(e.w1.data.dtype, Dtype::kBf16);
  EXPECT_EQ(e.w1.scale.bytes, 0u);
  EXPECT_EQ(s.stored_name("lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(s.tensor("model.layers.0.self_attn.A_log").shape, (Shape{1, 1, 4, 1}));
}

TEST(Snapshot, SummaryCountsRealParameters) {
  const DiskStorage disk;
  const Snapshot s = Snapshot::open(disk, fixture("tiny-text/model"));
  const SnapshotSummary sum = summarize(s);
  // By hand from the fixture's config: H 64, heads 4 x 16, dense 96, latent 32, expert width 32.
  const int64_t h = 64, p = 64;
  const int64_t kda = 5 * p * h + 3 * p * 4 + 16 * h + p * 16 + 4 * h + 4 + p + 16;
  const int64_t mla = 32 * h + 32 + 4 * 24 * 32 + 40 * h + 32 + 4 * 32 * 32 + 2 * h * 64;
  const int64_t moe = 16 * h + 16 + 2 * 32 * h + 32 + 3 * h * 64;
  const int64_t rest = 9 * 6 * h + 3 * h + 6 * kda + 3 * mla + 8 * moe + 3 * h * 96;
  EXPECT_EQ(sum.parameters, 2 * 512 * h + rest + 8 * 16 * 3 * 32 * 32);
  EXPECT_EQ(sum.active_parameters, 512 * h + h + rest + 8 * 4 * 3 * 32 * 32);
  EXPECT_EQ(sum.kda_layers, 6);
  EXPECT_EQ(sum.mla_layers, 3);
  EXPECT_EQ(sum.moe_layers, 8);
  EXPECT_EQ(sum.dense_layers, 1);
  EXPECT_EQ(sum.bytes[static_cast<size_t>(Part::kExperts)], 8u * 16 * 3 * (32 * 16 + 32));
  EXPECT_EQ(sum.bytes[static_cast<size_t>(Part::kVision)], 0u);
  EXPECT_TRUE(sum.io_mode == "direct" || sum.io_mode == "buffered");
}

TEST(Snapshot, MissingTensorIsNamedWithItsFile) {
  for (const char* name :
       {"model.norm.weight", "model.layers.1.self_attn.A_log", "lm_head.weight",
        "model.layers.3.self_attn.g_proj.weight", "model.layers.0.mlp.up_proj.weight",
        "model.layers.2.block_sparse_moe.routed_expert_norm.weight",
        "model.layers.2.block_sparse_moe.experts.15.w3.weight_scale"}) {
    EditableModel m("tiny-text");
    m.remove(kPrefix + name);
    EXPECT_EQ(m.open_error(),
              fmt::format("m/model.safetensors.index.json: tensor 'language_model.{}': "
                          "expected an entry, found none",
                          name));
  }
}

// As L12: every tensor of one layer of each kind dropped in turn; always the same kind of line.
TEST(Snapshot, AnyMissingTensorOfALayer) {
  const EditableModel m("tiny-text");
  MemoryStorage storage;
  m.put(storage);
  int dropped = 0;
  for (const auto& [name, shard] : m.index["weight_map"].items()) {
    if (name.find("experts.1") != std::string::npos || name.find(".layers.4") != std::string::npos)
      continue;
    if (name.find("experts.") != std::string::npos && name.find("experts.0.") == std::string::npos)
      continue;
    auto index = m.index;
    index["weight_map"].erase(name);
    storage.put("m/model.safetensors.index.json", index.dump());
    EXPECT_EQ(
        error_of([&] { Snapshot::open(storage, "m"); }),
        fmt::format("m/model.safetensors.index.json: tensor '{}': expected an entry, found none",
                    name));
    ++dropped;
  }
  EXPECT_GT(dropped, 150);
}

TEST(Snapshot, TensorGoneFromItsShard) {
  EditableModel m("tiny-text");
  const std::string shard = m.shard_of(kExpert + "weight_packed");
  m.shards[shard].erase(kExpert + "weight_packed");
  expect_contains(m.open_error(),
                  {"m/" + shard, kExpert + "weight_packed", "as the index says, found none"});
}

TEST(Snapshot, TensorInAnotherShardThanTheIndexSays) {
  EditableModel m("tiny-text");
  const std::string name = kLayer3 + "input_layernorm.weight", home = m.shard_of(name);
  std::string other;
  for (const auto& [file, unused] : m.shards)
    if (file != home) other = file;
  m.index["weight_map"][name] = other;
  const auto problems = m.problems();
  ASSERT_EQ(problems.size(), 2u);  // absent there, unannounced here
  expect_contains(problems[0] + problems[1],
                  {"m/" + home, "m/" + other, name, "it in " + other + ", as the index says"});
}

TEST(Snapshot, ExtraTensorsAreRefused) {
  for (const std::string& name :
       {kPrefix + "model.layers.9.input_layernorm.weight",
        kLayer3 + "self_attn.rotary_emb.inv_freq",
        kPrefix + "model.layers.0.block_sparse_moe.experts.0.w1.weight_packed",
        kPrefix + "model.layers.2.block_sparse_moe.experts.16.w1.weight_packed",
        std::string("model.norm.weight"), std::string("mm_projector.proj.9.weight"),
        std::string("x\ny")}) {
    EditableModel m("tiny-text");
    m.add(name, m.shards.begin()->first, {"BF16", {1}, "ab"});
    expect_contains(m.open_error(), {"tensor '" + printable(name) + "'",
                                     "the config calls for, found one it does not"});
  }
  EditableModel m("tiny-text");  // in a shard, and not in the index
  m.add("extra", m.shards.begin()->first, {"U8", {1}, "a"});
  m.index["weight_map"].erase("extra");
  expect_contains(m.open_error(), {"m/" + m.shards.begin()->first, "'extra'", "the index names"});
  EditableModel mixed("tiny-text");  // a plain matrix among packed ones
  mixed.add(kExpert + "weight", mixed.shards.begin()->first,
            {"BF16", {32, 32}, std::string(2048, 'a')});
  expect_contains(mixed.open_error(), {kExpert + "weight'", "packed experts only"});
}

TEST(Snapshot, WrongShapesAndTypes) {
  EditableModel m("tiny-text");
  const std::string gate = kPrefix + "model.layers.2.block_sparse_moe.gate.weight";
  std::swap(m.tensor(gate).shape[0], m.tensor(gate).shape[1]);
  EXPECT_EQ(m.open_error(),
            fmt::format("m/{}: tensor '{}': expected shape [16, 64], found shape [64, 16]",
                        m.shard_of(gate), gate));
  m = EditableModel("tiny-text");
  std::swap(m.tensor(kExpert + "weight_packed").shape[0],
            m.tensor(kExpert + "weight_packed").shape[1]);
  expect_contains(m.open_error(),
                  {kExpert + "weight_packed", "shape [32, 16], found shape [16, 32]"});
  m = EditableModel("tiny-text");
  m.tensor(gate).dtype = "F16";
  expect_contains(m.open_error(), {gate, "dtype BF16 or F32, found F16"});
  m = EditableModel("tiny-text");
  auto& packed = m.tensor(kExpert + "weight_packed");
  packed = {"BF16", {32, 8}, packed.data};
  expect_contains(m.open_error(), {kExpert + "weight_packed", "dtype U8, found BF16"});
  m = EditableModel("tiny-text");
  auto& norm = m.tensor(kPrefix + "model.norm.weight");
  norm.shape = {1, 64};
  expect_contains(m.open_error(), {"model.norm.weight", "shape [64], found shape [1, 64]"});
  m = EditableModel("tiny-text");
  auto& a_log = m.tensor(kPrefix + "model.layers.0.self_attn.A_log");
  a_log = {"F32", {3}, a_log.data.substr(0, 12)};
  expect_contains(m.open_error(), {"A_log", "at least 4 elements, found shape [3]"});
}

TEST(Snapshot, OtherDtypesThatAreFine) {
  EditableModel m("tiny-text");
  auto& a_log = m.tensor(kPrefix + "model.layers.0.self_attn.A_log");
  a_log = {"F32", {1, 1, 4, 1}, a_log.data.substr(0, 16)};
  auto& norm = m.tensor(kPrefix + "model.norm.weight");
  norm = {"F32", {64}, std::string(256, '\0')};
  auto& bias = m.tensor(kPrefix + "model.layers.2.block_sparse_moe.gate.e_score_correction_bias");
  bias = {"BF16", {16}, std::string(32, '\0')};
  EXPECT_EQ(m.open_error(), "");
}

TEST(Snapshot, SmallFilesMissingInTurn) {
  const EditableModel m("tiny-text");
  for (const char* file :
       {"config.json", "model.safetensors.index.json", "model-00002-of-000003.safetensors"}) {
    TemporaryFolder folder;
    for (const auto& entry : std::filesystem::directory_iterator(fixture("tiny-text/model")))
      if (entry.path().filename() != file)
        std::filesystem::copy(entry.path(), folder / entry.path().filename().string());
    const DiskStorage disk;
    expect_contains(error_of([&] { Snapshot::open(disk, folder.path()); }),
                    {folder / file, "cannot open"});
  }
}

TEST(Snapshot, ShardCutByOneByte) {
  const EditableModel m("tiny-text");
  MemoryStorage storage;
  m.put(storage);
  for (const auto& [file, tensors] : m.shards) {
    const std::string bytes = EditableModel::shard_bytes(tensors);
    storage.put("m/" + file, bytes.substr(0, bytes.size() - 1));
    EXPECT_EQ(error_of([&] { Snapshot::open(storage, "m"); }),
              fmt::format("m/{}: size: expected {} bytes by the header, found {} bytes", file,
                          bytes.size(), bytes.size() - 1));
    std::vector<std::string> problems;
    const Snapshot broken = Snapshot::open(storage, "m", &problems);
    EXPECT_EQ(problems.size(), 1u);  // not one for each tensor of the shard
    EXPECT_TRUE(broken.verify_data().empty());
    EXPECT_LT(summarize(broken).tensors, 1002u);
    storage.put("m/" + file, bytes);
  }
}

TEST(Snapshot, ProblemsAreCollectedAndBounded) {
  EditableModel m("tiny-text");
  m.remove(kPrefix + "model.norm.weight");
  m.add("extra", m.shards.begin()->first, {"U8", {1}, "a"});
  m.tensor(kLayer3 + "input_layernorm.weight").shape = {8, 8};
  const auto problems = m.problems();
  ASSERT_EQ(problems.size(), 4u);  // the extra one twice: in the index and in its shard
  expect_contains(problems[0], {"model.norm.weight", "found none"});
  EditableModel none("tiny-text");
  none.index["weight_map"] = nlohmann::json::object();
  const auto many = none.problems();
  EXPECT_EQ(many.size(), Snapshot::kMaxProblems + 1);
  EXPECT_EQ(many.back(), fmt::format("m: and {} more problems", 1002 - Snapshot::kMaxProblems));
  EXPECT_TRUE(EditableModel("tiny-vl").problems().empty());
}

TEST(Snapshot, VisionIsAllOrNothing) {
  EditableModel m("tiny-vl");
  m.remove("vision_tower.encoder.blocks.1.wo.weight");
  expect_contains(m.open_error(), {"vision_tower.encoder.blocks.1.wo.weight", "expected an entry"});
  m = EditableModel("tiny-vl");
  m.config.erase("vision_config");
  expect_contains(m.open_error(), {"mm_projector.post_norm.weight", "found one it does not"});
  m = EditableModel("tiny-vl");
  const auto names = m.index["weight_map"];
  for (const auto& [name, unused] : names.items())
    if (is_vision_name(name)) m.remove(name);
  MemoryStorage storage;
  EXPECT_FALSE(m.open(storage).has_vision());
}

TEST(Snapshot, TiedEmbeddings) {
  EditableModel m("tiny-text");
  m.config["tie_word_embeddings"] = true;
  expect_contains(m.open_error(), {"lm_head.weight", "found one it does not"});
  m.remove(kPrefix + "lm_head.weight");
  MemoryStorage storage;
  const Snapshot s = m.open(storage);
  EXPECT_EQ(s.tensor("lm_head.weight").offset, s.tensor("model.embed_tokens.weight").offset);
  EXPECT_TRUE(s.has("lm_head.weight"));
}

// K3 without `language_model.` and without nesting, in one file without an index.
TEST(Snapshot, FlatUnprefixedSingleFile) {
  const EditableModel m("tiny-odd");
  MemoryStorage storage;
  nlohmann::json flat = m.config["text_config"];
  flat["model_type"] = "kimi_k3";
  storage.put("m/config.json", flat.dump());
  std::map<std::string, EditableModel::Tensor> all;
  for (const auto& [file, tensors] : m.shards)
    for (const auto& [name, tensor] : tensors) all[name.substr(kPrefix.size())] = tensor;
  storage.put("m/model.safetensors", EditableModel::shard_bytes(all));
  const Snapshot s = Snapshot::open(storage, "m");
  EXPECT_EQ(s.tensors(), 888u);
  EXPECT_EQ(s.stored_name("lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(s.shards(), 1u);
}

TEST(Snapshot, ManyExpertsManyChosen) {
  EditableModel m("tiny-text");
  auto& text = m.config["text_config"];
  text["num_experts"] = 1024;
  text["num_experts_per_token"] = 24;
  // One MoE layer says as much as eight, and half a million small tensors are slow to make.
  text["num_hidden_layers"] = 2;
  text["linear_attn_config"]["kda_layers"] = {1, 2};
  text["linear_attn_config"]["full_attn_layers"] = nlohmann::json::array();
  const auto names = m.index["weight_map"];
  for (const auto& [name, unused] : names.items())
    if (name.starts_with(kPrefix + "model.layers.") && name[kPrefix.size() + 13] > '1')
      m.remove(name);
  const std::string moe = kPrefix + "model.layers.1.block_sparse_moe.";
  m.tensor(moe + "gate.weight") = {"BF16", {1024, 64}, std::string(1024 * 128, '\0')};
  m.tensor(moe + "gate.e_score_correction_bias") = {"F32", {1024}, std::string(4096, '\0')};
  const std::string shard = m.shard_of(moe + "gate.weight");
  for (int e = 16; e < 1024; ++e)
    for (const char* w : {"w1", "w2", "w3"}) {
      const std::string stem = fmt::format("{}experts.{}.{}.", moe, e, w);
      m.add(stem + "weight_packed", shard, {"U8", {32, 16}, std::string(512, 'a')});
      m.add(stem + "weight_scale", shard, {"U8", {32, 1}, std::string(32, 'a')});
    }
  MemoryStorage storage;
  const Snapshot s = m.open(storage);
  EXPECT_EQ(s.tensors(), m.index["weight_map"].size());
  EXPECT_EQ(s.expert(1, 1023).w3.scale.bytes, 32u);
  EXPECT_THROW(s.expert(1, 1024), InputError);
}

TEST(Snapshot, DataIsVerifiedByteByByte) {
  EditableModel m("tiny-text");
  m.tensor(kExpert + "weight_scale").data[7] = '\xff';
  const std::string q = kLayer3 + "self_attn.q_b_proj.weight",
                    bias = kPrefix + "model.layers.1.self_attn.dt_bias";
  m.tensor(q).data[2 * 9] = '\x80', m.tensor(q).data[2 * 9 + 1] = '\x7f';    // +infinity
  m.tensor(q).data[2 * 11] = '\xc1', m.tensor(q).data[2 * 11 + 1] = '\xff';  // NaN
  std::memcpy(m.tensor(bias).data.data() + 4 * 5, "\x01\x00\x80\xff", 4);    // NaN
  std::memcpy(m.tensor(kPrefix + "model.layers.1.self_attn.A_log").data.data() + 4 * 6,
              "\x00\x00\x80\x3f", 4);
  MemoryStorage storage;
  const Snapshot s = m.open(storage);
  uint64_t last = 0, total = 0;
  std::vector<std::string> found = s.verify_data([&](uint64_t done, uint64_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  });
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, summarize(s).total_bytes);
  ASSERT_EQ(found.size(), 4u);
  std::string text;
  for (const std::string& line : found) text += line + "\n";
  expect_contains(
      text,
      {kExpert + "weight_scale': expected scale bytes below 255, found 255 (NaN) at element 7",
       q + "': expected finite numbers, found infinity at element 9", "2 in all",
       bias + "': expected finite numbers, found NaN at element 5",
       "A_log': expected zeros after the heads, found a number in the padding at element 6"});
  m.tensor(kExpert + "weight_packed").data[3] = '\xff';  // no code is wrong
  MemoryStorage again;
  EXPECT_EQ(m.open(again).verify_data({}, 1).size(), 4u);
}

// An infinity alone, and a bad scale in every matrix of an expert: each named as itself.
TEST(Snapshot, DataProblemsNameTheirTensor) {
  EditableModel m("tiny-text");
  const std::string norm = kPrefix + "model.norm.weight";
  std::memcpy(m.tensor(norm).data.data() + 2 * 63, "\x80\xff", 2);  // -infinity, the last element
  for (const char* w : {"w1", "w2", "w3"})
    m.tensor(fmt::format("{}model.layers.5.block_sparse_moe.experts.6.{}.weight_scale", kPrefix, w))
        .data[0] = '\xff';
  MemoryStorage storage;
  const auto found = m.open(storage).verify_data({}, 1);
  ASSERT_EQ(found.size(), 4u);
  std::string text;
  for (const std::string& line : found) text += line + "\n";
  expect_contains(text, {norm + "': expected finite numbers, found infinity at element 63",
                         "layers.5.block_sparse_moe.experts.6.w1.weight_scale'",
                         "layers.5.block_sparse_moe.experts.6.w2.weight_scale'",
                         "layers.5.block_sparse_moe.experts.6.w3.weight_scale'"});
}

TEST(Snapshot, FaultsWhileOpeningAndVerifying) {
  const EditableModel m("tiny-vl");
  MemoryStorage memory;
  m.put(memory);
  uint64_t reads = 0;
  const FaultyStorage counting(
      memory, [&](const FaultyStorage::Read& read) { reads = std::max(reads, read.index); });
  Snapshot::open(counting, "m");
  for (uint64_t failing = 0; failing <= reads; ++failing) {
    const FaultyStorage faulty(memory, [&](const FaultyStorage::Read& read) {
      if (read.index == failing) throw WorkError(read.path + ": read failed: EIO");
    });
    EXPECT_THROW(Snapshot::open(faulty, "m"), WorkError) << failing;
  }
  std::atomic<bool> broken{false};
  const FaultyStorage later(memory, [&](const FaultyStorage::Read& read) {
    if (broken) throw WorkError(read.path + ": read failed: EIO");
  });
  const Snapshot s = Snapshot::open(later, "m");
  EXPECT_TRUE(s.verify_data().empty());
  broken = true;
  EXPECT_THROW(s.verify_data(), WorkError);
}

TEST(Snapshot, HostileIndexes) {
  const EditableModel m("tiny-text");
  MemoryStorage storage;
  m.put(storage);
  for (const char* file : {"../x.safetensors", "/etc/passwd", "", "..", "a/b"}) {
    auto index = m.index;
    index["weight_map"][kPrefix + "model.norm.weight"] = file;
    storage.put("m/model.safetensors.index.json", index.dump());
    expect_contains(error_of([&] { Snapshot::open(storage, "m"); }),
                    {"weight_map: expected file names"});
  }
  std::string twice = m.index.dump();
  twice.insert(twice.rfind("}}"),
               ",\"" + kPrefix + "model.norm.weight\":\"model-00001-of-000003.safetensors\"");
  storage.put("m/model.safetensors.index.json", twice);
  expect_contains(error_of([&] { Snapshot::open(storage, "m"); }),
                  {"model.norm.weight", "one entry, found two"});
}

TEST(Snapshot, DamagedIndexAndHeadersNeverCrash) {
  const EditableModel m("tiny-vl");
  std::mt19937 rng(5);
  const std::string index = m.index.dump();
  const auto& [shard, tensors] = *m.shards.begin();
  const std::string bytes = EditableModel::shard_bytes(tensors);
  MemoryStorage storage;
  m.put(storage);
  for (int i = 0; i < 200; ++i) {
    std::string damaged = i % 2 ? index : bytes;
    const size_t reach = i % 2 ? damaged.size() : 12000;  // the header
    for (unsigned k = 0; k <= rng() % 3; ++k) {
      const size_t at = rng() % reach;
      rng() % 2 ? damaged.replace(at, 1, 1, static_cast<char>(rng()))
                : damaged.erase(at, 1 + rng() % 40);
    }
    storage.put("m/model.safetensors.index.json", i % 2 ? damaged : index);
    storage.put("m/" + shard, i % 2 ? bytes : damaged);
    error_of([&] { Snapshot::open(storage, "m"); });
    std::vector<std::string> problems;
    error_of([&] {
      const Snapshot s = Snapshot::open(storage, "m", &problems);
      s.verify_data({}, 1);
      summarize(s);
    });
    EXPECT_LE(problems.size(), Snapshot::kMaxProblems + 1);
  }
}

int64_t peak_rss_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

// All 93 layers and 96 shards, sparse. Also checks the sum of limits.md and the time and memory of
// an open, with room for slow machines and sanitizers.
TEST(Snapshot, TheWholeReleaseOpensQuickly) {
  const std::string tool = shared_file("tools/make_snapshot.py");
  if (!std::filesystem::exists(tool)) GTEST_SKIP() << "no snapshot generator at " << tool;
  TemporaryFolder folder;
  const std::string command = fmt::format("python3 '{}' '{}' 2>/dev/null", tool, folder.path());
  if (std::system(command.c_str()) != 0) GTEST_SKIP() << "could not run: " << command;
  const DiskStorage disk;
  const int64_t before = peak_rss_mb();
  const auto start = std::chrono::steady_clock::now();
  const Snapshot s = Snapshot::open(disk, folder.path());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  RecordProperty("open_ms", static_cast<int>(took.count() * 1000));
  RecordProperty("peak_rss_mb", static_cast<int>(peak_rss_mb()));
  EXPECT_LT(took.count(), 10);
  EXPECT_LT(peak_rss_mb() - before, 300);
  EXPECT_EQ(s.tensors(), 497'220u);
  EXPECT_EQ(s.shards(), 96u);
  const SnapshotSummary sum = summarize(s);
  EXPECT_EQ(sum.total_bytes, 1'560'860'324'864u);
  EXPECT_EQ(sum.bytes[static_cast<size_t>(Part::kExperts)], uint64_t{896} * 92 * 17'547'264);
  EXPECT_NEAR(static_cast<double>(sum.active_parameters), 104.2e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(sum.parameters), 2.78e12, 0.005e12);
  const ExpertRef e = s.expert(92, 895);
  EXPECT_EQ(e.w1.data.bytes + e.w1.scale.bytes + e.w2.data.bytes + e.w2.scale.bytes +
                e.w3.data.bytes + e.w3.scale.bytes,
            17'547'264u);
}

TEST(Snapshot, TheRandomModelOfThisRepositoryOpens) {
  TemporaryFolder folder;
  const std::string command = fmt::format(
      "python3 '{}/scripts/make_random_model.py' '{}' >/dev/null", K3_SOURCE_DIR, folder.path());
  if (std::system(command.c_str()) != 0) GTEST_SKIP() << "could not run: " << command;
  const DiskStorage disk;
  const Snapshot s = Snapshot::open(disk, folder.path());
  EXPECT_TRUE(s.config().untrained);
  EXPECT_TRUE(s.mxfp4_experts());
  EXPECT_EQ(s.config().vocab_size, 512);
  EXPECT_EQ(s.config().attention(6), AttentionKind::kMla);
  EXPECT_EQ(s.config().attention(7), AttentionKind::kMla);
  EXPECT_TRUE(s.verify_data().empty());
}

}  // namespace
}  // namespace k3
