// The backward passes of the operations on one row, one head or one site (training.md 1 to 4).
//
//   rms_norm_backward(x, w, eps, n, dy, dx, dw);      // adds to dx and dw
//
// Arithmetic only: exponentials, sigmoids and tangents come in as arrays, from the kernels' own
// polynomials, so that training's bits do not depend on a libm. Templates over the number, because
// the same lines are checked by finite differences in double and run in float. Every function adds
// to the gradients it is given, sums in index order, and keeps nothing. Thread rule: pure functions
// of their arguments; who shares dw between rows adds the rows in order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace k3 {

// y = w * x * r, r = 1 / sqrt(mean(x^2) + eps):
// dw += dy x r, dx += r w dy - x r^3 sum(w dy x) / n.
template <class T>
void rms_norm_backward(const T* x, const T* w, T eps, int64_t n, const T* dy, T* dx, T* dw) {
  T squares = 0, along = 0;
  for (int64_t i = 0; i < n; ++i) {
    squares += x[i] * x[i];
    along += w[i] * dy[i] * x[i];
  }
  const T r = 1 / std::sqrt(squares / static_cast<T>(n) + eps);
  const T pull = r * r * r * along / static_cast<T>(n);
  for (int64_t i = 0; i < n; ++i) {
    dw[i] += dy[i] * x[i] * r;
    dx[i] += r * w[i] * dy[i] - x[i] * pull;
  }
}

// y = rms_norm(x) * s, s = sigmoid(gate).
template <class T>
void rms_norm_gated_backward(const T* x, const T* w, const T* s, T eps, int64_t n, const T* dy,
                             T* dx, T* dw, T* dgate) {
  T squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
  const T r = 1 / std::sqrt(squares / static_cast<T>(n) + eps);
  std::vector<T> normed(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    normed[static_cast<size_t>(i)] = dy[i] * s[i];
    dgate[i] += dy[i] * w[i] * x[i] * r * s[i] * (1 - s[i]);
  }
  rms_norm_backward(x, w, eps, n, normed.data(), dx, dw);
}

// y = scale * x / sqrt(sum(x^2) + eps): dx += scale (dy - u (u dy)) / norm with u = x / norm.
template <class T>
void l2_norm_backward(const T* x, T eps, T scale, int64_t n, const T* dy, T* dx) {
  T squares = eps, along = 0;
  for (int64_t i = 0; i < n; ++i) {
    squares += x[i] * x[i];
    along += x[i] * dy[i];
  }
  const T r = 1 / std::sqrt(squares);
  for (int64_t i = 0; i < n; ++i) dx[i] += scale * r * (dy[i] - x[i] * r * r * along);
}

// SiTU: y = b1 t s * b2 w with t = tanh(gate/b1), s = sigmoid(gate), w = tanh(up/b2). Without the
// second bound (b2 = 0) w is up itself.
template <class T>
void situ_backward(const T* t, const T* s, const T* w, T b1, T b2, int64_t n, const T* dy, T* dgate,
                   T* dup) {
  for (int64_t i = 0; i < n; ++i) {
    const T value = b2 == 0 ? w[i] : b2 * w[i];
    const T slope = b2 == 0 ? T(1) : 1 - w[i] * w[i];
    dgate[i] += dy[i] * ((1 - t[i] * t[i]) * s[i] + b1 * t[i] * s[i] * (1 - s[i])) * value;
    dup[i] += dy[i] * b1 * t[i] * s[i] * slope;
  }
}

// y = gate s * up with s = sigmoid(gate).
template <class T>
void silu_mul_backward(const T* gate, const T* s, const T* up, int64_t n, const T* dy, T* dgate,
                       T* dup) {
  for (int64_t i = 0; i < n; ++i) {
    dgate[i] += dy[i] * up[i] * s[i] * (1 + gate[i] * (1 - s[i]));
    dup[i] += dy[i] * gate[i] * s[i];
  }
}

// One head's log-decay g = lower s, s = sigmoid(a (raw + bias)), a = exp(A): K3's bounded form.
// dA and dbias are of the head and its channels; draw of one token.
template <class T>
void decay_bounded_backward(const T* raw, const T* bias, const T* s, T a, T lower, int64_t n,
                            const T* dg, T* draw, T* dbias, T* dA) {
  for (int64_t i = 0; i < n; ++i) {
    const T slope = lower * s[i] * (1 - s[i]) * a * dg[i];
    draw[i] += slope;
    dbias[i] += slope;
    *dA += slope * (raw[i] + bias[i]);
  }
}

