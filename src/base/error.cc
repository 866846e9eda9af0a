#include "base/error.h"

#include <fmt/format.h>

#include "base/utf8.h"

namespace k3 {

InputError::InputError(std::string_view where, std::string_view what, std::string_view expected,
                       std::string_view found)
    : Error(fmt::format("{}: {}: expected {}, found {}", printable(where, 1000),
                        printable(what, 400), printable(expected, 400), printable(found, 400))) {}

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  size_t i = 0;
  while (i < text.size()) {
    if (out.size() >= limit) return out + "…";
    const Utf8Step step = utf8_next(text.substr(i));
    const unsigned char first = static_cast<unsigned char>(text[i]);
    if (step.valid && first >= 0x20 && first != 0x7f && !(step.code >= 0x80 && step.code < 0xa0)) {
      out.append(text.substr(i, step.length));
    } else {
      for (size_t k = 0; k < step.length; ++k)
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i + k]));
    }
    i += step.length;
  }
  return out;
}

}  // namespace k3
