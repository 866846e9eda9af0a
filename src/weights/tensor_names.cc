#include "weights/tensor_names.h"

#include <fmt/format.h>

#include <charconv>

#include "base/error.h"

namespace k3 {
namespace {

// Collects the tensors under one prefix, such as "model.layers.7.self_attn.".
class Listing {
 public:
  explicit Listing(std::vector<ExpectedTensor>& out) : out_(out) {}

  void at(std::string prefix, int64_t layer) {
    prefix_ = std::move(prefix);
    layer_ = static_cast<int32_t>(layer);
  }
  ExpectedTensor& add(const char* suffix, Shape shape, Part part) {
    ExpectedTensor tensor;
    tensor.name = prefix_ + suffix;
    tensor.shape = shape;
    tensor.part = part;
    tensor.layer = layer_;
    return out_.emplace_back(std::move(tensor));
  }

 private:
  std::vector<ExpectedTensor>& out_;
  std::string prefix_;
  int32_t layer_ = -1;
};

void list_kda(const ModelConfig& c, Listing& out) {
  const int64_t h = c.hidden_size, p = c.kda_width(), d = c.kda_head_dim;
  for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight"})
    out.add(name, {p, h}, Part::kKda);
  for (const char* name : {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"})
    out.add(name, {p, 1, c.short_conv_kernel_size}, Part::kKda);
  out.add("f_a_proj.weight", {d, h}, Part::kKda);
  out.add("f_b_proj.weight", {p, d}, Part::kKda);
  out.add("b_proj.weight", {c.kda_num_heads, h}, Part::kKda);
  out.add("A_log", {c.kda_num_heads}, Part::kKda).padded = true;
  out.add("dt_bias", {p}, Part::kKda);
  out.add("o_norm.weight", {d}, Part::kNorms);
  out.add("o_proj.weight", {h, p}, Part::kKda);
  if (c.use_full_rank_gate) {
    out.add("g_proj.weight", {p, h}, Part::kKda);
  } else {
    out.add("g_a_proj.weight", {d, h}, Part::kKda);
    out.add("g_b_proj.weight", {p, d}, Part::kKda);
  }
}

void list_mla(const ModelConfig& c, Listing& out) {
  const int64_t h = c.hidden_size, heads = c.num_attention_heads;
  if (c.q_lora_rank) {
    out.add("q_a_proj.weight", {c.q_lora_rank, h}, Part::kMla);
    out.add("q_a_layernorm.weight", {c.q_lora_rank}, Part::kNorms);
    out.add("q_b_proj.weight", {heads * c.qk_head_dim(), c.q_lora_rank}, Part::kMla);
  } else {
    out.add("q_proj.weight", {heads * c.qk_head_dim(), h}, Part::kMla);
  }
  out.add("kv_a_proj_with_mqa.weight", {c.kv_lora_rank + c.qk_rope_head_dim, h}, Part::kMla);
  out.add("kv_a_layernorm.weight", {c.kv_lora_rank}, Part::kNorms);
  out.add("kv_b_proj.weight", {heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank},
          Part::kMla);
  out.add("o_proj.weight", {h, heads * c.v_head_dim}, Part::kMla);
  if (c.mla_use_output_gate) out.add("g_proj.weight", {heads * c.v_head_dim, h}, Part::kMla);
}

void list_moe(const ModelConfig& c, Listing& out) {
  const int64_t h = c.hidden_size, latent = c.routed_expert_hidden_size;
  const int64_t shared = c.shared_intermediate_size();
  out.add("gate.weight", {c.num_experts, h}, Part::kRouter);
  out.add("gate.e_score_correction_bias", {c.num_experts}, Part::kRouter);
  if (latent) {
    out.add("routed_expert_down_proj.weight", {latent, h}, Part::kLatent);
    out.add("routed_expert_up_proj.weight", {h, latent}, Part::kLatent);
    if (c.latent_moe_use_norm) out.add("routed_expert_norm.weight", {latent}, Part::kNorms);
  }
  if (shared) {
    out.add("shared_experts.gate_proj.weight", {shared, h}, Part::kSharedExperts);
    out.add("shared_experts.up_proj.weight", {shared, h}, Part::kSharedExperts);
    out.add("shared_experts.down_proj.weight", {h, shared}, Part::kSharedExperts);
  }
}

void list_layer(const ModelConfig& c, int64_t layer, Listing& out) {
  const int64_t h = c.hidden_size;
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  out.at(prefix, layer);
  out.add("input_layernorm.weight", {h}, Part::kNorms);
  out.add("post_attention_layernorm.weight", {h}, Part::kNorms);
  if (c.attn_res_block_size) {
    out.add("self_attention_res_norm.weight", {h}, Part::kNorms);
    out.add("self_attention_res_proj.weight", {1, h}, Part::kNorms);
    out.add("mlp_res_norm.weight", {h}, Part::kNorms);
    out.add("mlp_res_proj.weight", {1, h}, Part::kNorms);
  }
  out.at(prefix + "self_attn.", layer);
  if (c.attention(layer) == AttentionKind::kKda) {
    list_kda(c, out);
  } else {
    list_mla(c, out);
  }
  if (c.is_moe(layer)) {
    out.at(prefix + "block_sparse_moe.", layer);
    list_moe(c, out);
  } else {
    out.at(prefix + "mlp.", layer);
    out.add("gate_proj.weight", {c.intermediate_size, h}, Part::kDenseMlp);
    out.add("up_proj.weight", {c.intermediate_size, h}, Part::kDenseMlp);
    out.add("down_proj.weight", {h, c.intermediate_size}, Part::kDenseMlp);
  }
}

bool eat(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// A number as it is written in names: no sign, no leading zero.
bool eat_number(std::string_view& text, int32_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto length = static_cast<size_t>(end - text.data());
  if (error != std::errc{} || value < 0 || text[0] == '-' || (text[0] == '0' && length > 1))
    return false;
  text.remove_prefix(length);
  return true;
}

}  // namespace

const char* name(Part part) {
  switch (part) {
    case Part::kEmbed:
      return "embed";
    case Part::kHead:
      return "head";
    case Part::kKda:
      return "kda";
    case Part::kMla:
      return "mla";
    case Part::kSharedExperts:
      return "shared_experts";
    case Part::kDenseMlp:
      return "dense_mlp";
    case Part::kRouter:
      return "router";
    case Part::kLatent:
      return "latent";
    case Part::kNorms:
      return "norms";
    case Part::kExperts:
      return "experts";
    case Part::kVision:
      return "vision";
  }
  return "?";
}

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& c) {
  std::vector<ExpectedTensor> all;
  Listing out(all);
  out.add("model.embed_tokens.weight", {c.vocab_size, c.hidden_size}, Part::kEmbed);
  if (!c.tie_word_embeddings) out.add("lm_head.weight", {c.vocab_size, c.hidden_size}, Part::kHead);
  out.add("model.norm.weight", {c.hidden_size}, Part::kNorms);
  if (c.attn_res_block_size) {
    out.add("model.output_attn_res_norm.weight", {c.hidden_size}, Part::kNorms);
    out.add("model.output_attn_res_proj.weight", {1, c.hidden_size}, Part::kNorms);
  }
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) list_layer(c, i, out);
  return all;
}

std::vector<ExpectedTensor> expected_vision_tensors(const ModelConfig& c) {
  std::vector<ExpectedTensor> all;
  if (!c.vision) return all;
  const VisionConfig& v = *c.vision;
  const int64_t d = v.vt_hidden_size, q = v.qkv_hidden_size, f = v.vt_intermediate_size;
  Listing out(all);
  out.at("vision_tower.", -1);
  out.add("patch_embed.proj.weight", {d, 3, v.patch_size, v.patch_size}, Part::kVision);
  out.add("patch_embed.pos_emb.weight", {v.init_pos_emb_height, v.init_pos_emb_width, d},
          Part::kVision);
  for (int64_t i = 0; i < v.vt_num_hidden_layers; ++i) {
    out.at(fmt::format("vision_tower.encoder.blocks.{}.", i), -1);
    out.add("norm0.weight", {d}, Part::kVision);
    out.add("norm1.weight", {d}, Part::kVision);
    out.add("wqkv.weight", {3 * q, d}, Part::kVision);
    out.add("wo.weight", {d, q}, Part::kVision);
    out.add("mlp.fc0.weight", {f, d}, Part::kVision);
    out.add("mlp.fc1.weight", {d, f}, Part::kVision);
  }
  out.at("vision_tower.encoder.", -1);
  out.add("final_layernorm.weight", {d}, Part::kVision);
  out.at("mm_projector.", -1);
  out.add("proj.0.weight", {v.merged_size(), v.merged_size()}, Part::kVision);
  out.add("proj.2.weight", {c.hidden_size, v.merged_size()}, Part::kVision);
  out.add("post_norm.weight", {c.hidden_size}, Part::kVision);
  return all;
}

bool is_vision_name(std::string_view canonical) {
  return canonical.starts_with("vision_tower.") || canonical.starts_with("mm_projector.");
}

bool is_dense_dtype(Dtype dtype) { return dtype == Dtype::kBf16 || dtype == Dtype::kF32; }

std::optional<ExpertName> parse_expert_name(std::string_view text) {
  ExpertName result;
  if (!eat(text, "model.layers.") || !eat_number(text, result.layer) ||
      !eat(text, ".block_sparse_moe.experts.") || !eat_number(text, result.expert) ||
      !eat(text, ".w") || text.empty() || text[0] < '1' || text[0] > '3')
    return std::nullopt;
  result.matrix = static_cast<ExpertMatrixId>(text[0] - '1');
  text.remove_prefix(1);
  if (text == ".weight_packed") {
    result.kind = ExpertTensorKind::kPacked;
  } else if (text == ".weight_scale") {
    result.kind = ExpertTensorKind::kScale;
  } else if (text == ".weight") {
    result.kind = ExpertTensorKind::kPlain;
  } else {
    return std::nullopt;
  }
  return result;
}

std::string expert_tensor_name(const ExpertName& name) {
  constexpr const char* kSuffix[] = {"weight_packed", "weight_scale", "weight"};
  return fmt::format("model.layers.{}.block_sparse_moe.experts.{}.w{}.{}", name.layer, name.expert,
                     static_cast<int>(name.matrix) + 1, kSuffix[static_cast<int>(name.kind)]);
}

Shape expert_tensor_shape(const ModelConfig& c, ExpertMatrixId matrix, ExpertTensorKind kind) {
  const bool down = matrix == ExpertMatrixId::kW2;
  const int64_t rows = down ? c.expert_width() : c.moe_intermediate_size;
  const int64_t cols = down ? c.moe_intermediate_size : c.expert_width();
  switch (kind) {
    case ExpertTensorKind::kPacked:
      return {rows, cols / 2};
    case ExpertTensorKind::kScale:
      return {rows, cols / kBlock};
    case ExpertTensorKind::kPlain:
      break;
  }
  return {rows, cols};
}

void check_mxfp4_sizes(const ModelConfig& c, std::string_view path) {
  const auto check = [&](const char* field, int64_t size) {
    if (size % kBlock != 0)
      throw InputError(path, (c.nested ? std::string("text_config.") : std::string()) + field,
                       fmt::format("a multiple of {} for packed experts", kBlock),
                       std::to_string(size));
  };
  check("moe_intermediate_size", c.moe_intermediate_size);
  check(c.routed_expert_hidden_size ? "routed_expert_hidden_size" : "hidden_size",
        c.expert_width());
}

}  // namespace k3
