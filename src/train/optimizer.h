// How a parameter moves: AdamW, Muon and Per-Head Muon, and which of them it gets (training.md 5;
// Moonlight, arXiv 2502.16982; K3 report, section 2.5).
//
//   const UpdateRule rule = update_rule(config, "model.layers.0.self_attn.q_proj.weight", rows, o);
//   OptimizerState state(account, rule, rows * cols);
//   ... each step:
//   const float rate = learning_rate(schedule, step);
//   std::vector<double> rms = update(ctx, o, rule, rate, weight, gradient, state);
//
// Weights, gradients and moments are float; a matrix is its rows. All sums run in a fixed order, so
// a step's bits do not depend on threads. Weight decay is decoupled. Thread rule: as Context.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/context.h"
#include "weights/config.h"

namespace k3 {

struct OptimizerOptions {
  float weight_decay = 0.1f;
  // AdamW.
  float beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f;
  // Muon.
  bool muon = true;  // false: AdamW for everything
  float momentum = 0.95f;
  bool per_head = true;         // q, k, v (MLA: q and the two halves of kv_b) head by head
  bool per_head_gates = false;  // f_b, KDA's and MLA's g too
};

struct UpdateRule {
  bool muon = false;
  bool decay = true;
  // Muon: the rows of each matrix that is orthogonalised on its own, in order.
  std::vector<int64_t> blocks;
};

// The rule of a tensor by its canonical name (the table of training.md 5.2): vectors, embeddings,
// the head, beta's projection, convolutions and Attention Residuals queries get AdamW; A_log and
// dt_bias no decay.
UpdateRule update_rule(const ModelConfig& config, const std::string& name, int64_t rows,
                       const OptimizerOptions& options);

// The moments of one parameter. Memory: tag "moments".
struct OptimizerState {
  OptimizerState() = default;
  OptimizerState(MemoryAccount& account, const UpdateRule& rule, int64_t elements);

  int64_t step = 0;
  Buffer first;   // floats [rows * cols]. AdamW: mean of gradients; Muon: momentum
  Buffer second;  // AdamW: mean of squares
};

// Moves `weight` once; returns the root mean square of the update of each block, over the learning
// rate and before decay. Scratch: update_cost bytes.
std::vector<double> update(Context& ctx, const OptimizerOptions& options, const UpdateRule& rule,
                           float rate, const Rows& weight, const Rows& gradient,
                           OptimizerState& state);
int64_t update_cost(int64_t rows, int64_t cols);

// x to nearly U V' of its singular value decomposition, by five Newton-Schulz steps: singular
// values end in about [0.68, 1.13].
void orthogonalize(Context& ctx, const Rows& x);

// Rises linearly over `warmup` steps; then falls to `last` times the peak, along half a cosine, or
// (WSD) linearly over the last `decay` steps after staying at the peak.
struct Schedule {
  enum class Form { kCosine, kWsd } form = Form::kCosine;
  float peak = 1e-3f, last = 0.1f;
  int64_t steps = 0, warmup = 0, decay = 0;
};
float learning_rate(const Schedule& schedule, int64_t step);  // steps count from 0

// The norm of all gradients together; and their scaling by limit / norm when it exceeds `limit`.
double gradient_norm(Context& ctx, const std::vector<Rows>& gradients);
void clip_gradients(Context& ctx, const std::vector<Rows>& gradients, double norm, double limit);

}  // namespace k3
