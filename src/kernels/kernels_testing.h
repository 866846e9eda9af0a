// What the kernel tests share: random data, buffers that end at an unreadable page, and plain
// packers of the weight layouts, written from format.h and not from the kernels.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "kernels/kernels.h"

namespace k3::testing {

constexpr double kUnit = 0x1p-24;  // half an ulp of 1, the relative error of one rounding

// The bound on the relative error of n roundings one after another (Higham, gamma_n).
inline double gamma(double n) { return n * kUnit / (1 - n * kUnit); }

class Random {
 public:
  explicit Random(uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t bits() { return random_.bits(); }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  double uniform() { return random_.uniform(); }
  float normal() {
    const double u = 1 - uniform(), v = uniform();
    return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v));
  }
  // Mostly normal, one in 32 a hundred times larger, one in 32 zero of either sign.
  float heavy() {
    const int64_t kind = below(32);
    const float x = normal();
    return kind == 0 ? 100 * x : kind == 1 ? std::copysign(0.0f, x) : x;
  }

 private:
  SplitMix64 random_;
};

// n values whose last byte is the last of a page; the page after it cannot be touched.
template <class T>
class Guarded {
 public:
  explicit Guarded(int64_t n) : n_(n) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = static_cast<size_t>(n) * sizeof(T);
    const size_t body = (bytes + page - 1) / page * page;
    length_ = body + page;
    base_ = static_cast<char*>(
        mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + body, page, PROT_NONE) != 0) std::abort();
    data_ = reinterpret_cast<T*>(base_ + body - bytes);
  }
  Guarded(Guarded&& other) noexcept
      : n_(other.n_), length_(other.length_), base_(other.base_), data_(other.data_) {
    other.base_ = nullptr;
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() {
    if (base_ != nullptr) munmap(base_, length_);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return n_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + n_; }

 private:
  int64_t n_;
  size_t length_ = 0;
  char* base_ = nullptr;
  T* data_ = nullptr;
};

using Floats = Guarded<float>;

inline Floats heavy_floats(int64_t n, Random& random) {
  Floats x(n);
  for (float& value : x) value = random.heavy();
  return x;
}
inline Floats normal_floats(int64_t n, Random& random, float scale = 1) {
  Floats x(n);
  for (float& value : x) value = scale * random.normal();
  return x;
}
inline Floats copy(const Floats& from) {
  Floats to(from.size());
  std::copy(from.data(), from.data() + from.size(), to.data());
  return to;
}
inline bool same_bits(const float* a, const float* b, int64_t n) {
  return n == 0 || std::memcmp(a, b, static_cast<size_t>(n) * sizeof(float)) == 0;
}

// A matrix in a layout, with the values behind its bytes.
struct Matrix {
  Layout layout;
  int64_t rows, cols;
  Guarded<std::byte> data, scales;
  std::vector<float> value;  // [rows][cols], without the block scale where there is one
  std::vector<float> scale;  // [rows][blocks]; 1 for f32 and bf16

  WeightView view() const { return {layout, rows, cols, data.data(), scales.data()}; }
  float factor(int64_t row, int64_t col) const {
    return scale[static_cast<size_t>(row * ceil_div(cols, kBlock) + col / kBlock)];
  }
  float at(int64_t row, int64_t col) const { return value[static_cast<size_t>(row * cols + col)]; }
};

