// The weights of one decoder layer, under their released names, as views.
//
// Dense matrices come from the trunk (resident or streamed, model/trunk.h), routed experts from the
// ExpertStore. The vectors (norms, biases, convolutions) are small, always resident, and kept as
// float in the layout the kernels want. Shapes: H hidden, P = heads * head_dim.
#pragma once

#include <cstdint>
#include <variant>

#include "weights/config.h"
#include "weights/format.h"

namespace k3 {

// One site of Attention Residuals: norm * proj, premultiplied. [H]; null where plain residuals
// rule.
using MixQuery = const float*;

struct KdaWeights {
  WeightView q_proj, k_proj, v_proj;  // [P, H]
  WeightView g_proj;                  // [P, H], full-rank gate
  WeightView g_a_proj, g_b_proj;      // [head_dim, H], [P, head_dim], low-rank gate (Kimi-Linear)
  WeightView f_a_proj, f_b_proj;      // [head_dim, H], [P, head_dim]
  WeightView b_proj;                  // [heads, H]
  WeightView o_proj;                  // [H, P]
  const float* q_conv = nullptr;      // [head][tap][head_dim]
  const float* k_conv = nullptr;
  const float* v_conv = nullptr;
  const float* decay = nullptr;    // exp(A_log), [heads]
  const float* dt_bias = nullptr;  // [P]
  const float* o_norm = nullptr;   // [head_dim]
};

// kv_b_proj, absorbed: per head its key half transposed and its value half. Training takes it
// whole.
struct MlaWeights {
  WeightView q_proj;              // [heads * (nope + rope), H], without q_lora
  WeightView q_a_proj, q_b_proj;  // [q_lora, H], [heads * (nope + rope), q_lora]
  WeightView kv_a_proj;           // kv_a_proj_with_mqa [kv_lora + rope, H]
  WeightView kv_b_proj;           // [heads * (nope + v_head_dim), kv_lora]; training only
  WeightView k_up;                // of head 0: [kv_lora, nope]
  WeightView v_up;                // of head 0: [v_head_dim, kv_lora]
  int64_t k_up_data = 0, k_up_scales = 0, v_up_data = 0,
          v_up_scales = 0;           // bytes from head to head
  WeightView g_proj;                 // [heads * v_head_dim, H], output gate
  WeightView o_proj;                 // [H, heads * v_head_dim]
  const float* q_a_norm = nullptr;   // [q_lora]
  const float* kv_a_norm = nullptr;  // [kv_lora]

  WeightView k_up_of(int64_t head) const {
    return moved(k_up, head * k_up_data, head * k_up_scales);
  }
  WeightView v_up_of(int64_t head) const {
    return moved(v_up, head * v_up_data, head * v_up_scales);
  }

 private:
  static WeightView moved(WeightView w, int64_t data, int64_t scales) {
    w.data += data;
    if (w.scales) w.scales += scales;
    return w;
  }
};

struct AttentionWeights {
  MixQuery mix = nullptr;             // self_attention_res
  const float* input_norm = nullptr;  // input_layernorm [H]
  AttentionKind kind = AttentionKind::kKda;
  KdaWeights kda;  // of that kind only
  MlaWeights mla;
};

// An MLP: down(act(gate x, up x)).
struct MlpWeights {
  WeightView gate_proj, up_proj, down_proj;
};

struct FeedForwardWeights {
  MixQuery mix = nullptr;       // mlp_res
  const float* norm = nullptr;  // post_attention_layernorm [H]
  bool moe = false;
  MlpWeights mlp;                      // the dense MLP, or the shared experts
  WeightView router;                   // gate [experts, H]
  const float* router_bias = nullptr;  // e_score_correction_bias [experts]
  WeightView latent_down, latent_up;  // routed_expert_{down,up}_proj; rows 0 without latent experts
  const float* latent_norm = nullptr;  // routed_expert_norm [latent], null without
};

}  // namespace k3
