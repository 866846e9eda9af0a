#include "ops/attention.h"

#include <algorithm>
#include <cstring>

namespace k3 {
namespace {

constexpr int64_t kQueries = 32;

// Sixteen maxima side by side, then the largest of them: the order does not matter to a maximum.
float largest_of(const float* x, int64_t n) {
  float part[16];
  std::fill_n(part, 16, x[0]);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int l = 0; l < 16; ++l) part[l] = x[i + l] > part[l] ? x[i + l] : part[l];
  for (; i < n; ++i) part[0] = std::max(part[0], x[i]);
  return *std::max_element(part, part + 16);
}

// Sixteen sums side by side, then their sum.
float sum_of(const float* x, int64_t n) {
  float part[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int l = 0; l < 16; ++l) part[l] += x[i + l];
  for (int l = 0; i < n; ++i, ++l) part[l] += x[i];
  float sum = 0;
  for (const float p : part) sum += p;
  return sum;
}

class BlockedAttention {
 public:
  BlockedAttention(const Kernels& kernels, const Attention<float>& a, float* work)
      : kernels_(kernels), a_(a), stride_(round_up(a.tokens, 16)) {
    keys_ = work;
    values_ = keys_ + a.key_dim * stride_;
    scores_ = values_ + a.value_dim * stride_;
    slopes_ = scores_ + kQueries * stride_;
    turn(a.k, a.k_stride, a.key_dim, keys_);
  }

  // Scores of the queries [begin, end) against the keys [0, end), scaled.
  void score(int64_t begin, int64_t end) {
    product(end - begin, end, a_.key_dim, a_.q + begin * a_.q_stride, a_.q_stride, 1, keys_,
            stride_, scores_, stride_, true);
  }

  float forward(float* out, float* top, float* total) {
    float largest = 0;
    for (int64_t begin = 0; begin < a_.tokens; begin += kQueries) {
      const int64_t end = std::min(a_.tokens, begin + kQueries);
      score(begin, end);
      for (int64_t i = begin; i < end; ++i) {
        float* p = scores_ + (i - begin) * stride_;
        for (int64_t j = 0; j <= i; ++j) p[j] *= a_.scale;
        top[i] = largest_of(p, i + 1);
        for (int64_t j = 0; j <= i; ++j) p[j] -= top[i];
        kernels_.exp(p, i + 1, p);
        total[i] = sum_of(p, i + 1);
        std::fill(p + i + 1, p + end, 0.0f);
        largest = i == 0 ? top[i] : std::max(largest, top[i]);
      }
      product(end - begin, a_.value_dim, end, scores_, stride_, 1, a_.v, a_.v_stride,
              out + begin * a_.out_stride, a_.out_stride, true);
      for (int64_t i = begin; i < end; ++i)
        for (int64_t c = 0; c < a_.value_dim; ++c) out[i * a_.out_stride + c] /= total[i];
    }
    return largest;
  }

  void backward(const float* out, const float* top, const float* total, const float* dout,
                float* dq, float* dk, float* dv) {
    turn(a_.v, a_.v_stride, a_.value_dim, values_);
    for (int64_t begin = 0; begin < a_.tokens; begin += kQueries) {
      const int64_t end = std::min(a_.tokens, begin + kQueries), rows = end - begin;
      const float* d = dout + begin * a_.out_stride;
      score(begin, end);
      product(rows, end, a_.value_dim, d, a_.out_stride, 1, values_, stride_, slopes_, stride_,
              true);
      for (int64_t i = begin; i < end; ++i) {
        float *p = scores_ + (i - begin) * stride_, *s = slopes_ + (i - begin) * stride_;
        const float along =
            kernels_.dot(dout + i * a_.out_stride, out + i * a_.out_stride, a_.value_dim);
        const float inverse = 1 / total[i];
        for (int64_t j = 0; j <= i; ++j) p[j] = p[j] * a_.scale - top[i];
        kernels_.exp(p, i + 1, p);
        for (int64_t j = 0; j <= i; ++j) {
          p[j] *= inverse;
          s[j] = p[j] * (s[j] - along) * a_.scale;
        }
        std::fill(p + i + 1, p + end, 0.0f);
        std::fill(s + i + 1, s + end, 0.0f);
      }
      product(rows, a_.key_dim, end, slopes_, stride_, 1, a_.k, a_.k_stride,
              dq + begin * a_.q_stride, a_.q_stride, false);
      product(end, a_.key_dim, rows, slopes_, 1, stride_, a_.q + begin * a_.q_stride, a_.q_stride,
              dk, a_.k_stride, false);
      product(end, a_.value_dim, rows, scores_, 1, stride_, d, a_.out_stride, dv, a_.v_stride,
              false);
    }
  }

 private:
  void turn(const float* x, int64_t row, int64_t cols, float* to) const {
    for (int64_t c = 0; c < cols; ++c)
      for (int64_t t = 0; t < a_.tokens; ++t) to[c * stride_ + t] = x[t * row + c];
  }
  void product(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_col,
               const float* b, int64_t b_row, float* c, int64_t c_stride, bool fresh) const {
    kernels_.gemm({m, n, k, a, a_row, a_col, b, b_row, c, c_stride, fresh});
  }

  const Kernels& kernels_;
  const Attention<float>& a_;
  const int64_t stride_;
  float *keys_, *values_, *scores_, *slopes_;  // keys and values transposed
};

}  // namespace

float attention_forward(const Kernels& kernels, const Attention<float>& a, float* out, float* top,
                        float* total, float* work) {
  return BlockedAttention(kernels, a, work).forward(out, top, total);
}

void attention_backward(const Kernels& kernels, const Attention<float>& a, const float* out,
                        const float* top, const float* total, const float* dout, float* dq,
                        float* dk, float* dv, float* work) {
  BlockedAttention(kernels, a, work).backward(out, top, total, dout, dq, dk, dv);
}

int64_t attention_work(int64_t tokens, int64_t key_dim, int64_t value_dim) {
  return (key_dim + value_dim + 2 * kQueries) * round_up(tokens, 16);
}

}  // namespace k3
