#include "ops/tape.h"

namespace k3 {

void Tape::start(Context& ctx, const Rows& value) {
  mirror_.commit(static_cast<uint64_t>(ctx.scratch.used()));
  const Rows g = gradient(value);
  ctx.each_row(g.rows, 64, [&](int64_t i) {
    std::memset(g.row(i), 0, static_cast<size_t>(g.cols) * sizeof(float));
  });
}

void Tape::record(Context& ctx, std::initializer_list<Rows> made, Back back) {
  for (const Rows& y : made) start(ctx, y);
  records_.push_back(std::move(back));
}

void Tape::backward(Context& ctx, int64_t from) {
  assert(ctx.tape == nullptr);
  while (records() > from) {
    const Back back = std::move(records_.back());
    records_.pop_back();
    Scratch::Frame frame(ctx.scratch);
    back(ctx);
  }
}

}  // namespace k3
