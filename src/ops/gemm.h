// c = a b of matrices that are plain rows of floats: what training multiplies.
//
//   gemm(ctx, {dy, kTransposed}, {x}, dw);          // dw = dy' x
//   gemm(ctx, {x}, {w, kTransposed}, y);            // y = x w'
//
// Each element of c is the chain of kernels.h over the inner index, even and odd apart, so it
// depends on its row of a and its column of b alone, never on threads or on the other rows. Shapes
// after transposition: a [m, k], b [k, n], c [m, n]; c overlaps neither. Scratch: gemm_cost(m, n,
// k) bytes until it returns.
#pragma once

#include "ops/context.h"

namespace k3 {

enum Transposition { kAsStored, kTransposed };

struct Factor {
  Rows rows;
  Transposition transposition = kAsStored;
  int64_t m() const { return transposition == kTransposed ? rows.cols : rows.rows; }
  int64_t n() const { return transposition == kTransposed ? rows.rows : rows.cols; }
};

void gemm(Context& ctx, const Factor& a, const Factor& b, const Rows& c);
int64_t gemm_cost(int64_t m, int64_t n, int64_t k);

}  // namespace k3
