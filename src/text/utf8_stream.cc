#include "text/utf8_stream.h"

#include "base/utf8.h"

namespace k3 {
namespace {

// The first two bytes of an encoded surrogate, at the end of what has arrived. They can never
// become valid, yet the decoder whose behaviour is followed here waits for the third byte.
bool half_surrogate(std::string_view end) {
  return end.size() == 2 && end[0] == '\xed' && static_cast<unsigned char>(end[1]) >= 0xa0 &&
         static_cast<unsigned char>(end[1]) <= 0xbf;
}

}  // namespace

void Utf8Stream::push(std::string_view bytes, std::string* text) {
  std::string joined;
  if (!tail_.empty()) {
    joined = tail_;
    joined += bytes;
    bytes = joined;
    tail_.clear();
  }
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Step step = utf8_next(bytes.substr(i));
    if (step.incomplete || half_surrogate(bytes.substr(i))) {
      tail_ = bytes.substr(i);
      return;
    }
    if (step.valid)
      text->append(bytes.substr(i, step.length));
    else
      utf8_append(*text, 0xfffd);
    i += step.length;
  }
}

void Utf8Stream::flush(std::string* text) {
  *text += utf8_repair(tail_);
  tail_.clear();
}

}  // namespace k3
