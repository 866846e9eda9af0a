// The program as its users meet it: run as a process, judged by what it prints, its exit code and
// its resident memory.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

const std::string kFixtures = K3_FIXTURES;

struct Outcome {
  int code;  // exit code, or -signal
  std::string out, err;
  uint64_t peak_bytes;  // of resident memory
};

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class Program : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "k3-program-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string path(const std::string& name) const { return dir_ + "/" + name; }

  // `meanwhile(child)` is called once the program runs.
  Outcome run(std::vector<std::string> arguments, const std::string& input = "",
              const std::function<void(pid_t)>& meanwhile = {}) const {
    std::ofstream(path("in"), std::ios::binary) << input;
    arguments.insert(arguments.begin(), K3_PROGRAM);
    std::vector<char*> argv;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    const int create = O_CREAT | O_TRUNC | O_WRONLY;
    posix_spawn_file_actions_addopen(&files, 0, path("in").c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, path("out").c_str(), create, 0600);
    posix_spawn_file_actions_addopen(&files, 2, path("err").c_str(), create, 0600);
    pid_t child = 0;
    const int failed = posix_spawn(&child, K3_PROGRAM, &files, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    if (failed) ADD_FAILURE() << K3_PROGRAM << ": " << std::strerror(failed);
    if (meanwhile) meanwhile(child);
    int status = 0;
    rusage usage{};
    wait4(child, &status, 0, &usage);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), slurp(path("out")),
            slurp(path("err")), static_cast<uint64_t>(usage.ru_maxrss) * 1024};
  }

 private:
  std::string dir_;
};

std::string ids(int count) {
  std::vector<int> list;
  for (int i = 0; i < count; ++i) list.push_back(i * 7 % 200);
  return fmt::format("{}", fmt::join(list, ","));
}

void expect_one_line_error(const Outcome& o, int code, const std::string& part) {
  EXPECT_EQ(o.code, code) << o.err;
  EXPECT_EQ(o.err.rfind("k3: ", 0), 0u) << o.err;
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  EXPECT_NE(o.err.find(part), std::string::npos) << o.err;
}

// The sanitizers' own memory is not the program's.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMeasuresMemory = false;
#else
constexpr bool kMeasuresMemory = true;
#endif

