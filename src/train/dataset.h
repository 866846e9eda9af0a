// Tokenised text on disk, and the packed rows a training step takes from it.
//
//   TokenWriter writer(storage, "data/books.safetensors", vocab_size);
//   for (each document) writer.add(tokenizer.encode(text));
//   writer.commit();
//
//   const TokenDataset data = TokenDataset::open(storage, {"data/books.safetensors"});
//   Packer packer(data, {.length = 1024, .end_id = eos, .seed = 1, .held_out = 0.01});
//   const PackedRow row = packer.next();         // 1,025 ids and where documents begin
//
// A shard is a safetensors file: "tokens" I32 [n], "documents" I64 [d + 1], the offset of each
// document and the end. Documents are told apart by their content: whether one is held out depends
// on its tokens and the seed alone, so a text that stands in two shards is never on both sides.
// Each epoch has an order of its own, made from the seed and its number. Rows are documents on end,
// each closed by end_id, cut where a row is full; the state of a row's model is reset where
// `starts` says. Thread rule: TokenDataset is immutable; a Packer belongs to one thread. Errors:
// InputError naming file and tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/storage.h"

namespace k3 {

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

 private:
  std::vector<int32_t> tokens_;
  std::vector<int64_t> starts_ = {0};
};

struct PackedRow {
  std::vector<int32_t> ids;  // length + 1: inputs, and targets one on
  // Ascending positions in ids where a document begins, 0 among them: there the state is reset, and
  // what stands there is no target of the id before it. The last may be `length`, a target only.
  std::vector<int64_t> starts;
};

class Packer {
 public:
  struct Options {
    int64_t length = 0;  // inputs of a row
    int32_t end_id = 0;  // closes each document
    uint64_t seed = 0;
    double held_out = 0;      // share of documents kept for validation
    bool validation = false;  // pack those instead
  };
  // Where a run stands; with the same dataset and options it goes on bit for bit.
  struct Position {
    int64_t epoch = 0, document = 0, offset = 0;
    bool operator==(const Position&) const = default;
  };

  // Throws InputError when no document is left on this side.
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
