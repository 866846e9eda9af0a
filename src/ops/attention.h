// Causal attention of one head over one document, and its way back, as matrix products of the
// kernels': what training runs. The templates of gradients.h are the oracle.
//
//   std::vector<float> work(attention_work(tokens, key_dim, value_dim));
//   largest = attention_forward(kernels, head, out, top, total, work.data());
//   attention_backward(kernels, head, out, top, total, dout, dq, dk, dv, work.data());
//
// Queries go through in blocks of 32 rows against all keys up to their last; the scores of a block
// are never kept (training.md 2). Arguments and results are the templates'. Thread rule: pure
// functions of their arguments.
#pragma once

#include "kernels/kernels.h"
#include "ops/gradients.h"

namespace k3 {

float attention_forward(const Kernels& kernels, const Attention<float>& a, float* out, float* top,
                        float* total, float* work);
void attention_backward(const Kernels& kernels, const Attention<float>& a, const float* out,
                        const float* top, const float* total, const float* dout, float* dq,
                        float* dk, float* dv, float* work);
int64_t attention_work(int64_t tokens, int64_t key_dim, int64_t value_dim);  // floats

}  // namespace k3
