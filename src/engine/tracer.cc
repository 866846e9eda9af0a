#include "engine/tracer.h"

#include <fmt/format.h>

#include <algorithm>

namespace k3 {
namespace {

std::string full_name(std::string_view name, int layer) {
  return layer < 0 ? std::string(name) : fmt::format("layers.{}.{}", layer, name);
}

}  // namespace

void Tracer::append(const std::string& name, const float* row, int64_t cols) {
  Tensor& t = tensors_[name];
  t.values.insert(t.values.end(), row, row + cols);
  t.shape = {static_cast<int64_t>(t.values.size()) / cols, cols};
}

void Tracer::see(std::string_view name, int layer, int64_t, const Rows& values) {
  if (name == "block_residuals") {
    Tensor& t = blocks_[layer];
    for (int64_t i = 0; i < values.rows; ++i)
      t.values.insert(t.values.end(), values.row(i), values.row(i) + values.cols);
    return;
  }
  for (int64_t i = 0; i < values.rows; ++i)
    append(full_name(name, layer), values.row(i), values.cols);
}

void Tracer::see_ids(std::string_view name, int layer, int64_t, const int32_t* ids, int64_t rows,
                     int64_t cols) {
  Tensor& t = tensors_[full_name(name, layer)];
  t.ids.insert(t.ids.end(), ids, ids + rows * cols);
  t.shape = {static_cast<int64_t>(t.ids.size()) / cols, cols};
}

void Tracer::states(SequenceState& state) {
  const int64_t heads = config_.kda_num_heads, d = config_.kda_head_dim,
                taps = config_.short_conv_kernel_size;
  int64_t index = 0;
  for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
    if (config_.attention(layer) != AttentionKind::kKda) continue;
    Tensor& s = tensors_[full_name("kda_state", layer)];
    s.shape = {heads, d, d};
    s.values.resize(static_cast<size_t>(heads * d * d));
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t v = 0; v < d; ++v)
        for (int64_t k = 0; k < d; ++k)
          s.values[static_cast<size_t>((h * d + v) * d + k)] =
              state.recurrent(index, h)[(v / 16 * d + k) * 16 + v % 16];
    for (const char* which : {"conv_q", "conv_k", "conv_v"}) {
      Tensor& t = tensors_[full_name(which, layer)];
      const int64_t width = heads * d, rows = static_cast<int64_t>(t.values.size()) / width;
      std::vector<float> last(static_cast<size_t>(width * taps), 0.0f);
      for (int64_t j = 0; j < taps; ++j)
        for (int64_t c = 0; c < width && rows - taps + j >= 0; ++c)
          last[static_cast<size_t>(c * taps + j)] =
              t.values[static_cast<size_t>((rows - taps + j) * width + c)];
      t.values = std::move(last);
      t.shape = {width, taps};
    }
    ++index;
  }
}

const std::map<std::string, Tracer::Tensor>& Tracer::tensors() {
  if (blocks_.empty()) return tensors_;
  Tensor& all = tensors_["block_residuals"];
  const auto count = static_cast<int64_t>(blocks_.size()), width = config_.hidden_size;
  const int64_t rows = static_cast<int64_t>(blocks_.begin()->second.values.size()) / width;
  all.shape = {rows, count, width};
  all.values.resize(static_cast<size_t>(rows * count * width));
  for (const auto& [block, t] : blocks_)
    for (int64_t i = 0; i < rows; ++i)
      std::copy_n(t.values.begin() + i * width, width,
                  all.values.begin() + (i * count + block) * width);
  blocks_.clear();
  return tensors_;
}

void Tracer::write(Storage& storage, const std::string& path) {
  std::vector<TensorData> data;
  for (const auto& [name, t] : tensors()) {
    data.push_back(
        {{name, t.ids.empty() ? Dtype::kF32 : Dtype::kI32, t.shape},
         t.ids.empty() ? std::as_bytes(std::span(t.values)) : std::as_bytes(std::span(t.ids))});
  }
  write_safetensors(storage, path, data);
}

}  // namespace k3
