// The options that every command running a model shares, and what they become.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "text/tokenizer.h"

namespace k3::cli {

// A progress line on stderr, shown once a job has run for two seconds, with an ETA.
class Progress {
 public:
  explicit Progress(bool quiet);
  ~Progress() { clear(); }
  void show(const std::string& what, uint64_t done, uint64_t total, const char* unit,
            const std::string& note = "");
  void clear();

 private:
  bool quiet_, shown_ = false, terminal_;
  std::string what_;
  std::chrono::steady_clock::time_point start_, last_;
};

struct RunOptions {
  std::string model, ram, trunk = "bf16", activations = "16", kernels, report;
  int threads = 0;
  int64_t chunk = 0;
  bool exact = false, quiet = false, verbose = false, json = false;

  void add_model(CLI::App& app);  // which model, how much memory, which arithmetic
  void add(CLI::App& app);        // these, --report and --verbose
  // `--kernels=list` was answered: nothing else is to be done.
  bool listed_kernels() const;
  EngineOptions engine(int64_t prompt, int64_t context, int64_t batch = 1,
                       bool all_logits = false) const;
  std::string model_dir() const;
};

// The engine of one command, with its progress line, and the report when it ends.
class Run {
 public:
  Run(const RunOptions& options, const EngineOptions& engine);
  Engine& engine() { return *engine_; }
  Progress& progress() { return progress_; }
  // Engine::run with a progress line for long prompts.
  void feed(std::span<const Engine::Feed> feeds, const Engine::Sink& sink,
            Observer* observer = nullptr);
  // Writes --report and, with --verbose, the plan. Call when the work is done.
  void finish();

 private:
  const RunOptions& options_;
  DiskStorage disk_;
  Progress progress_;
  std::chrono::steady_clock::time_point start_;
  std::unique_ptr<Writer> report_;  // opened first: a bad path should not cost a run
  std::optional<Engine> engine_;
};

// Refuses a tokenizer with ids that the model has not.
void check_vocabulary(const Tokenizer& tokenizer, const std::string& folder,
                      const ModelConfig& config);

// Copies the files of a tokenizer that are there.
void copy_tokenizer(Storage& storage, const std::string& from, const std::string& to);

// Refuses an output that would replace a file of the model, or the other output.
void check_output(const std::string& option, const std::string& path, const RunOptions& options);

// Validators with short messages.
CLI::Validator whole(int64_t least, int64_t most = int64_t{1} << 40);
CLI::Validator positive();  // a finite number above 0
CLI::Validator seed();      // 0 to 2^64 - 1

// "1,2,3" (spaces and newlines may stand for commas). Throws InputError naming `option`.
std::vector<int32_t> parse_ids(const std::string& text, const std::string& option);
// "-" is stdin. Throws InputError above `limit` bytes.
std::string read_file_or_stdin(const std::string& path, uint64_t limit = uint64_t{1} << 30);

}  // namespace k3::cli
