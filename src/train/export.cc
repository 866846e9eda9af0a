#include "train/export.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "weights/tensor_names.h"

namespace k3 {
namespace {

using Json = nlohmann::ordered_json;

// A tensor of the snapshot: part of a parameter, in the form it is stored in.
struct Stored {
  TensorSpec spec;
  const Parameter* parameter;
  enum Kind { kWhole, kPacked, kScale } kind;
};

std::vector<Stored> stored_tensors(const TrainableModel& learner, const ExportOptions& options) {
  const std::string prefix = learner.config().nested ? std::string(kTextPrefix) : "";
  std::vector<Stored> all;
  for (const Parameter& p : learner.parameters()) {
    if (!p.expert || !options.experts) {
      all.push_back({{prefix + p.name, p.dtype, p.shape}, &p, Stored::kWhole});
      continue;
    }
    ExpertName name = *p.expert;
    for (const auto kind : {ExpertTensorKind::kPacked, ExpertTensorKind::kScale}) {
      name.kind = kind;
      all.push_back({{prefix + expert_tensor_name(name), Dtype::kU8,
                      expert_tensor_shape(learner.config(), name.matrix, kind)},
                     &p,
                     kind == ExpertTensorKind::kPacked ? Stored::kPacked : Stored::kScale});
    }
  }
  return all;
}

std::vector<std::byte> bytes_of(const Stored& s, const ExportOptions& options) {
  const Parameter& p = *s.parameter;
  const int64_t n = p.elements();
  std::vector<std::byte> out(s.spec.bytes());
  if (s.kind == Stored::kWhole) {
    if (p.dtype == Dtype::kF32) {
      std::memcpy(out.data(), p.master.data, out.size());
    } else {
      auto* half = reinterpret_cast<uint16_t*>(out.data());
      for (int64_t i = 0; i < n; ++i) half[i] = f32_to_bf16(p.master.data[i]);
    }
    return out;
  }
  const int64_t cols = p.master.cols;
  std::vector<std::byte> nibbles(static_cast<size_t>(n / 2)),
      scales(static_cast<size_t>(n / kBlock));
  for (int64_t r = 0; r < p.master.rows; ++r)
    pack_mxfp4(p.master.row(r), cols, *options.experts, nibbles.data() + r * cols / 2,
               scales.data() + r * cols / kBlock);
  return s.kind == Stored::kPacked ? nibbles : scales;
}

Json quantization_config() {
  return {{"config_groups",
           {{"group_0",
             {{"format", "mxfp4-pack-quantized"},
              {"input_activations", nullptr},
              {"output_activations", nullptr},
              {"targets", {"Linear"}},
              {"weights",
               {{"dynamic", false},
                {"group_size", kBlock},
                {"num_bits", 4},
                {"scale_dtype", "torch.uint8"},
                {"strategy", "group"},
                {"symmetric", true},
                {"type", "float"}}}}}}},
          {"format", "mxfp4-pack-quantized"},
          {"ignore",
           {"re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
            "re:.*lm_head.*", "re:.*vision_tower.*", "re:.*mm_projector.*"}},
          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"}};
}

}  // namespace

void write_snapshot(Storage& storage, const TrainableModel& learner, const std::string& config_json,
                    const std::string& folder, const ExportOptions& options) {
  if (options.experts) check_mxfp4_sizes(learner.config(), "config.json");
  const std::vector<Stored> all = stored_tensors(learner, options);
  std::vector<std::vector<Stored>> shards(1);
  uint64_t filled = 0, total = 0;
  for (const Stored& s : all) {
    if (filled > 0 && filled + s.spec.bytes() > options.shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(s);
    filled += s.spec.bytes();
    total += s.spec.bytes();
  }
  Json map = Json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:06}.safetensors", i + 1, shards.size());
    std::vector<TensorSpec> specs;
    for (const Stored& s : shards[i]) {
      specs.push_back(s.spec);
      map[s.spec.name] = name;
    }
    SafetensorsWriter writer(
        storage, folder + "/" + name, specs,
        {{"format", "pt"}, {"experts", options.experts ? k3::name(*options.experts) : "none"}});
    for (const Stored& s : shards[i]) writer.append(bytes_of(s, options));
    writer.finish();
  }
  Json config = Json::parse(config_json);
  config.erase("k3_untrained");
  Json& text = config.contains("text_config") ? config["text_config"] : config;
  config.erase("quantization_config");
  text.erase("quantization_config");
  if (options.experts) text["quantization_config"] = quantization_config();
  write_text(storage, folder + "/config.json", config.dump(2) + "\n");
  write_text(storage, folder + "/model.safetensors.index.json",
             Json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n");
}

}  // namespace k3
