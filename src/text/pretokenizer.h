// Cuts text into the pieces that byte-pair encoding works on, one at a time.
//
//   for (size_t at = 0; at < text.size();) {
//     const size_t end = next_piece(text, at);
//     use(text.substr(at, end - at));
//     at = end;
//   }
//
// The pieces are those of the split pattern of the K2/K3 tokenizers (leftmost, first alternative
// wins):
//
//   [\p{Han}]+
//   [^\r\n\p{L}\p{N}]? X* Y+ (?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   [^\r\n\p{L}\p{N}]? X+ Y* (?i:'s|'t|'re|'ve|'m|'ll|'d)?
//   \p{N}{1,3}
//    ?[^\s\p{L}\p{N}]+[\r\n]*
//   \s*[\r\n]+
//   \s+(?!\S)
//   \s+
//
// with X = Lu Lt Lm Lo M without Han and Y = Ll Lm Lo M without Han. The scanner does not
// backtrack: no character is looked at more than a fixed number of times, whatever the text.
// Thread rule: pure functions; a TextCutter belongs to one thread.
#pragma once

#include <cstddef>
#include <string_view>

namespace k3 {

// The end (byte offset) of the piece that starts at byte `at` < text.size(). `text` must be valid
// UTF-8 and `at` a character boundary. The end of `text` counts as the end of the input.
size_t next_piece(std::string_view text, size_t at);

// The hard boundaries that very long input has before anything else happens to it: every 400,000
// characters, and inside such a chunk wherever a run of white space, or of anything else, would
// pass 25,000 characters. Special names and split rules do not see across them.
class TextCutter {
 public:
  // `text` must be valid UTF-8 and outlive the cutter.
  explicit TextCutter(std::string_view text) : text_(text) {}

  // The next stretch, never empty; false at the end.
  bool next(std::string_view* stretch);

 private:
  std::string_view text_;
  size_t at_ = 0;
  size_t chunk_chars_ = 0;
};

}  // namespace k3
