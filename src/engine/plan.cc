#include "engine/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "weights/matrix_loader.h"

namespace k3 {
namespace {

// Code, heap, stacks and the tokenizer of a running program; measured at 20 to 60 MB.
constexpr uint64_t kProgramBytes = uint64_t{72} << 20;
constexpr uint64_t kBytesPerDenseTensor = 700;
constexpr uint64_t kBytesPerExpert = 6 * 8;
constexpr int64_t kLargestChunk = 4096;
constexpr int64_t kReadsInFlight = 16;
constexpr int64_t kLogitsBytes = int64_t{32} << 20;
constexpr int kIoThreads = 8;
constexpr size_t kStaging = size_t{4} << 20;
// Of what is left above the floor, at most this share goes to a larger chunk when weights are
// streamed.
constexpr double kChunkShare = 0.4;

class Planner {
 public:
  Planner(const Snapshot& snapshot, const PlanOptions& options)
      : snapshot_(snapshot), c_(snapshot.config()), layout_(snapshot, options.int8_trunk) {
    plan_.options = options;
    plan_.ram = options.ram ? options.ram : available_memory() / 10 * 9;
    plan_.io_threads = kIoThreads;
    plan_.staging = staging_bytes_for(c_, kStaging);
    plan_.program_bytes = kProgramBytes +
                          static_cast<uint64_t>(layout_.units.size()) * kBytesPerDenseTensor * 8 +
                          static_cast<uint64_t>(c_.moe_layers() * c_.num_experts) * kBytesPerExpert;
    if (c_.moe_layers()) slot_ = ExpertStore::slot_bytes(snapshot);
  }

  Plan make() {
    const int64_t least = std::max<int64_t>(1, plan_.options.batch);
    Choice choice{std::vector<bool>(layout_.units.size(), false), least, 0,
                  std::min<int64_t>(2, c_.num_experts)};
    plan_.floor_bytes = total(choice);
    if (plan_.floor_bytes > plan_.ram)
      throw InputError(fmt::format("--ram {}{}: below the floor of this model, {} ({} bytes)",
                                   format_size(plan_.ram),
                                   plan_.options.ram ? "" : " (what is free)",
                                   format_size(plan_.floor_bytes), plan_.floor_bytes));
    if (plan_.options.chunk) take_chunk(choice, least);
    choose_chunk(choice);
    choose_in_flight(choice);
    choose_resident(choice);
    choose_slots(choice);
    finish(choice);
    return std::move(plan_);
  }

 private:
  struct Choice {
    std::vector<bool> resident;
    int64_t chunk, slots, in_flight;
  };

  std::map<std::string, uint64_t> parts(const Choice& choice) const {
    const auto rounded = [](int64_t bytes) {
      return bytes ? Buffer::rounded(static_cast<uint64_t>(bytes)) : 0;
    };
    const PlanOptions& o = plan_.options;
    std::map<std::string, uint64_t> parts;
    parts["program"] = plan_.program_bytes;
    parts["vectors"] = rounded(layout_.vector_floats * 4);
    parts["staging"] = Reader::memory_bytes(plan_.io_threads, plan_.staging);
    parts["state"] = static_cast<uint64_t>(o.batch) * rounded(SequenceState::fixed_bytes(c_));
    parts["latents"] = static_cast<uint64_t>(o.batch * ceil_div(o.context, kMlaPage)) *
                       rounded(SequenceState::page_bytes(c_));
    const int64_t wanted = wanted_rows(choice.chunk);
    parts["logits"] = rounded((wanted * Scratch::row_stride(c_.hidden_size) +
                               logits_rows(wanted) * Scratch::row_stride(c_.vocab_size)) *
                              4);
    parts["activations"] = rounded(Model::activation_bytes(c_, choice.chunk));
    parts["scratch"] = rounded(Model::scratch_bytes(c_, choice.chunk, wanted, o.threads));
    for (size_t i = 0; i < layout_.units.size(); ++i)
      if (choice.resident[i]) parts["trunk"] += rounded(layout_.units[i].bytes);
    for (int r = 0; r < 2; ++r)
      parts["trunk_stream"] += rounded(layout_.region_bytes(choice.resident, r));
    if (c_.moe_layers())
      parts["experts"] = rounded((c_.moe_layers() * choice.slots + choice.in_flight) * slot_);
    return parts;
  }
  uint64_t total(const Choice& choice) const {
    uint64_t sum = 0;
    for (const auto& [tag, bytes] : parts(choice)) sum += bytes;
    return sum;
  }
  bool fits(const Choice& choice) const { return total(choice) <= plan_.ram; }

