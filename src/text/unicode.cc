#include "text/unicode.h"

#include <cstring>
#include <iterator>

#include "base/utf8.h"

namespace k3 {
namespace {

#include "text/unicode_tables.inc"

constexpr size_t kPageSize = 128;
constexpr size_t kIndexSize = std::size(kUnicodeIndex);

}  // namespace

uint8_t char_class(char32_t code) {
  size_t page = code / kPageSize;
  if (page >= kIndexSize) page = kIndexSize - 1;
  return kUnicodePages[kUnicodeIndex[page] * kPageSize + code % kPageSize];
}

bool is_valid_utf8(std::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size()) {
    if (bytes.size() - i >= sizeof(uint64_t)) {
      uint64_t word;
      std::memcpy(&word, bytes.data() + i, sizeof(word));
      if ((word & 0x8080808080808080u) == 0) {
        i += sizeof(word);
        continue;
      }
    }
    const Utf8Step step = utf8_next(bytes.substr(i));
    if (!step.valid) return false;
    i += step.length;
  }
  return true;
}

}  // namespace k3
