// The inner loops, for each instruction set, behind one table.
//
//   const Kernels& k = kernels(best_isa());
//   k.matmul(weight, operand, y, y_stride, 0, weight.panels());      // y[token][row]
//
// Every kernel is written once, over sixteen-lane vectors, and compiled for each instruction set;
// the scalar target is the reference and all others equal it bit for bit. That holds because each
// output is one fixed chain of correctly rounded operations (IEEE +, *, /, sqrt and explicit fma,
// nothing contracted by the compiler), a lane is an output row or channel, and sums over lanes use
// one fixed tree. So results depend on neither vector width, tile, thread split, nor how many
// tokens share a call. Transcendentals are the polynomials of elementwise.inc, never libm's.
//
// Definitions (b counts blocks of 32 columns; chains run in ascending order; "even", "odd": the
// even and odd columns apart, two chains, added at the end):
//   f32, bf16 weights   y = even(fma(w, x)) + odd(fma(w, x))
//   mxfp4, f32 operand  acc = fma(even_b(fma(v, x)) + odd_b(fma(v, x)), 2^(e-127), acc)
//   int8,  f32 operand  the same with v = byte - 128 and the fp16 scale
//   mxfp4, integer      acc = fma(float(D_b), half_scale_x[b] * 2^(e-127), acc),
//                       D_b = the exact integer sum of 2v * q (v in halves, hence the half scale)
//   int8,  integer      acc = fma(float(D_b), scale_x[b] * scale_w, acc), D_b = sum (byte-128) * q
// with q the integer activations of quantize(). |D_b| may pass 2^24 for int8 weights with 16-bit
// activations; float(D_b) then rounds to nearest even, alike everywhere.
// Sums over channels (norms, dot): lane l of 16 takes channels l, l+16, ... by fma, then the tree
// l+8, l+4, l+2, l+1.
//
// Ownership: kernels allocate nothing and keep nothing. Thread rule: all are pure functions of
// their arguments; calls that write different outputs may run at once. Errors: none; arguments are
// checked by assertions. Buffers may be unaligned; nothing outside the stated extents is touched,
// though prefetches may name addresses past the end.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "weights/format.h"

