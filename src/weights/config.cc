#include "weights/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json_fields.h"

namespace k3 {
namespace {

using Json = nlohmann::json;

// Bounds far above any released model. They keep products of sizes inside 63 bits, and the tables
// of a hostile config small: kMaxExperts counts the experts of all layers together (K3 has 82,432).
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 4096;
constexpr int64_t kMaxExperts = int64_t{1} << 20;

void read_ids(const JsonFields& top, const JsonFields& text, ModelConfig& c) {
  const auto id = [&](const char* key) {
    const int64_t in_text = text.integer_or(key, 0, c.vocab_size - 1, -1);
    if (!c.nested) return in_text;
    const int64_t at_top = top.integer_or(key, 0, c.vocab_size - 1, in_text);
    if (in_text >= 0 && at_top != in_text)
      text.fail(key, fmt::format("{}, as at the top level", at_top), std::to_string(in_text));
    return at_top;
  };
  c.bos_token_id = id("bos_token_id");
  c.eos_token_id = id("eos_token_id");
  c.pad_token_id = id("pad_token_id");
  c.media_placeholder_token_id = id("media_placeholder_token_id");
}

void read_layer_list(const JsonFields& f, const char* key, AttentionKind kind, ModelConfig& c,
                     std::vector<const char*>& owner) {
  const Json& list = f.list(key);
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string element = fmt::format("{}[{}]", key, i);
    const int64_t layer = f.integer(element, &list[i], 1, c.num_hidden_layers) - 1;
    const auto at = static_cast<size_t>(layer);
    if (owner[at])
      f.fail(element, fmt::format("each layer in one of kda_layers and full_attn_layers, once"),
             fmt::format("layer {}, which is already in {}", layer + 1, owner[at]));
    owner[at] = key;
    c.attention_kinds[at] = kind;
  }
}

void read_kda(const JsonFields& f, ModelConfig& c) {
  c.kda_num_heads = f.integer("num_heads", 1, kMaxHeads);
  c.kda_head_dim = f.integer("head_dim", 1, kMaxHeadDim);
  c.short_conv_kernel_size = f.integer("short_conv_kernel_size", 2, 64);
  c.use_full_rank_gate = f.boolean_or("use_full_rank_gate", false);
  if (f.find("gate_lower_bound"))
    c.gate_lower_bound = f.number("gate_lower_bound", -1000, -1e-6, false);
  const auto layers = static_cast<size_t>(c.num_hidden_layers);
  c.attention_kinds.assign(layers, AttentionKind::kMla);
  std::vector<const char*> owner(layers, nullptr);
  read_layer_list(f, "kda_layers", AttentionKind::kKda, c, owner);
  read_layer_list(f, "full_attn_layers", AttentionKind::kMla, c, owner);
  const auto missing = std::find(owner.begin(), owner.end(), nullptr);
  if (missing != owner.end())
    f.fail("kda_layers", "every layer in kda_layers or full_attn_layers (they count from 1)",
           fmt::format("layer {} in neither", missing - owner.begin() + 1));
}

void read_mla(const JsonFields& f, ModelConfig& c) {
  c.num_attention_heads = f.integer("num_attention_heads", 1, kMaxHeads);
  const int64_t kv_heads = f.integer_or("num_key_value_heads", 1, kMaxHeads, c.num_attention_heads);
  if (kv_heads != c.num_attention_heads)
    f.fail("num_key_value_heads", fmt::format("{}, the number of heads", c.num_attention_heads),
           std::to_string(kv_heads));
  c.q_lora_rank = f.integer_or("q_lora_rank", 1, kMaxWidth, 0);
  c.kv_lora_rank = f.integer("kv_lora_rank", 1, kMaxWidth);
  c.qk_nope_head_dim = f.integer("qk_nope_head_dim", 1, kMaxHeadDim);
  c.qk_rope_head_dim = f.integer("qk_rope_head_dim", 0, kMaxHeadDim);
  c.v_head_dim = f.integer("v_head_dim", 1, kMaxHeadDim);
  c.mla_use_output_gate = f.boolean_or("mla_use_output_gate", false);
  if (!f.boolean_or("mla_use_nope", true)) f.fail("mla_use_nope", "true (no rotation)", "false");
}

void read_router(const JsonFields& f, ModelConfig& c) {
  c.num_experts = f.integer("num_experts", 1, kMaxExperts / c.num_hidden_layers);
  c.num_experts_per_token = f.integer("num_experts_per_token", 1, c.num_experts);
  c.num_expert_group = f.integer_or("num_expert_group", 1, c.num_experts, 1);
  if (c.num_experts % c.num_expert_group != 0)
    f.fail("num_expert_group", fmt::format("a divisor of num_experts, {}", c.num_experts),
           std::to_string(c.num_expert_group));
  c.topk_group = f.integer_or("topk_group", 1, c.num_expert_group, 1);
  const int64_t group = c.num_experts / c.num_expert_group;
  if (c.topk_group < c.num_expert_group) {
    if (group < 2)
      f.fail("num_expert_group", "at least two experts in a group",
             std::to_string(c.num_expert_group));
    if (c.num_experts_per_token > c.topk_group * group)
      f.fail("topk_group", fmt::format("groups with at least {} experts", c.num_experts_per_token),
             std::to_string(c.topk_group));
  }
  c.moe_renormalize = f.boolean_or("moe_renormalize", true);
  c.router_activation = f.choice("moe_router_activation_func", {"sigmoid", "softmax", nullptr}) == 1
                            ? RouterActivation::kSoftmax
                            : RouterActivation::kSigmoid;
  c.routed_scaling_factor = f.number_or("routed_scaling_factor", 0, 1e6, true, 1.0f);
}

void read_feed_forward(const JsonFields& f, ModelConfig& c) {
  c.intermediate_size = f.integer("intermediate_size", 1, kMaxWidth);
  c.moe_intermediate_size = f.integer("moe_intermediate_size", 1, kMaxWidth);
  c.num_shared_experts = f.integer_or("num_shared_experts", 0, 64, 0);
  c.first_k_dense_replace = f.integer_or("first_k_dense_replace", 0, c.num_hidden_layers, 0);
  c.moe_layer_freq = f.integer_or("moe_layer_freq", 1, kMaxLayers, 1);
  c.routed_expert_hidden_size = f.integer_or("routed_expert_hidden_size", 1, kMaxWidth, 0);
  c.latent_moe_use_norm = f.boolean_or("latent_moe_use_norm", false);
  // The released code builds the norm with the latent form only.
  if (c.routed_expert_hidden_size == 0) c.latent_moe_use_norm = false;
  read_router(f, c);
  if (f.choice("hidden_act", {"situ", "silu"}) == 0) {
    c.hidden_activation = HiddenActivation::kSitu;
    c.activation_situ_beta = f.number_or("activation_situ_beta", 0, 1e6, false, 1.0f);
    if (c.activation_situ_beta == 0) c.activation_situ_beta = 1.0f;  // as the released code reads 0
    c.activation_situ_linear_beta = f.number_or("activation_situ_linear_beta", 0, 1e6, false, 0.0f);
  }
}

void read_quantization(const JsonFields& outer, ModelConfig& c) {
  if (!outer.find("quantization_config")) return;
  const JsonFields f = outer.object("quantization_config");
  f.choice("quant_method", {"compressed-tensors"});
  f.choice("format", {"mxfp4-pack-quantized"});
  if (f.find("config_groups")) {
    const JsonFields groups = f.object("config_groups");
    for (const auto& [key, unused] : groups.json().items()) {
      const JsonFields group = groups.object(key.c_str());
      group.choice("format", {"mxfp4-pack-quantized", nullptr});
      const JsonFields weights = group.object("weights");
      weights.integer_or("group_size", 32, 32, 32);
      weights.integer_or("num_bits", 4, 4, 4);
      weights.choice("type", {"float", nullptr});
    }
  }
  c.declares_mxfp4 = true;
}

VisionConfig read_vision(const JsonFields& f, const ModelConfig& c) {
  VisionConfig v;
  v.vt_hidden_size = f.integer("vt_hidden_size", 2, kMaxWidth);
  v.qkv_hidden_size = f.integer("qkv_hidden_size", 4, kMaxWidth);
  v.vt_intermediate_size = f.integer("vt_intermediate_size", 1, kMaxWidth);
  v.vt_num_attention_heads = f.integer("vt_num_attention_heads", 1, kMaxHeads);
  v.vt_num_hidden_layers = f.integer("vt_num_hidden_layers", 1, kMaxLayers);
  v.patch_size = f.integer("patch_size", 1, 256);
  v.init_pos_emb_height = f.integer("init_pos_emb_height", 1, 4096);
  v.init_pos_emb_width = f.integer("init_pos_emb_width", 1, 4096);
  v.init_pos_emb_time = f.integer_or("init_pos_emb_time", 1, 4096, 4);
  v.projector_ln_eps = f.number_or("projector_ln_eps", 0, 1, true, 1e-5f);
  if (v.qkv_hidden_size % (4 * v.vt_num_attention_heads) != 0)
    f.fail("qkv_hidden_size", fmt::format("a multiple of 4 x {} heads", v.vt_num_attention_heads),
           std::to_string(v.qkv_hidden_size));
  if (v.vt_hidden_size % 2 != 0)
    f.fail("vt_hidden_size", "an even number", std::to_string(v.vt_hidden_size));
  if (f.find("merge_kernel_size")) {
    const Json& merge = f.list("merge_kernel_size");
    if (merge != Json({2, 2})) f.fail("merge_kernel_size", "[2, 2]", printable(merge.dump(), 80));
  }
  f.integer_or("mm_hidden_size", v.vt_hidden_size, v.vt_hidden_size, v.vt_hidden_size);
  f.integer_or("text_hidden_size", c.hidden_size, c.hidden_size, c.hidden_size);
  f.choice("activation_func", {"gelu_pytorch_tanh", nullptr});
  f.choice("merge_type", {"sd2_tpool", nullptr});
  f.choice("mlp_type", {"mlp2", nullptr});
  f.choice("mm_projector_type", {"patchmergerv2", nullptr});
  f.choice("norm_type", {"rmsnorm", nullptr});
  f.choice("pos_emb_interpolation_mode", {"bilinear", nullptr});
  f.choice("pos_emb_type", {"divided_fixed", nullptr});
  for (const char* bias : {"attn_bias", "linear_bias", "patch_embed_proj_bias"})
    if (f.boolean_or(bias, false)) f.fail(bias, "false (the tower has no biases)", "true");
  return v;
}

bool read_tied(const JsonFields& top, const JsonFields& text, bool nested) {
  const bool tied = text.boolean_or("tie_word_embeddings", false);
  return nested ? top.boolean_or("tie_word_embeddings", tied) : tied;
}

}  // namespace

