// k3 tokenizer train: a vocabulary from text.

#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "text/bpe_trainer.h"

namespace k3::cli {
namespace {

struct TrainOptions {
  std::vector<std::string> files;
  std::string out;
  int64_t vocab_size = 0;
  bool json = false, quiet = false;
};

constexpr size_t kBlock = size_t{8} << 20;

// Where to cut a block of text so that pieces stay whole: after the last line, word or, failing
// those, character.
size_t cut(std::string_view block) {
  for (const char* end : {"\n", " "})
    if (const size_t at = block.find_last_of(end); at != std::string_view::npos && at > 0)
      return at;
  size_t at = block.size();
  while (at > 1 && (static_cast<unsigned char>(block[at - 1]) & 0xc0) == 0x80) --at;
  return at > 1 ? at - 1 : block.size();
}

void read(const File& file, BpeTrainer& trainer, const std::function<void(uint64_t)>& tell) {
  std::string block;
  for (uint64_t at = 0; at < file.size();) {
    const size_t kept = block.size();
    block.resize(kept + static_cast<size_t>(std::min<uint64_t>(kBlock, file.size() - at)));
    const std::span<char> fresh(block.data() + kept, block.size() - kept);
    file.read(at, std::as_writable_bytes(fresh));
    at += fresh.size();
    const size_t end = at < file.size() ? cut(block) : block.size();
    trainer.add(std::string_view(block).substr(0, end));
    block.erase(0, end);
    tell(at);
  }
}

void train(const TrainOptions& o) {
  DiskStorage disk;
  std::vector<std::unique_ptr<File>> files;
  uint64_t total = 0, before = 0;
  for (const std::string& path : o.files) {
    files.push_back(disk.open(path));
    total += files.back()->size();
  }
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path parent = fs::absolute(o.out, failed).parent_path();
  if (!fs::is_directory(fs::exists(o.out, failed) ? fs::path(o.out) : parent, failed))
    throw InputError("--out", "folder", "a folder, or a name for one in a folder that exists",
                     o.out);
  BpeTrainer trainer;
  Progress progress(o.quiet);
  for (const auto& file : files) {
    read(*file, trainer,
         [&](uint64_t done) { progress.show("reading", before + done, total, "bytes"); });
    before += file->size();
  }
  const auto ordinary = static_cast<int32_t>(o.vocab_size) - kSpecialIds;
  const BpeVocabulary learned = trainer.train(ordinary, [&](uint64_t done, uint64_t all) {
    progress.show("merging", done, all, "tokens");
  });
  progress.clear();
  if (static_cast<int32_t>(learned.tokens.size()) < ordinary)
    throw InputError("--vocab-size", "size",
                     fmt::format("at most {}, where no pair of tokens of this text occurs twice",
                                 learned.tokens.size() + kSpecialIds),
                     fmt::format("{}", o.vocab_size));
  fs::create_directory(o.out, failed);
  if (failed) throw InputError("--out", "folder", "one that can be made", o.out);
  write_text(disk, o.out + "/tiktoken.model", tiktoken_file(learned.tokens));
  write_text(disk, o.out + "/tokenizer_config.json", tokenizer_config(ordinary));
  const double density = static_cast<double>(learned.bytes) /
                         static_cast<double>(std::max<uint64_t>(1, learned.text_tokens));
  if (o.json)
    std::cout << nlohmann::ordered_json{{"out", o.out},
                                        {"vocab_size", o.vocab_size},
                                        {"ordinary", ordinary},
                                        {"bytes", learned.bytes},
                                        {"tokens", learned.text_tokens},
                                        {"bytes_per_token", density}}
                     .dump()
              << "\n";
  else
    std::cout << fmt::format(
        "{} tokens and {} special ids; {} bytes of text become {} tokens ({:.2f} bytes each)\n",
        ordinary, kSpecialIds, learned.bytes, learned.text_tokens, density);
}

}  // namespace

void add_tokenizer(CLI::App& app) {
  auto o = std::make_shared<TrainOptions>();
  CLI::App* group = app.add_subcommand("tokenizer", "make vocabularies");
  group->require_subcommand(1);
  CLI::App* sub = group->add_subcommand("train", "learn a vocabulary in tiktoken's format");
  sub->add_option("files", o->files, "text files, any bytes")->required();
  sub->add_option("--vocab-size", o->vocab_size, "all ids of the model: tokens and 256 special ids")
      ->required()
      ->check(whole(256 + kSpecialIds, 1 << 24));
  sub->add_option("--out", o->out, "folder for tiktoken.model and tokenizer_config.json")
      ->required();
  sub->add_flag("--json", o->json, "print one JSON object");
  sub->add_flag("--quiet", o->quiet, "no progress");
  sub->callback([o] { train(*o); });
}

}  // namespace k3::cli
