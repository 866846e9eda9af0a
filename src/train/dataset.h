// Tokenised text on disk, and the packed rows a training step takes from it.
//
//   TokenWriter writer(storage, "data/books.safetensors", vocab_size);
//   for (each document) writer.add(ids);                       // with the id that closes it
//   writer.commit();
//
//   const TokenDataset data = TokenDataset::open(storage, {"data/books.safetensors"}, vocab_size);
//   Packer packer(data, {.length = 1024, .seed = 1, .held_out = 0.01});
//   const PackedRow row = packer.next();         // inputs, targets, and where documents begin
//
// A shard is a safetensors file: "tokens" I32 [n], "documents" I64 [d + 1], the offset of each
// document and the end. An id that the model reads but is not asked to write (what a user said) is
// stored as its complement, context_only(id).
// Documents are told apart by their content: whether one is held out depends on its tokens and the
// seed alone, so a text that stands in two shards is never on both sides. Each epoch has an order
// of its own, made from the seed and its number. Rows are documents on end; the state of a row's
// model is reset where `starts` says. Thread rule: TokenDataset is immutable; a Packer belongs to
// one thread. Errors: InputError naming file and tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/storage.h"

namespace k3 {

constexpr int32_t context_only(int32_t id) { return ~id; }
constexpr bool is_context_only(int32_t token) { return token < 0; }
constexpr int32_t token_id(int32_t token) { return token < 0 ? ~token : token; }

class TokenWriter {
 public:
  TokenWriter(Storage& storage, const std::string& path, int64_t vocab_size);
  void add(std::span<const int32_t> document);  // empty ones are left out
  void commit();                                // writes the file, whole
  int64_t documents() const { return static_cast<int64_t>(ends_.size()) - 1; }
  int64_t tokens() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  Storage& storage_;
  const std::string path_;
  const int64_t vocab_size_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> ends_ = {0};
};

class TokenDataset {
 public:
  // Reads the shards into memory. `vocab_size` refuses ids that the model has not.
  static TokenDataset open(const Storage& storage, const std::vector<std::string>& paths,
                           int64_t vocab_size);
  int64_t documents() const { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t tokens() const { return static_cast<int64_t>(tokens_.size()); }
  std::span<const int32_t> document(int64_t index) const;
  uint64_t fingerprint() const;  // of every token and border

 private:
  std::vector<int32_t> tokens_;
  std::vector<int64_t> starts_ = {0};
};

struct PackedRow {
  std::vector<int32_t> ids;      // at most Options::length, at least one
  std::vector<int32_t> targets;  // the id after each, or -1 where the model is not asked for one
  // Ascending positions in ids where a document begins, or goes on from an earlier row; 0 first.
  std::vector<int64_t> starts;
};

class Packer {
 public:
  struct Options {
    int64_t length = 0;  // most inputs of a row
    uint64_t seed = 0;
    double held_out = 0;      // share of documents kept for validation
    bool validation = false;  // pack those instead
    // Only documents longer than a row are cut; rows end early instead. For conversations, which
    // make no sense from their middle.
    bool whole = false;
  };
  // Where a run stands; with the same dataset and options it goes on bit for bit.
  struct Position {
    int64_t epoch = 0, document = 0, offset = 0;
    bool operator==(const Position&) const = default;
  };

  // Throws InputError when no document of two tokens is left on this side.
  Packer(const TokenDataset& data, const Options& options);
  PackedRow next();
  Position position() const { return position_; }
  void seek(const Position& position);
  int64_t documents() const { return static_cast<int64_t>(order_.size()); }

 private:
  void shuffle();

  const TokenDataset& data_;
  const Options options_;
  std::vector<int64_t> members_, order_;
  Position position_;
};

}  // namespace k3
