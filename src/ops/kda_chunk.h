// KDA in chunks: the form that training runs (training.md 1.4 to 1.6; Kimi Linear, arXiv
// 2510.26692, eq. 6-9; K3 report, eq. 3-4).
//
//   KdaChunks<float> head = {tokens, d, stride, beta_stride, q, k, v, g, beta, exp};
//   std::vector<float> states((head.chunks() + 1) * d * d);         // [0]: the first state
//   kda_chunks_forward(head, states.data(), out);                   // fills the others
//   kda_chunks_backward(head, states.data(), dout, gradients);      // dS: last in, first out
//
// A chunk is one tile of sixteen tokens. Decays are split around the middle row's, exp(b_i - b_j) =
// exp(b_i - m) exp(m - b_j), so with K3's bound of -5 a step no factor passes e^40; the unbounded
// decay of Kimi-Linear has no such bound and takes the recurrence. q is scaled and k a unit row, g
// the log-decay. One head of one document; rows lie `stride` apart, beta's `beta_stride`. Sums run
// in index order. Thread rule: pure functions of their arguments.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace k3 {

constexpr int64_t kKdaChunk = 16;

template <class T>
struct KdaChunks {
  int64_t tokens = 0, d = 0, stride = 0, beta_stride = 1;
  const T *q = nullptr, *k = nullptr, *v = nullptr, *g = nullptr, *beta = nullptr;
  void (*exp)(const T* x, int64_t n, T* y) = nullptr;

  int64_t chunks() const { return (tokens + kKdaChunk - 1) / kKdaChunk; }
};

template <class T>
struct KdaGradients {  // all added to but dS
  T *dq = nullptr, *dk = nullptr, *dv = nullptr, *dg = nullptr, *dbeta = nullptr;
  T* dS = nullptr;  // [d][d]: the last state's, then the first's
};

// What forward and backward both need of one chunk. Matrices of tokens are [16][d].
template <class T>
class KdaChunk {
 public:
  KdaChunk(const KdaChunks<T>& a, int64_t chunk)
      : a_(a), first_(chunk * kKdaChunk), n_(std::min(kKdaChunk, a.tokens - first_)) {
    for (std::vector<T>* m :
         {&up_, &down_, &gamma_, &tail_, &k_up_, &k_down_, &q_up_, &error_, &r_})
      m->resize(static_cast<size_t>(n_ * a.d));
    end_.resize(static_cast<size_t>(a.d));
    decays();
    products();
  }

  int64_t n() const { return n_; }

  // R = beta (V - K^ S - L R), row after row.
  void solve(const T* S) {
    for (int64_t i = 0; i < n_; ++i) {
      T *e = row(error_, i), *r = row(r_, i);
      std::copy_n(at(a_.v, i), a_.d, e);
      for (int64_t c = 0; c < a_.d; ++c) axpy(-at(a_.k, i)[c] * row(gamma_, i)[c], S + c * a_.d, e);
      for (int64_t j = 0; j < i; ++j) axpy(-L_[i][j], row(r_, j), e);
      for (int64_t c = 0; c < a_.d; ++c) r[c] = beta(i) * e[c];
    }
  }

  void forward(const T* S, T* next, T* out) {
    solve(S);
    for (int64_t i = 0; i < n_; ++i) {  // O = Q^ S + A R
      T* o = out + (first_ + i) * a_.stride;
      std::fill_n(o, a_.d, T(0));
      for (int64_t c = 0; c < a_.d; ++c) axpy(at(a_.q, i)[c] * row(gamma_, i)[c], S + c * a_.d, o);
      for (int64_t j = 0; j <= i; ++j) axpy(A_[i][j], row(r_, j), o);
    }
    for (int64_t c = 0; c < a_.d; ++c) {  // S' = exp(b_C) S + K~' R
      T* to = next + c * a_.d;
      for (int64_t j = 0; j < a_.d; ++j) to[j] = end_[static_cast<size_t>(c)] * S[c * a_.d + j];
      for (int64_t i = 0; i < n_; ++i) axpy(at(a_.k, i)[c] * row(tail_, i)[c], row(r_, i), to);
    }
  }

