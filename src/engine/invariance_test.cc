// The same bits whatever the threads, memory, chunk, cache, company, stepping and instruction set.

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engine/engine.h"

namespace k3 {
namespace {

struct Setting {
  const char* name;
  bool exact = false, int8_trunk = false;
  Activations activations = Activations::k16;
};
const Setting kSettings[] = {
    {"default"},
    {"exact", true},
    {"int8_trunk", false, true},
    {"int8", false, true, Activations::kInt8},
    {"mxfp8", false, false, Activations::kMxfp8},
};

class Invariance : public ::testing::TestWithParam<std::tuple<const char*, Setting>> {
 protected:
  std::string folder() const { return std::string(K3_FIXTURES) + "/" + std::get<0>(GetParam()); }
  std::vector<int32_t> prompt(const char* name) const {
    std::ifstream in(folder() + "/golden.json");
    return nlohmann::json::parse(in)["prompts"][name].get<std::vector<int32_t>>();
  }
  EngineOptions options() const {
    const Setting& s = std::get<1>(GetParam());
    EngineOptions o;
    o.model_dir = folder() + "/model";
    o.ram = uint64_t{1} << 30;
    o.threads = 2;
    o.exact = s.exact;
    o.int8_trunk = s.int8_trunk;
    o.activations = s.activations;
    o.all_logits = true;
    o.context = 512;
    o.batch = 3;
    return o;
  }
  std::vector<float> whole(const EngineOptions& o, const std::vector<int32_t>& ids) const {
    DiskStorage disk;
    Engine engine(disk, o);
    return whole(engine, ids);
  }
  static std::vector<float> whole(Engine& engine, const std::vector<int32_t>& ids) {
    std::vector<float> out;
    SequenceState state = engine.new_sequence();
    const Engine::Feed feed{&state, ids, true};
    engine.run({&feed, 1}, [&](const Engine::Logits& l) {
      out.insert(out.end(), l.values.begin(), l.values.end());
    });
    return out;
  }
  static void expect_same(const std::vector<float>& a, const std::vector<float>& b,
                          const std::string& what) {
    ASSERT_EQ(a.size(), b.size()) << what;
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what;
  }
};

TEST_P(Invariance, Logits) {
  const auto ids = prompt("p70");
  const std::vector<float> base = whole(options(), ids);
  const auto with = [&](const char* what, auto&& change) {
    EngineOptions o = options();
    change(o);
    expect_same(whole(o, ids), base, what);
  };
  with("one thread", [](EngineOptions& o) { o.threads = 1; });
  with("three threads", [](EngineOptions& o) { o.threads = 3; });
  with("chunk 1", [](EngineOptions& o) { o.chunk = 1; });
  with("chunk 7", [](EngineOptions& o) { o.chunk = 7; });
  with("chunk 64", [](EngineOptions& o) { o.chunk = 64; });
  for (const Isa isa : isas()) with(name(isa), [&](EngineOptions& o) { o.isa = isa; });
}

TEST_P(Invariance, MemoryAndCaches) {
  const auto ids = prompt("p70");
  const std::vector<float> base = whole(options(), ids);
  DiskStorage disk;
  const Snapshot snapshot = Snapshot::open(disk, folder() + "/model");
  PlanOptions p;
  p.ram = uint64_t{1} << 30;
  p.batch = 3;
  p.context = 512;
  p.all_logits = true;
  p.threads = 2;
  p.int8_trunk = options().int8_trunk && !options().exact;
  const Plan all = make_plan(snapshot, p);
  bool streamed = false, partly_cached = false;
  for (const double share : {0.0, 0.3, 0.6, 0.9}) {
    EngineOptions o = options();
    o.chunk = 16;
    o.ram = all.floor_bytes + (64 << 10) +
            static_cast<uint64_t>(
                share *
                static_cast<double>(all.total_bytes - std::min(all.total_bytes, all.floor_bytes)));
    // A chunk of 16 has a floor of its own.
    while (true) {
      try {
        Engine engine(disk, o);
        streamed |= engine.plan().parts.at("trunk_stream") > 0;
        partly_cached |= engine.plan().expert_slots > 0 &&
                         engine.plan().expert_slots < engine.config().num_experts;
        expect_same(whole(engine, ids), base, "memory share " + std::to_string(share));
        expect_same(whole(engine, ids), base, "again, caches warm");
        EXPECT_LE(engine.account().peak(), engine.plan().ram - engine.plan().program_bytes);
        break;
      } catch (const InputError&) {
        o.ram += 64 << 10;
        ASSERT_LT(o.ram, all.total_bytes + (uint64_t{64} << 20));
      }
    }
  }
  EXPECT_TRUE(streamed);
  EXPECT_TRUE(partly_cached);
}

TEST_P(Invariance, StepwiseAndCompany) {
  const auto ids = prompt("p70"), other = prompt("p200"), third = prompt("p5");
  const std::vector<float> base = whole(options(), ids);
  DiskStorage disk;
  EngineOptions o = options();
  o.chunk = 50;
  Engine engine(disk, o);
  std::vector<float> steps;
  SequenceState state = engine.new_sequence();
  for (const int32_t id : ids) {
    const Engine::Feed feed{&state, {&id, 1}, false};
    engine.run({&feed, 1}, [&](const Engine::Logits& l) {
      steps.insert(steps.end(), l.values.begin(), l.values.end());
    });
  }
  expect_same(steps, base, "stepwise");

  std::vector<float> accompanied;
  SequenceState a = engine.new_sequence(), b = engine.new_sequence(), c = engine.new_sequence();
  const Engine::Feed feeds[] = {{&a, other, false}, {&b, ids, true}, {&c, third, false}};
  engine.run(feeds, [&](const Engine::Logits& l) {
    if (l.feed == 1) accompanied.insert(accompanied.end(), l.values.begin(), l.values.end());
  });
  expect_same(accompanied, base, "company");
}

// Saving and restoring, or forking, at any position goes on with the same bits.
TEST_P(Invariance, StateSavedAtEveryPosition) {
  const auto ids = prompt("p70");
  DiskStorage disk;
  Engine engine(disk, options());
  const auto vocab = static_cast<size_t>(engine.config().vocab_size);
  const std::vector<float> base = whole(engine, ids);
  SequenceState state = engine.new_sequence();
  const auto feed = [&](SequenceState& to, std::span<const int32_t> part) {
    std::vector<float> last;
    const Engine::Feed one{&to, part, false};
    engine.run({&one, 1},
               [&](const Engine::Logits& l) { last.assign(l.values.begin(), l.values.end()); });
    return last;
  };
  for (size_t at = 0; at + 1 < ids.size(); ++at) {
    feed(state, std::span(ids).subspan(at, 1));
    SequenceState restored = engine.new_sequence();
    restored.restore(state.save());
    EXPECT_EQ(restored.ids(), state.ids());
    SequenceState forked = state.fork();
    const std::vector<float> want(base.begin() + static_cast<int64_t>((at + 1) * vocab),
                                  base.begin() + static_cast<int64_t>((at + 2) * vocab));
    expect_same(feed(restored, std::span(ids).subspan(at + 1, 1)), want,
                "restored at " + std::to_string(at));
    const int32_t stray = 7;
    feed(forked, {&stray, 1});  // what a fork does must not show in its origin
  }
  EXPECT_EQ(state.length(), static_cast<int64_t>(ids.size()) - 1);
  std::string bytes = state.save();
  EXPECT_THROW(engine.new_sequence().restore(bytes.substr(0, bytes.size() - 1)), InputError);
  bytes[9] ^= 1;
  EXPECT_THROW(engine.new_sequence().restore(bytes), InputError);
}

INSTANTIATE_TEST_SUITE_P(Models, Invariance,
                         ::testing::Combine(::testing::Values("tiny-text", "tiny-odd",
                                                              "tiny-linear"),
                                            ::testing::ValuesIn(kSettings)),
                         [](const auto& instance) {
                           std::string label = std::string(std::get<0>(instance.param)) + "_" +
                                               std::get<1>(instance.param).name;
                           std::replace(label.begin(), label.end(), '-', '_');
                           return label;
                         });

}  // namespace
}  // namespace k3
