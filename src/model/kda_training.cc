#include "model/kda_training.h"

#include <algorithm>
#include <cmath>

#include "ops/gradients.h"
#include "ops/kda_products.h"
#include "ops/tape.h"

namespace k3 {
namespace {

// What a head of a document adds to the gradients of its parameters: [taps][d] of each convolution,
// then dt_bias and o_norm [d], then A_log.
struct HeadParameters {
  HeadParameters(const ModelConfig& c, float* at)
      : taps(c.short_conv_kernel_size * c.kda_head_dim), d(c.kda_head_dim), data(at) {}
  float* conv(int which) const { return data + which * taps; }
  float* dt_bias() const { return data + 3 * taps; }
  float* o_norm() const { return dt_bias() + d; }
  float* a_log() const { return o_norm() + d; }
  static int64_t floats(const ModelConfig& c) {
    return (3 * c.short_conv_kernel_size + 2) * c.kda_head_dim + 1;
  }
  int64_t taps, d;
  float* data;
};

// One head of one document. All arrays are [tokens][d] in work space, but for what says otherwise.
class DocumentHead {
 public:
  DocumentHead(const Context& ctx, const ModelConfig& c, const KdaWeights& w, const KdaInputs& in,
               const Batch::Run& run, int64_t head, float* work)
      : kernels_(ctx.kernels),
        c_(c),
        w_(w),
        run_(run),
        head_(head),
        n_(run.count),
        d_(c.kda_head_dim),
        taps_(c.short_conv_kernel_size),
        work_(work) {
    const Rows* raw[3] = {&in.q, &in.k, &in.v};
    for (int i = 0; i < 3; ++i) {
      raw_[i] = columns(*raw[i]);
      mixed_[i] = take();
      float* history = work_;  // before the document: nothing
      std::fill_n(history, (taps_ - 1) * d_, 0.0f);
      kernels_.short_conv(raw_[i], n_, d_, d_, taps_, conv(i), history, mixed_[i]);
    }
    q_ = take();
    k_ = take();
    const float scale = 1.0f / std::sqrt(static_cast<float>(d_));
    for (int64_t t = 0; t < n_; ++t) {
      kernels_.l2_norm(mixed_[0] + t * d_, kKdaL2Eps, scale, d_, q_ + t * d_);
      kernels_.l2_norm(mixed_[1] + t * d_, kKdaL2Eps, 1.0f, d_, k_ + t * d_);
    }
    beta_ = take(1);
    for (int64_t t = 0; t < n_; ++t) beta_[t] = in.beta.row(run.row + t)[head];
    decay(in);
  }

  static int64_t work_floats(const ModelConfig& c, int64_t tokens, bool back) {
    const int64_t d = c.kda_head_dim, rows = tokens * d;
    const int64_t forward = 12 * rows + tokens + states_floats(tokens, d) +
                            c.short_conv_kernel_size * d + kda_products_work(d);
    return back ? forward + 11 * rows + tokens + d * d : forward;
  }

  // o before its norm.
  const float* mix() {
    o_ = take();
    if (bounded()) {
      states_ = work_;
      work_ += states_floats(n_, d_);
      std::fill_n(states_, d_ * d_, 0.0f);
      kda_chunks_forward(kernels_, chunks(), states_, o_, work_);
      return o_;
    }
    KdaHead h;
    h.tokens = n_;
    h.head_dim = h.stride = h.out_stride = d_;
    h.beta_stride = 1;
    h.q = q_;
    h.k = k_;
    h.v = mixed_[2];
    h.alpha = alpha_;
    h.beta = beta_;
    h.out = o_;
    h.state = work_;
    std::fill_n(h.state, round_up(d_, 16) * d_, 0.0f);
    kernels_.kda(h, 0, ceil_div(d_, 16));
    return o_;
  }

  // Writes the normed and gated output.
  void finish(const KdaInputs& in, const Rows& out) const {
    for (int64_t t = 0; t < n_; ++t)
      kernels_.rms_norm_gated(o_ + t * d_, w_.o_norm, at(in.gate, t), c_.rms_norm_eps, d_,
                              at(out, t));
  }