TEST_F(Program, ResidentMemoryStaysBelowTheBudget) {
  if (!kMeasuresMemory) GTEST_SKIP() << "resident memory includes a sanitizer's";
  const std::string model = kFixtures + "/tiny-text/model";
  const Outcome plan = run(
      {"plan", "--model", model, "--ram", "1G", "--context", "256", "--prompt", "200", "--json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  const auto floor = Json::parse(plan.out)["floor_bytes"].get<uint64_t>();
  EXPECT_LT(floor, uint64_t{256} << 20);
  const auto generate = [&](uint64_t ram, const std::string& report) {
    return run({"logits", "--model", model, "--ids", ids(200), "--out", path("logits"), "--last",
                "--ram", std::to_string(ram), "--report", path(report), "--quiet"});
  };
  std::string first;
  const Outcome exact_floor = generate(floor - (8 << 20), "none");
  ASSERT_EQ(exact_floor.code, 2);
  expect_one_line_error(exact_floor, 2, "below the floor");
  EXPECT_FALSE(fs::exists(path("logits")));
  EXPECT_FALSE(fs::exists(path("none")));
  const auto begin = exact_floor.err.find('(') + 1;
  const uint64_t least = std::stoull(exact_floor.err.substr(begin));
  for (const uint64_t ram : {least, least + least / 8, 2 * least, 8 * least}) {
    const Outcome o = generate(ram, "report");
    ASSERT_EQ(o.code, 0) << o.err;
    EXPECT_LE(o.peak_bytes, ram);
    const Json report = Json::parse(slurp(path("report")));
    EXPECT_LE(report["peak_rss_bytes"].get<uint64_t>(), ram);
    EXPECT_LE(report["peak_account_bytes"].get<uint64_t>(), ram);
    const std::string logits = slurp(path("logits"));
    if (first.empty()) first = logits;
    EXPECT_TRUE(logits == first) << "at " << ram << " bytes";
  }
}

TEST_F(Program, OptionsAndOutputsAreChecked) {
  const std::string model = kFixtures + "/tiny-text/model";
  const auto refused = [&](std::vector<std::string> arguments, const std::string& part) {
    expect_one_line_error(run(std::move(arguments)), 2, part);
  };
  refused({"generate", "--model", "/nowhere", "x"}, "/nowhere");
  refused({"generate", "--model", model, "--ids", "1,,2", "--print-ids"}, "--ids");
  refused({"generate", "--model", model, "--ids", "999999", "--print-ids"}, "999999");
  refused({"generate", "--model", model, "--ids", "1", "--threads", "0", "--print-ids"},
          "--threads");
  refused({"generate", "--model", model, "--ids", "1", "--trunk", "int4", "--print-ids"},
          "--trunk");
  refused({"generate", "--model", model, "--ids", "1", "--nonsense"}, "--nonsense");
  refused({"logits", "--model", model, "--ids", "1"}, "--out");
  refused({"logits", "--model", model, "--ids", "1", "--out", "/nowhere/x"}, "/nowhere/x");
  refused({"logits", "--model", model, "--ids", "1", "--out", path("l"), "--ram", "256M", "--chunk",
           "1000000"},
          "--chunk");
  refused({"tokenize", "--model", model, "--tokenizer", model, "x"}, "--tokenizer");
}

TEST_F(Program, JsonIsAllThatStandsOnStdout) {
  const std::string model = kFixtures + "/tiny-text/model";
  const Outcome generated = run({"generate", "--model", model, "--ids", "1,2,3", "--max-tokens",
                                 "4", "--temperature", "0", "--print-ids", "--ignore-eos"});
  ASSERT_EQ(generated.code, 0) << generated.err;
  const Outcome json =
      run({"generate", "--model", model, "--ids", "1,2,3", "--max-tokens", "4", "--temperature",
           "0", "--print-ids", "--ignore-eos", "--json", "--quiet"});
  ASSERT_EQ(json.code, 0) << json.err;
  EXPECT_EQ(json.err, "");
  const Json object = Json::parse(json.out);
  EXPECT_EQ(fmt::format("{}\n", fmt::join(object["ids"].get<std::vector<int>>(), ",")),
            generated.out);
  EXPECT_EQ(object["finish_reason"], "length");
  EXPECT_EQ(object["prompt_tokens"], 3);

  const Outcome logits =
      run({"logits", "--model", model, "--ids", "1,2,3", "--out", path("l"), "--json", "--quiet"});
  ASSERT_EQ(logits.code, 0) << logits.err;
  const Json about = Json::parse(logits.out);
  EXPECT_EQ(fs::file_size(path("l")),
            about["rows"].get<uint64_t>() * about["vocab"].get<uint64_t>() * 4);
}

TEST_F(Program, UnknownWordsAndValuesAreNamed) {
  const std::string model = kFixtures + "/tiny-text/model";
  expect_one_line_error(run({"generat", "hi"}), 2, "'generat'");
  expect_one_line_error(run({"tokenizer", "foo"}), 2, "'foo'");
  expect_one_line_error(run({"parse", "--ids", "72", "--split", "0"}), 2, "found '0'");
  expect_one_line_error(run({"perplexity", "--stride", "0", "x"}), 2, "--stride");
  std::ofstream(path("with")) << "1,2\n3\n99999\n";
  expect_one_line_error(run({"logits", "--model", model, "--ids", "1", "--out", path("l"), "--with",
                             path("with"), "--quiet"}),
                        2, "line 3");
  EXPECT_FALSE(fs::exists(path("l")));
}

TEST_F(Program, APipeInPlaceOfAFileDoesNotHang) {
  fs::copy(kFixtures + "/tiny-text/model", path("model"), fs::copy_options::recursive);
  for (const char* name : {"config.json", "model-00002-of-000003.safetensors"}) {
    fs::remove(path("model/") + name);
    ASSERT_EQ(mkfifo((path("model/") + name).c_str(), 0600), 0);
    expect_one_line_error(run({"plan", "--model", path("model")}), 2, "regular file");
    fs::remove(path("model/") + name);
    fs::copy(kFixtures + "/tiny-text/model/" + name, path("model/") + name);
  }
}

// An fp16 scale ends at 65504: what int8 blocks cannot hold is refused, not clipped.
TEST_F(Program, WeightsBeyondInt8BlocksAreRefused) {
  fs::copy(kFixtures + "/tiny-text/model", path("model"), fs::copy_options::recursive);
  const std::string tensor = "language_model.lm_head.weight";
  const Json index = Json::parse(slurp(path("model/model.safetensors.index.json")));
  const std::string shard = path("model/") + index["weight_map"][tensor].get<std::string>();
  std::string bytes = slurp(shard);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const Json header = Json::parse(bytes.substr(8, length));
  const size_t at = 8 + length + header[tensor]["data_offsets"][0].get<size_t>();
  bytes[at + 140] = bytes[at + 141] = 0x7f;  // 3.4e38 at [1, 6] of 64 columns
  std::ofstream(shard, std::ios::binary) << bytes;
  const auto logits = [&](const char* trunk) {
    return run({"logits", "--model", path("model"), "--ids", "1,2", "--out", path("l"), "--trunk",
                trunk, "--quiet"});
  };
  const Outcome o = logits("int8");
  expect_one_line_error(o, 2, tensor);
  EXPECT_NE(o.err.find("[1, 6]"), std::string::npos) << o.err;
  EXPECT_FALSE(fs::exists(path("l")));
  EXPECT_EQ(logits("bf16").code, 0);
}

TEST_F(Program, TokenizerTrainLeavesNothingBehind) {
  std::ofstream(path("text")) << "the cat and the hat and the bat\n";
  expect_one_line_error(
      run({"tokenizer", "train", path("text"), "--vocab-size", "5000", "--out", path("tok")}), 2,
      "--vocab-size");
  EXPECT_FALSE(fs::exists(path("tok")));
  expect_one_line_error(
      run({"tokenizer", "train", path("text"), "--vocab-size", "514", "--out", path("no/tok")}), 2,
      "--out");
  const Outcome o = run({"tokenizer", "train", path("text"), "--vocab-size", "514", "--out",
                         path("tok"), "--json", "--quiet"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(Json::parse(o.out)["ordinary"], 258);
  const Outcome ids = run({"tokenize", "--tokenizer", path("tok"), "the cat"});
  EXPECT_EQ(ids.code, 0) << ids.err;
}

// A report that was asked for comes, whatever is wrong with the snapshot.
TEST_F(Program, InspectReportsWhatIsMissing) {
  fs::copy(kFixtures + "/tiny-text/model", path("model"), fs::copy_options::recursive);
  fs::remove(path("model/config.json"));
  const Outcome o = run({"inspect", "--model", path("model"), "--json"});
  EXPECT_EQ(o.code, 2);
  EXPECT_NE(Json::parse(o.out)["problems"][0].get<std::string>().find("config.json"),
            std::string::npos);
}

// A run on generated sentences with the fixtures' small architecture and a vocabulary of its own.
struct TinyRun {
  TinyRun(const std::string& folder, int steps) : config(folder + "/run.json") {
    std::ofstream text(folder + "/text.jsonl");
    const char* words[] = {"the", "cat", "saw", "a", "dog", "and", "it", "ran", "home"};
    unsigned state = 1;
    for (int i = 0; i < 300; ++i) {
      std::string line;
      for (int k = 0; k < 20; ++k)
        line += std::string(words[(state = state * 1103515245 + 12345) >> 16 & 7]) + " ";
      text << Json{{"text", line}}.dump() << "\n";
    }
    std::ofstream(config) << Json{
        {"model", kFixtures + "/tiny-text/model/config.json"},
        {"tokenizer", "tokenizer"},
        {"data", {{{"file", "text.jsonl"}, {"as", "documents"}}}},
        {"steps", steps},
        {"batch", 4},
        {"length", 32},
        {"checkpoint", {{"every", 2}}},
        {"validation", {{"every", 5}, {"rows", 2}}},
        {"samples", {{"every", 5}, {"tokens", 4}, {"prompts", {"the cat"}}}}};
  }
  std::string config;
};

TEST_F(Program, ATrainingRunThatIsKilledGoesOnAsIfItHadNotBeen) {
  const TinyRun tiny(path(""), 40);
  ASSERT_EQ(run({"tokenizer", "train", path("text.jsonl"), "--vocab-size", "512", "--out",
                 path("tokenizer"), "--quiet"})
                .code,
            0);
  const std::vector<std::string> whole = {"train",       "--config", tiny.config, "--out",
                                          path("whole"), "--quiet",  "--json"};
  const Outcome done = run(whole);
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(Json::parse(done.out)["steps"], 40);

  std::vector<std::string> killed = whole;
  killed[4] = path("killed");
  for (int round = 0; round < 3; ++round) {
    run(killed, "", [&](pid_t child) {
      // Somewhere in the middle: after a few more lines of metrics, or whenever it is done.
      const auto lines = [&] {
        const std::string text = slurp(path("killed/metrics.jsonl"));
        return std::count(text.begin(), text.end(), '\n');
      };
      const auto goal = lines() + 5 + round;
      for (int i = 0; i < 2000 && lines() < goal && waitpid(child, nullptr, WNOHANG) == 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      kill(child, SIGKILL);
    });
    if (round == 0) {
      const Outcome refused = run(killed);  // without --resume
      EXPECT_EQ(refused.code, 2);
      EXPECT_NE(refused.err.find("--resume"), std::string::npos) << refused.err;
      killed.push_back("--resume");
    }
  }
  const Outcome resumed = run(killed);
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(slurp(path("whole/checkpoint.safetensors")),
            slurp(path("killed/checkpoint.safetensors")));
  // The same steps, each once, with the same losses.
  std::ifstream a(path("whole/metrics.jsonl")), b(path("killed/metrics.jsonl"));
  int steps = 0;
  for (std::string x, y; std::getline(a, x); ++steps) {
    ASSERT_TRUE(std::getline(b, y)) << steps;
    EXPECT_EQ(Json::parse(x)["step"], Json::parse(y)["step"]);
    EXPECT_EQ(Json::parse(x)["loss"], Json::parse(y)["loss"]);
  }
  EXPECT_EQ(steps, 40);
  EXPECT_NE(slurp(path("whole/samples.jsonl")), "");
  EXPECT_EQ(slurp(path("whole/samples.jsonl")), slurp(path("killed/samples.jsonl")));
  for (const char* plot : {"loss.svg", "balance.svg"})
    EXPECT_NE(slurp(path(std::string("whole/") + plot)).find("<polyline"), std::string::npos);

  // On to a snapshot that runs, and from there to fine-tuning.
  const Outcome exported =
      run({"export", "--from", path("whole"), "--out", path("model"), "--json", "--quiet"});
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(Json::parse(exported.out)["arithmetics"][0]["equal"], true);
  EXPECT_EQ(run({"inspect", "--model", path("model"), "--verify", "--data"}).code, 0);
  EXPECT_EQ(run({"generate", "the cat", "--model", path("model"), "--max-tokens", "3"}).code, 0);
  Json config = Json::parse(slurp(tiny.config));
  config.erase("model");
  config["steps"] = 2;
  std::ofstream(tiny.config) << config;
  const Outcome tuned = run({"train", "--config", tiny.config, "--init", path("model"), "--out",
                             path("tuned"), "--quiet", "--json"});
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_LT(Json::parse(tuned.out)["loss"], 6.0);
}

TEST_F(Program, RequestsAreAnsweredInOrderAndAloneAsInCompany) {
  const TinyRun tiny(path(""), 1);
  const std::string model = path("model");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"tokenizer", "train", path("text.jsonl"), "--vocab-size", "512",
                                 "--out", path("tokenizer"), "--quiet"},
        {"train", "--config", tiny.config, "--out", path("run"), "--quiet"},
        {"export", "--from", path("run"), "--out", model, "--quiet"}})
    ASSERT_EQ(run(command).code, 0) << command[0];
  const auto answers = [&](const std::vector<std::string>& words) {
    std::string lines;
    for (const std::string& word : words)
      lines += Json{{"id", word},
                    {"request", {{"messages", {{{"role", "user"}, {"content", word}}}}}},
                    {"max_tokens", 12},
                    {"temperature", 0}}
                   .dump() +
               "\n";
    std::ofstream(path("requests.jsonl")) << lines;
    const Outcome o = run({"generate", "--model", model, "--requests", path("requests.jsonl"),
                           "--output", path("answers.jsonl"), "--quiet"});
    EXPECT_EQ(o.code, 0) << o.err;
    std::vector<Json> out;
    std::istringstream in(slurp(path("answers.jsonl")));
    for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line));
    return out;
  };
  const auto both = answers({"one", "two, which is longer"});
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0]["id"], "one");
  EXPECT_EQ(both[1], answers({"two, which is longer"})[0]);
  EXPECT_TRUE(both[0].contains("message"));
  EXPECT_TRUE(both[0].contains("finish_reason"));

  std::ofstream(path("requests.jsonl")) << "{\"request\": {\"messages\": 3}}\n";
  const Outcome bad = run({"generate", "--model", model, "--requests", path("requests.jsonl"),
                           "--output", path("none.jsonl")});
  EXPECT_EQ(bad.code, 2);
  EXPECT_NE(bad.err.find("line 1"), std::string::npos) << bad.err;
  EXPECT_FALSE(fs::exists(path("none.jsonl")));
}

