// Training text turned into token shards.
//
//   tokenize_sources(storage, config, tokenizer, vocab_size, "run/data", progress);
//   const TokenDataset data =
//       TokenDataset::open(storage, shard_paths(config, "run/data"), vocab_size);
//
// Documents are closed by the tokenizer's end token ("[EOS]"). Of a chat the assistant messages are
// to be learnt, from after the generation prompt to the end of the message; the rest is context.
// Bytes that are not UTF-8 are read as the tokenizer reads them; empty documents are left out.
// Files are read in pieces, so their size does not matter. Errors: InputError naming file and line.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "train/train_config.h"

namespace k3 {

// Where the sources' shards lie, in order; those that are shards already stay where they are.
std::vector<std::string> shard_paths(const TrainConfig& config, const std::string& folder);

// Writes the others. `tokenizer` may be null when there are none.
void tokenize_sources(
    Storage& storage, const TrainConfig& config, const Tokenizer* tokenizer, int64_t vocab_size,
    const std::string& folder,
    const std::function<void(const std::string& file, uint64_t done, uint64_t total)>& progress);

// One conversation as a document; what is not the assistant's is context_only. `where` names it in
// errors.
std::vector<int32_t> chat_document(const Tokenizer& tokenizer, const std::string& request,
                                   const std::string& where);

// The id that closes a document. Throws InputError if the tokenizer has none.
int32_t end_of_document(const Tokenizer& tokenizer, const std::string& folder);

}  // namespace k3
