#include "ops/gemm.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

namespace k3 {
namespace {

// A task's part of c: with a block of the inner index, its parts of a and b stay in the second
// cache.
constexpr int64_t kTileRows = 64, kTileCols = 96;

// to[j][i] = from[i][j], for the columns [begin, end) of from.
void transpose(const Rows& from, int64_t begin, int64_t end, const Rows& to) {
  constexpr int64_t kSquare = 16;
  for (int64_t i0 = 0; i0 < from.rows; i0 += kSquare) {
    const int64_t i1 = std::min(from.rows, i0 + kSquare);
    for (int64_t j = begin; j < end; ++j)
      for (int64_t i = i0; i < i1; ++i) to.row(j)[i] = from.row(i)[j];
  }
}

// Products into the same c, in order.
struct Target {
  Rows c;
  std::vector<std::pair<const Gemm*, Rows>> terms;  // and b as [k, n]
};
struct Tile {
  size_t target;
  int64_t row, col;
};

}  // namespace

void gemm(Context& ctx, std::span<const Gemm> products) {
  Scratch::Frame frame(ctx.scratch);
  struct Turn {
    Rows from, to;
    int64_t begin;
  };
  std::vector<Turn> turns;
  std::vector<Target> targets;
  std::unordered_map<const float*, size_t> by_place;
  for (const Gemm& p : products) {
    const int64_t k = p.a.n(), n = p.b.n();
    assert(p.b.m() == k && p.c.rows == p.a.m() && p.c.cols == n);
    Rows b = p.b.rows;
    if (p.b.transposition == kTransposed) {
      b = ctx.scratch.rows(k, n);
      for (int64_t j = 0; j < k; j += kTileCols) turns.push_back({p.b.rows, b, j});
    }
    const auto [at, fresh] = by_place.try_emplace(p.c.data, targets.size());
    if (fresh) targets.push_back({p.c, {}});
    targets[at->second].terms.emplace_back(&p, b);
  }
  std::vector<Tile> tiles;
  for (size_t t = 0; t < targets.size(); ++t)
    for (int64_t j = 0; j < targets[t].c.cols; j += kTileCols)
      for (int64_t i = 0; i < targets[t].c.rows; i += kTileRows) tiles.push_back({t, i, j});
  ctx.each_row(static_cast<int64_t>(turns.size()), 1, [&](int64_t i) {
    const Turn& turn = turns[static_cast<size_t>(i)];
    transpose(turn.from, turn.begin, std::min(turn.from.cols, turn.begin + kTileCols), turn.to);
  });
  ctx.each_row(static_cast<int64_t>(tiles.size()), 1, [&](int64_t i) {
    const Tile& tile = tiles[static_cast<size_t>(i)];
    const Rows& c = targets[tile.target].c;
    for (const auto& [p, b] : targets[tile.target].terms) {
      const bool turned = p->a.transposition == kTransposed;
      GemmTile t;
      t.m = std::min(kTileRows, c.rows - tile.row);
      t.n = std::min(kTileCols, c.cols - tile.col);
      t.k = p->a.n();
      t.a_row = turned ? 1 : p->a.rows.stride;
      t.a_col = turned ? p->a.rows.stride : 1;
      t.a = p->a.rows.data + tile.row * t.a_row;
      t.b = b.data + tile.col;
      t.b_row = b.stride;
      t.c = c.row(tile.row) + tile.col;
      t.c_stride = c.stride;
      t.fresh = p->sum == kReplace;
      ctx.kernels.gemm(t);
    }
  });
}

int64_t gemm_cost(int64_t n, int64_t k) { return Scratch::rows_cost(k, n); }

}  // namespace k3
