// What a run will take: memory by tag, bytes read, and what is resident - computed, not allocated.
//
//   Plan plan = make_plan(snapshot, {.ram = 12 << 30, .context = 8192});   // throws below the
//   floor plan.parts["trunk"], plan.chunk, plan.expert_slots, plan.bytes_read_per_token
//
// The engine allocates what the plan says and nothing else, under the same tags, so the account's
// limit is the plan's. Order of spending: what every token needs; a prefill chunk; the trunk, layer
// by layer from the bottom (a resident gigabyte saves a gigabyte of every token); then the
// per-layer expert caches. It never changes the arithmetic by itself. Units: bytes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/model.h"
#include "weights/snapshot.h"

namespace k3 {

struct PlanOptions {
  uint64_t ram = 0;  // ceiling on resident memory; 0 = nine tenths of what is available now
  int threads = 1;
  bool int8_trunk = false;
  int64_t context = 4096;   // tokens a sequence may reach
  int64_t batch = 1;        // sequences at once
  int64_t chunk = 0;        // prefill chunk; 0 = the largest sensible one that fits
  int64_t prompt = 512;     // longest prompt expected: a larger chunk gains nothing
  bool all_logits = false;  // logits of every prompt token are wanted, not the last one's only
};

struct Plan {
  PlanOptions options;
  uint64_t ram = 0;
  uint64_t floor_bytes = 0;               // the smallest ceiling that works
  std::map<std::string, uint64_t> parts;  // by tag of the account, and "program"
  uint64_t total_bytes = 0;

  std::vector<bool> resident;  // trunk units
  int64_t resident_layers = 0;
  bool head_resident = false;
  int64_t chunk = 1;
  int64_t expert_slots = 0;  // per layer
  int64_t in_flight = 1;
  int io_threads = 1;
  size_t staging = 0;
  int64_t logits_rows = 1;  // rows of logits computed at once

  uint64_t kv_bytes_per_token = 0;
  uint64_t state_bytes = 0;  // of one sequence, apart from latents
  uint64_t expert_bytes = 0;
  uint64_t bytes_read_load = 0;          // to fill what is resident
  uint64_t bytes_read_per_token = 0;     // decoding one sequence, no expert found in a cache
  uint64_t bytes_touched_per_token = 0;  // of weights and state, in memory
  double flops_dense = 0;                // of one token: two per weight in bf16 or f32
  double flops_block = 0;                // two per weight in MXFP4 or int8 blocks
  double flops_per_token() const { return flops_dense + flops_block; }

  // What the process takes before it allocates anything.
  uint64_t program_bytes = 0;
};

Plan make_plan(const Snapshot& snapshot, const PlanOptions& options);

// Memory this process may use: the system's available memory, or the cgroup's limit if lower.
uint64_t available_memory();

}  // namespace k3
