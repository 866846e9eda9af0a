#include "ops/kda_products.h"

#include <algorithm>
#include <cstring>

namespace k3 {
namespace {

constexpr int64_t kC = kKdaChunk;

// One chunk; arrays of tokens are [16][d], T those transposed to [d][16], zero past the last token.
class ChunkProducts {
 public:
  ChunkProducts(const Kernels& kernels, const KdaChunks<float>& a, float* work)
      : kernels_(kernels), a_(a), d_(a.d), work_(work) {
    for (float** rows : {&up_, &down_, &gamma_, &tail_, &k_up_, &k_down_, &q_up_, &k_gamma_,
                         &q_gamma_, &k_tail_, &error_, &r_, &dr_, &dx_, &dq_, &read_, &write_})
      *rows = take(kC * d_);
    turned_ = take(2 * kC * d_);
    wide_ = take(2 * kC * d_);
    end_ = take(d_);
    db_ = take(d_);
    for (float** square : {&L_, &A_, &dA_, &dL_}) *square = take(kC * kC);
  }
  static int64_t floats(int64_t d) { return 21 * kC * d + 2 * round_up(d, 16) + 4 * kC * kC; }

  void start(int64_t chunk) {
    first_ = chunk * kC;
    n_ = std::min(kC, a_.tokens - first_);
    decays();
    const float *k = at(a_.k), *q = at(a_.q);
    for (int64_t i = 0; i < n_ * d_; ++i) {
      k_up_[i] = k[i] * up_[i];
      k_down_[i] = k[i] * down_[i];
      q_up_[i] = q[i] * up_[i];
      k_gamma_[i] = k[i] * gamma_[i];
      q_gamma_[i] = q[i] * gamma_[i];
      k_tail_[i] = k[i] * tail_[i];
    }
    turn(k_down_, turned_, kC);
    product(n_, kC, d_, {q_up_, d_}, turned_, kC, A_, kC, true);
    product(n_, kC, d_, {k_up_, d_}, turned_, kC, L_, kC, true);
    for (int64_t i = 0; i < kC; ++i)
      for (int64_t j = 0; j < kC; ++j) {
        if (j > i || i >= n_) A_[i * kC + j] = 0;
        L_[i * kC + j] = j >= i || i >= n_ ? 0 : -L_[i * kC + j];
      }
  }

  // R = beta (V - K^ S - L R), row after row. L_ holds -L.
  void solve(const float* S) {
    product(n_, d_, d_, {k_gamma_, d_}, S, d_, error_, d_, true);
    const float* v = at(a_.v);
    for (int64_t i = 0; i < n_ * d_; ++i) error_[i] = v[i] - error_[i];
    for (int64_t i = 0; i < n_; ++i) {
      float *e = error_ + i * d_, *r = r_ + i * d_;
      if (i) product(1, d_, i, {L_ + i * kC, kC}, r_, d_, e, d_, false);
      const float beta = a_.beta[(first_ + i) * a_.beta_stride];
      for (int64_t c = 0; c < d_; ++c) r[c] = beta * e[c];
    }
  }

  void forward(const float* S, float* next, float* out) {
    solve(S);
    float* o = out + first_ * d_;  // O = Q^ S + A R
    product(n_, d_, d_, {q_gamma_, d_}, S, d_, o, d_, true);
    product(n_, d_, n_, {A_, kC}, r_, d_, o, d_, false);
    for (int64_t c = 0; c < d_; ++c)  // S' = exp(b_C) S + K~' R
      for (int64_t j = 0; j < d_; ++j) next[c * d_ + j] = end_[c] * S[c * d_ + j];
    product(d_, d_, n_, {k_tail_, 1, d_}, r_, d_, next, d_, false);
  }

