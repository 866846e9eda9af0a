// A JSON reader for headers of millions of bytes: it walks the text once, builds nothing, and
// checks everything. Private to weights/; small files are read with the json library instead.
//
//   JsonScanner json(text, "model.safetensors.index.json");
//   json.object([&](std::string_view key) { json.skip_value(); });
//   json.finish();
//
// Errors: InputError naming the file and the byte. Thread rule: one scanner, one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace k3 {

class JsonScanner {
 public:
  // Positions in errors start at `base`, the place of the text in its file.
  JsonScanner(std::string_view text, std::string_view path, uint64_t base = 0)
      : text_(text), path_(path), base_(base) {}

  // Calls `member(key)` with the scanner at the member's value, which it must consume. The key
  // stays valid until the next string that holds an escape.
  template <class F>
  void object(F&& member) {
    open('{', "an object");
    if (consume('}')) return;
    do {
      const std::string_view key = string();
      expect(':');
      member(key);
    } while (consume(','));
    expect('}');
  }
  template <class F>
  void array(F&& element) {
    open('[', "a list");
    if (consume(']')) return;
    do element();
    while (consume(','));
    expect(']');
  }

  // Without escapes a view into the text; otherwise into a buffer that the next escaped string
  // reuses. `escaped()` tells which it was.
  std::string_view string();
  bool escaped() const { return escaped_; }

  uint64_t integer();  // 0 .. 2^63 - 1, nothing else
  void skip_value();   // any well-formed value, nested at most 64 deep
  void finish();       // nothing but blanks may follow

  // Throws about the token ahead.
  [[noreturn]] void fail(std::string_view expected);

 private:
  void blanks() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      ++at_;
  }
  bool consume(char c) {
    blanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!consume(c)) fail(std::string{'\'', c, '\''});
  }
  void open(char c, std::string_view what) {
    if (!consume(c)) fail(what);
  }
  size_t plain_end(size_t from) const;
  std::string_view string_with_escapes(size_t begin, size_t plain);
  void escape();
  uint32_t hex4();
  void skip_number();
  void skip(int depth);
  void literal(std::string_view word);

  std::string_view text_, path_;
  uint64_t base_;
  size_t at_ = 0;
  bool escaped_ = false;
  std::string buffer_;
};

}  // namespace k3
