// What the subcommands that need only a tokenizer share: where it is, and how results are written.
// Thread rule: main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/storage.h"
#include "cli/commands.h"
#include "cli/options.h"

namespace k3::cli {

struct TokenizerFolder {
  std::string tokenizer, model;
  bool quiet = false;  // these commands have nothing to say but their result

  void add_options(CLI::App* command) {
    CLI::Option* folder = command->add_option(
        "--tokenizer", tokenizer, "folder with tiktoken.model and tokenizer_config.json");
    command->add_option("--model", model, "model folder whose tokenizer files to use")
        ->excludes(folder);
    command->add_flag("--quiet", quiet, "no notes on stderr");
  }

  std::string path() const {
    if (!tokenizer.empty()) return tokenizer;
    return model.empty() ? default_model_dir() : model;
  }
};

// Results are bytes: they may hold NUL, and get nothing added.
inline void write_output(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size() || std::fflush(stdout))
    throw WorkError("standard output: writing failed");
}

inline std::string join_ids(const std::vector<int32_t>& ids) {
  return fmt::format("{}", fmt::join(ids, ","));
}

}  // namespace k3::cli
