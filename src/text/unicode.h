// Character classes of the pre-tokenizer, from Unicode 16.0, in two table look-ups.
//
//   if (char_class(code) & kCharSpace) ...        // \s of the split rule, 25 code points
//   if (char_class(code) & (kCharLetter | kCharNumber)) ...
//
// A code point can be in several sets. The tables are written by scripts/make_unicode_tables.py,
// which checks the size of every set. Not for general Unicode work: only what the split rule needs.
// Thread rule: constant data.
#pragma once

#include <cstdint>
#include <string_view>

namespace k3 {

enum CharClass : uint8_t {
  kCharHan = 1,      // Script=Han (not Script_Extensions)
  kCharUpper = 2,    // Lu, Lt, Lm, Lo or M, and not Han: the first letter class of the split rule
  kCharLower = 4,    // Ll, Lm, Lo or M, and not Han: the second letter class
  kCharLetter = 8,   // L, with Han
  kCharNumber = 16,  // N
  kCharSpace = 32,   // White_Space
};

// A union of CharClass bits; 0 for code points in no set and for values above U+10FFFF.
uint8_t char_class(char32_t code);

bool is_valid_utf8(std::string_view bytes);

}  // namespace k3
