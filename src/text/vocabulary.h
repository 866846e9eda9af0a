// The ordinary tokens of a tiktoken.model file: their bytes, and the id of a byte string.
//
//   Vocabulary vocabulary = Vocabulary::parse(read_text(storage, path), path);
//   vocabulary.find("the");        // its id, which is also its merge rank, or kNotAToken
//   vocabulary.bytes(0);           // "!"
//
// The file has one token a line: base64 of the bytes, a space, the rank in decimal. Ranks run from
// 0 without a gap and every single byte is a token. All token bytes lie in one string; for 163,584
// tokens the object takes about 7 MB.
// Thread rule: immutable after parse().
// Errors: InputError naming file and line.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace k3 {

class Vocabulary {
 public:
  static constexpr int32_t kNotAToken = -1;

  // `file` is named in errors.
  static Vocabulary parse(std::string_view text, const std::string& file);

  int32_t size() const { return static_cast<int32_t>(offsets_.size()) - 1; }

  // `id` must be below size(). The view lives as long as the vocabulary.
  std::string_view bytes(int32_t id) const {
    return std::string_view(bytes_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
  }

  int32_t find(std::string_view token) const;
  int32_t byte_id(unsigned char byte) const { return byte_ids_[byte]; }

  // The token of two bytes: the most frequent question of byte-pair encoding.
  int32_t pair_id(unsigned char first, unsigned char second) const {
    return pair_ids_[size_t{first} << 8 | second];
  }

 private:
  struct Line {
    uint32_t offset, length;
    uint32_t rank;
  };
  std::vector<Line> read_lines(std::string_view text, const std::string& file);
  void order_by_rank(const std::vector<Line>& lines, const std::string& file);
  void index_tokens(const std::vector<uint32_t>& line_of_rank, const std::string& file);

  std::string bytes_;
  std::vector<uint32_t> offsets_;
  // Open addressing; a power of two, at most half full. The tag, bits of the hash, saves looking at
  // the bytes of nearly every other token.
  struct Slot {
    int32_t id = kNotAToken;
    uint32_t tag = 0;
  };
  std::vector<Slot> slots_;
  std::vector<int32_t> pair_ids_;
  std::array<int32_t, 256> byte_ids_{};
  size_t longest_ = 0;
};

}  // namespace k3
