// Products of two float matrices that change from step to step: gradients, and Muon's
// orthogonalisation. matmul.h is for weights that stay.
//
//   gemm(ctx, {dy, kTransposed}, {x}, dw);                       // dw = dy' x
//   gemm(ctx, {{{dy, kTransposed}, {x}, dw, kAdd}, ...});        // dw += dy' x, and others beside
//   it
//
// Each element of c is one chain over the inner index (kernels.h), so it depends on its row of a
// and its column of b alone, never on threads or on the other rows, and adding goes on where the
// sum stopped. Products given together share one parallel region; those into the same c add up in
// order. Shapes after transposition: a [m, k], b [k, n], c [m, n]; c overlaps neither. Scratch:
// gemm_cost(n, k) bytes a product with a transposed b, until it returns.
#pragma once

#include <span>

#include "ops/context.h"

namespace k3 {

enum Transposition { kAsStored, kTransposed };

struct Factor {
  Rows rows;
  Transposition transposition = kAsStored;
  int64_t m() const { return transposition == kTransposed ? rows.cols : rows.rows; }
  int64_t n() const { return transposition == kTransposed ? rows.rows : rows.cols; }
};

enum Sum { kReplace, kAdd };

struct Gemm {
  Factor a, b;
  Rows c;
  Sum sum = kReplace;
};

void gemm(Context& ctx, std::span<const Gemm> products);
inline void gemm(Context& ctx, const Factor& a, const Factor& b, const Rows& c,
                 Sum sum = kReplace) {
  const Gemm one{a, b, c, sum};
  gemm(ctx, {&one, 1});
}
int64_t gemm_cost(int64_t n, int64_t k);

}  // namespace k3
