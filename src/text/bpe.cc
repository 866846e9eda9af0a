#include "text/bpe.h"

#include <algorithm>
#include <functional>

namespace k3 {
namespace {

// Ranks are compared as unsigned, so that "not a token" is the worst of all.
constexpr uint32_t kNoRank = static_cast<uint32_t>(Vocabulary::kNotAToken);

uint32_t rank_of(const Vocabulary& vocabulary, std::string_view piece, size_t begin, size_t end) {
  if (end - begin == 2)
    return static_cast<uint32_t>(vocabulary.pair_id(static_cast<unsigned char>(piece[begin]),
                                                    static_cast<unsigned char>(piece[begin + 1])));
  return static_cast<uint32_t>(vocabulary.find(piece.substr(begin, end - begin)));
}

void append_token(const Vocabulary& vocabulary, std::string_view bytes, std::vector<int32_t>* ids) {
  ids->push_back(bytes.size() == 1 ? vocabulary.byte_id(static_cast<unsigned char>(bytes[0]))
                                   : vocabulary.find(bytes));
}

}  // namespace

void append_bpe_short(const Vocabulary& vocabulary, std::string_view piece,
                      std::vector<int32_t>* ids) {
  // Part i is the bytes from start[i] to start[i + 1]; rank[i] is that of part i joined with the
  // next one.
  size_t parts = piece.size();
  uint32_t start[kShortPiece + 1], rank[kShortPiece + 1];
  for (size_t i = 0; i <= parts; ++i) start[i] = static_cast<uint32_t>(i);
  const auto joined = [&](size_t i) {
    return i + 1 < parts ? rank_of(vocabulary, piece, start[i], start[i + 2]) : kNoRank;
  };
  for (size_t i = 0; i < parts; ++i) rank[i] = joined(i);
  for (;;) {
    const size_t best = static_cast<size_t>(std::min_element(rank, rank + parts) - rank);
    if (rank[best] == kNoRank) break;
    std::copy(start + best + 2, start + parts + 1, start + best + 1);
    std::copy(rank + best + 2, rank + parts, rank + best + 1);
    --parts;
    rank[best] = joined(best);
    if (best > 0) rank[best - 1] = joined(best - 1);
  }
  for (size_t i = 0; i < parts; ++i)
    append_token(vocabulary, piece.substr(start[i], start[i + 1] - start[i]), ids);
}

void append_bpe_long(const Vocabulary& vocabulary, std::string_view piece,
                     std::vector<int32_t>* ids) {
  // A part is known by its first byte. next[i] is where the part of byte i ends and the next one
  // starts; previous[i] is where the part before starts; a byte swallowed by a merge has next 0.
  const uint32_t size = static_cast<uint32_t>(piece.size());
  std::vector<uint32_t> next(size), previous(size);
  // A candidate is its rank above its first byte: the smallest is the best, and the leftmost of
  // equal ranks. Candidates that a merge made stale are recognised when they come up.
  std::vector<uint64_t> heap;
  heap.reserve(size);
  const auto candidate = [&](uint32_t begin, uint32_t end) {
    const uint32_t rank = rank_of(vocabulary, piece, begin, end);
    if (rank == kNoRank) return false;
    heap.push_back(uint64_t{rank} << 32 | begin);
    return true;
  };
  for (uint32_t i = 0; i < size; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;
    if (i + 1 < size) candidate(i, i + 2);
  }
  const std::greater<> order;
  std::make_heap(heap.begin(), heap.end(), order);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), order);
    const uint32_t begin = static_cast<uint32_t>(heap.back());
    const int32_t rank = static_cast<int32_t>(heap.back() >> 32);
    heap.pop_back();
    const uint32_t middle = next[begin];
    if (middle == 0 || middle == size) continue;
    const uint32_t end = next[middle];
    if (end - begin != vocabulary.bytes(rank).size()) continue;
    next[begin] = end;
    next[middle] = 0;
    if (end < size) {
      previous[end] = begin;
      if (candidate(begin, next[end])) std::push_heap(heap.begin(), heap.end(), order);
    }
    if (begin > 0 && candidate(previous[begin], end))
      std::push_heap(heap.begin(), heap.end(), order);
  }
  for (uint32_t i = 0; i < size; i = next[i])
    append_token(vocabulary, piece.substr(i, next[i] - i), ids);
}

void append_bpe(const Vocabulary& vocabulary, std::string_view piece, std::vector<int32_t>* ids) {
  if (const int32_t whole = vocabulary.find(piece); whole != Vocabulary::kNotAToken)
    ids->push_back(whole);
  else if (piece.size() <= kShortPiece)
    append_bpe_short(vocabulary, piece, ids);
  else
    append_bpe_long(vocabulary, piece, ids);
}

}  // namespace k3
