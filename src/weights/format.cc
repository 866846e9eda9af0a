#include "weights/format.h"

#include <cmath>

namespace k3 {

const char* name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kU8:
      return "U8";
    case Dtype::kBf16:
      return "BF16";
    case Dtype::kF16:
      return "F16";
    case Dtype::kF32:
      return "F32";
    case Dtype::kI32:
      return "I32";
    case Dtype::kI64:
      return "I64";
  }
  return "?";
}

int64_t element_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kU8:
      return 1;
    case Dtype::kBf16:
    case Dtype::kF16:
      return 2;
    case Dtype::kF32:
    case Dtype::kI32:
      return 4;
    case Dtype::kI64:
      return 8;
  }
  return 0;
}

const char* name(Layout layout) {
  switch (layout) {
    case Layout::kF32Panels:
      return "f32";
    case Layout::kBf16Panels:
      return "bf16";
    case Layout::kBf16Rows:
      return "bf16 rows";
    case Layout::kInt8Panels:
      return "int8";
    case Layout::kMxfp4Rows:
      return "mxfp4";
  }
  return "?";
}

int64_t WeightView::data_bytes() const {
  switch (layout) {
    case Layout::kF32Panels:
      return panels() * kPanelRows * cols * 4;
    case Layout::kBf16Panels:
      return panels() * kPanelRows * ceil_div(cols, 2) * 4;
    case Layout::kBf16Rows:
      return rows * cols * 2;
    case Layout::kInt8Panels:
      return panels() * kPanelRows * blocks() * kBlock;
    case Layout::kMxfp4Rows:
      return rows * cols / 2;
  }
  return 0;
}

int64_t WeightView::scale_bytes() const {
  switch (layout) {
    case Layout::kF32Panels:
    case Layout::kBf16Panels:
    case Layout::kBf16Rows:
      return 0;
    case Layout::kInt8Panels:
      return panels() * kPanelRows * blocks() * 2;
    case Layout::kMxfp4Rows:
      return rows * blocks();
  }
  return 0;
}

float f16_to_f32(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f, mantissa = bits & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | (mantissa << 13));
  if (exponent == 0) {
    const float value = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -value : value;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t f32_to_f16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000);
  const uint32_t magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds past 65504
  if (magnitude < 0x38800000) {                       // subnormal half: units of 2^-24
    const float scaled = std::ldexp(std::bit_cast<float>(magnitude), 24);
    return sign | static_cast<uint16_t>(std::nearbyint(scaled));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded - 0x38000000) >> 13);
}

}  // namespace k3
