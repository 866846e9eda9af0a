// Plain definitions that the tests of gradients share, in whatever number.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace k3 {

template <class T>
T sigmoid(T x) {
  return 1 / (1 + std::exp(-x));
}

template <class T>
void softmax(const T* x, int64_t n, T* p) {
  const T top = *std::max_element(x, x + n);
  T total = 0;
  for (int64_t i = 0; i < n; ++i) total += std::exp(x[i] - top);
  for (int64_t i = 0; i < n; ++i) p[i] = std::exp(x[i] - top) / total;
}

// c_t = sum_j w[j] x_{t-taps+1+j} over [tokens][n], with taps - 1 rows of history before token 0.
template <class T>
std::vector<T> convolve(const std::vector<T>& x, const std::vector<T>& history,
                        const std::vector<T>& w, int64_t tokens, int64_t n, int64_t taps) {
  std::vector<T> c(x.size(), T(0));
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < taps; ++j) {
        const int64_t from = t - taps + 1 + j;
        c[static_cast<size_t>(t * n + i)] +=
            w[static_cast<size_t>(j * n + i)] *
            (from >= 0 ? x[static_cast<size_t>(from * n + i)]
                       : history[static_cast<size_t>((from + taps - 1) * n + i)]);
      }
  return c;
}

}  // namespace k3