  // The chunk that was asked for, or an error that says which would fit.
  void take_chunk(Choice& choice, int64_t least) const {
    const int64_t asked = choice.chunk = std::max(least, plan_.options.chunk);
    const uint64_t needed = total(choice);
    if (needed <= plan_.ram) return;
    while (choice.chunk > least && !fits(choice))
      choice.chunk = std::max(least, choice.chunk * 15 / 16);
    throw InputError(fmt::format("--chunk {}: needs {} where --ram gives {}; {} tokens fit", asked,
                                 format_size(needed), format_size(plan_.ram), choice.chunk));
  }

  int64_t wanted_rows(int64_t chunk) const {
    return plan_.options.all_logits ? chunk : std::max<int64_t>(1, plan_.options.batch);
  }
  int64_t logits_rows(int64_t wanted) const {
    return std::clamp<int64_t>(kLogitsBytes / (c_.vocab_size * 4), 1, wanted);
  }

  void choose_chunk(Choice& choice) const {
    if (plan_.options.chunk) return;
    const int64_t wish = std::clamp(plan_.options.prompt, choice.chunk, kLargestChunk);
    Choice resident = everything(choice);
    resident.chunk = wish;
    if (fits(resident)) {
      choice.chunk = wish;
      return;
    }
    const uint64_t floor = plan_.floor_bytes;
    const auto allowed =
        floor + static_cast<uint64_t>(static_cast<double>(plan_.ram - floor) * kChunkShare);
    for (int64_t chunk = wish; chunk > choice.chunk; chunk = chunk * 3 / 4) {
      Choice larger = choice;
      larger.chunk = chunk;
      if (total(larger) > allowed) continue;
      choice.chunk = chunk;
      return;
    }
  }

  Choice everything(const Choice& choice) const {
    Choice all = choice;
    std::fill(all.resident.begin(), all.resident.end(), true);
    all.slots = c_.moe_layers() ? c_.num_experts : 0;
    return all;
  }

  void choose_in_flight(Choice& choice) const {
    if (!c_.moe_layers()) return;
    for (int64_t n = std::min(c_.num_experts, std::max(kReadsInFlight, c_.num_experts_per_token));
         n > choice.in_flight; --n) {
      Choice more = choice;
      more.in_flight = n;
      if (!fits(more)) continue;
      choice.in_flight = n;
      return;
    }
  }

  // Layers from the bottom up, then the head.
  void choose_resident(Choice& choice) {
    const auto layers = static_cast<int64_t>(layout_.attention.size());
    for (int64_t n = layers + 1; n > 0; --n) {
      Choice more = choice;
      const size_t units = n > layers ? layout_.units.size() : static_cast<size_t>(2 * n);
      for (size_t i = 0; i < units; ++i) more.resident[i] = true;
      if (!fits(more)) continue;
      choice.resident = more.resident;
      plan_.resident_layers = std::min(n, layers);
      plan_.head_resident = n > layers;
      return;
    }
  }

  void choose_slots(Choice& choice) const {
    if (!c_.moe_layers()) return;
    const uint64_t left = plan_.ram - total(choice);
    const auto step = static_cast<uint64_t>(c_.moe_layers() * slot_);
    choice.slots = std::min<int64_t>(c_.num_experts, static_cast<int64_t>(left / step));
    while (choice.slots > 0 && !fits(choice)) --choice.slots;  // rounding to pages
  }

