// The first rows of a forward pass: embed_tokens, looked up.
//
//   Embedding embedding(snapshot, reader);          // rows are read as they are asked for
//   embedding.look_up(ctx, batch, out);             // out: [batch.tokens(), H]
//
// Or from a table in memory, that of a model that learns; its gradient is the sum over the rows
// that looked an id up, in order. Thread rule: one look-up at a time. Errors: InputError for a row
// that is not finite, WorkError when the device fails.
#pragma once

#include <atomic>

#include "model/batch.h"
#include "ops/context.h"
#include "weights/reader.h"
#include "weights/snapshot.h"

namespace k3 {

class Embedding {
 public:
  Embedding(const Snapshot& snapshot, Reader& reader) : snapshot_(&snapshot), reader_(&reader) {}
  explicit Embedding(const Rows& table) : table_(table) {}

  void look_up(Context& ctx, const Batch& batch, const Rows& out);
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  void read(int32_t id, std::span<std::byte> row, float* to);

  const Snapshot* snapshot_ = nullptr;
  Reader* reader_ = nullptr;
  Rows table_;
  std::atomic<uint64_t> bytes_read_{0};
};

}  // namespace k3
