// The pixel size of an encoded picture, from its header alone: PNG, JPEG, GIF, WebP and BMP.
//
//   const ImageSize size = read_image_size(bytes, "messages[0].content[1]");   // {640, 480}
//
// Nothing is decoded, and the orientation note of a photograph is not applied. Hostile input is
// safe: every field is checked against the bytes there are. Units: pixels; both sides are from 1 to
// 2^31 - 1.
// Thread rule: a pure function.
// Errors: InputError naming `where` and what is wrong with the header.
#pragma once

#include <cstdint>
#include <string_view>

namespace k3 {

struct ImageSize {
  int64_t width = 0;
  int64_t height = 0;
};

ImageSize read_image_size(std::string_view bytes, std::string_view where);

}  // namespace k3
