// Any bytes as a config.json: an InputError of one line, or a config whose derived sizes hold.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "weights/config.h"
#include "weights/tensor_names.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const k3::ModelConfig c =
        k3::parse_config({reinterpret_cast<const char*>(data), size}, "config.json");
    require(static_cast<int64_t>(c.attention_kinds.size()) == c.num_hidden_layers);
    require(c.num_experts_per_token <= c.num_experts);
    require(c.num_experts % c.num_expert_group == 0);
    for (const auto& tensors : {k3::expected_tensors(c), k3::expected_vision_tensors(c)})
      for (const k3::ExpectedTensor& tensor : tensors) {
        require(!tensor.name.empty());
        require(tensor.elements() > 0 && tensor.elements() < int64_t{1} << 56);
      }
  } catch (const k3::InputError& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
  return 0;
}
