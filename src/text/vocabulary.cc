#include "text/vocabulary.h"

#include <bit>
#include <charconv>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"
#include "text/base64.h"

namespace k3 {
namespace {

// A quick mixing hash over eight bytes at a time; the table compares bytes, so it only has to
// spread well.
uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15;
  uint64_t hash = bytes.size() * kMultiplier;
  const char* data = bytes.data();
  size_t left = bytes.size();
  while (left >= 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    hash = (hash ^ word) * kMultiplier;
    hash ^= hash >> 32;
    data += 8, left -= 8;
  }
  uint64_t word = 0;
  std::memcpy(&word, data, left);
  hash = (hash ^ word) * kMultiplier;
  return hash ^ hash >> 29;
}

std::string line_name(size_t line) { return fmt::format("line {}", line + 1); }

}  // namespace

Vocabulary Vocabulary::parse(std::string_view text, const std::string& file) {
  if (text.size() > std::numeric_limits<uint32_t>::max())
    throw InputError(file, "size", "below 4 GiB", fmt::format("{} bytes", text.size()));
  Vocabulary vocabulary;
  const std::vector<Line> lines = vocabulary.read_lines(text, file);
  vocabulary.order_by_rank(lines, file);
  return vocabulary;
}

std::vector<Vocabulary::Line> Vocabulary::read_lines(std::string_view text,
                                                     const std::string& file) {
  std::vector<Line> lines;
  std::string token;
  bytes_.reserve(text.size() / 2);
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const size_t space = line.find(' ');
    uint32_t rank = 0;
    bool good = space != std::string_view::npos &&
                base64_decode(line.substr(0, space), Base64::kStrict, &token) && !token.empty();
    if (good) {
      const char* first = line.data() + space + 1;
      const char* last = line.data() + line.size();
      const auto [stop, error] = std::from_chars(first, last, rank);
      good = error == std::errc() && stop == last && first != last &&
             rank < static_cast<uint32_t>(std::numeric_limits<int32_t>::max());
    }
    if (!good)
      throw InputError(file, line_name(lines.size()), "base64 of a token, a space and its rank",
                       fmt::format("'{}'", line.substr(0, 100)));
    lines.push_back(
        {static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(token.size()), rank});
    bytes_ += token;
  }
  if (lines.empty()) throw InputError(file, "line 1", "a token and its rank", "an empty file");
  return lines;
}

void Vocabulary::order_by_rank(const std::vector<Line>& lines, const std::string& file) {
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  std::vector<uint32_t> line_of_rank(lines.size(), kNone);
  for (uint32_t i = 0; i < lines.size(); ++i) {
    const uint32_t rank = lines[i].rank;
    if (rank >= lines.size())
      throw InputError(file, line_name(i),
                       fmt::format("ranks 0 to {} without a gap", lines.size() - 1),
                       fmt::format("rank {}", rank));
    if (line_of_rank[rank] != kNone)
      throw InputError(
          file, line_name(i), "every rank once",
          fmt::format("rank {} again, first on line {}", rank, line_of_rank[rank] + 1));
    line_of_rank[rank] = i;
  }
  std::string ordered;
  ordered.reserve(bytes_.size());
  offsets_.reserve(lines.size() + 1);
  offsets_.push_back(0);
  for (const uint32_t line : line_of_rank) {
    ordered.append(bytes_, lines[line].offset, lines[line].length);
    offsets_.push_back(static_cast<uint32_t>(ordered.size()));
    longest_ = std::max<size_t>(longest_, lines[line].length);
  }
  bytes_ = std::move(ordered);
  index_tokens(line_of_rank, file);
}

void Vocabulary::index_tokens(const std::vector<uint32_t>& line_of_rank, const std::string& file) {
  slots_.assign(std::bit_ceil(offsets_.size() * 2), Slot());
  pair_ids_.assign(size_t{256} * 256, kNotAToken);
  byte_ids_.fill(kNotAToken);
  const size_t mask = slots_.size() - 1;
  for (int32_t id = 0; id < size(); ++id) {
    const std::string_view token = bytes(id);
    const uint64_t hash = hash_bytes(token);
    size_t slot = hash & mask;
    for (; slots_[slot].id != kNotAToken; slot = (slot + 1) & mask)
      if (bytes(slots_[slot].id) == token)
        throw InputError(
            file, line_name(line_of_rank[id]), "every token once",
            fmt::format("the token of line {} again", line_of_rank[slots_[slot].id] + 1));
    slots_[slot] = {id, static_cast<uint32_t>(hash >> 32)};
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(token[i]); };
    if (token.size() == 1) byte_ids_[byte(0)] = id;
    if (token.size() == 2) pair_ids_[size_t{byte(0)} << 8 | byte(1)] = id;
  }
  for (int byte = 0; byte < 256; ++byte)
    if (byte_ids_[byte] == kNotAToken)
      throw InputError(file, "single bytes", "a token for each of the 256",
                       fmt::format("none for byte 0x{:02x}", byte));
}

int32_t Vocabulary::find(std::string_view token) const {
  if (token.size() > longest_ || token.empty()) return kNotAToken;
  const size_t mask = slots_.size() - 1;
  const uint64_t hash = hash_bytes(token);
  const uint32_t tag = static_cast<uint32_t>(hash >> 32);
  for (size_t slot = hash & mask;; slot = (slot + 1) & mask) {
    const Slot& found = slots_[slot];
    if (found.id == kNotAToken || (found.tag == tag && bytes(found.id) == token)) return found.id;
  }
}

}  // namespace k3
