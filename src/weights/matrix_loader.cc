#include "weights/matrix_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "weights/panels.h"
#include "weights/safetensors.h"

namespace k3 {
namespace {

// The first element whose exponent is all ones, or -1. Adding `unit`, the exponent's lowest bit, to
// a magnitude carries into the sign bit for exactly those; so one OR over many tells, at the speed
// of memory: this runs over every byte that is streamed.
template <class T>
int64_t first_not_finite(const std::byte* data, int64_t count, T unit) {
  constexpr int64_t kStep = 1024;
  constexpr T kSign = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
  const auto carry = [&](T bits) { return static_cast<T>((bits & static_cast<T>(~kSign)) + unit); };
  T bits[kStep];
  for (int64_t i = 0; i < count; i += kStep) {
    const int64_t n = std::min(kStep, count - i);
    std::memcpy(bits, data + i * static_cast<int64_t>(sizeof(T)),
                static_cast<size_t>(n) * sizeof(T));
    T all = 0;
    for (int64_t k = 0; k < n; ++k) all = static_cast<T>(all | carry(bits[k]));
    if (!(all & kSign)) continue;
    for (int64_t k = 0; k < n; ++k)
      if (carry(bits[k]) & kSign) return i + k;
  }
  return -1;
}

void refuse_not_finite(const MatrixSource& source, const std::byte* data, int64_t count,
                       int64_t first) {
  const int64_t at = source.ref.dtype == Dtype::kF32
                         ? first_not_finite<uint32_t>(data, count, 0x00800000u)
                         : first_not_finite<uint16_t>(data, count, 0x0080u);
  if (at < 0) return;
  const int64_t cols = source.ref.shape[1];
  throw InputError(
      source.snapshot->shard(source.ref.shard).path(),
      fmt::format("tensor '{}'", source.snapshot->stored_name(source.name)), "finite weights",
      fmt::format("NaN or infinity at [{}, {}]", (first + at) / cols, (first + at) % cols));
}

// Whether a scale of these panels is the largest fp16, 65504, where quantising clips.
bool at_fp16_limit(const WeightView& view, int64_t panel, int64_t panels) {
  if (view.layout != Layout::kInt8Panels) return false;
  constexpr uint16_t kLargest = 0x7bff;
  const int64_t bytes = panel_scale_bytes(view.layout, view.cols);
  for (int64_t at = panel * bytes; at < (panel + panels) * bytes; at += 2) {
    uint16_t half;
    std::memcpy(&half, view.scales + at, sizeof half);
    if (half == kLargest) return true;
  }
  return false;
}

// What int8 blocks cannot hold: their scale is an fp16, which ends at 65504, for 127 steps.
void refuse_beyond_int8(const MatrixSource& source, const std::byte* data, int64_t count,
                        int64_t first) {
  constexpr float kMost = 65504.0f * 127;
  const int64_t size = element_bytes(source.ref.dtype), cols = source.ref.shape[1];
  for (int64_t i = 0; i < count; ++i) {
    float value;
    widen_to_float(source.ref.dtype, data + i * size, 1, &value);
    if (std::abs(value) <= kMost) continue;
    throw InputError(source.snapshot->shard(source.ref.shard).path(),
                     fmt::format("tensor '{}'", source.snapshot->stored_name(source.name)),
                     fmt::format("weights of at most {:.0f} for --trunk int8", kMost),
                     fmt::format("{} at [{}, {}]", value, (first + i) / cols, (first + i) % cols));
  }
}

// Packs `rows` staged rows as the panels of `view` from `panel` on.
void pack(const WeightView& view, Dtype from, const std::byte* data, int64_t panel, int64_t rows) {
  auto* out = const_cast<std::byte*>(view.data) + panel * panel_bytes(view.layout, view.cols);
  switch (view.layout) {
    case Layout::kBf16Panels:
      pack_bf16_panels(data, rows, view.cols, out);
      break;
    case Layout::kF32Panels:
      pack_f32_panels(from, data, rows, view.cols, out);
      break;
    case Layout::kInt8Panels:
      quantize_int8_panels(
          from, data, rows, view.cols, out,
          const_cast<std::byte*>(view.scales) + panel * panel_scale_bytes(view.layout, view.cols));
      break;
    case Layout::kBf16Rows:
    case Layout::kMxfp4Rows:
      assert(false);
  }
}

void pack_transposed(const WeightView& view, Dtype from, const std::byte* data) {
  auto* out = const_cast<std::byte*>(view.data);
  switch (view.layout) {
    case Layout::kBf16Panels:
      pack_bf16_panels_transposed(data, view.rows, view.rows, view.cols, out);
      break;
    case Layout::kF32Panels:
      pack_f32_panels_transposed(from, data, view.rows, view.rows, view.cols, out);
      break;
    case Layout::kInt8Panels:
      quantize_int8_panels_transposed(from, data, view.rows, view.rows, view.cols, out,
                                      const_cast<std::byte*>(view.scales));
      break;
    case Layout::kBf16Rows:
    case Layout::kMxfp4Rows:
      assert(false);
  }
}

}  // namespace

size_t staging_bytes_for(const ModelConfig& c, size_t wish) {
  const int64_t widest =
      std::max({c.hidden_size, c.intermediate_size, c.shared_intermediate_size(), c.kda_width(),
                c.num_attention_heads * c.v_head_dim, c.q_lora_rank, c.moe_intermediate_size});
  const int64_t absorbed = c.qk_nope_head_dim * c.kv_lora_rank;
  return std::max(wish,
                  static_cast<size_t>(std::max(kPanelRows * widest, absorbed)) * sizeof(float));
}

bool readable_in_place(const TensorRef& ref) {
  return ref.dtype == Dtype::kBf16 && ref.offset % 2 == 0;
}

void load_rows(Reader& reader, Reader::Priority priority, Completion& completion,
               const MatrixSource& source, const WeightView& view, std::byte* to, bool check) {
  const auto row_bytes = static_cast<uint64_t>(source.ref.shape[1]) * 2;
  const uint64_t first = source.ref.offset + static_cast<uint64_t>(source.first_row) * row_bytes;
  Reader::Check finite;
  if (check)
    finite = [source](uint64_t offset, std::span<const std::byte> bytes) {
      refuse_not_finite(source, bytes.data(), static_cast<int64_t>(bytes.size() / 2),
                        static_cast<int64_t>((offset - source.ref.offset) / 2));
    };
  reader.submit_span(priority, completion, source.snapshot->shard(source.ref.shard), first,
                     first + static_cast<uint64_t>(view.rows) * row_bytes, to, finite);
}

void load_matrix(Reader& reader, Reader::Priority priority, Completion& completion,
                 const MatrixSource& source, const WeightView& view, bool transposed) {
  const int64_t stored_cols = source.ref.shape[1], size = element_bytes(source.ref.dtype);
  const int64_t row_bytes = stored_cols * size;
  const auto read = [source, row_bytes, stored_cols](Reader::Lane& lane, int64_t row,
                                                     int64_t rows) {
    const auto bytes = lane.stage(source.snapshot->shard(source.ref.shard),
                                  source.ref.offset + static_cast<uint64_t>(row * row_bytes),
                                  static_cast<size_t>(rows * row_bytes));
    refuse_not_finite(source, bytes.data(), rows * stored_cols, row * stored_cols);
    return bytes.data();
  };
  if (transposed) {
    reader.submit(priority, completion, [=](Reader::Lane& lane) {
      const std::byte* data = read(lane, source.first_row, view.cols);
      pack_transposed(view, source.ref.dtype, data);
      if (at_fp16_limit(view, 0, view.panels()))
        refuse_beyond_int8(source, data, view.cols * stored_cols, source.first_row * stored_cols);
    });
    return;
  }
  const int64_t panels = view.panels();
  const int64_t step =
      std::max<int64_t>(1, static_cast<int64_t>(reader.staging_bytes()) / (row_bytes * kPanelRows));
  for (int64_t panel = 0; panel < panels; panel += step) {
    const int64_t first = panel * kPanelRows, rows = std::min(view.rows - first, step * kPanelRows);
    reader.submit(priority, completion, [=](Reader::Lane& lane) {
      const int64_t row = source.first_row + first;
      const std::byte* data = read(lane, row, rows);
      pack(view, source.ref.dtype, data, panel, rows);
      if (at_fp16_limit(view, panel, ceil_div(rows, kPanelRows)))
        refuse_beyond_int8(source, data, rows * stored_cols, row * stored_cols);
    });
  }
}

}  // namespace k3
