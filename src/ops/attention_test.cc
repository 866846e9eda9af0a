// The blocked attention against the templates in double. An output of the forward is a convex mix,
// a gradient a sum over the tokens: both err by a few roundings a term, so 1e-5 of the largest
// value holds for the tens of terms here (70 * 2^-24 = 4e-6).
#include "ops/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace k3 {
namespace {

void expect_close(const std::vector<float>& a, const std::vector<double>& b, const char* what) {
  double largest = 1;
  for (const double x : b) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], 1e-5 * largest) << what << " at " << i;
}

TEST(Attention, BlocksAreTheTemplates) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const Isa isa : isas())
    for (const int64_t tokens : {1, 31, 32, 33, 70}) {
      const int64_t kd = 24, vd = 17, gap = 5;  // rows of v and of the output lie apart
      const auto draw = [&](int64_t count) {
        std::vector<float> x(static_cast<size_t>(count));
        for (float& v : x) v = normal(random);
        return x;
      };
      const std::vector<float> q = draw(tokens * kd), k = draw(tokens * kd);
      const std::vector<float> v = draw(tokens * (vd + gap)), dout = draw(tokens * (vd + gap));
      const auto run = [&](auto number, auto&& forward, auto&& backward) {
        using T = decltype(number);
        const auto as = [](const std::vector<float>& x) {
          return std::vector<T>(x.begin(), x.end());
        };
        const std::vector<T> tq = as(q), tk = as(k), tv = as(v), td = as(dout);
        Attention<T> a;
        a.tokens = tokens;
        a.key_dim = a.q_stride = a.k_stride = kd;
        a.value_dim = vd;
        a.v_stride = a.out_stride = vd + gap;
        a.q = tq.data();
        a.k = tk.data();
        a.v = tv.data();
        a.scale = T(0.3);
        std::vector<std::vector<T>> r(7);
        r[0].resize(v.size());  // out, top, total, dq, dk, dv, largest
        r[1].resize(static_cast<size_t>(tokens));
        r[2].resize(static_cast<size_t>(tokens));
        r[3].resize(q.size());
        r[4].resize(q.size());
        r[5].resize(v.size());
        r[6] = {forward(a, r)};
        backward(a, td, r);
        return r;
      };
      const auto golden = run(
          0.0,
          [](Attention<double>& a, auto& r) {
            a.exp = [](const double* x, int64_t n, double* y) {
              for (int64_t i = 0; i < n; ++i) y[i] = std::exp(x[i]);
            };
            return attention_forward(a, r[0].data(), r[1].data(), r[2].data());
          },
          [](const Attention<double>& a, const auto& d, auto& r) {
            attention_backward(a, r[0].data(), r[1].data(), r[2].data(), d.data(), r[3].data(),
                               r[4].data(), r[5].data());
          });
      std::vector<float> work(static_cast<size_t>(attention_work(tokens, kd, vd)));
      const auto fast = run(
          0.0f,
          [&](Attention<float>& a, auto& r) {
            return attention_forward(kernels(isa), a, r[0].data(), r[1].data(), r[2].data(),
                                     work.data());
          },
          [&](const Attention<float>& a, const auto& d, auto& r) {
            attention_backward(kernels(isa), a, r[0].data(), r[1].data(), r[2].data(), d.data(),
                               r[3].data(), r[4].data(), r[5].data(), work.data());
          });
      const char* names[] = {"out", "top", "total", "dq", "dk", "dv", "largest"};
      for (size_t i = 0; i < fast.size(); ++i) expect_close(fast[i], golden[i], names[i]);
    }
}

}  // namespace
}  // namespace k3