// g = -a softplus(raw + bias), s = sigmoid(raw + bias), log_decay = g: Kimi-Linear's form.
template <class T>
void decay_softplus_backward(const T* log_decay, const T* s, T a, int64_t n, const T* dg, T* draw,
                             T* dbias, T* dA) {
  for (int64_t i = 0; i < n; ++i) {
    const T slope = -a * s[i] * dg[i];
    draw[i] += slope;
    dbias[i] += slope;
    *dA += log_decay[i] * dg[i];
  }
}

// y_t = c_t s_t with c_t = sum_j w[j] x_{t-taps+1+j}, s = sigmoid(c), over [tokens][channels] with
// rows `stride` apart; history: the taps - 1 rows before token 0, null for zeros. w, dw:
// [taps][channels]. dhistory may be null.
template <class T>
void short_conv_backward(const T* x, const T* history, const T* c, const T* s, const T* w,
                         int64_t tokens, int64_t channels, int64_t taps, int64_t stride,
                         const T* dy, T* dx, T* dw, T* dhistory) {
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < channels; ++i) {
      const int64_t at = t * stride + i;
      const T dc = dy[at] * s[at] * (1 + c[at] * (1 - s[at]));
      for (int64_t j = 0; j < taps; ++j) {
        const int64_t from = t - taps + 1 + j;
        if (from >= 0) {
          dw[j * channels + i] += dc * x[from * stride + i];
          dx[from * stride + i] += dc * w[j * channels + i];
        } else if (history) {
          const int64_t row = (from + taps - 1) * channels + i;
          dw[j * channels + i] += dc * history[row];
          if (dhistory) dhistory[row] += dc * w[j * channels + i];
        }
      }
    }
  }
}

// Attention Residuals (training.md 3.3): h = sum_i p_i v_i, p = softmax(s), s_i = r_i (u . v_i),
// with the query u = norm * proj. softmax(x, n, p) is the forward's.
template <class T, class Softmax>
void mix_residuals_backward(const T* const* v, int64_t count, const T* query, T eps, int64_t n,
                            Softmax softmax, const T* dh, T* const* dv, T* dquery) {
  const auto size = static_cast<size_t>(count);
  std::vector<T> along(size), score(size), r(size), p(size);
  for (size_t i = 0; i < size; ++i) {
    T dot = 0, squares = 0, sum = 0;
    for (int64_t c = 0; c < n; ++c) {
      dot += dh[c] * v[i][c];
      squares += v[i][c] * v[i][c];
      sum += query[c] * v[i][c];
    }
    along[i] = dot;
    r[i] = 1 / std::sqrt(squares / static_cast<T>(n) + eps);
    score[i] = r[i] * sum;
  }
  softmax(score.data(), count, p.data());
  T mean = 0;
  for (size_t i = 0; i < size; ++i) mean += p[i] * along[i];
  for (size_t i = 0; i < size; ++i) {
    const T ds = p[i] * (along[i] - mean), pull = r[i] * r[i] * score[i] / static_cast<T>(n);
    for (int64_t c = 0; c < n; ++c) {
      dv[i][c] += p[i] * dh[c] + ds * (r[i] * query[c] - v[i][c] * pull);
      dquery[c] += ds * v[i][c] * r[i];
    }
  }
}

// The router of one token: weights p_i = factor * s_i / sum(s of the chosen), or factor * s_i
// without renormalising, of the chosen ids. score: sigmoid or softmax of all logits. A bias that
// only chooses has no gradient.
template <class T>
void router_backward(const T* score, int64_t experts, bool softmax, const int32_t* ids, int64_t k,
                     bool renormalize, T factor, const T* dp, T* dlogits) {
  std::vector<T> ds(static_cast<size_t>(experts), T(0));
  T sum = 0, along = 0;
  for (int64_t i = 0; i < k; ++i) sum += score[ids[i]];
  for (int64_t i = 0; i < k; ++i) along += dp[i] * score[ids[i]] / sum;
  const bool divide = renormalize && k > 1;
  for (int64_t i = 0; i < k; ++i)
    ds[static_cast<size_t>(ids[i])] = factor * (divide ? (dp[i] - along) / sum : dp[i]);
  T mean = 0;
  if (softmax)
    for (int64_t e = 0; e < experts; ++e) mean += ds[static_cast<size_t>(e)] * score[e];
  for (int64_t e = 0; e < experts; ++e) {
    const T d = ds[static_cast<size_t>(e)];
    dlogits[e] += softmax ? score[e] * (d - mean) : d * score[e] * (1 - score[e]);
  }
}

