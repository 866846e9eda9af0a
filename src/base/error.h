// What went wrong, in one line, for a person.
//
//   throw InputError("model-00003-of-000096.safetensors", "tensor 'lm_head.weight'",
//                    "shape [163840, 7168]", "shape [7168, 163840]");
//   // model-00003-of-000096.safetensors: tensor 'lm_head.weight': expected shape [163840, 7168],
//   // found shape [7168, 163840]
//
// The library never prints, exits or aborts on input: it throws one of the two kinds below and the
// command line turns them into a line on stderr and an exit code. Programmer errors are assertions.
// Thread rule: values; an exception thrown inside a parallel region is rethrown to its caller.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace k3 {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The command line, a file or a request is wrong; repeating the call cannot help. Exit code 2.
class InputError : public Error {
 public:
  explicit InputError(const std::string& line) : Error(line) {}
  InputError(std::string_view where, std::string_view what, std::string_view expected,
             std::string_view found);
};

// The input was right and the work still failed (an I/O error, no space, a NaN). Exit code 1.
class WorkError : public Error {
 public:
  using Error::Error;
};

// Untrusted text made safe for one line of a terminal: control bytes and invalid UTF-8 become \xNN,
// and what is longer than `limit` bytes is cut with "…".
std::string printable(std::string_view text, size_t limit = 200);

}  // namespace k3
