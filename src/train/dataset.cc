#include "train/dataset.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/random.h"
#include "weights/safetensors.h"

namespace k3 {
namespace {

uint64_t content_hash(std::span<const int32_t> ids, uint64_t seed) {
  uint64_t hash = SplitMix64(seed).bits();
  for (const int32_t id : ids)
    hash = SplitMix64(hash ^ static_cast<uint64_t>(static_cast<uint32_t>(id))).bits();
  return hash;
}

}  // namespace

TokenWriter::TokenWriter(Storage& storage, const std::string& path, int64_t vocab_size)
    : storage_(storage), path_(path), vocab_size_(vocab_size) {}

void TokenWriter::add(std::span<const int32_t> document) {
  if (document.empty()) return;
  for (const int32_t id : document)
    if (token_id(id) >= vocab_size_)
      throw InputError(path_, "tokens", fmt::format("ids from 0 to {}", vocab_size_ - 1),
                       fmt::format("{}", id));
  tokens_.insert(tokens_.end(), document.begin(), document.end());
  ends_.push_back(tokens());
}

void TokenWriter::commit() {
  write_safetensors(
      storage_, path_,
      {{{"documents", Dtype::kI64, {documents() + 1}}, std::as_bytes(std::span(ends_))},
       {{"tokens", Dtype::kI32, {tokens()}}, std::as_bytes(std::span(tokens_))}});
}

TokenDataset TokenDataset::open(const Storage& storage, const std::vector<std::string>& paths,
                                int64_t vocab_size) {
  TokenDataset data;
  for (const std::string& path : paths) {
    const SafetensorsFile file = SafetensorsFile::open(storage, path);
    const std::vector<int64_t> ids = file.integers("tokens"), ends = file.integers("documents");
    const auto bad = [&](const char* tensor, const std::string& expected, int64_t found) {
      return InputError(path, fmt::format("tensor '{}'", tensor), expected,
                        fmt::format("{}", found));
    };
    for (const int64_t id : ids)
      if (id >= vocab_size || id < -vocab_size)
        throw bad("tokens", fmt::format("ids below {}, or their complements", vocab_size), id);
    const auto count = static_cast<int64_t>(ids.size());
    if (ends.empty() || ends.front() != 0)
      throw bad("documents", "0 first", ends.empty() ? -1 : ends.front());
    if (ends.back() != count) throw bad("documents", fmt::format("{} last", count), ends.back());
    for (size_t i = 1; i < ends.size(); ++i)
      if (ends[i] <= ends[i - 1])
        throw bad("documents", fmt::format("ascending offsets after {}", ends[i - 1]), ends[i]);
    const int64_t base = data.tokens();
    for (const int64_t id : ids) data.tokens_.push_back(static_cast<int32_t>(id));
    for (size_t i = 1; i < ends.size(); ++i) data.starts_.push_back(base + ends[i]);
  }
  return data;
}

std::span<const int32_t> TokenDataset::document(int64_t index) const {
  const int64_t begin = starts_[static_cast<size_t>(index)];
  const int64_t end = starts_[static_cast<size_t>(index) + 1];
  return std::span(tokens_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

uint64_t TokenDataset::fingerprint() const {
  uint64_t hash = content_hash(tokens_, 0);
  for (const int64_t at : starts_) hash = SplitMix64(hash ^ static_cast<uint64_t>(at)).bits();
  return hash;
}

Packer::Packer(const TokenDataset& data, const Options& options) : data_(data), options_(options) {
  // A share of 2^53, exact in double.
  const auto limit = static_cast<uint64_t>(options.held_out * 0x1p53);
  for (int64_t i = 0; i < data.documents(); ++i) {
    const bool held = content_hash(data.document(i), options.seed) >> 11 < limit;
    if (held == options.validation && data.document(i).size() > 1) members_.push_back(i);
  }
  if (members_.empty())
    throw InputError("training data", options.validation ? "held-out documents" : "documents",
                     "at least one", fmt::format("none of {}", data.documents()));
  shuffle();
}

void Packer::shuffle() {
  order_ = members_;
  SplitMix64 random(options_.seed ^
                    (static_cast<uint64_t>(position_.epoch) + 1) * 0xd1342543de82ef95u);
  for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.below(i)]);
}

void Packer::seek(const Position& position) {
  const bool known =
      position.epoch >= 0 && position.document >= 0 && position.document < documents();
  if (known) {
    position_.epoch = position.epoch;
    shuffle();
  }
  if (!known || position.offset < 0 ||
      position.offset + 1 >=
          static_cast<int64_t>(
              data_.document(order_[static_cast<size_t>(position.document)]).size()))
    throw InputError("training data", "position", fmt::format("a document of {}", documents()),
                     fmt::format("epoch {}, document {}, offset {}", position.epoch,
                                 position.document, position.offset));
  position_ = position;
}

PackedRow Packer::next() {
  PackedRow row;
  const auto length = static_cast<size_t>(options_.length);
  while (row.ids.size() < length) {
    const auto text = data_.document(order_[static_cast<size_t>(position_.document)]);
    const auto offset = static_cast<size_t>(position_.offset);
    // Every token but the last is an input, and the one after it the target.
    const size_t left = text.size() - 1 - offset, room = length - row.ids.size();
    if (options_.whole && offset == 0 && !row.ids.empty() && left > room) break;
    const size_t take = std::min(left, room);
    row.starts.push_back(static_cast<int64_t>(row.ids.size()));
    for (size_t i = offset; i < offset + take; ++i) {
      row.ids.push_back(token_id(text[i]));
      row.targets.push_back(is_context_only(text[i + 1]) ? -1 : text[i + 1]);
    }
    position_.offset += static_cast<int64_t>(take);
    if (take < left) break;
    position_.offset = 0;
    if (++position_.document < documents()) continue;
    position_.document = 0;
    ++position_.epoch;
    shuffle();
  }
  return row;
}

}  // namespace k3
