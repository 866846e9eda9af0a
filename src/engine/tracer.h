// Keeps the intermediate values of a forward pass, under the names of the golden files.
//
//   Tracer tracer(engine.config());
//   engine.run(feeds, sink, &tracer);
//   tracer.states(state);                                  // recurrent and convolution states
//   for (const auto& [name, t] : tracer.tensors()) ...     // "layers.3.attn_in", [tokens, H], ...
//
// Rows arrive in token order, so a prompt run in chunks gives the same tensors as one run whole.
// For one sequence. Thread rule: as Observer, from the thread of the forward pass.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/sequence_state.h"
#include "ops/context.h"
#include "weights/safetensors.h"

namespace k3 {

class Tracer : public Observer {
 public:
  explicit Tracer(const ModelConfig& config) : config_(config) {}

  struct Tensor {
    Shape shape;
    std::vector<float> values;
    std::vector<int32_t> ids;  // instead of values, for integer tensors
  };

  void see(std::string_view name, int layer, int64_t first_row, const Rows& values) override;
  void see_ids(std::string_view name, int layer, int64_t first_row, const int32_t* ids,
               int64_t rows, int64_t cols) override;
  void logits(std::span<const float> row) {
    append("logits", row.data(), static_cast<int64_t>(row.size()));
  }
  // The states after the prompt: kda_state [heads, value, key], conv_* [heads * d, taps].
  void states(SequenceState& state);

  void add(const std::string& name, Tensor tensor) { tensors_[name] = std::move(tensor); }

  const std::map<std::string, Tensor>& tensors();
  void write(Storage& storage, const std::string& path);

 private:
  void append(const std::string& name, const float* row, int64_t cols);

  const ModelConfig& config_;
  std::map<std::string, Tensor> tensors_;
  std::map<int, Tensor> blocks_;  // closed residual blocks, until they are interleaved
};

}  // namespace k3
