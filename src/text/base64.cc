#include "text/base64.h"

#include <array>
#include <cstdint>

namespace k3 {
namespace {

constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kBad = 0xff, kBlank = 0xfe;

constexpr std::array<uint8_t, 256> make_values() {
  std::array<uint8_t, 256> values{};
  for (auto& value : values) value = kBad;
  for (uint8_t i = 0; i < 64; ++i) values[static_cast<unsigned char>(kAlphabet[i])] = i;
  for (const char c : {' ', '\t', '\r', '\n'}) values[static_cast<unsigned char>(c)] = kBlank;
  return values;
}
constexpr std::array<uint8_t, 256> kValues = make_values();

}  // namespace

bool base64_decode(std::string_view text, Base64 mode, std::string* bytes) {
  bytes->clear();
  bytes->reserve(text.size() / 4 * 3 + 3);
  uint32_t bits = 0;
  size_t digits = 0, padding = 0;
  for (const char c : text) {
    if (c == '=') {
      if (++padding > 2) return false;
      continue;
    }
    const uint8_t value = kValues[static_cast<unsigned char>(c)];
    if (value == kBlank && mode == Base64::kLenient) continue;
    if (value >= kBlank || padding > 0) return false;
    bits = (bits << 6) | value;
    if (++digits % 4 == 0) {
      bytes->push_back(static_cast<char>(bits >> 16));
      bytes->push_back(static_cast<char>(bits >> 8));
      bytes->push_back(static_cast<char>(bits));
    }
  }
  const size_t rest = digits % 4;
  if (rest == 1) return false;
  const size_t wanted = rest == 0 ? 0 : 4 - rest;
  if (padding != wanted && (mode == Base64::kStrict || padding != 0)) return false;
  if (rest == 0) return true;
  const uint32_t unused = rest == 2 ? 0xf : 0x3;
  if (mode == Base64::kStrict && (bits & unused) != 0) return false;
  bits <<= 6 * (4 - rest);
  bytes->push_back(static_cast<char>(bits >> 16));
  if (rest == 3) bytes->push_back(static_cast<char>(bits >> 8));
  return true;
}

std::string base64_encode(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  const auto byte = [&](size_t i) {
    return i < bytes.size() ? static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])) : 0u;
  };
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const uint32_t bits = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    text.push_back(kAlphabet[bits >> 18]);
    text.push_back(kAlphabet[bits >> 12 & 63]);
    text.push_back(i + 1 < bytes.size() ? kAlphabet[bits >> 6 & 63] : '=');
    text.push_back(i + 2 < bytes.size() ? kAlphabet[bits & 63] : '=');
  }
  return text;
}

}  // namespace k3