  // G: the gradient of the state after the chunk, `next`; becomes that of the one before, `S`.
  void backward(const T* S, const T* next, const T* dout, const KdaGradients<T>& d) {
    solve(S);
    const int64_t width = a_.d;
    T* G = d.dS;
    T dA[kKdaChunk][kKdaChunk] = {}, dL[kKdaChunk][kKdaChunk] = {};
    std::vector<T> dr(r_.size(), T(0)), dx(r_.size()), dq(r_.size()), read(r_.size()),
        write(r_.size(), T(0)), db(static_cast<size_t>(width), T(0));
    const auto grad_out = [&](int64_t i) { return dout + (first_ + i) * a_.stride; };
    for (int64_t i = 0; i < n_; ++i)
      for (int64_t j = 0; j <= i; ++j) {
        dA[i][j] = dot(grad_out(i), row(r_, j));
        axpy(A_[i][j], grad_out(i), row(dr, j));
      }
    for (int64_t i = 0; i < n_; ++i)
      for (int64_t c = 0; c < width; ++c) {
        const T weight = at(a_.k, i)[c] * row(tail_, i)[c];
        axpy(weight, G + c * width, row(dr, i));
        row(write, i)[c] = row(tail_, i)[c] * dot(row(r_, i), G + c * width);
      }
    for (int64_t i = n_; i-- > 0;) {  // Z = (I + L' diag(beta))^-1 dR, in dr; dX = beta Z
      for (int64_t m = i + 1; m < n_; ++m) axpy(-L_[m][i], row(dx, m), row(dr, i));
      for (int64_t c = 0; c < width; ++c) row(dx, i)[c] = beta(i) * row(dr, i)[c];
      d.dbeta[(first_ + i) * a_.beta_stride] += dot(row(dr, i), row(error_, i));
      axpy(T(1), row(dx, i), d.dv + (first_ + i) * a_.stride);
      for (int64_t j = 0; j < i; ++j) dL[i][j] = -dot(row(dx, i), row(r_, j));
    }
    for (int64_t i = 0; i < n_; ++i) {
      for (int64_t c = 0; c < width; ++c) {
        row(dq, i)[c] = row(gamma_, i)[c] * dot(grad_out(i), S + c * width);
        row(read, i)[c] = -row(gamma_, i)[c] * dot(row(dx, i), S + c * width);
      }
      for (int64_t c = 0; c < width; ++c) {
        T by_q = 0, by_k = 0, column = 0;
        for (int64_t j = 0; j <= i; ++j) {
          by_q += dA[i][j] * row(k_down_, j)[c];
          by_k += dL[i][j] * row(k_down_, j)[c];
        }
        for (int64_t j = i; j < n_; ++j)
          column += dA[j][i] * row(q_up_, j)[c] + dL[j][i] * row(k_up_, j)[c];
        row(dq, i)[c] += row(up_, i)[c] * by_q;
        row(read, i)[c] += row(up_, i)[c] * by_k;
        row(write, i)[c] += row(down_, i)[c] * column;
      }
    }
    // The decays' gradient: what each row's q and reads gain and its writes lose, summed from the
    // end of the chunk, where the state that leaves it counts too.
    for (int64_t c = 0; c < width; ++c)
      db[static_cast<size_t>(c)] = dot(next + c * width, G + c * width);
    for (int64_t i = n_; i-- > 0;)
      for (int64_t c = 0; c < width; ++c) {
        const int64_t to = (first_ + i) * a_.stride + c;
        db[static_cast<size_t>(c)] +=
            at(a_.q, i)[c] * row(dq, i)[c] + at(a_.k, i)[c] * (row(read, i)[c] - row(write, i)[c]);
        d.dg[to] += db[static_cast<size_t>(c)];
        d.dq[to] += row(dq, i)[c];
        d.dk[to] += row(read, i)[c] + row(write, i)[c];
      }
    for (int64_t c = 0; c < width; ++c) {  // dS = Q^' dO - K^' dX + exp(b_C) G
      T* g = G + c * width;
      for (int64_t j = 0; j < width; ++j) g[j] *= end_[static_cast<size_t>(c)];
      for (int64_t i = 0; i < n_; ++i) {
        axpy(at(a_.q, i)[c] * row(gamma_, i)[c], grad_out(i), g);
        axpy(-at(a_.k, i)[c] * row(gamma_, i)[c], row(dx, i), g);
      }
    }
  }