  // After mix(): from the gradient of the output to those of the inputs and of the parameters.
  void back(const KdaInputs& in, const Rows& dout, const KdaInputs& d, HeadParameters sums) {
    float *dq = zeros(), *dk = zeros(), *dv = zeros(), *dg = zeros(), *dbeta = zeros(1);
    {
      float *d_o = zeros(), *s = take();
      for (int64_t t = 0; t < n_; ++t) {
        kernels_.sigmoid(at(in.gate, t), d_, s);
        rms_norm_gated_backward(o_ + t * d_, w_.o_norm, s, c_.rms_norm_eps, d_, at(dout, t),
                                d_o + t * d_, sums.o_norm(), at(d.gate, t));
      }
      delta_rule_back(d_o, dq, dk, dv, dg, dbeta);
    }
    decay_back(in, dg, d, sums);
    for (int64_t t = 0; t < n_; ++t) d.beta.row(run_.row + t)[head_] += dbeta[t];
    const float scale = 1.0f / std::sqrt(static_cast<float>(d_));
    float *dmixed = zeros(), *draw = take();
    const Rows* to[3] = {&d.q, &d.k, &d.v};
    for (int i = 0; i < 3; ++i) {
      std::fill_n(dmixed, n_ * d_, 0.0f);
      std::fill_n(draw, n_ * d_, 0.0f);
      for (int64_t t = 0; t < n_ && i < 2; ++t)
        l2_norm_backward(mixed_[i] + t * d_, kKdaL2Eps, i == 0 ? scale : 1.0f, d_,
                         (i == 0 ? dq : dk) + t * d_, dmixed + t * d_);
      convolution_back(i, i == 2 ? dv : dmixed, draw, sums.conv(i));
      for (int64_t t = 0; t < n_; ++t) kernels_.add(draw + t * d_, d_, at(*to[i], t));
    }
  }

 private:
  static int64_t states_floats(int64_t tokens, int64_t d) {
    return (ceil_div(tokens, kKdaChunk) + 1) * d * d + round_up(d, 16) * d;
  }
  bool bounded() const { return c_.gate_lower_bound.has_value(); }
  const float* conv(int i) const {
    const float* all[3] = {w_.q_conv, w_.k_conv, w_.v_conv};
    return all[i] + head_ * taps_ * d_;
  }
  float* take(int64_t width = 0) {
    float* at = work_;
    work_ += n_ * (width ? width : d_);
    return at;
  }
  float* zeros(int64_t width = 0) {
    float* at = take(width);
    std::fill(at, work_, 0.0f);
    return at;
  }
  float* at(const Rows& rows, int64_t t) const { return rows.row(run_.row + t) + head_ * d_; }
  float* columns(const Rows& rows) {
    float* to = take();
    for (int64_t t = 0; t < n_; ++t)
      std::memcpy(to + t * d_, at(rows, t), static_cast<size_t>(d_) * sizeof(float));
    return to;
  }

  // The log-decay g, alpha = exp(g), and the sigmoid that the way back needs.
  void decay(const KdaInputs& in) {
    g_ = take();
    alpha_ = take();
    slope_ = take();
    const float a = w_.decay[head_];
    const float* bias = w_.dt_bias + head_ * d_;
    for (int64_t t = 0; t < n_; ++t) {
      float *g = g_ + t * d_, *s = slope_ + t * d_;
      const float* z = at(in.z, t);
      for (int64_t i = 0; i < d_; ++i) s[i] = z[i] + bias[i];
      if (bounded()) {
        for (int64_t i = 0; i < d_; ++i) s[i] *= a;
        kernels_.sigmoid(s, d_, s);
        for (int64_t i = 0; i < d_; ++i) g[i] = *c_.gate_lower_bound * s[i];
      } else {
        kernels_.softplus(s, d_, g);
        for (int64_t i = 0; i < d_; ++i) g[i] *= -a;
        kernels_.sigmoid(s, d_, s);
      }
      kernels_.exp(g, d_, alpha_ + t * d_);
    }
  }
  void decay_back(const KdaInputs& in, const float* dg, const KdaInputs& d, HeadParameters sums) {
    const float a = w_.decay[head_];
    for (int64_t t = 0; t < n_; ++t) {
      if (bounded())
        decay_bounded_backward(at(in.z, t), w_.dt_bias + head_ * d_, slope_ + t * d_, a,
                               *c_.gate_lower_bound, d_, dg + t * d_, at(d.z, t), sums.dt_bias(),
                               sums.a_log());
      else
        decay_softplus_backward(g_ + t * d_, slope_ + t * d_, a, d_, dg + t * d_, at(d.z, t),
                                sums.dt_bias(), sums.a_log());
    }
  }