namespace k3 {

enum class Isa : uint8_t { kScalar, kAvx2, kAvx512 };
const char* name(Isa isa);  // "avx512"
std::vector<Isa> isas();    // those this machine runs, slowest first; never empty
bool supported(Isa isa);
Isa best_isa();

// How activations meet block-format weights. kF32 serves every layout; the integer forms serve
// kInt8Panels and kMxfp4Rows.
enum class ActivationForm : uint8_t { kF32, kInt16, kInt8 };

// Rows of activations. `quantized` is what Kernels::quantize wrote, token after token, for the same
// layout of weights.
struct Operand {
  ActivationForm form = ActivationForm::kF32;
  int64_t tokens = 0, cols = 0;
  const float* f32 = nullptr;  // [tokens][f32_stride], kF32 only
  int64_t f32_stride = 0;
  const std::byte* quantized = nullptr;  // [tokens][quantized_stride], integer forms only
  int64_t quantized_stride = 0;          // bytes
};

// Bytes of one quantized token of `cols` columns (a multiple of 64). Layout, private to the
// kernels: per group of four blocks one plane (kInt8) or the high and the low plane (kInt16), each
// [8 dwords in dword_column order][4 blocks]; then per group {float scale[4], int32 correction[4]}.
// Columns past the last are zero.
int64_t quantized_bytes(ActivationForm form, int64_t cols);

// One head of KDA over consecutive tokens of one sequence (numerics.md 4; Kimi Linear,
// arXiv 2510.26692, eq. 1): S = diag(alpha) S; S += k (beta (v - S'k))'; o = S'q.
// Token t's row of q, k, alpha, v, out starts t * stride floats after the pointer.
struct KdaHead {
  int64_t tokens = 0, head_dim = 0;
  const float* q = nullptr;  // normalised and scaled by head_dim^-1/2
  const float* k = nullptr;  // normalised
  const float* v = nullptr;
  const float* alpha = nullptr;  // exp(log decay), per key channel
  int64_t stride = 0;
  const float* beta = nullptr;  // one per token, beta_stride apart
  int64_t beta_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  float* state = nullptr;  // [ceil(head_dim/16)][head_dim keys][16 value columns]; padding zero
};

// Absorbed MLA for a set of (token, head) lanes over one sequence's latent cache (numerics.md 5).
// Blocks of 64 positions and segments of 256 start at multiples whatever the call, so the result
// depends neither on how the cache was filled nor on who attends which segment. Per lane and block,
// positions in order: s_p = scale * chain over channels of fma(q_c, L_pc); m' = max(m, max s);
// sum = fma(sum, exp(m - m'), 0 + e_p ...) with the e_p = exp(s_p - m') added one by one to the
// rescaled sum; acc_c = fma(e_p, L_pc, ...) likewise. A segment begins from nothing; the next one
// (m_s, sum_s, acc_s) joins the ones before it by m' = max(m, m_s),
// sum = fma(sum_s, exp(m_s - m'), sum * exp(m - m')), acc likewise. The result is acc / sum.
struct MlaLanes {
  int64_t lanes = 0;
  int64_t channels = 0;              // latent + rope width
  int64_t latent = 0;                // the first `latent` channels are also the values
  const float* const* q = nullptr;   // [lanes] -> [channels]
  const int64_t* visible = nullptr;  // [lanes] positions 0 .. visible-1 are attended, at least 1
  float* const* out = nullptr;       // [lanes] -> [latent], or parts if `segment` is given
  int64_t segment = -1;              // attend this segment alone; -1: all, to the end
  // [ceil(max visible / 64)] -> [64][channels], all readable; rows nobody sees do not matter.
  const float* const* pages = nullptr;
  float scale = 0;
  float* scratch = nullptr;  // mla_scratch_floats() floats
};
constexpr int64_t kMlaPage = 64;
constexpr int64_t kMlaSegment = 256;
// A lane's part from one or more segments: acc[latent], m, sum.
constexpr int64_t mla_part_floats(int64_t latent) { return round_up(latent + 2, 16); }

// c (+)= a b: element (i, j) is one chain of fma over p, ascending, of a_ip b_pj, begun from c_ij
// or, if `fresh`, from zero. a_ip lies at i * a_row + p * a_col, so a transposed a costs nothing;
// rows of b and c are contiguous. c overlaps neither.
struct GemmTile {
  int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  int64_t a_row = 0, a_col = 1;
  const float* b = nullptr;
  int64_t b_row = 0;
  float* c = nullptr;
  int64_t c_stride = 0;
  bool fresh = false;
};

struct Kernels {
  Isa isa;

  // y[token * y_stride + row] for the rows of panels [panel_begin, panel_end); the rows past
  // w.rows of the last panel are not written.
  void (*matmul)(const WeightView& w, const Operand& x, float* y, int64_t y_stride,
                 int64_t panel_begin, int64_t panel_end);

  // Starts to fetch what matmul of few tokens will read first of these panels: a matrix of a few
  // hundred kilobytes is over before a stream has found its speed. A hint: no result depends on it.
  void (*prefetch)(const WeightView& w, int64_t panel_begin, int64_t panel_end);

  // One token. scale = amax/127 (kInt8) or amax/32639 (kInt16) per block, half of that for MXFP4,
  // whose integer weights are 2v; q = rint(x * (127/amax or 32639/amax)), clamped to +-127 or
  // +-32639. A block with amax below 2^-100 is all zeros with scale 1. An int16 q is 256 hi + lo
  // with lo in -128..127. The correction makes up for the unsigned offset of `layout`'s bytes.
  void (*quantize)(ActivationForm form, Layout layout, const float* x, int64_t cols,
                   std::byte* out);