  void backward(const float* S, const float* next, const float* dout,
                const KdaGradients<float>& d) {
    solve(S);
    float* G = d.dS;
    const float* d_o = dout + first_ * d_;
    turn(r_, turned_, kC);
    product(n_, kC, d_, {d_o, d_}, turned_, kC, dA_, kC, true);  // dA = dO R'
    product(d_, kC, d_, {G, d_}, turned_, kC, wide_, kC, true);  // (R G')'
    unturn(wide_, kC, write_);
    for (int64_t i = 0; i < n_ * d_; ++i) write_[i] *= tail_[i];
    product(n_, d_, n_, {A_, 1, kC}, d_o, d_, dr_, d_, true);  // dR = A' dO + K~ G
    product(n_, d_, d_, {k_tail_, d_}, G, d_, dr_, d_, false);
    for (int64_t i = n_; i-- > 0;) {  // Z = (I + L' diag(beta))^-1 dR, in dr; dX = beta Z
      float *z = dr_ + i * d_, *x = dx_ + i * d_;
      if (i + 1 < n_)
        product(1, d_, n_ - 1 - i, {L_ + (i + 1) * kC + i, 1, kC}, dx_ + (i + 1) * d_, d_, z, d_,
                false);
      const float beta = a_.beta[(first_ + i) * a_.beta_stride];
      for (int64_t c = 0; c < d_; ++c) x[c] = beta * z[c];
      d.dbeta[(first_ + i) * a_.beta_stride] += kernels_.dot(z, error_ + i * d_, d_);
    }
    kernels_.add(dx_, n_ * d_, d.dv + first_ * d_);
    product(n_, kC, d_, {dx_, d_}, turned_, kC, dL_, kC, true);  // dL = -dX R'
    for (int64_t i = 0; i < n_; ++i)
      for (int64_t j = 0; j < kC; ++j) {
        if (j > i || j >= n_) dA_[i * kC + j] = 0;
        dL_[i * kC + j] = j >= i ? 0 : -dL_[i * kC + j];
      }
    // dO S' and dX S', both at once: [d][dO's tokens, dX's].
    turn(d_o, turned_, 2 * kC);
    turn(dx_, turned_ + kC, 2 * kC);
    product(d_, 2 * kC, d_, {S, d_}, turned_, 2 * kC, wide_, 2 * kC, true);
    unturn(wide_, 2 * kC, dq_);
    unturn(wide_ + kC, 2 * kC, read_);
    float *by_q = k_tail_, *by_k = q_up_;  // neither is needed after their last products
    for (int64_t i = 0; i < n_ * d_; ++i) {
      dq_[i] *= gamma_[i];
      read_[i] *= -gamma_[i];
    }
    float* column = up_keeper();
    product(n_, d_, n_, {dA_, 1, kC}, q_up_, d_, column, d_, true);
    product(n_, d_, n_, {dL_, 1, kC}, k_up_, d_, column, d_, false);
    product(n_, d_, n_, {dA_, kC}, k_down_, d_, by_q, d_, true);
    product(n_, d_, n_, {dL_, kC}, k_down_, d_, by_k, d_, true);
    for (int64_t i = 0; i < n_ * d_; ++i) {
      dq_[i] += up_[i] * by_q[i];
      read_[i] += up_[i] * by_k[i];
      write_[i] += down_[i] * column[i];
    }
    // The decays' gradient: what each row's q and reads gain and its writes lose, summed from the
    // end of the chunk, where the state that leaves it counts too.
    for (int64_t c = 0; c < d_; ++c) db_[c] = kernels_.dot(next + c * d_, G + c * d_, d_);
    const float *q = at(a_.q), *k = at(a_.k);
    for (int64_t i = n_; i-- > 0;)
      for (int64_t c = 0; c < d_; ++c) {
        const int64_t here = i * d_ + c, to = first_ * d_ + here;
        db_[c] += q[here] * dq_[here] + k[here] * (read_[here] - write_[here]);
        d.dg[to] += db_[c];
        d.dq[to] += dq_[here];
        d.dk[to] += read_[here] + write_[here];
      }
    for (int64_t i = 0; i < n_ * d_; ++i) k_gamma_[i] = -k_gamma_[i];
    for (int64_t c = 0; c < d_; ++c)  // dS = Q^' dO - K^' dX + exp(b_C) G
      for (int64_t j = 0; j < d_; ++j) G[c * d_ + j] *= end_[c];
    product(d_, d_, n_, {q_gamma_, 1, d_}, d_o, d_, G, d_, false);
    product(d_, d_, n_, {k_gamma_, 1, d_}, dx_, d_, G, d_, false);
  }

