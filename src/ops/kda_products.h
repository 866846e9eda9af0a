// The chunks of kda_chunk.h as matrix products of the kernels': what training runs in float.
//
//   std::vector<float> work(kda_products_work(d));
//   kda_chunks_forward(kernels, head, states, out, work.data());
//   kda_chunks_backward(kernels, head, states, dout, gradients, work.data());
//
// The same sums as the templates there, which are their oracle, in another order of additions. Rows
// lie d apart. Thread rule: pure functions of their arguments.
#pragma once

#include "kernels/kernels.h"
#include "ops/kda_chunk.h"

namespace k3 {

void kda_chunks_forward(const Kernels& kernels, const KdaChunks<float>& a, float* states,
                        float* out, float* work);
void kda_chunks_backward(const Kernels& kernels, const KdaChunks<float>& a, const float* states,
                         const float* dout, const KdaGradients<float>& gradients, float* work);
int64_t kda_products_work(int64_t d);  // floats

}  // namespace k3
