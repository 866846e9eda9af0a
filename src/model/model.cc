#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/feed_forward.h"
#include "model/kda.h"
#include "model/mla.h"

namespace k3 {

Model::Model(const Snapshot& snapshot, Reader& reader, MemoryAccount& account,
             const Options& options)
    : snapshot_(snapshot),
      reader_(reader),
      config_(snapshot.config()),
      chunk_(options.chunk),
      trunk_(snapshot, reader, account, options.trunk),
      activations_(account, "activations",
                   static_cast<uint64_t>(activation_bytes(snapshot.config(), options.chunk))) {
  if (config_.attn_res_block_size &&
      ceil_div(config_.num_hidden_layers, config_.attn_res_block_size) > Residuals::kMaxBlocks)
    throw InputError(snapshot.dir() + "/config.json", "attn_res_block_size",
                     fmt::format("at most {} blocks", Residuals::kMaxBlocks),
                     fmt::format("{} layers in blocks of {}", config_.num_hidden_layers,
                                 config_.attn_res_block_size));
  if (config_.moe_layers()) experts_.emplace(snapshot, reader, account, options.experts);
  int64_t seen[2] = {0, 0};
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i)
    kind_index_.push_back(seen[config_.attention(i) == AttentionKind::kMla]++);
}

int64_t Model::activation_bytes(const ModelConfig& c, int64_t chunk) {
  return (Residuals::floats(c, chunk) + chunk * Scratch::row_stride(c.hidden_size)) *
         static_cast<int64_t>(sizeof(float));
}

int64_t Model::scratch_bytes(const ModelConfig& c, int64_t chunk, int64_t wanted, int threads) {
  const int64_t slab = std::min(chunk, kSlab);
  const int64_t attention =
      2 * Scratch::rows_cost(slab, c.hidden_size) +
      std::max(kda_scratch_bytes(c, slab), mla_scratch_bytes(c, slab, threads));
  const int64_t head = prepare_cost(wanted, c.hidden_size);
  return std::max({attention, feed_forward_scratch_bytes(c, chunk), head}) + (1 << 16);
}

void Model::embed(Context& ctx, const Batch& batch, const Rows& out) {
  const TensorRef& table = snapshot_.tensor("model.embed_tokens.weight");
  const File& file = snapshot_.shard(table.shard);
  const int64_t size = element_bytes(table.dtype), row_bytes = config_.hidden_size * size;
  for (const Segment& segment : batch.segments()) {
    ctx.pool.parallel_for(
        static_cast<int64_t>(segment.ids.size()), 32, [&](int64_t begin, int64_t end) {
          std::vector<std::byte> row(static_cast<size_t>(row_bytes));
          for (int64_t i = begin; i < end; ++i) {
            const int32_t id = segment.ids[static_cast<size_t>(i)];
            reader_.retrying(
                [&] { file.read(table.offset + static_cast<uint64_t>(id * row_bytes), row); });
            embedding_bytes_ += static_cast<uint64_t>(row_bytes);
            float* to = out.row(segment.begin + i);
            widen_to_float(table.dtype, row.data(), config_.hidden_size, to);
            for (int64_t k = 0; k < config_.hidden_size; ++k)
              if (!std::isfinite(to[k]))
                throw InputError(
                    file.path(),
                    fmt::format("tensor '{}'", snapshot_.stored_name("model.embed_tokens.weight")),
                    "finite weights", fmt::format("{} at [{}, {}]", to[k], id, k));
          }
        });
  }
}

void attention(Context& ctx, const ModelConfig& c, const AttentionWeights& w, int layer,
               int64_t kind_index, const Batch& batch, int64_t begin, const Rows& x,
               const Rows& out) {
  if (w.kind == AttentionKind::kKda)
    kda_attention(ctx, c, w.kda, layer, kind_index, batch, begin, x, out);
  else
    mla_attention(ctx, c, w.mla, kind_index, batch, begin, x, out);
}

