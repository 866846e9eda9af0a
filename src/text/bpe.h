// Byte-pair encoding of one piece by token ranks.
//
//   std::vector<int32_t> ids;
//   append_bpe(vocabulary, "tokenizer", &ids);
//
// A piece that is a token is that token. Otherwise the bytes are merged: always the adjacent pair
// whose concatenation is the token of the lowest rank, the leftmost of equals, until no pair is a
// token. There is no list of merges. O(n log n) in the length of the piece.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace k3 {

// `piece` is not empty and below 4 GiB.
void append_bpe(const Vocabulary& vocabulary, std::string_view piece, std::vector<int32_t>* ids);

// The two ways append_bpe() merges, apart from the shortcut for whole tokens; they give the same
// ids. The short one rescans the piece for every merge and keeps everything in cache; `piece` must
// have at most kShortPiece bytes. The long one keeps a heap over a linked list.
constexpr size_t kShortPiece = 128;
void append_bpe_short(const Vocabulary& vocabulary, std::string_view piece,
                      std::vector<int32_t>* ids);
void append_bpe_long(const Vocabulary& vocabulary, std::string_view piece,
                     std::vector<int32_t>* ids);

}  // namespace k3