  KdaChunks<float> chunks() const {
    return {n_, d_, d_, 1, q_, k_, mixed_[2], g_, beta_, kernels_.exp};
  }
  void delta_rule_back(const float* d_o, float* dq, float* dk, float* dv, float* dg, float* dbeta) {
    float* dS = work_;
    work_ += d_ * d_;
    std::fill_n(dS, d_ * d_, 0.0f);
    if (bounded()) {
      kda_chunks_backward(kernels_, chunks(), states_, d_o, {dq, dk, dv, dg, dbeta, dS}, work_);
      return;
    }
    KdaBackward<float> b;
    b.tokens = n_;
    b.d = b.stride = d_;
    b.q = q_;
    b.k = k_;
    b.v = mixed_[2];
    b.alpha = alpha_;
    b.beta = beta_;
    b.dout = d_o;
    b.dq = dq;
    b.dk = dk;
    b.dv = dv;
    b.dg = dg;
    b.dbeta = dbeta;
    b.dS = dS;
    kda_backward(b);
  }
  void convolution_back(int i, const float* dy, float* dx, float* dw) {
    float *sum = take(), *s = take();
    for (int64_t t = 0; t < n_; ++t) {
      std::fill_n(sum + t * d_, d_, 0.0f);
      for (int64_t j = std::max<int64_t>(0, taps_ - 1 - t); j < taps_; ++j) {
        const float *w = conv(i) + j * d_, *x = raw_[i] + (t - taps_ + 1 + j) * d_;
        for (int64_t ch = 0; ch < d_; ++ch) sum[t * d_ + ch] += w[ch] * x[ch];
      }
    }
    kernels_.sigmoid(sum, n_ * d_, s);
    short_conv_backward(raw_[i], static_cast<const float*>(nullptr), sum, s, conv(i), n_, d_, taps_,
                        d_, dy, dx, dw, static_cast<float*>(nullptr));
    work_ = sum;
  }

  const Kernels& kernels_;
  const ModelConfig& c_;
  const KdaWeights& w_;
  const Batch::Run& run_;
  const int64_t head_, n_, d_, taps_;
  float* work_;
  float *raw_[3], *mixed_[3];
  float *q_, *k_, *beta_, *g_, *alpha_, *slope_;
  float *o_ = nullptr, *states_ = nullptr;
};

int64_t longest(const std::vector<Batch::Run>& runs) {
  int64_t most = 0;
  for (const Batch::Run& run : runs) most = std::max(most, run.count);
  return most;
}

// Adds what the heads of all documents found to the parameters' gradients, documents in order.
void sum_parameters(const Context& ctx, const ModelConfig& c, const KdaWeights& w, const Tape& tape,
                    const Rows& found) {
  const int64_t heads = c.kda_num_heads, d = c.kda_head_dim;
  const float* convs[3] = {w.q_conv, w.k_conv, w.v_conv};
  for (int64_t i = 0; i < found.rows; ++i) {
    const int64_t head = i % heads;
    const HeadParameters from(c, found.row(i));
    for (int k = 0; k < 3; ++k)
      ctx.kernels.add(from.conv(k), from.taps, tape.vector(convs[k]) + head * from.taps);
    ctx.kernels.add(from.dt_bias(), d, tape.vector(w.dt_bias) + head * d);
    ctx.kernels.add(from.o_norm(), d, tape.vector(w.o_norm));
    tape.vector(w.decay)[head] += *from.a_log();
  }
}

KdaInputs gradients_of(const Tape& tape, const KdaInputs& in) {
  return {tape.gradient(in.q), tape.gradient(in.k),    tape.gradient(in.v),
          tape.gradient(in.z), tape.gradient(in.beta), tape.gradient(in.gate)};
}

}  // namespace

void kda_documents(Context& ctx, const ModelConfig& c, const KdaWeights& w,
                   const std::vector<Batch::Run>& runs, const KdaInputs& in, const Rows& o) {
  const int64_t heads = c.kda_num_heads, tasks = static_cast<int64_t>(runs.size()) * heads;
  const int64_t most = longest(runs);
  ctx.each_task(tasks, DocumentHead::work_floats(c, most, false), [&](int64_t i, float* work) {
    DocumentHead head(ctx, c, w, in, runs[static_cast<size_t>(i / heads)], i % heads, work);
    head.mix();
    head.finish(in, o);
  });
  if (!ctx.tape) return;
  ctx.tape->record(ctx, {o}, [=, &c, &w, tape = ctx.tape](Context& back) {
    const KdaInputs d = gradients_of(*tape, in);
    const Rows found = back.scratch.rows(tasks, HeadParameters::floats(c));
    back.each_task(tasks, DocumentHead::work_floats(c, most, true), [&](int64_t i, float* work) {
      std::fill_n(found.row(i), found.cols, 0.0f);
      DocumentHead head(back, c, w, in, runs[static_cast<size_t>(i / heads)], i % heads, work);
      head.mix();
      head.back(in, tape->gradient(o), d, {c, found.row(i)});
    });
    sum_parameters(back, c, w, *tape, found);
  });
}

}  // namespace k3
