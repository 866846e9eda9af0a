// Bytes that arrive in pieces, as text that can be shown at once.
//
//   Utf8Stream stream;
//   stream.push("\xe4\xb8", &text);   // appends nothing: the character may still be completed
//   stream.push("\xad", &text);       // appends "中"
//   stream.flush(&text);              // a left-over beginning becomes one U+FFFD
//
// Bytes that can no longer become valid turn into U+FFFD at once, one for each maximal ill-formed
// subpart (an encoded surrogate half waits for its third byte first, as in the reference decoder);
// so the pieces together are utf8_repair() of the whole.
// Thread rule: one thread.
#pragma once

#include <string>
#include <string_view>

namespace k3 {

class Utf8Stream {
 public:
  void push(std::string_view bytes, std::string* text);
  void flush(std::string* text);

 private:
  std::string tail_;  // an incomplete but so far valid character, at most 3 bytes
};

}  // namespace k3
