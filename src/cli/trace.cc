// k3 trace: the intermediate values of a prompt, for comparing with an oracle.

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "engine/tracer.h"

namespace k3::cli {
namespace {

struct TraceOptions {
  RunOptions run;
  std::string ids, out;
};

void run(const TraceOptions& o) {
  if (o.run.listed_kernels()) return;
  if (o.out.empty()) throw InputError("--out", "file", "a name", "nothing");
  check_output("--out", o.out, o.run);
  const std::vector<int32_t> ids = parse_ids(o.ids, "--ids");
  if (ids.empty()) throw InputError("--ids", "token ids", "at least one", "none");
  const auto tokens = static_cast<int64_t>(ids.size());
  Run run(o.run, o.run.engine(tokens, tokens, 1, true));
  run.engine().check_ids(ids, "--ids");
  SequenceState state = run.engine().new_sequence();
  Tracer tracer(run.engine().config());
  const Engine::Feed feed{&state, ids, true};
  run.feed(
      {&feed, 1}, [&](const Engine::Logits& l) { tracer.logits(l.values); }, &tracer);
  tracer.states(state);
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
  sub->add_option("--chunk", o->run.chunk, "tokens of a forward pass")->check(whole(1, 1 << 20));
  sub->callback([o] { run(*o); });
}

}  // namespace k3::cli