  // x rounded to MXFP8: E4M3 elements under a power-of-two scale per 32 channels, the least under
  // which nothing exceeds 448 (RCEIL, the choice of training.md 6 for activations), at least
  // 2^-126. y may be x.
  void (*round_mxfp8)(const float* x, int64_t n, float* y);

  // y = w * (x * r), r = 1 / sqrt(mean(x^2) + eps). Here and below y may be x.
  void (*rms_norm)(const float* x, const float* w, float eps, int64_t n, float* y);
  // y = rms_norm(x) * sigmoid(gate).
  void (*rms_norm_gated)(const float* x, const float* w, const float* gate, float eps, int64_t n,
                         float* y);
  // y = x * (scale * (1 / sqrt(sum(x^2) + eps))).
  void (*l2_norm)(const float* x, float eps, float scale, int64_t n, float* y);
  // Attention Residuals (numerics.md 3; arXiv 2603.15031): y = sum_j softmax_j(c) v_j with
  // c_j = sum_i (v_ji / rms(v_j)) * norm_i * proj_i. `query` is norm * proj, premultiplied.
  // v: `count` pointers to vectors of n; count <= 64.
  void (*mix_residuals)(const float* const* v, int64_t count, const float* query, float eps,
                        int64_t n, float* y);

  void (*sigmoid)(const float* x, int64_t n, float* y);
  void (*softplus)(const float* x, int64_t n, float* y);  // log(1 + e^x)
  void (*tanh)(const float* x, int64_t n, float* y);
  void (*mul_sigmoid)(const float* x, const float* gate, int64_t n, float* y);  // x * sigmoid(gate)
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* y);    // silu(gate) * up
  // beta tanh(gate/beta) sigmoid(gate) * linear_beta tanh(up/linear_beta); linear_beta 0: times up.
  // The divisions are products with 1/beta and 1/linear_beta.
  void (*situ_mul)(const float* gate, const float* up, float beta, float linear_beta, int64_t n,
                   float* y);
  void (*add)(const float* x, int64_t n, float* y);                  // y += x
  void (*add_scaled)(const float* x, float a, int64_t n, float* y);  // y = fma(a, x, y)
  float (*dot)(const float* a, const float* b, int64_t n);
  void (*exp)(const float* x, int64_t n, float* y);
  // p = exp(x - max(x)) / sum, sum in the lane-and-tree order.
  void (*softmax)(const float* x, int64_t n, float* p);

  // alpha = exp(lower * sigmoid(a * (z + bias))): the bounded decay of K3, a = exp(A_log) of the
  // head.
  void (*decay_bounded)(const float* z, const float* bias, float a, float lower, int64_t n,
                        float* alpha);
  // alpha = exp(-a * softplus(z + bias)): Kimi-Linear.
  void (*decay_softplus)(const float* z, const float* bias, float a, int64_t n, float* alpha);

  // Causal depthwise convolution, then silu: y_t = silu(sum_j w[j] x_{t-width+1+j}), fma in tap
  // order. x, y: [tokens][stride]; history: the width-1 raw rows before token 0, oldest first,
  // [width-1][channels], replaced by the last ones; w: [width][channels]. y may not alias x.
  void (*short_conv)(const float* x, int64_t tokens, int64_t stride, int64_t channels,
                     int64_t width, const float* w, float* history, float* y);

  void (*gemm)(const GemmTile& tile);

  void (*kda)(const KdaHead& head, int64_t group_begin, int64_t group_end);  // 16-column groups
  void (*mla)(const MlaLanes& lanes);
  int64_t (*mla_scratch_floats)(int64_t channels, int64_t latent);
  // Joins the part of the next segment to `all`, and turns what has joined into the result.
  void (*mla_join)(const float* part, int64_t latent, float* all);
  void (*mla_finish)(const float* all, int64_t latent, float* out);
};

// The kernels of an instruction set; `isa` must be supported.
const Kernels& kernels(Isa isa);

}  // namespace k3
