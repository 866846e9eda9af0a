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

}  // namespace

void append_bpe_short(const Vocabulary& vocabulary, std::string_view piece,
                      std::vector<int32_t>* ids) {
  // Part i is the bytes from start[i] to start[i + 1]; rank[i] is that of part i joined with the
  // next one.
  size_t parts = piece.size();
  uint32_t start[kShortPiece + 1], rank[kShortPiece];
  int32_t token[kShortPiece];
  for (size_t i = 0; i <= parts; ++i) start[i] = static_cast<uint32_t>(i);
  for (size_t i = 0; i < parts; ++i)
    token[i] = vocabulary.byte_id(static_cast<unsigned char>(piece[i]));
  const auto joined = [&](size_t i) {
    return i + 1 < parts ? rank_of(vocabulary, piece, start[i], start[i + 2]) : kNoRank;
  };
  for (size_t i = 0; i < parts; ++i) rank[i] = joined(i);
  for (;;) {
    const size_t best = static_cast<size_t>(std::min_element(rank, rank + parts) - rank);
    if (rank[best] == kNoRank) break;
    token[best] = static_cast<int32_t>(rank[best]);
    std::copy(start + best + 2, start + parts + 1, start + best + 1);
    std::copy(token + best + 2, token + parts, token + best + 1);
    std::copy(rank + best + 2, rank + parts, rank + best + 1);
    --parts;
    rank[best] = joined(best);
    if (best > 0) rank[best - 1] = joined(best - 1);
  }
  ids->insert(ids->end(), token, token + parts);
}

void append_bpe_long(const Vocabulary& vocabulary, std::string_view piece,
                     std::vector<int32_t>* ids) {
  // A part is known by its first byte. next[i] is where the part of byte i ends and the next one
  // starts, token[i] its id; previous[i] is where the part before starts; a byte swallowed by a
  // merge has next 0.
  const uint32_t size = static_cast<uint32_t>(piece.size());
  std::vector<uint32_t> next(size), previous(size);
  std::vector<int32_t> token(size);
  // A candidate is its rank above its first byte: the smallest is the best, and the leftmost of
  // equal ranks. The pairs of single bytes are sorted once; what merges bring forth goes through a
  // heap, which stays small. Candidates that a merge made stale are recognised when they come up.
  std::vector<uint64_t> sorted, heap;
  const auto candidate = [&](uint32_t begin, uint32_t end, std::vector<uint64_t>* list) {
    const uint32_t rank = rank_of(vocabulary, piece, begin, end);
    if (rank == kNoRank) return false;
    list->push_back(uint64_t{rank} << 32 | begin);
    return true;
  };
  const std::greater<> order;
  const auto push = [&](uint32_t begin, uint32_t end) {
    if (candidate(begin, end, &heap)) std::push_heap(heap.begin(), heap.end(), order);
  };
  for (uint32_t i = 0; i < size; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;
    token[i] = vocabulary.byte_id(static_cast<unsigned char>(piece[i]));
    if (i + 1 < size) candidate(i, i + 2, &sorted);
  }
  std::sort(sorted.begin(), sorted.end());
  for (size_t taken = 0; taken < sorted.size() || !heap.empty();) {
    uint64_t best;
    if (taken < sorted.size() && (heap.empty() || sorted[taken] < heap.front())) {
      best = sorted[taken++];
    } else {
      std::pop_heap(heap.begin(), heap.end(), order);
      best = heap.back();
      heap.pop_back();
    }
    const uint32_t begin = static_cast<uint32_t>(best);
    const int32_t rank = static_cast<int32_t>(best >> 32);
    const uint32_t middle = next[begin];
    if (middle == 0 || middle == size) continue;
    const uint32_t end = next[middle];
    if (end - begin != vocabulary.bytes(rank).size()) continue;
    token[begin] = rank;
    next[begin] = end;
    next[middle] = 0;
    if (end < size) {
      previous[end] = begin;
      push(begin, next[end]);
    }
    if (begin > 0) push(previous[begin], end);
  }
  for (uint32_t i = 0; i < size; i = next[i]) ids->push_back(token[i]);
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
