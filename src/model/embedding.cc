#include "model/embedding.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "ops/tape.h"

namespace k3 {
namespace {

const char* const kName = "model.embed_tokens.weight";

std::vector<int32_t> ids_of(const Batch& batch) {
  std::vector<int32_t> ids;
  for (const Segment& s : batch.segments()) ids.insert(ids.end(), s.ids.begin(), s.ids.end());
  return ids;
}

}  // namespace

void Embedding::read(int32_t id, std::span<std::byte> row, float* to) {
  const TensorRef& table = snapshot_->tensor(kName);
  const File& file = snapshot_->shard(table.shard);
  reader_->retrying([&] { file.read(table.offset + static_cast<uint64_t>(id) * row.size(), row); });
  bytes_read_ += row.size();
  const int64_t width = table.shape[1];
  widen_to_float(table.dtype, row.data(), width, to);
  for (int64_t k = 0; k < width; ++k)
    if (!std::isfinite(to[k]))
      throw InputError(file.path(), fmt::format("tensor '{}'", snapshot_->stored_name(kName)),
                       "finite weights", fmt::format("{} at [{}, {}]", to[k], id, k));
}

void Embedding::look_up(Context& ctx, const Batch& batch, const Rows& out) {
  const std::vector<int32_t> ids = ids_of(batch);
  ctx.pool.parallel_for(out.rows, 32, [&](int64_t begin, int64_t end) {
    std::vector<std::byte> row;
    if (reader_)
      row.resize(static_cast<size_t>(out.cols * element_bytes(snapshot_->tensor(kName).dtype)));
    for (int64_t i = begin; i < end; ++i) {
      const int32_t id = ids[static_cast<size_t>(i)];
      if (reader_)
        read(id, row, out.row(i));
      else
        std::memcpy(out.row(i), table_.row(id), static_cast<size_t>(out.cols) * sizeof(float));
    }
  });
  if (!ctx.tape) return;
  ctx.tape->record(ctx, {out}, [=, table = table_, tape = ctx.tape](Context& back) {
    const Rows dy = tape->gradient(out);
    float* gradient = tape->vector(table.data);
    // By columns, so that the rows of one id add up in order on any number of threads.
    back.pool.parallel_for(out.cols, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < out.rows; ++i)
        back.kernels.add(dy.row(i) + begin, end - begin,
                         gradient + ids[static_cast<size_t>(i)] * table.stride + begin);
    });
  });
}

}  // namespace k3