 private:
  T* row(std::vector<T>& m, int64_t i) const { return m.data() + i * a_.d; }
  const T* at(const T* x, int64_t i) const { return x + (first_ + i) * a_.stride; }
  T beta(int64_t i) const { return a_.beta[(first_ + i) * a_.beta_stride]; }
  void axpy(T s, const T* x, T* y) const {
    for (int64_t c = 0; c < a_.d; ++c) y[c] += s * x[c];
  }
  T dot(const T* x, const T* y) const {
    T sum = 0;
    for (int64_t c = 0; c < a_.d; ++c) sum += x[c] * y[c];
    return sum;
  }

  // b: the log-decay up to and with each row. up = exp(b - m), down = exp(m - b) around the middle
  // row's m; gamma = exp(b), tail = exp(b_C - b).
  void decays() {
    std::vector<T> b(up_.size()), middle(static_cast<size_t>(a_.d)), last(middle.size());
    for (int64_t i = 0; i < n_; ++i)
      for (int64_t c = 0; c < a_.d; ++c)
        row(b, i)[c] = at(a_.g, i)[c] + (i ? row(b, i - 1)[c] : T(0));
    std::copy_n(row(b, n_ / 2), a_.d, middle.data());
    std::copy_n(row(b, n_ - 1), a_.d, last.data());
    for (int64_t i = 0; i < n_; ++i)
      for (int64_t c = 0; c < a_.d; ++c) {
        const T value = row(b, i)[c], m = middle[static_cast<size_t>(c)];
        row(up_, i)[c] = value - m;
        row(down_, i)[c] = m - value;
        row(gamma_, i)[c] = value;
        row(tail_, i)[c] = last[static_cast<size_t>(c)] - value;
      }
    for (std::vector<T>* m : {&up_, &down_, &gamma_, &tail_})
      a_.exp(m->data(), n_ * a_.d, m->data());
    a_.exp(last.data(), a_.d, end_.data());
  }
  void products() {
    for (int64_t i = 0; i < n_; ++i)
      for (int64_t c = 0; c < a_.d; ++c) {
        row(k_up_, i)[c] = at(a_.k, i)[c] * row(up_, i)[c];
        row(k_down_, i)[c] = at(a_.k, i)[c] * row(down_, i)[c];
        row(q_up_, i)[c] = at(a_.q, i)[c] * row(up_, i)[c];
      }
    for (int64_t i = 0; i < n_; ++i)
      for (int64_t j = 0; j <= i; ++j) {
        A_[i][j] = dot(row(q_up_, i), row(k_down_, j));
        if (j < i) L_[i][j] = dot(row(k_up_, i), row(k_down_, j));
      }
  }

  const KdaChunks<T>& a_;
  const int64_t first_, n_;
  std::vector<T> up_, down_, gamma_, tail_, k_up_, k_down_, q_up_;
  std::vector<T> error_, r_, end_;
  T L_[kKdaChunk][kKdaChunk] = {}, A_[kKdaChunk][kKdaChunk] = {};
};

template <class T>
void kda_chunks_forward(const KdaChunks<T>& a, T* states, T* out) {
  const int64_t size = a.d * a.d;
  for (int64_t i = 0; i < a.chunks(); ++i)
    KdaChunk<T>(a, i).forward(states + i * size, states + (i + 1) * size, out);
}

template <class T>
void kda_chunks_backward(const KdaChunks<T>& a, const T* states, const T* dout,
                         const KdaGradients<T>& gradients) {
  const int64_t size = a.d * a.d;
  for (int64_t i = a.chunks(); i-- > 0;)
    KdaChunk<T>(a, i).backward(states + i * size, states + (i + 1) * size, dout, gradients);
}

}  // namespace k3
