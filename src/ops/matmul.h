// y = W x for rows of activations, in whatever format W is held.
//
//   Operand x = prepare(ctx, hidden, weights.q_proj.layout);     // quantised once, used by many
//   matmul(ctx, {{weights.q_proj, x, q}, {weights.k_proj, x, k}});
//
// Products given together share one parallel region. The bits of an output row depend on its weight
// row and its token alone (kernels.h). Operands live in scratch: valid until the frame ends.
#pragma once

#include <initializer_list>
#include <span>

#include "ops/context.h"

namespace k3 {

struct Product {
  WeightView weight;
  Operand x;
  Rows y;  // [x.tokens, weight.rows]
};

// The form in which activations meet weights of this layout under ctx.activations.
ActivationForm activation_form(Activations activations, Layout layout);

// The activations as the kernels want them; may point at `x` itself.
Operand prepare(Context& ctx, const Rows& x, Layout layout);
// Scratch bytes that prepare takes at most.
int64_t prepare_cost(int64_t tokens, int64_t cols);

// Rows [begin, begin + count) of an operand; and a copy of chosen rows, in scratch.
Operand slice(const Operand& x, int64_t begin, int64_t count);
Rows gather(Context& ctx, const Rows& x, std::span<const int32_t> rows);
Operand gather(Context& ctx, const Operand& x, std::span<const int32_t> rows);

void matmul(Context& ctx, std::span<const Product> products);
inline void matmul(Context& ctx, std::initializer_list<Product> products) {
  matmul(ctx, std::span<const Product>(products.begin(), products.size()));
}

// rms_norm of every row (numerics.md 2): y = w * x / sqrt(mean(x^2) + eps). y may be x.
void rms_norm(Context& ctx, const Rows& x, const float* w, float eps, const Rows& y);
// Where that may overwrite x (Context::over).
Rows rms_norm(Context& ctx, const Rows& x, const float* w, float eps);

Rows sigmoid(Context& ctx, const Rows& x);                        // may overwrite x
Rows mul_sigmoid(Context& ctx, const Rows& x, const Rows& gate);  // x sigmoid(gate), likewise
void add(Context& ctx, const Rows& x, const Rows& y);             // y += x
void copy(Context& ctx, const Rows& x, const Rows& y);            // y = x

}  // namespace k3
