// UTF-8, one code point at a time, with the Unicode rule for ill-formed input: every maximal
// subpart of an ill-formed sequence counts as one unit (Unicode 16, section 3.9, table 3-8).
//
//   for (size_t i = 0; i < text.size();) {
//     Utf8Step s = utf8_next(text.substr(i));   // s.code is U+FFFD where !s.valid
//     i += s.length;
//   }
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace k3 {

struct Utf8Step {
  char32_t code;    // U+FFFD when the bytes are ill-formed
  uint32_t length;  // bytes consumed, at least 1
  bool valid;
  bool incomplete;  // ill-formed only because the text ends: more bytes could complete it
};

// `text` must not be empty.
Utf8Step utf8_next(std::string_view text);

void utf8_append(std::string& out, char32_t code);

// Ill-formed subparts replaced by U+FFFD.
std::string utf8_repair(std::string_view bytes);

}  // namespace k3
