// What the subcommands that need only a tokenizer share: where it is, and how text and ids are
// read. Thread rule: main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/storage.h"
#include "cli/commands.h"

namespace k3::cli {

struct TokenizerFolder {
  std::string tokenizer, model;

  void add_options(CLI::App* command) {
    command->add_option("--tokenizer", tokenizer,
                        "folder with tiktoken.model and tokenizer_config.json");
    command->add_option("--model", model, "model folder whose tokenizer files to use");
  }

  std::string path() const {
    if (!tokenizer.empty()) return tokenizer;
    return model.empty() ? default_model_dir() : model;
  }
};

// All of standard input for "-", else of the file.
inline std::string read_input(const std::string& file) {
  if (file != "-") return read_text(DiskStorage(), file);
  std::string content;
  char buffer[65536];
  while (const size_t count = std::fread(buffer, 1, sizeof(buffer), stdin))
    content.append(buffer, count);
  if (std::ferror(stdin)) throw WorkError("standard input: reading failed");
  return content;
}

// Results are bytes: they may hold NUL, and get nothing added.
inline void write_output(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size() || std::fflush(stdout))
    throw WorkError("standard output: writing failed");
}

// "1,2,3", with blanks allowed around the numbers; empty text is no ids.
inline std::vector<int32_t> parse_ids(std::string_view text, std::string_view option) {
  std::vector<int32_t> ids;
  const auto trim = [](std::string_view part) {
    constexpr std::string_view kBlanks = " \t\r\n";
    const size_t first = part.find_first_not_of(kBlanks);
    if (first == std::string_view::npos) return std::string_view();
    return part.substr(first, part.find_last_not_of(kBlanks) + 1 - first);
  };
  if (trim(text).empty()) return ids;
  for (bool more = true; more;) {
    const size_t comma = text.find(',');
    const std::string_view part = trim(text.substr(0, comma));
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), id);
    if (part.empty() || error != std::errc() || stop != part.data() + part.size() || id < 0)
      throw InputError("command line", option, "token ids separated by commas",
                       fmt::format("'{}'", part));
    ids.push_back(id);
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);
  }
  return ids;
}

inline std::string join_ids(const std::vector<int32_t>& ids) {
  return fmt::format("{}", fmt::join(ids, ","));
}

}  // namespace k3::cli
