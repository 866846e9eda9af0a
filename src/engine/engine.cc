#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace k3 {
namespace {

EngineOptions settled(EngineOptions o) {
  if (o.threads <= 0) o.threads = hardware_threads();
  if (o.exact) {
    o.activations = Activations::kFp32;
    o.int8_trunk = false;
  }
  if (o.isa && !supported(*o.isa))
    throw InputError("--kernels", "instruction set",
                     "one that this machine has (see --kernels=list)", name(*o.isa));
  return o;
}

PlanOptions plan_options(const EngineOptions& o) {
  PlanOptions p;
  p.ram = o.ram;
  p.threads = o.threads;
  p.int8_trunk = o.int8_trunk;
  p.context = o.context;
  p.batch = o.batch;
  p.chunk = o.chunk;
  p.prompt = o.prompt;
  p.all_logits = o.all_logits;
  return p;
}

}  // namespace

Engine::Engine(const Storage& storage, const EngineOptions& options)
    : options_(settled(options)),
      snapshot_(Snapshot::open(storage, options_.model_dir)),
      plan_(make_plan(snapshot_, plan_options(options_))),
      account_(plan_.ram - plan_.program_bytes),
      pool_(options_.threads),
      kernels_(k3::kernels(options_.isa.value_or(best_isa()))) {
  const ModelConfig& c = config();
  reader_.emplace(account_, plan_.io_threads, plan_.staging);
  Model::Options m;
  m.trunk.int8 = options_.int8_trunk;
  m.trunk.resident = plan_.resident;
  if (options_.progress)
    m.trunk.progress = [this](uint64_t done, uint64_t total) {
      options_.progress("loading", done, total);
    };
  m.experts = {plan_.expert_slots, plan_.in_flight};
  m.chunk = plan_.chunk;
  model_.emplace(snapshot_, *reader_, account_, m);
  const int64_t wanted = options_.all_logits ? plan_.chunk : std::max<int64_t>(1, options_.batch);
  scratch_.emplace(account_, Model::scratch_bytes(c, plan_.chunk, wanted, options_.threads));
  logits_ = Buffer(account_, "logits",
                   static_cast<uint64_t>(wanted * Scratch::row_stride(c.hidden_size) +
                                         plan_.logits_rows * Scratch::row_stride(c.vocab_size)) *
                       sizeof(float));
}

Engine::~Engine() = default;

void Engine::check_ids(std::span<const int32_t> ids, const std::string& source) const {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= config().vocab_size)
      throw InputError(source, fmt::format("id number {}", i + 1),
                       fmt::format("0 to {}", config().vocab_size - 1), fmt::format("{}", ids[i]));
}

void Engine::run(std::span<const Feed> feeds, const Sink& sink, Observer* observer,
                 const std::function<void(int64_t, int64_t)>& progress) {
  Context ctx = context(observer);
  const ModelConfig& c = config();
  int64_t total = 0, done = 0;
  for (const Feed& feed : feeds) {
    check_ids(feed.ids);
    total += static_cast<int64_t>(feed.ids.size());
  }
  std::vector<size_t> at(feeds.size(), 0);
  struct Wanted {
    size_t feed;
    int64_t position;
  };
  while (done < total) {
    Batch batch;
    std::vector<int64_t> rows;
    std::vector<Wanted> wanted;
    int64_t active = 0, room = model_->chunk(), largest = 0;
    for (size_t i = 0; i < feeds.size(); ++i) active += at[i] < feeds[i].ids.size();
    for (size_t i = 0; i < feeds.size() && room > 0; ++i) {
      const Feed& feed = feeds[i];
      const size_t left = feed.ids.size() - at[i];
      if (left == 0) continue;
      const auto take = std::min(left, static_cast<size_t>(std::max<int64_t>(1, room / active--)));
      const int64_t first = batch.tokens();
      batch.add(*feed.state, feed.ids.subspan(at[i], take));
      at[i] += take;
      room -= static_cast<int64_t>(take);
      largest = std::max(largest, static_cast<int64_t>(take));
      const auto count = static_cast<int64_t>(take);
      for (int64_t t = feed.all_logits ? 0 : count - 1; t < count; ++t) {
        if (!feed.all_logits && at[i] < feed.ids.size()) break;
        rows.push_back(first + t);
        wanted.push_back({i, feed.state->length() + t});
      }
    }
    const Rows hidden{logits_.as<float>(), static_cast<int64_t>(rows.size()), c.hidden_size,
                      Scratch::row_stride(c.hidden_size)};
    model_->forward(ctx, batch, rows, hidden);
    ++forward_calls_;
    if (largest > 1) chunks_.push_back(batch.tokens());
    float* values = logits_.as<float>() + hidden.rows * hidden.stride;
    for (int64_t begin = 0; begin < hidden.rows; begin += plan_.logits_rows) {
      const int64_t end = std::min(hidden.rows, begin + plan_.logits_rows);
      const Rows out{values, end - begin, c.vocab_size, Scratch::row_stride(c.vocab_size)};
      model_->logits(ctx, hidden.slice(begin, end), out);
      for (int64_t i = begin; i < end; ++i) {
        const Wanted& w = wanted[static_cast<size_t>(i)];
        const float* row = out.row(i - begin);
        for (int64_t v = 0; v < c.vocab_size; ++v)
          if (!std::isfinite(row[v]))
            throw WorkError(fmt::format("logits: the value of token {} at position {} is {}", v,
                                        w.position, row[v]));
        sink({w.feed, w.position, {row, static_cast<size_t>(c.vocab_size)}});
      }
    }
    done += batch.tokens();
    if (progress) progress(done, total);
  }
}

Engine::Statistics Engine::statistics() const {
  Statistics s;
  s.forward_calls = forward_calls_;
  s.chunks = chunks_;
  if (const ExpertStore* experts = const_cast<Model&>(*model_).experts()) {
    s.experts_read = experts->experts_read();
    s.expert_hits = experts->hits();
  }
  s.bytes_read = reader_->bytes_read() + model_->embedding_bytes();
  s.retries = reader_->retries();
  s.io_mode = reader_->io_mode();
  return s;
}

}  // namespace k3