// One head of KDA, the recurrence in reverse (training.md 1.3), the plain definition that faster
// forms are checked against. q (scaled), k: [tokens][d] with unit rows; alpha = exp(g); the states
// S_t [key][value] are made again from `start`. dS: in, the gradient of the last state; out, of the
// first. All [tokens] arrays have rows `stride` apart, beta `beta_stride`.
template <class T>
struct KdaBackward {
  int64_t tokens = 0, d = 0, stride = 0, beta_stride = 1;
  const T *q = nullptr, *k = nullptr, *v = nullptr, *alpha = nullptr, *beta = nullptr;
  const T* start = nullptr;  // [d][d], null for zeros
  const T* dout = nullptr;
  T *dq = nullptr, *dk = nullptr, *dv = nullptr, *dg = nullptr, *dbeta = nullptr;
  T* dS = nullptr;  // [d][d]
};

template <class T>
void kda_backward(const KdaBackward<T>& a) {
  const auto d = static_cast<size_t>(a.d);
  const size_t size = d * d;
  // Decayed and written states of every token; errors and pseudo-values.
  std::vector<T> decayed(static_cast<size_t>(a.tokens) * size);
  std::vector<T> written(static_cast<size_t>(a.tokens + 1) * size, T(0));
  std::vector<T> error(static_cast<size_t>(a.tokens) * d), r(error.size());
  if (a.start) std::copy(a.start, a.start + size, written.begin());
  for (int64_t t = 0; t < a.tokens; ++t) {
    const T *k = a.k + t * a.stride, *v = a.v + t * a.stride, *alpha = a.alpha + t * a.stride;
    const T* before = written.data() + static_cast<size_t>(t) * size;
    T* mid = decayed.data() + static_cast<size_t>(t) * size;
    T* after = written.data() + static_cast<size_t>(t + 1) * size;
    T* e = error.data() + static_cast<size_t>(t) * d;
    T* write = r.data() + static_cast<size_t>(t) * d;
    std::copy(v, v + d, e);
    for (size_t i = 0; i < d; ++i)
      for (size_t j = 0; j < d; ++j) {
        mid[i * d + j] = alpha[i] * before[i * d + j];
        e[j] -= k[i] * mid[i * d + j];
      }
    for (size_t j = 0; j < d; ++j) write[j] = a.beta[t * a.beta_stride] * e[j];
    for (size_t i = 0; i < d; ++i)
      for (size_t j = 0; j < d; ++j) after[i * d + j] = mid[i * d + j] + k[i] * write[j];
  }
  std::vector<T> dr(d), de(d);
  for (int64_t t = a.tokens; t-- > 0;) {
    const int64_t row = t * a.stride;
    const T *q = a.q + row, *k = a.k + row, *alpha = a.alpha + row, *dout = a.dout + row;
    const T* mid = decayed.data() + static_cast<size_t>(t) * size;
    const T* after = written.data() + static_cast<size_t>(t + 1) * size;
    const T* e = error.data() + static_cast<size_t>(t) * d;
    const T* write = r.data() + static_cast<size_t>(t) * d;
    const T beta = a.beta[t * a.beta_stride];
    T* G = a.dS;
    std::fill(dr.begin(), dr.end(), T(0));
    for (size_t i = 0; i < d; ++i) {
      T dq = 0, dk = 0;
      for (size_t j = 0; j < d; ++j) {
        G[i * d + j] += q[i] * dout[j];
        dq += after[i * d + j] * dout[j];
        dk += G[i * d + j] * write[j];
        dr[j] += G[i * d + j] * k[i];
      }
      a.dq[row + static_cast<int64_t>(i)] += dq;
      a.dk[row + static_cast<int64_t>(i)] += dk;
    }
    T dbeta = 0;
    for (size_t j = 0; j < d; ++j) {
      dbeta += dr[j] * e[j];
      de[j] = beta * dr[j];
      a.dv[row + static_cast<int64_t>(j)] += de[j];
    }
    a.dbeta[t * a.beta_stride] += dbeta;
    for (size_t i = 0; i < d; ++i) {
      T read = 0, decay = 0;
      for (size_t j = 0; j < d; ++j) {
        read += mid[i * d + j] * de[j];
        const T dmid = G[i * d + j] - k[i] * de[j];
        decay += dmid * mid[i * d + j];
        G[i * d + j] = alpha[i] * dmid;
      }
      a.dk[row + static_cast<int64_t>(i)] -= read;
      a.dg[row + static_cast<int64_t>(i)] += decay;
    }
  }
}