  void finish(const Choice& choice) {
    plan_.parts = parts(choice);
    plan_.total_bytes = total(choice);
    plan_.resident = choice.resident;
    plan_.chunk = choice.chunk;
    plan_.expert_slots = choice.slots;
    plan_.in_flight = choice.in_flight;
    plan_.logits_rows = logits_rows(wanted_rows(choice.chunk));
    plan_.state_bytes = static_cast<uint64_t>(SequenceState::fixed_bytes(c_));
    plan_.kv_bytes_per_token = static_cast<uint64_t>(SequenceState::page_bytes(c_) / kMlaPage);
    const TensorRef& embedding = snapshot_.tensor("model.embed_tokens.weight");
    uint64_t touched = 0, streamed = 0;
    for (size_t i = 0; i < layout_.units.size(); ++i) {
      const auto disk = static_cast<uint64_t>(layout_.units[i].disk_bytes);
      touched += static_cast<uint64_t>(layout_.units[i].bytes);
      (choice.resident[i] ? plan_.bytes_read_load : streamed) += disk;
    }
    plan_.bytes_read_per_token =
        streamed + static_cast<uint64_t>(c_.hidden_size * element_bytes(embedding.dtype));
    if (c_.moe_layers()) {
      const ExpertRef ref = first_expert();
      for (const ExpertMatrix* m : {&ref.w1, &ref.w2, &ref.w3})
        plan_.expert_bytes += m->data.bytes + m->scale.bytes;
      const uint64_t routed =
          static_cast<uint64_t>(c_.moe_layers() * c_.num_experts_per_token) * plan_.expert_bytes;
      touched += routed;
      if (choice.slots < c_.num_experts) plan_.bytes_read_per_token += routed;
    }
    plan_.bytes_touched_per_token = touched + 2 * plan_.state_bytes;
    count_flops();
  }

  ExpertRef first_expert() const {
    int64_t layer = 0;
    while (!c_.is_moe(layer)) ++layer;
    return snapshot_.expert(layer, 0);
  }

  // Two per weight that a token meets.
  void count_flops() {
    const auto count = [&](Layout layout, double weights) {
      const bool block = layout == Layout::kInt8Panels || layout == Layout::kMxfp4Rows;
      (block ? plan_.flops_block : plan_.flops_dense) += 2 * weights;
    };
    for (const TrunkUnit& unit : layout_.units)
      for (const PlacedMatrix& m : unit.matrices)
        count(m.resident.view.layout,
              static_cast<double>(m.absorbed ? snapshot_.tensor(m.name).shape.elements()
                                             : m.resident.view.rows * m.resident.view.cols));
    if (!c_.moe_layers()) return;
    const ExpertRef ref = first_expert();
    for (const ExpertMatrix* m : {&ref.w1, &ref.w2, &ref.w3})
      count(snapshot_.mxfp4_experts() ? Layout::kMxfp4Rows : Layout::kBf16Panels,
            static_cast<double>(c_.moe_layers() * c_.num_experts_per_token * m->rows * m->cols));
  }

  const Snapshot& snapshot_;
  const ModelConfig& c_;
  TrunkLayout layout_;
  int64_t slot_ = 0;
  Plan plan_;
};

}  // namespace

Plan make_plan(const Snapshot& snapshot, const PlanOptions& options) {
  return Planner(snapshot, options).make();
}

uint64_t available_memory() {
  uint64_t available = uint64_t{4} << 30;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);)
    if (line.rfind("MemAvailable:", 0) == 0)
      available = std::strtoull(line.c_str() + 13, nullptr, 10) * 1024;
  std::ifstream cgroup("/sys/fs/cgroup/memory.max");
  uint64_t limit = 0;
  if (cgroup >> limit && limit > 0) available = std::min(available, limit);
  return available;
}

}  // namespace k3
