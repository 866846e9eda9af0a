#include "weights/safetensors_json.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/utf8.h"

namespace k3 {
namespace {

constexpr int kMaxDepth = 64;

bool digit(char c) { return c >= '0' && c <= '9'; }

// A byte with its top bit set wherever `word` holds a byte that ends a plain run: a quote, a
// backslash, a control byte or a non-ASCII one. May also mark bytes above the first such one.
uint64_t stops(uint64_t word) {
  constexpr uint64_t kOnes = 0x0101010101010101, kTops = 0x8080808080808080;
  const uint64_t quote = word ^ (kOnes * '"'), slash = word ^ (kOnes * '\\');
  return (((quote - kOnes) & ~quote) | ((slash - kOnes) & ~slash) | (word - kOnes * 0x20) | word) &
         kTops;
}

}  // namespace

void JsonScanner::fail(std::string_view expected) {
  blanks();
  const std::string_view rest = text_.substr(std::min(at_, text_.size()), 24);
  throw InputError(path_, fmt::format("byte {}", base_ + at_), expected,
                   rest.empty() ? "the end" : fmt::format("'{}'", printable(rest, 24)));
}

// The first byte at or after `from` that cannot stand in a string as it is.
size_t JsonScanner::plain_end(size_t from) const {
  size_t i = from;
  while (i + 8 <= text_.size()) {
    uint64_t word;
    std::memcpy(&word, text_.data() + i, 8);
    if (stops(word)) break;
    i += 8;
  }
  for (; i < text_.size(); ++i) {
    const auto c = static_cast<unsigned char>(text_[i]);
    if (c == '"' || c == '\\' || c < 0x20 || c >= 0x80) break;
  }
  return i;
}

std::string_view JsonScanner::string() {
  if (!consume('"')) fail("a string");
  const size_t begin = at_, end = plain_end(begin);
  escaped_ = false;
  if (end < text_.size() && text_[end] == '"') {
    at_ = end + 1;
    return text_.substr(begin, end - begin);
  }
  return string_with_escapes(begin, end);
}

std::string_view JsonScanner::string_with_escapes(size_t begin, size_t plain) {
  escaped_ = true;
  buffer_.assign(text_.substr(begin, plain - begin));
  at_ = plain;
  while (at_ < text_.size() && text_[at_] != '"') {
    const auto c = static_cast<unsigned char>(text_[at_]);
    if (c < 0x20) fail("a string without control bytes");
    if (c == '\\') {
      ++at_;
      escape();
    } else if (c >= 0x80) {
      const Utf8Step step = utf8_next(text_.substr(at_));
      if (!step.valid) fail("a string in UTF-8");
      buffer_.append(text_.substr(at_, step.length));
      at_ += step.length;
    } else {
      const size_t end = plain_end(at_);
      buffer_.append(text_.substr(at_, end - at_));
      at_ = end;
    }
  }
  if (at_ >= text_.size()) fail("the end of a string");
  ++at_;
  return buffer_;
}

void JsonScanner::escape() {
  const char c = at_ < text_.size() ? text_[at_] : '\0';
  constexpr std::string_view kCodes = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  if (const size_t i = kCodes.find(c); c != '\0' && i != std::string_view::npos) {
    buffer_ += kMeanings[i];
    ++at_;
    return;
  }
  if (c != 'u') fail("an escape");
  ++at_;
  char32_t code = hex4();
  if (code >= 0xdc00 && code < 0xe000) fail("a surrogate pair");
  if (code >= 0xd800 && code < 0xdc00) {
    if (text_.substr(std::min(at_, text_.size()), 2) != "\\u") fail("a surrogate pair");
    at_ += 2;
    const char32_t low = hex4();
    if (low < 0xdc00 || low >= 0xe000) fail("a surrogate pair");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  utf8_append(buffer_, code);
}

uint32_t JsonScanner::hex4() {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    uint32_t nibble;
    if (digit(c)) {
      nibble = static_cast<uint32_t>(c - '0');
    } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
      nibble = static_cast<uint32_t>((c | 0x20) - 'a' + 10);
    } else {
      fail("four hexadecimal digits");
    }
    value = value * 16 + nibble;
    ++at_;
  }
  return value;
}

uint64_t JsonScanner::integer() {
  blanks();
  const size_t begin = at_;
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  uint64_t value = 0;
  size_t i = begin;
  while (i < text_.size() && digit(text_[i])) {
    const auto d = static_cast<uint64_t>(text_[i] - '0');
    if (value > (kMax - d) / 10) fail("an integer below 2^63");
    value = value * 10 + d;
    ++i;
  }
  const char after = i < text_.size() ? text_[i] : ' ';
  const bool leading_zero = i > begin + 1 && text_[begin] == '0';
  if (i == begin || leading_zero || after == '.' || after == 'e' || after == 'E')
    fail("a whole number from 0");
  at_ = i;
  return value;
}

void JsonScanner::skip_number() {
  const auto digits = [&] {
    const size_t begin = at_;
    while (at_ < text_.size() && digit(text_[at_])) ++at_;
    if (at_ == begin) fail("a digit");
  };
  if (text_[at_] == '-') ++at_;
  if (at_ < text_.size() && text_[at_] == '0') {
    ++at_;
  } else {
    digits();
  }
  if (at_ < text_.size() && text_[at_] == '.') {
    ++at_;
    digits();
  }
  if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
    ++at_;
    if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
    digits();
  }
}

void JsonScanner::literal(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) fail("a value");
  at_ += word.size();
}

void JsonScanner::skip(int depth) {
  if (depth > kMaxDepth) fail(fmt::format("values nested at most {} deep", kMaxDepth));
  blanks();
  const char c = at_ < text_.size() ? text_[at_] : '\0';
  if (c == '{') return object([&](std::string_view) { skip(depth + 1); });
  if (c == '[') return array([&] { skip(depth + 1); });
  if (c == '"') return static_cast<void>(string());
  if (c == 't') return literal("true");
  if (c == 'f') return literal("false");
  if (c == 'n') return literal("null");
  if (c != '-' && !digit(c)) fail("a value");
  skip_number();
}

void JsonScanner::skip_value() { skip(0); }

void JsonScanner::finish() {
  blanks();
  if (at_ != text_.size()) fail("nothing more");
}

}  // namespace k3