int64_t ModelConfig::count(AttentionKind kind) const {
  return std::count(attention_kinds.begin(), attention_kinds.end(), kind);
}

int64_t ModelConfig::moe_layers() const {
  int64_t layers = 0;
  for (int64_t i = 0; i < num_hidden_layers; ++i) layers += is_moe(i);
  return layers;
}

ModelConfig parse_config(std::string_view json, std::string_view path) {
  const Json document = parse_json_document(json, path, kMaxConfigBytes);
  const JsonFields top(document, path, "");
  ModelConfig c;
  c.model_type =
      top.choice("model_type", {"kimi_k3", "kimi_linear"}) == 0 ? "kimi_k3" : "kimi_linear";
  c.nested = top.find("text_config") != nullptr;
  c.untrained = top.boolean_or("k3_untrained", false);
  const JsonFields f = c.nested ? top.object("text_config") : top;
  if (c.nested) f.choice("model_type", {"kimi_linear", "kimi_k3", nullptr});
  c.hidden_size = f.integer("hidden_size", 1, kMaxWidth);
  c.num_hidden_layers = f.integer("num_hidden_layers", 1, kMaxLayers);
  c.vocab_size = f.integer("vocab_size", 1, kMaxVocab);
  c.rms_norm_eps = f.number("rms_norm_eps", 0, 1, true);
  c.attn_res_block_size = f.integer_or("attn_res_block_size", 1, kMaxLayers, 0);
  c.tie_word_embeddings = read_tied(top, f, c.nested);
  f.integer_or("num_nextn_predict_layers", 0, 0, 0);  // K3 ships none, and this program has none
  read_mla(f, c);
  read_kda(f.object("linear_attn_config"), c);
  read_feed_forward(f, c);
  read_quantization(f, c);
  if (c.nested) read_quantization(top, c);
  read_ids(top, f, c);
  if (top.find("vision_config")) c.vision = read_vision(top.object("vision_config"), c);
  return c;
}

}  // namespace k3