// One layer of the stack. `x` holds a sublayer's input, then its output, for the whole chunk.
void Model::decoder_layer(Context& ctx, int64_t layer, Residuals& residuals, const Batch& batch,
                          const Rows& x) {
  const int number = static_cast<int>(layer);
  const auto each_slab = [&](auto&& body) {
    for (int64_t begin = 0; begin < batch.tokens(); begin += kSlab) {
      Scratch::Frame frame(ctx.scratch);
      const int64_t end = std::min(batch.tokens(), begin + kSlab);
      body(begin, end, x.slice(begin, end), ctx.scratch.rows(end - begin, config_.hidden_size));
    }
  };
  residuals.close_block(layer);
  {
    const Trunk::Lease lease = trunk_.attention(layer);
    const AttentionWeights& w = lease.attention();
    each_slab([&](int64_t begin, int64_t end, const Rows& in, const Rows& out) {
      residuals.mix(ctx, w.mix, begin, end, in);
      rms_norm(ctx, in, w.input_norm, config_.rms_norm_eps, in);
      ctx.observe("attn_in", number, begin, in);
      attention(ctx, config_, w, number, kind_index_[static_cast<size_t>(layer)], batch, begin, in,
                out);
      ctx.observe("attn_out", number, begin, out);
      residuals.add(ctx, begin, out);
    });
  }
  residuals.settle();
  const Trunk::Lease lease = trunk_.feed_forward(layer);
  const FeedForwardWeights& w = lease.feed_forward();
  each_slab([&](int64_t begin, int64_t end, const Rows& in, const Rows&) {
    residuals.mix(ctx, w.mix, begin, end, in);
    rms_norm(ctx, in, w.norm, config_.rms_norm_eps, in);
    ctx.observe("ffn_in", number, begin, in);
  });
  feed_forward(ctx, config_, layer, w, experts(), x, x);
  ctx.observe("ffn_out", number, 0, x);
  residuals.add(ctx, 0, x);
  ctx.observe("hidden", number, 0, residuals.sum().slice(0, batch.tokens()));
}

void Model::forward(Context& ctx, const Batch& batch, std::span<const int64_t> wanted,
                    const Rows& hidden) {
  const int64_t tokens = batch.tokens();
  assert(tokens <= chunk_);
  float* storage = activations_.as<float>();
  Residuals residuals(config_, storage, tokens);
  const Rows x{storage + Residuals::floats(config_, tokens), tokens, config_.hidden_size,
               Scratch::row_stride(config_.hidden_size)};
  for (const Segment& s : batch.segments())
    s.state->reserve(s.start + static_cast<int64_t>(s.ids.size()));
  trunk_.begin_pass(!wanted.empty());
  embed(ctx, batch, residuals.sum());
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer)
    decoder_layer(ctx, layer, residuals, batch, x);

  if (ctx.observer) {
    for (int64_t i = 0; i < residuals.blocks(); ++i)
      ctx.observe("block_residuals", static_cast<int>(i), 0, residuals.block(i));
    residuals.mix(ctx, trunk_.layout().output_mix, 0, tokens, x);
    ctx.observe("final_norm_in", -1, 0, x);
    rms_norm(ctx, x, trunk_.layout().final_norm, config_.rms_norm_eps, x);
    ctx.observe("final_norm_out", -1, 0, x);
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Rows row = hidden.slice(static_cast<int64_t>(i), static_cast<int64_t>(i) + 1);
    residuals.mix(ctx, trunk_.layout().output_mix, wanted[i], wanted[i] + 1, row);
    rms_norm(ctx, row, trunk_.layout().final_norm, config_.rms_norm_eps, row);
  }
  for (const Segment& s : batch.segments())
    s.state->append(s.ids.data(), static_cast<int64_t>(s.ids.size()));
}

void Model::logits(Context& ctx, const Rows& hidden, const Rows& logits) {
  Scratch::Frame frame(ctx.scratch);
  if (hidden.rows == 0) return;
  const auto& slabs = trunk_.layout().head;
  Operand x;
  for (size_t i = 0; i < slabs.size(); ++i) {
    const Trunk::Lease lease = trunk_.head(static_cast<int64_t>(i));
    const TrunkLayout::HeadSlab& slab = lease.head();
    if (i == 0) x = prepare(ctx, hidden, slab.weight.layout);
    matmul(ctx,
           {{slab.weight, x, logits.columns(slab.first_row, slab.first_row + slab.weight.rows)}});
  }
}

}  // namespace k3
