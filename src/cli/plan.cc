// k3 plan: what a run would take, without loading weights.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "engine/plan.h"

namespace k3::cli {
namespace {

struct PlanCommand {
  RunOptions run;
  int64_t context = 4096, batch = 1, prompt = 512;
  double disk_gbps = 2.0, ram_gbps = 0;
};

struct Forecast {
  double decode_tok_s, prefill_tok_s;
};

// Reads and computing overlap, so the slower one decides (limits.md 2).
Forecast forecast(const ModelConfig& c, const Plan& plan, const PlanCommand& o) {
  const double ram = o.ram_gbps * 1e9, disk = o.disk_gbps * 1e9;
  const double decode = std::max(static_cast<double>(plan.bytes_read_per_token) / disk,
                                 static_cast<double>(plan.bytes_touched_per_token) / ram);
  // A chunk reads each expert it needs once; uniform routing is the pessimistic guess.
  const auto chunk = static_cast<double>(std::min(plan.chunk, o.prompt));
  double read = static_cast<double>(plan.bytes_read_per_token), experts = 0;
  if (c.moe_layers()) {
    const auto all = static_cast<double>(c.num_experts),
               k = static_cast<double>(c.num_experts_per_token);
    experts = static_cast<double>(c.moe_layers()) * static_cast<double>(plan.expert_bytes);
    if (plan.expert_slots < c.num_experts)
      read += experts * (all * (1 - std::pow(1 - k / all, chunk)) - k);
  }
  // Six arithmetic operations a byte of memory bandwidth: what a core of today does beside it.
  const double prefill = std::max(read / disk, chunk * plan.flops_per_token() / (6 * ram));
  return {1 / decode, chunk / prefill};
}

nlohmann::ordered_json as_json(const Plan& plan, const Forecast& f, const Plan* int8) {
  nlohmann::ordered_json out = {
      {"ram_bytes", plan.ram},
      {"floor_bytes", plan.floor_bytes},
      {"total_bytes", plan.total_bytes},
      {"resident_bytes", plan.parts},
      {"bytes_read_load", plan.bytes_read_load},
      {"bytes_read_per_token", plan.bytes_read_per_token},
      {"bytes_touched_per_token", plan.bytes_touched_per_token},
      {"flops_per_token", plan.flops_per_token()},
      {"kv_bytes_per_token", plan.kv_bytes_per_token},
      {"state_bytes", plan.state_bytes},
      {"expert_bytes", plan.expert_bytes},
      {"prefill_chunk", plan.chunk},
      {"expert_slots_per_layer", plan.expert_slots},
      {"resident_layers", plan.resident_layers},
      {"head_resident", plan.head_resident},
      {"decode_tok_s", f.decode_tok_s},
      {"prefill_tok_s", f.prefill_tok_s},
  };
  if (int8)
    out["int8_trunk"] = {{"bytes_touched_per_token", int8->bytes_touched_per_token},
                         {"bytes_read_per_token", int8->bytes_read_per_token},
                         {"resident_layers", int8->resident_layers},
                         {"floor_bytes", int8->floor_bytes}};
  return out;
}

void print(const ModelConfig& c, const Plan& plan, const Forecast& f, const Plan* int8,
           const PlanCommand& o) {
  std::cout << fmt::format("memory ({} of {}; the floor is {})\n", format_size(plan.total_bytes),
                           format_size(plan.ram), format_size(plan.floor_bytes));
  for (const auto& [tag, bytes] : plan.parts)
    std::cout << fmt::format("  {:14} {:>12}\n", tag, format_size(bytes));
  std::cout << fmt::format("resident       {} of {} layers, head {}\n", plan.resident_layers,
                           c.num_hidden_layers, plan.head_resident ? "resident" : "streamed");
  if (c.moe_layers())
    std::cout << fmt::format("expert cache   {} of {} a layer, {} each\n", plan.expert_slots,
                             c.num_experts, format_size(plan.expert_bytes));
  std::cout << fmt::format("prefill chunk  {} tokens\n", plan.chunk)
            << fmt::format("context        {} a token, {} a sequence besides\n",
                           format_size(plan.kv_bytes_per_token), format_size(plan.state_bytes))
            << fmt::format("reads          {} to load, {} a token\n",
                           format_size(plan.bytes_read_load),
                           format_size(plan.bytes_read_per_token))
            << fmt::format("touches        {} a token\n", format_size(plan.bytes_touched_per_token))
            << fmt::format(
                   "forecast       {:.3g} tokens/s decode, {:.3g} prefill at {:.3g} GB/s of disk, "
                   "{:.3g} of memory\n",
                   f.decode_tok_s, f.prefill_tok_s, o.disk_gbps, o.ram_gbps);
  if (int8)
    std::cout << fmt::format(
        "with --trunk int8: {} of layers resident, touches {} a token, reads {} a token; results "
        "change\n",
        int8->resident_layers, format_size(int8->bytes_touched_per_token),
        format_size(int8->bytes_read_per_token));
}

void run(PlanCommand o) {
  if (o.run.listed_kernels()) return;
  const EngineOptions engine = o.run.engine(o.prompt, o.context, o.batch);
  if (o.ram_gbps == 0)
    o.ram_gbps = 15.0 * (engine.threads > 0 ? engine.threads : hardware_threads());
  DiskStorage disk;
  const Snapshot snapshot = Snapshot::open(disk, engine.model_dir);
  PlanOptions p;
  p.ram = engine.ram;
  p.threads = engine.threads > 0 ? engine.threads : hardware_threads();
  p.int8_trunk = engine.int8_trunk && !engine.exact;
  p.context = o.context;
  p.batch = o.batch;
  p.prompt = o.prompt;
  p.chunk = engine.chunk;
  const Plan plan = make_plan(snapshot, p);
  const Forecast f = forecast(snapshot.config(), plan, o);
  std::optional<Plan> int8;
  if (!p.int8_trunk) {
    p.int8_trunk = true;
    int8 = make_plan(snapshot, p);
  }
  const Plan* other = int8 ? &*int8 : nullptr;
  if (o.run.json)
    std::cout << as_json(plan, f, other).dump(2) << "\n";
  else
    print(snapshot.config(), plan, f, other, o);
}

}  // namespace

void add_plan(CLI::App& app) {
  auto o = std::make_shared<PlanCommand>();
  CLI::App* sub = app.add_subcommand("plan", "memory and speed forecast, without loading weights");
  o->run.add_model(*sub);
  sub->add_option("--context", o->context, "tokens a sequence may reach")
      ->check(whole(1, 1 << 24))
      ->capture_default_str();
  sub->add_option("--batch", o->batch, "sequences at once")
      ->check(whole(1, 65536))
      ->capture_default_str();
  sub->add_option("--prompt", o->prompt, "longest prompt expected")
      ->check(whole(1, 1 << 24))
      ->capture_default_str();
  sub->add_option("--chunk", o->run.chunk,
                  "tokens of a forward pass (default: the largest that fits)")
      ->check(whole(1, 1 << 20));
  sub->add_option("--disk-gbps", o->disk_gbps, "read speed of the disk, GB/s")
      ->check(positive())
      ->capture_default_str();
  sub->add_option("--ram-gbps", o->ram_gbps, "read speed of memory, GB/s (default: 15 a thread)")
      ->check(positive());
  sub->add_flag("--json", o->run.json, "print one JSON object");
  sub->callback([o] { run(*o); });
}

}  // namespace k3::cli
