// The architecture of a model, as config.json states it: read and checked once, then plain numbers.
//
//   ModelConfig c = parse_config(read_text(storage, dir + "/config.json"), "config.json");
//   if (c.attention(3) == AttentionKind::kMla) ...       // layers count from 0
//
// Accepts the nested K3 form (text_config, linear_attn_config, quantization_config, vision_config)
// and the flat form of Kimi-Linear. Fields keep their released names; what the released model code
// ignores (rope_theta, head_dim, topk_method, ...) is ignored here. Every field that matters is
// checked for type and range, and the bounds keep every product of sizes inside 63 bits.
// Errors: InputError naming the file, the full path of the field, what was expected and found.
// Thread rule: a value; copy it or share it const.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace k3 {

enum class AttentionKind : uint8_t { kKda, kMla };
enum class RouterActivation : uint8_t { kSigmoid, kSoftmax };
enum class HiddenActivation : uint8_t { kSitu, kSilu };

struct VisionConfig {
  int64_t vt_hidden_size = 0;   // D
  int64_t qkv_hidden_size = 0;  // Q, a multiple of 4 * heads
  int64_t vt_intermediate_size = 0;
  int64_t vt_num_attention_heads = 0;
  int64_t vt_num_hidden_layers = 0;
  int64_t patch_size = 0;
  int64_t init_pos_emb_height = 0;
  int64_t init_pos_emb_width = 0;
  int64_t init_pos_emb_time = 0;
  int64_t merge = 2;  // merge_kernel_size is [2, 2]; nothing else is supported
  float projector_ln_eps = 1e-5f;

  int64_t head_dim() const { return qkv_hidden_size / vt_num_attention_heads; }
  int64_t merged_size() const { return vt_hidden_size * merge * merge; }
};

struct ModelConfig {
  std::string model_type;  // "kimi_k3" or "kimi_linear"
  bool nested = false;     // the K3 form, with a text_config
  bool untrained = false;  // k3_untrained: random weights, made for trying things out

  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t vocab_size = 0;
  float rms_norm_eps = 1e-5f;
  bool tie_word_embeddings = false;  // lm_head is the embedding and is not stored
  int64_t attn_res_block_size = 0;   // 0 = plain residuals

  // Gated MLA.
  int64_t num_attention_heads = 0;
  int64_t q_lora_rank = 0;  // 0 = one q_proj
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;  // may be 0
  int64_t v_head_dim = 0;
  bool mla_use_output_gate = false;

  // KDA (linear_attn_config).
  int64_t kda_num_heads = 0;  // num_heads
  int64_t kda_head_dim = 0;   // head_dim
  int64_t short_conv_kernel_size = 0;
  std::optional<float> gate_lower_bound;       // absent = softplus decay
  bool use_full_rank_gate = false;             // false = g_a_proj, g_b_proj
  std::vector<AttentionKind> attention_kinds;  // one per layer

  // Feed-forward.
  int64_t intermediate_size = 0;
  int64_t moe_intermediate_size = 0;
  int64_t num_experts = 0;
  int64_t num_experts_per_token = 0;
  int64_t num_shared_experts = 0;  // may be 0
  int64_t first_k_dense_replace = 0;
  int64_t moe_layer_freq = 1;
  int64_t routed_expert_hidden_size = 0;  // the latent width; 0 = experts see the hidden vector
  bool latent_moe_use_norm = false;       // only ever true with a latent width
  int64_t num_expert_group = 1;
  int64_t topk_group = 1;
  bool moe_renormalize = true;
  RouterActivation router_activation = RouterActivation::kSigmoid;
  float routed_scaling_factor = 1.0f;
  HiddenActivation hidden_activation = HiddenActivation::kSilu;
  float activation_situ_beta = 1.0f;
  float activation_situ_linear_beta = 0.0f;  // 0 = up is used as it is

  // Token ids, -1 where the config names none.
  int64_t bos_token_id = -1;
  int64_t eos_token_id = -1;
  int64_t pad_token_id = -1;
  int64_t media_placeholder_token_id = -1;

  // A quantization_config is present. Whether the experts really are packed is decided by the
  // tensors of the snapshot (Snapshot::mxfp4_experts), never by this.
  bool declares_mxfp4 = false;

  std::optional<VisionConfig> vision;

  // Layers count from 0.
  AttentionKind attention(int64_t layer) const {
    return attention_kinds[static_cast<size_t>(layer)];
  }
  bool is_moe(int64_t layer) const {
    return layer >= first_k_dense_replace && layer % moe_layer_freq == 0;
  }
  int64_t count(AttentionKind kind) const;
  int64_t moe_layers() const;

  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int64_t kda_width() const { return kda_num_heads * kda_head_dim; }
  int64_t expert_width() const {  // columns of w1 and w3, rows of w2
    return routed_expert_hidden_size ? routed_expert_hidden_size : hidden_size;
  }
  int64_t shared_intermediate_size() const { return num_shared_experts * moe_intermediate_size; }
};

// `path` names the file in errors. `json` is at most kMaxConfigBytes long.
constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;
ModelConfig parse_config(std::string_view json, std::string_view path);

}  // namespace k3
