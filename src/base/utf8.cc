#include "base/utf8.h"

namespace k3 {

Utf8Step utf8_next(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};
  uint32_t need;
  unsigned char low = 0x80, high = 0xbf;  // the range of the second byte
  char32_t code;
  if (lead >= 0xc2 && lead <= 0xdf) {
    need = 1, code = lead & 0x1f;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    need = 2, code = lead & 0x0f;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    need = 3, code = lead & 0x07;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
  } else {
    return {0xfffd, 1, false, false};
  }
  uint32_t length = 1;
  for (; length <= need; ++length) {
    if (length == text.size()) return {0xfffd, length, false, true};
    const unsigned char next = byte(length);
    if (next < low || next > high) return {0xfffd, length, false, false};
    code = (code << 6) | (next & 0x3f);
    low = 0x80, high = 0xbf;
  }
  return {code, length, true, false};
}

void utf8_append(std::string& out, char32_t code) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | (code >> 6)), put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | (code >> 12)), put(0x80 | ((code >> 6) & 0x3f)), put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | (code >> 18)), put(0x80 | ((code >> 12) & 0x3f));
    put(0x80 | ((code >> 6) & 0x3f)), put(0x80 | (code & 0x3f));
  }
}

std::string utf8_repair(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Step step = utf8_next(bytes.substr(i));
    if (step.valid)
      out.append(bytes.substr(i, step.length));
    else
      utf8_append(out, 0xfffd);
    i += step.length;
  }
  return out;
}

}  // namespace k3
