#include "text/pretokenizer.h"

#include <cstdint>

#include "text/unicode.h"

namespace k3 {
namespace {

constexpr size_t kChunkChars = 400000;
constexpr size_t kRunChars = 25000;
constexpr size_t kNoMatch = static_cast<size_t>(-1);

struct Char {
  char32_t code;
  uint32_t length;
  uint8_t cls;
  bool is(int mask) const { return (cls & mask) != 0; }
  bool newline() const { return code == '\r' || code == '\n'; }
  // What may stand once before a word.
  bool prefixable() const { return !newline() && !is(kCharLetter | kCharNumber); }
  bool punctuation() const { return !is(kCharSpace | kCharLetter | kCharNumber); }
};

// The character at `i`; the text is known to be valid, so its lead byte tells the length.
inline Char char_at(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[i + k]); };
  const auto tail = [&](size_t k) { return static_cast<char32_t>(byte(k) & 0x3f); };
  const unsigned char lead = byte(0);
  char32_t code;
  uint32_t length;
  if (lead < 0x80) {
    code = lead, length = 1;
  } else if (lead < 0xe0) {
    code = static_cast<char32_t>(lead & 0x1f) << 6 | tail(1), length = 2;
  } else if (lead < 0xf0) {
    code = static_cast<char32_t>(lead & 0x0f) << 12 | tail(1) << 6 | tail(2), length = 3;
  } else {
    code = static_cast<char32_t>(lead & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
    length = 4;
  }
  return {code, length, char_class(code)};
}

size_t skip_class(std::string_view text, size_t i, int mask) {
  while (i < text.size()) {
    const Char c = char_at(text, i);
    if (!c.is(mask)) break;
    i += c.length;
  }
  return i;
}

size_t skip_newlines(std::string_view text, size_t i) {
  while (i < text.size() && (text[i] == '\r' || text[i] == '\n')) ++i;
  return i;
}

size_t skip_contraction(std::string_view text, size_t i) {
  if (text.size() - i < 2 || text[i] != '\'') return i;
  const auto lower = [&](size_t k) {
    const char c = k < text.size() ? text[k] : '\0';
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  };
  const char first = lower(i + 1), second = lower(i + 2);
  switch (first) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return i + 2;
    case 'r':
    case 'v':
      return second == 'e' ? i + 3 : i;
    case 'l':
      return second == 'l' ? i + 3 : i;
    case '\xc5':  // U+017F, whose case fold is s
      return second == '\xbf' ? i + 3 : i;
    default:
      return i;
  }
}

// X* Y+ at `i`: all of the X run if a Y follows, else back to after the run's last Y.
size_t match_ending_lower(std::string_view text, size_t i) {
  size_t after_last_lower = kNoMatch;
  while (i < text.size()) {
    const Char c = char_at(text, i);
    if (!c.is(kCharUpper)) {
      if (c.is(kCharLower)) return skip_class(text, i, kCharLower);
      break;
    }
    i += c.length;
    if (c.is(kCharLower)) after_last_lower = i;
  }
  return after_last_lower;
}

// X+ Y* at `i`.
size_t match_starting_upper(std::string_view text, size_t i) {
  const size_t end = skip_class(text, i, kCharUpper);
  return end == i ? kNoMatch : skip_class(text, end, kCharLower);
}

size_t match_word(std::string_view text, size_t at, const Char& first) {
  const size_t after = at + first.length;
  const bool prefix = first.prefixable() && after < text.size();
  size_t end = kNoMatch;
  if (prefix) end = match_ending_lower(text, after);
  if (end == kNoMatch) end = match_ending_lower(text, at);
  if (end == kNoMatch && prefix) end = match_starting_upper(text, after);
  if (end == kNoMatch) end = match_starting_upper(text, at);
  return end == kNoMatch ? kNoMatch : skip_contraction(text, end);
}

size_t match_punctuation(std::string_view text, size_t at) {
  size_t i = at;
  if (text[i] == ' ') ++i;
  const size_t start = i;
  while (i < text.size()) {
    const Char c = char_at(text, i);
    if (!c.punctuation()) break;
    i += c.length;
  }
  return i == start ? kNoMatch : skip_newlines(text, i);
}

// A run of white space up to its last line break; without one the run gives up its last character
// to what follows, unless nothing follows or it has no other.
size_t match_space(std::string_view text, size_t at) {
  size_t i = at, last = at, after_newline = kNoMatch;
  while (i < text.size()) {
    const Char c = char_at(text, i);
    if (!c.is(kCharSpace)) break;
    last = i;
    i += c.length;
    if (c.newline()) after_newline = i;
  }
  if (after_newline != kNoMatch) return after_newline;
  return i == text.size() || last == at ? i : last;
}

}  // namespace

size_t next_piece(std::string_view text, size_t at) {
  const Char first = char_at(text, at);
  if (first.is(kCharHan)) return skip_class(text, at, kCharHan);
  size_t end = match_word(text, at, first);
  if (end != kNoMatch) return end;
  if (first.is(kCharNumber)) {
    end = at + first.length;
    for (int digits = 1; digits < 3 && end < text.size(); ++digits) {
      const Char c = char_at(text, end);
      if (!c.is(kCharNumber)) break;
      end += c.length;
    }
    return end;
  }
  end = match_punctuation(text, at);
  return end != kNoMatch ? end : match_space(text, at);
}

bool TextCutter::next(std::string_view* stretch) {
  if (at_ == text_.size()) return false;
  const size_t begin = at_;
  // No run inside can be too long if there are not enough bytes for it.
  if (begin == 0 && text_.size() <= kRunChars) {
    at_ = text_.size();
    *stretch = text_;
    return true;
  }
  size_t run = 0;
  bool run_is_space = false;
  while (at_ < text_.size()) {
    if (chunk_chars_ == kChunkChars) {
      chunk_chars_ = 0;
      break;
    }
    const Char c = char_at(text_, at_);
    // The program that defines the cuts also counts U+001C to U+001F as white space here.
    const bool space = c.is(kCharSpace) || (c.code >= 0x1c && c.code <= 0x1f);
    if (run > 0 && space == run_is_space) {
      if (run == kRunChars) break;
      ++run;
    } else {
      run = 1;
      run_is_space = space;
    }
    ++chunk_chars_;
    at_ += c.length;
  }
  *stretch = text_.substr(begin, at_ - begin);
  return true;
}

}  // namespace k3