inline Matrix random_matrix(Layout layout, int64_t rows, int64_t cols, Random& random) {
  WeightView shape{layout, rows, cols, nullptr, nullptr};
  const int64_t blocks = shape.blocks(), panels = shape.panels();
  Matrix m{layout,
           rows,
           cols,
           Guarded<std::byte>(shape.data_bytes()),
           Guarded<std::byte>(shape.scale_bytes()),
           std::vector<float>(static_cast<size_t>(rows * cols)),
           std::vector<float>(static_cast<size_t>(rows * blocks), 1.0f)};
  auto* data = reinterpret_cast<unsigned char*>(m.data.data());
  auto* scales = reinterpret_cast<unsigned char*>(m.scales.data());
  const auto value = [&](int64_t r, int64_t c) -> float& {
    return m.value[static_cast<size_t>(r * cols + c)];
  };
  const auto factor = [&](int64_t r, int64_t b) -> float& {
    return m.scale[static_cast<size_t>(r * blocks + b)];
  };
  switch (layout) {
    case Layout::kF32Panels:
      for (int64_t p = 0; p < panels; ++p) {
        for (int64_t c = 0; c < cols; ++c) {
          for (int64_t r = 0; r < 16; ++r) {
            const float x = p * 16 + r < rows ? random.heavy() : 0.0f;
            if (p * 16 + r < rows) value(p * 16 + r, c) = x;
            std::memcpy(data + ((p * cols + c) * 16 + r) * 4, &x, 4);
          }
        }
      }
      break;
    case Layout::kBf16Panels: {
      std::fill(m.data.begin(), m.data.end(), std::byte{0});
      const int64_t pairs = ceil_div(cols, 2);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          const uint16_t x = f32_to_bf16(random.heavy());
          value(r, c) = bf16_to_f32(x);
          std::memcpy(data + ((r / 16 * pairs + c / 2) * 16 + r % 16) * 4 + c % 2 * 2, &x, 2);
        }
      }
      break;
    }
    case Layout::kBf16Rows:
      for (int64_t i = 0; i < rows * cols; ++i) {
        const uint16_t x = f32_to_bf16(random.heavy());
        value(i / cols, i % cols) = bf16_to_f32(x);
        std::memcpy(data + i * 2, &x, 2);
      }
      break;
    case Layout::kInt8Panels:
      std::fill(m.data.begin(), m.data.end(), std::byte{128});
      std::fill(m.scales.begin(), m.scales.end(), std::byte{0});
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t b = 0; b < blocks; ++b) {
          const uint16_t half =
              random.below(16) == 0 ? 3 : f32_to_f16(std::abs(random.normal()) + 0.01f);
          factor(r, b) = f16_to_f32(half);
          std::memcpy(scales + ((r / 16 * blocks + b) * 16 + r % 16) * 2, &half, 2);
          for (int64_t d = 0; d < 8; ++d) {
            for (int64_t i = 0; i < 4; ++i) {
              const int64_t c = b * 32 + dword_column(d, i);
              if (c >= cols) continue;
              const int64_t kind = random.below(16);  // the extremes come often
              const auto byte = static_cast<uint8_t>(kind == 0   ? 0
                                                     : kind == 1 ? 255
                                                     : kind == 2 ? 1
                                                                 : random.below(256));
              value(r, c) = static_cast<float>(byte) - 128;
              data[(((r / 16 * blocks + b) * 8 + d) * 16 + r % 16) * 4 + i] = byte;
            }
          }
        }
      }
      break;
    case Layout::kMxfp4Rows:
      for (int64_t i = 0; i < rows * cols / 2; ++i) {
        const auto byte = static_cast<uint8_t>(random.below(256));
        data[i] = byte;
        value(i * 2 / cols, i * 2 % cols) = kFp4Values[byte & 15];
        value(i * 2 / cols, i * 2 % cols + 1) = kFp4Values[byte >> 4];
      }
      for (int64_t i = 0; i < rows * blocks; ++i) {
        // Mostly near one; now and then the ends of the range, small ones oftener than the one
        // that drowns a whole row.
        const int64_t kind = random.below(256);
        const auto e = static_cast<uint8_t>(kind < 8    ? kind % 2
                                            : kind == 8 ? 230
                                                        : 118 + random.below(16));
        scales[i] = e;
        m.scale[static_cast<size_t>(i)] = e8m0_value(e);
      }
      break;
  }
  return m;
}

}  // namespace k3::testing
