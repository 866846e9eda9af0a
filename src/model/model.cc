#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/feed_forward.h"
#include "model/kda.h"
#include "model/mla.h"
#include "ops/cross_entropy.h"
#include "ops/gemm.h"
#include "ops/tape.h"

namespace k3 {

Model::Model(const Snapshot& snapshot, Reader& reader, MemoryAccount& account,
             const Options& options)
    : config_(snapshot.config()),
      chunk_(options.chunk),
      trunk_(snapshot, reader, account, options.trunk),
      embedding_(snapshot, reader),
      activations_(account, "activations",
                   static_cast<uint64_t>(activation_bytes(snapshot.config(), options.chunk))) {
  if (config_.moe_layers()) experts_.emplace(snapshot, reader, account, options.experts);
  check();
}

Model::Model(const ModelConfig& config, Weights weights, MemoryAccount& account, int64_t chunk)
    : config_(config),
      chunk_(chunk),
      trunk_(std::move(weights.trunk)),
      embedding_(weights.embedding),
      activations_(account, "activations", static_cast<uint64_t>(activation_bytes(config, chunk))) {
  if (config_.moe_layers()) experts_.emplace(std::move(weights.experts));
  check();
}

void Model::check() {
  const int64_t layers = config_.num_hidden_layers, block = config_.attn_res_block_size;
  if (block && ceil_div(layers, block) > Residuals::kMaxBlocks)
    throw InputError("config.json", "attn_res_block_size",
                     fmt::format("at most {} blocks", Residuals::kMaxBlocks),
                     fmt::format("{} layers in blocks of {}", layers, block));
  int64_t seen[2] = {0, 0};
  for (int64_t i = 0; i < layers; ++i)
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

void attention(Context& ctx, const ModelConfig& c, const AttentionWeights& w, int layer,
               int64_t kind_index, const Batch& batch, int64_t begin, const Rows& x,
               const Rows& out) {
  if (w.kind == AttentionKind::kKda)
    kda_attention(ctx, c, w.kda, layer, kind_index, batch, begin, x, out);
  else
    mla_attention(ctx, c, w.mla, layer, kind_index, batch, begin, x, out);
}

// One layer of the stack. `x` has room for a sublayer's input, the whole chunk's, then its output.
void Model::decoder_layer(Context& ctx, int64_t layer, Residuals& residuals, const Batch& batch,
                          const Rows& x) {
  const int number = static_cast<int>(layer);
  const int64_t step = batch.training() ? batch.tokens() : kSlab;
  const auto each_slab = [&](const Rows& room, auto&& body) {
    for (int64_t begin = 0; begin < batch.tokens(); begin += step) {
      Scratch::Frame frame(ctx.scratch);
      const int64_t end = std::min(batch.tokens(), begin + step);
      body(begin, end, room.slice(begin, end), ctx.scratch.rows(end - begin, config_.hidden_size));
    }
  };
  residuals.close_block(layer);
  {
    const Trunk::Lease lease = trunk_.attention(layer);
    const AttentionWeights& w = lease.attention();
    each_slab(x, [&](int64_t begin, int64_t end, const Rows& h, const Rows& out) {
      residuals.mix(ctx, w.mix, begin, end, h);
      const Rows in = rms_norm(ctx, h, w.input_norm, config_.rms_norm_eps);
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
  const Rows input = ctx.over(x);
  each_slab(input, [&](int64_t begin, int64_t end, const Rows& in, const Rows& h) {
    residuals.mix(ctx, w.mix, begin, end, h);
    rms_norm(ctx, h, w.norm, config_.rms_norm_eps, in);
    ctx.observe("ffn_in", number, begin, in);
  });
  const Rows out = ctx.over(input);
  feed_forward(ctx, config_, layer, w, experts(), input, out);
  ctx.observe("ffn_out", number, 0, out);
  residuals.add(ctx, 0, out);
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
  embedding_.look_up(ctx, batch, residuals.sum());
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

Residuals Model::learning_layer(Context& ctx, int64_t layer, const Residuals& below,
                                const Batch& batch) {
  Residuals residuals = below;
  const auto rows = [&] { return ctx.scratch.rows(batch.tokens(), config_.hidden_size); };
  if (!ctx.tape) residuals.make_room(rows());
  Scratch::Frame frame(ctx.scratch);
  decoder_layer(ctx, layer, residuals, batch, rows());
  return residuals;
}

Rows Model::final_hidden(Context& ctx, const Residuals& top) {
  const int64_t tokens = top.sum().rows;
  const Rows mixed = ctx.scratch.rows(tokens, config_.hidden_size);
  top.mix(ctx, trunk_.layout().output_mix, 0, tokens, mixed);
  return rms_norm(ctx, mixed, trunk_.layout().final_norm, config_.rms_norm_eps);
}

double Model::head_loss(Context& ctx, const Residuals& top, std::span<const int32_t> targets,
                        float scale) {
  std::vector<int32_t> asked, answers;  // the rows that have a target: only these need logits
  for (size_t i = 0; i < static_cast<size_t>(top.sum().rows); ++i) {
    if (targets[i] < 0) continue;
    asked.push_back(static_cast<int32_t>(i));
    answers.push_back(targets[i]);
  }
  const Rows hidden = gather(ctx, final_hidden(ctx, top), asked);
  const auto& slabs = trunk_.layout().head;
  const int64_t vocab = config_.vocab_size;
  Tape* const tape = ctx.tape;
  ctx.tape = nullptr;  // logits are too large to keep: their gradient is used at once
  ctx.scratch.keep(false);
  double sum = 0;
  for (int64_t begin = 0; begin < hidden.rows; begin += kSlab) {
    Scratch::Frame frame(ctx.scratch);
    const Rows h = hidden.slice(begin, std::min(hidden.rows, begin + kSlab));
    const Rows logits = ctx.scratch.rows(h.rows, vocab);
    for (const TrunkLayout::HeadSlab& slab : slabs)
      matmul(ctx, {{slab.weight, prepare(ctx, h, slab.weight.layout),
                    logits.columns(slab.first_row, slab.first_row + slab.weight.rows)}});
    const Rows nll = ctx.scratch.rows(h.rows, 1);
    cross_entropy(ctx, logits, std::span(answers).subspan(static_cast<size_t>(begin)), scale, nll);
    for (int64_t i = 0; i < h.rows; ++i) sum += *nll.row(i);
    if (!tape) continue;
    for (const TrunkLayout::HeadSlab& slab : slabs) {
      const Tape::Matrix& w = tape->matrix(slab.weight);
      const Rows dy = logits.columns(slab.first_row, slab.first_row + slab.weight.rows);
      gemm(ctx, {dy}, {w.values}, tape->gradient(h), kAdd);
      gemm(ctx, {dy, kTransposed}, {h}, w.gradient, kAdd);
    }
  }
  ctx.tape = tape;
  ctx.scratch.keep(tape != nullptr);
  return sum;
}

double Model::loss(Context& ctx, const Batch& batch, std::span<const int32_t> targets) {
  Scratch::Frame frame(ctx.scratch);
  const Rows sum = ctx.scratch.rows(batch.tokens(), config_.hidden_size);
  embedding_.look_up(ctx, batch, sum);
  Residuals stream(config_, sum);
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer)
    stream = learning_layer(ctx, layer, stream, batch);
  return head_loss(ctx, stream, targets, 1);
}

double Model::gradients(Context& ctx, Tape& tape, const Batch& batch,
                        std::span<const int32_t> targets, const Learning& learning) {
  Scratch::Frame frame(ctx.scratch);
  tape.forget();
  const int64_t layers = config_.num_hidden_layers;
  const auto recording = [&](auto&& body) {
    const Tape::Recording on(ctx, tape);
    body();
  };
  const Rows sum = ctx.scratch.rows(batch.tokens(), config_.hidden_size);
  recording([&] { embedding_.look_up(ctx, batch, sum); });
  const int64_t below = tape.records();
  std::vector<Residuals> stream = {Residuals(config_, sum)};  // below each layer, and at the top
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto climb = [&] { stream.push_back(learning_layer(ctx, layer, stream.back(), batch)); };
    if (learning.recompute) {
      climb();
      tape.start(ctx, stream.back().sum());
    } else {
      recording(climb);
    }
  }
  double nll = 0;
  recording([&] { nll = head_loss(ctx, stream.back(), targets, learning.scale); });
  if (learning.recompute) {
    tape.backward(ctx, below);
    Observer* const observer = std::exchange(ctx.observer, nullptr);  // it has seen these values
    for (int64_t layer = layers; layer-- > 0;) {
      const auto at = static_cast<size_t>(layer);
      Scratch::Frame again(ctx.scratch);
      Rows made;
      recording([&] { made = learning_layer(ctx, layer, stream[at], batch).sum(); });
      add(ctx, tape.gradient(stream[at + 1].sum()), tape.gradient(made));
      tape.backward(ctx, below);
    }
    ctx.observer = observer;
  }
  tape.backward(ctx);
  return nll;
}

}  // namespace k3