// One head of causal attention over one document, expanded: keys and values of its own
// (training.md 2). Rows of q, k, v, out and their gradients lie `*_stride` apart; several heads may
// share keys' columns by adding to the same dk in turn.
template <class T>
struct Attention {
  int64_t tokens = 0, key_dim = 0, value_dim = 0;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0, out_stride = 0;
  const T *q = nullptr, *k = nullptr, *v = nullptr;
  T scale = 1;
  void (*exp)(const T* x, int64_t n, T* y) = nullptr;
};

// out_i = sum_{j <= i} p_ij v_j, p = softmax(scale q_i k_j). top and total keep a row's largest
// score and the sum of exp(score - top), from which the backward pass makes p again; returns the
// largest score of all, which QK-Clip watches.
template <class T>
T attention_forward(const Attention<T>& a, T* out, T* top, T* total) {
  std::vector<T> p(static_cast<size_t>(a.tokens));
  T largest = 0;
  for (int64_t i = 0; i < a.tokens; ++i) {
    T most = 0;
    for (int64_t j = 0; j <= i; ++j) {
      T dot = 0;
      for (int64_t c = 0; c < a.key_dim; ++c)
        dot += a.q[i * a.q_stride + c] * a.k[j * a.k_stride + c];
      p[static_cast<size_t>(j)] = dot * a.scale;
      most = j == 0 ? dot * a.scale : std::max(most, dot * a.scale);
    }
    for (int64_t j = 0; j <= i; ++j) p[static_cast<size_t>(j)] -= most;
    a.exp(p.data(), i + 1, p.data());
    T sum = 0;
    T* o = out + i * a.out_stride;
    std::fill(o, o + a.value_dim, T(0));
    for (int64_t j = 0; j <= i; ++j) {
      sum += p[static_cast<size_t>(j)];
      for (int64_t c = 0; c < a.value_dim; ++c)
        o[c] += p[static_cast<size_t>(j)] * a.v[j * a.v_stride + c];
    }
    for (int64_t c = 0; c < a.value_dim; ++c) o[c] /= sum;
    top[i] = most;
    total[i] = sum;
    largest = i == 0 ? most : std::max(largest, most);
  }
  return largest;
}

// P is made again from the rows' tops and totals: dS_ij = P_ij (dout_i v_j - D_i) with
// D_i = dout_i out_i.
template <class T>
void attention_backward(const Attention<T>& a, const T* out, const T* top, const T* total,
                        const T* dout, T* dq, T* dk, T* dv) {
  std::vector<T> p(static_cast<size_t>(a.tokens));
  for (int64_t i = 0; i < a.tokens; ++i) {
    const T *query = a.q + i * a.q_stride, *d = dout + i * a.out_stride;
    T along = 0;
    for (int64_t c = 0; c < a.value_dim; ++c) along += d[c] * out[i * a.out_stride + c];
    for (int64_t j = 0; j <= i; ++j) {
      T dot = 0;
      for (int64_t c = 0; c < a.key_dim; ++c) dot += query[c] * a.k[j * a.k_stride + c];
      p[static_cast<size_t>(j)] = dot * a.scale - top[i];
    }
    a.exp(p.data(), i + 1, p.data());
    for (int64_t j = 0; j <= i; ++j) {
      const T weight = p[static_cast<size_t>(j)] / total[i];
      T dot = 0;
      for (int64_t c = 0; c < a.value_dim; ++c) {
        dot += d[c] * a.v[j * a.v_stride + c];
        dv[j * a.v_stride + c] += weight * d[c];
      }
      const T ds = weight * (dot - along) * a.scale;
      for (int64_t c = 0; c < a.key_dim; ++c) {
        dq[i * a.q_stride + c] += ds * a.k[j * a.k_stride + c];
        dk[j * a.k_stride + c] += ds * query[c];
      }
    }
  }
}

}  // namespace k3
