// k3 trace: the intermediate values of a prompt, for comparing with an oracle.

#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "engine/tracer.h"
#include "train/trainable_model.h"

namespace k3::cli {
namespace {

struct TraceOptions {
  RunOptions run;
  std::string ids, out;
  bool grad = false;
};

// "loss" of the next tokens, a mean, and its gradient for every parameter that learns, in the shape
// it is stored in (experts: of their plain weights), in full float32 arithmetic.
std::map<std::string, Tracer::Tensor> gradients(const EngineOptions& o,
                                                const std::vector<int32_t>& ids) {
  if (ids.size() < 2)
    throw InputError("--grad", "token ids", "at least two, so that there is a next one", "one");
  DiskStorage disk;
  const Snapshot snapshot = Snapshot::open(disk, o.model_dir);
  const ModelConfig& c = snapshot.config();
  for (const int32_t id : ids)
    if (id < 0 || id >= c.vocab_size)
      throw InputError("--ids", "token ids", fmt::format("below {}", c.vocab_size),
                       fmt::format("{}", id));
  MemoryAccount account(o.ram ? o.ram : available_memory() / 10 * 9);
  ThreadPool pool(o.threads ? o.threads : hardware_threads());
  Scratch scratch(account, static_cast<int64_t>(account.limit()), Scratch::kGrowing);
  Context ctx{pool, kernels(o.isa ? *o.isa : best_isa()), scratch, Activations::kFp32};
  TrainableModel learner(c, account, {Dtype::kF32, std::nullopt}, 1);
  learner.load(snapshot);
  learner.refresh(ctx);
  Tape tape(account, scratch);
  learner.learn(tape);
  learner.clear_gradients(ctx);
  std::vector<int32_t> targets(ids.begin() + 1, ids.end());
  targets.push_back(-1);
  const auto count = static_cast<float>(ids.size() - 1);
  Batch batch;
  batch.add(ids);
  const double loss = learner.model().gradients(ctx, tape, batch, targets, {1.0f / count}) / count;
  learner.finish_gradients();

  std::map<std::string, Tracer::Tensor> out;
  out["loss"] = {{1}, {static_cast<float>(loss)}, {}};
  for (const Parameter& p : learner.parameters()) {
    if (!p.learns) continue;
    Tracer::Tensor t;
    t.shape = p.expert ? p.shape : snapshot.tensor(p.name).shape;
    t.values.assign(p.gradient.data, p.gradient.data + p.elements());
    t.values.resize(static_cast<size_t>(t.shape.elements()), 0.0f);  // A_log's padding
    out["grad." + snapshot.stored_name(p.name)] = std::move(t);
  }
  return out;
}

void run(const TraceOptions& o) {
  if (o.run.listed_kernels()) return;
  if (o.out.empty()) throw InputError("--out", "file", "a name", "nothing");
  check_output("--out", o.out, o.run);
  const std::vector<int32_t> ids = parse_ids(o.ids, "--ids");
  if (ids.empty()) throw InputError("--ids", "token ids", "at least one", "none");
  const auto tokens = static_cast<int64_t>(ids.size());
  std::map<std::string, Tracer::Tensor> extra;
  if (o.grad) extra = gradients(o.run.engine(tokens, tokens), ids);
  Run run(o.run, o.run.engine(tokens, tokens, 1, true));
  run.engine().check_ids(ids, "--ids");
  SequenceState state = run.engine().new_sequence();
  Tracer tracer(run.engine().config());
  const Engine::Feed feed{&state, ids, true};
  run.feed(
      {&feed, 1}, [&](const Engine::Logits& l) { tracer.logits(l.values); }, &tracer);
  tracer.states(state);
  for (auto& [name, tensor] : extra) tracer.add(name, std::move(tensor));
  DiskStorage disk;
  tracer.write(disk, o.out);
  run.finish();
}

}  // namespace

void add_trace(CLI::App& app) {
  auto o = std::make_shared<TraceOptions>();
  CLI::App* sub =
      app.add_subcommand("trace", "write the intermediate values of a prompt (safetensors)");
  o->run.add(*sub);
  sub->add_option("--ids", o->ids, "token ids, e.g. 1,2,3");
  sub->add_option("--out", o->out, "output file");
  sub->add_flag("--grad", o->grad, "add the loss of the next tokens and its gradients");
  sub->add_option("--chunk", o->run.chunk, "tokens of a forward pass")->check(whole(1, 1 << 20));
  sub->callback([o] { run(*o); });
}

}  // namespace k3::cli
