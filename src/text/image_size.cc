#include "text/image_size.h"

#include <limits>

#include <fmt/format.h>

#include "base/error.h"

namespace k3 {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();

// Reads integers at offsets; past the end of the bytes everything is an error.
class Header {
 public:
  Header(std::string_view bytes, std::string_view where) : bytes_(bytes), where_(where) {}

  bool starts_with(size_t at, std::string_view magic) const {
    return bytes_.size() >= at && bytes_.substr(at, magic.size()) == magic;
  }

  uint32_t byte(size_t at) const {
    if (at >= bytes_.size()) fail("a complete header", fmt::format("{} bytes", bytes_.size()));
    return static_cast<unsigned char>(bytes_[at]);
  }
  uint32_t big16(size_t at) const { return byte(at) << 8 | byte(at + 1); }
  uint32_t big32(size_t at) const { return big16(at) << 16 | big16(at + 2); }
  uint32_t little16(size_t at) const { return byte(at) | byte(at + 1) << 8; }
  uint32_t little24(size_t at) const { return little16(at) | byte(at + 2) << 16; }
  uint32_t little32(size_t at) const { return little16(at) | little16(at + 2) << 16; }
  size_t size() const { return bytes_.size(); }

  [[noreturn]] void fail(std::string_view expected, std::string_view found) const {
    throw InputError(where_, "image", expected, found);
  }

 private:
  std::string_view bytes_;
  std::string_view where_;
};

ImageSize png(const Header& header) {
  if (!header.starts_with(8, std::string_view("\0\0\0\x0dIHDR", 8)))
    header.fail("a PNG that begins with IHDR", "another chunk");
  return {header.big32(16), header.big32(20)};
}

ImageSize gif(const Header& header) { return {header.little16(6), header.little16(8)}; }

ImageSize bmp(const Header& header) {
  const uint32_t length = header.little32(14);
  if (length == 12) return {header.little16(18), header.little16(20)};
  if (length < 16)
    header.fail("a BMP header of 12 or at least 16 bytes", fmt::format("{}", length));
  const int64_t height = static_cast<int32_t>(header.little32(22));
  // A negative height means that the rows run from the top.
  return {static_cast<int32_t>(header.little32(18)), height < 0 ? -height : height};
}

ImageSize webp(const Header& header) {
  if (header.starts_with(12, "VP8X"))
    return {int64_t{header.little24(24)} + 1, int64_t{header.little24(27)} + 1};
  if (header.starts_with(12, "VP8L")) {
    if (header.byte(20) != 0x2f) header.fail("the VP8L signature", "another byte");
    const uint32_t bits = header.little32(21);
    return {int64_t{bits & 0x3fff} + 1, int64_t{bits >> 14 & 0x3fff} + 1};
  }
  if (header.starts_with(12, "VP8 ")) {
    if (!header.starts_with(23, "\x9d\x01\x2a")) header.fail("a VP8 key frame", "another frame");
    return {header.little16(26) & 0x3fff, header.little16(28) & 0x3fff};
  }
  header.fail("a WebP with a VP8, VP8L or VP8X chunk", "another chunk");
}

// Walks the segments to the frame header. Every step moves on, so garbage only ends the walk.
ImageSize jpeg(const Header& header) {
  for (size_t at = 2; at < header.size();) {
    if (header.byte(at) != 0xff) {
      ++at;
      continue;
    }
    const uint32_t marker = header.byte(at + 1);
    if (marker == 0xff) {  // a fill byte
      ++at;
      continue;
    }
    at += 2;
    const bool alone = marker <= 0x01 || (marker >= 0xd0 && marker <= 0xd8);
    if (alone) continue;
    if (marker == 0xd9 || marker == 0xda) break;  // the end, or picture data, before any frame
    const bool frame =
        marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
    if (frame) return {header.big16(at + 5), header.big16(at + 3)};
    const uint32_t length = header.big16(at);
    if (length < 2) header.fail("JPEG segments of at least 2 bytes", fmt::format("{}", length));
    at += length;
  }
  header.fail("a JPEG with a frame header", "none");
}

ImageSize read_any(const Header& header) {
  if (header.starts_with(0, "\x89PNG\r\n\x1a\n")) return png(header);
  if (header.starts_with(0, "\xff\xd8")) return jpeg(header);
  if (header.starts_with(0, "GIF87a") || header.starts_with(0, "GIF89a")) return gif(header);
  if (header.starts_with(0, "RIFF") && header.starts_with(8, "WEBP")) return webp(header);
  if (header.starts_with(0, "BM")) return bmp(header);
  header.fail("PNG, JPEG, GIF, WebP or BMP", "another format");
}

}  // namespace

ImageSize read_image_size(std::string_view bytes, std::string_view where) {
  const Header header(bytes, where);
  const ImageSize size = read_any(header);
  if (size.width < 1 || size.width > kLargest || size.height < 1 || size.height > kLargest)
    header.fail("sides from 1 to 2147483647 pixels", fmt::format("{}x{}", size.width, size.height));
  return size;
}

}  // namespace k3
