// Base64 (RFC 4648, the standard alphabet).
//
//   std::string bytes;
//   if (!base64_decode("SGk=", Base64::kStrict, &bytes)) ...   // bytes == "Hi"
//
// Thread rule: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace k3 {

enum class Base64 {
  kStrict,   // padded to a multiple of four, unused bits zero, nothing else in the text
  kLenient,  // padding may be missing, ASCII white space is skipped (data URLs)
};

// Replaces *bytes with what `text` stands for; false, with *bytes undefined, if it is not base64.
bool base64_decode(std::string_view text, Base64 mode, std::string* bytes);

std::string base64_encode(std::string_view bytes);

}  // namespace k3