 private:
  struct Left {  // a(i, p) = data[i * row + p * col]
    const float* data;
    int64_t row, col = 1;
  };
  float* take(int64_t floats) {
    float* at = work_;
    work_ += round_up(floats, 16);
    return at;
  }
  float* up_keeper() { return error_; }  // the errors are not needed after dbeta
  const float* at(const float* x) const { return x + first_ * d_; }

  void product(int64_t m, int64_t n, int64_t k, const Left& a, const float* b, int64_t b_row,
               float* c, int64_t c_stride, bool fresh) const {
    kernels_.gemm({m, n, k, a.data, a.row, a.col, b, b_row, c, c_stride, fresh});
  }
  void turn(const float* rows, float* to, int64_t stride) const {
    for (int64_t c = 0; c < d_; ++c) {
      for (int64_t i = 0; i < n_; ++i) to[c * stride + i] = rows[i * d_ + c];
      for (int64_t i = n_; i < kC; ++i) to[c * stride + i] = 0;
    }
  }
  void unturn(const float* from, int64_t stride, float* rows) const {
    for (int64_t c = 0; c < d_; ++c)
      for (int64_t i = 0; i < n_; ++i) rows[i * d_ + c] = from[c * stride + i];
  }

  // b: the log-decay up to and with each row, in gamma at first. up = exp(b - m), down = exp(m - b)
  // around the middle row's m; gamma = exp(b), tail = exp(b_C - b).
  void decays() {
    const float* g = at(a_.g);
    std::copy_n(g, d_, gamma_);
    for (int64_t i = d_; i < n_ * d_; ++i) gamma_[i] = g[i] + gamma_[i - d_];
    const float *middle = gamma_ + n_ / 2 * d_, *last = gamma_ + (n_ - 1) * d_;
    for (int64_t i = 0; i < n_; ++i)
      for (int64_t c = 0; c < d_; ++c) {
        const int64_t here = i * d_ + c;
        up_[here] = gamma_[here] - middle[c];
        down_[here] = middle[c] - gamma_[here];
        tail_[here] = last[c] - gamma_[here];
      }
    for (float* m : {up_, down_, gamma_, tail_}) kernels_.exp(m, n_ * d_, m);
    std::copy_n(gamma_ + (n_ - 1) * d_, d_, end_);
  }

  const Kernels& kernels_;
  const KdaChunks<float>& a_;
  const int64_t d_;
  float* work_;
  int64_t first_ = 0, n_ = 0;
  float *up_, *down_, *gamma_, *tail_, *k_up_, *k_down_, *q_up_, *k_gamma_, *q_gamma_, *k_tail_;
  float *error_, *r_, *dr_, *dx_, *dq_, *read_, *write_, *turned_, *wide_, *end_, *db_;
  float *L_, *A_, *dA_, *dL_;
};

}  // namespace

void kda_chunks_forward(const Kernels& kernels, const KdaChunks<float>& a, float* states,
                        float* out, float* work) {
  ChunkProducts chunk(kernels, a, work);
  const int64_t size = a.d * a.d;
  for (int64_t i = 0; i < a.chunks(); ++i) {
    chunk.start(i);
    chunk.forward(states + i * size, states + (i + 1) * size, out);
  }
}

void kda_chunks_backward(const Kernels& kernels, const KdaChunks<float>& a, const float* states,
                         const float* dout, const KdaGradients<float>& gradients, float* work) {
  ChunkProducts chunk(kernels, a, work);
  const int64_t size = a.d * a.d;
  for (int64_t i = a.chunks(); i-- > 0;) {
    chunk.start(i);
    chunk.backward(states + i * size, states + (i + 1) * size, dout, gradients);
  }
}

int64_t kda_products_work(int64_t d) { return ChunkProducts::floats(d); }

}  // namespace k3
