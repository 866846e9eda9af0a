// Any bytes as a safetensors file and as an index: an InputError of one line, or tensors that can
// be read.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/storage.h"
#include "weights/safetensors.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

template <class F>
void refuse_politely(F&& call) {
  try {
    call();
  } catch (const k3::InputError& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
}

void open_file(const std::string& content) {
  k3::MemoryStorage storage;
  storage.put("x", content);
  refuse_politely([&] {
    const auto file = k3::SafetensorsFile::open(storage, "x");
    for (const auto& [name, info] : file.tensors()) {
      require(file.bytes(name).size() == info.bytes);
      require(static_cast<int64_t>(file.floats(name).size()) == info.shape.elements());
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  open_file(input);
  // Again as the JSON of a header, so that a mutation need not guess the length; a zero byte ends
  // it.
  const size_t end = std::min(input.find('\0'), input.size());
  std::string prefix(8, '\0');
  for (int i = 0; i < 8; ++i) prefix[static_cast<size_t>(i)] = static_cast<char>(end >> (8 * i));
  open_file(prefix + input.substr(0, end) + input.substr(std::min(end + 1, input.size())));
  refuse_politely([&] {
    k3::parse_safetensors_index(input, "i", [](std::string_view name, std::string_view file) {
      require(name.size() + file.size() < size_t{1} << 40);
    });
  });
  return 0;
}