TEST_F(Program, ATrainConfigIsCheckedFieldByField) {
  const auto refused = [&](const std::string& json, const std::string& named) {
    std::ofstream(path("c.json")) << json;
    const Outcome o = run({"train", "--config", path("c.json"), "--out", path("r")});
    EXPECT_EQ(o.code, 2) << json;
    EXPECT_NE(o.err.find(named), std::string::npos) << o.err;
    EXPECT_FALSE(fs::exists(path("r/metrics.jsonl")));
  };
  refused("{", "not JSON");
  refused("{}", "data");
  refused(R"({"data": [], "steps": 1})", "data");
  refused(R"({"data": [{"file": "x", "as": "poem"}], "steps": 1})", "data[0].as");
  refused(R"({"data": [{"file": "x", "as": "text"}], "steps": 1})", "tokenizer");
  const std::string data = R"({"data": [{"file": "x", "as": "tokens"}], )";
  refused(data + R"("steps": 0})", "steps");
  refused(data + R"("steps": 1, "stepps": 1})", "stepps");
  refused(data + R"("steps": 1, "batch": 2, "micro_batch": 3})", "micro_batch");
  refused(data + R"("steps": 1, "optimizer": {"kind": "sgd"}})", "optimizer.kind");
  refused(data + R"("steps": 1, "optimizer": {"kind": "adamw", "momentum": 0.9}})", "momentum");
  refused(data + R"("steps": 1, "schedule": {"form": "cosine", "decay": 1}})", "schedule.decay");
  refused(data + R"("steps": 1, "held_out": 0, "validation": {"every": 1}})", "held_out");
  refused(data + R"("steps": 1, "model": 3})", "model");
  refused(data + R"("steps": 1})", "model");
  refused(data + R"("steps": 1, "model": {"model_type": "kimi_k3"}})", "model");
}

}  // namespace
