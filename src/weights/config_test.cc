#include "weights/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <random>
#include <set>
#include <tuple>

#include "weights/snapshot_test_support.h"

namespace k3 {
namespace {

using Json = nlohmann::json;

Json released() { return Json::parse(read_disk(shared_file("data/kimi-k3/config.json"))); }
Json fixture_config(const std::string& model) {
  return Json::parse(read_disk(fixture(model + "/model/config.json")));
}
ModelConfig parse(const Json& json) { return parse_config(json.dump(), "config.json"); }
std::string parse_error(const Json& json) {
  return error_of([&] { parse(json); });
}

TEST(Config, TheReleaseFieldByField) {
  if (!std::filesystem::exists(shared_file("data/kimi-k3/config.json")))
    GTEST_SKIP() << "the released config is not at " << shared_file("data/kimi-k3");
  const ModelConfig c = parse(released());
  EXPECT_EQ(c.model_type, "kimi_k3");
  EXPECT_TRUE(c.nested);
  EXPECT_FALSE(c.untrained);
  EXPECT_EQ(c.hidden_size, 7168);
  EXPECT_EQ(c.num_hidden_layers, 93);
  EXPECT_EQ(c.vocab_size, 163840);
  EXPECT_EQ(c.rms_norm_eps, 1e-5f);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_EQ(c.attn_res_block_size, 12);
  EXPECT_EQ(c.num_attention_heads, 96);
  EXPECT_EQ(c.q_lora_rank, 1536);
  EXPECT_EQ(c.kv_lora_rank, 512);
  EXPECT_EQ(c.qk_nope_head_dim, 128);
  EXPECT_EQ(c.qk_rope_head_dim, 64);
  EXPECT_EQ(c.v_head_dim, 128);
  EXPECT_TRUE(c.mla_use_output_gate);
  EXPECT_EQ(c.kda_num_heads, 96);
  EXPECT_EQ(c.kda_head_dim, 128);
  EXPECT_EQ(c.short_conv_kernel_size, 4);
  EXPECT_EQ(c.gate_lower_bound, -5.0f);
  EXPECT_TRUE(c.use_full_rank_gate);
  EXPECT_EQ(c.intermediate_size, 33792);
  EXPECT_EQ(c.moe_intermediate_size, 3072);
  EXPECT_EQ(c.num_experts, 896);
  EXPECT_EQ(c.num_experts_per_token, 16);
  EXPECT_EQ(c.num_shared_experts, 2);
  EXPECT_EQ(c.first_k_dense_replace, 1);
  EXPECT_EQ(c.moe_layer_freq, 1);
  EXPECT_EQ(c.routed_expert_hidden_size, 3584);
  EXPECT_TRUE(c.latent_moe_use_norm);
  EXPECT_EQ(c.num_expert_group, 1);
  EXPECT_EQ(c.topk_group, 1);
  EXPECT_TRUE(c.moe_renormalize);
  EXPECT_EQ(c.router_activation, RouterActivation::kSigmoid);
  EXPECT_EQ(c.routed_scaling_factor, 1.0f);
  EXPECT_EQ(c.hidden_activation, HiddenActivation::kSitu);
  EXPECT_EQ(c.activation_situ_beta, 4.0f);
  EXPECT_EQ(c.activation_situ_linear_beta, 25.0f);
  EXPECT_EQ(c.bos_token_id, 163584);
  EXPECT_EQ(c.eos_token_id, 163586);
  EXPECT_EQ(c.pad_token_id, 163839);
  EXPECT_EQ(c.media_placeholder_token_id, 163605);
  EXPECT_TRUE(c.declares_mxfp4);
}

TEST(Config, TheReleasedLayersAndTower) {
  if (!std::filesystem::exists(shared_file("data/kimi-k3/config.json")))
    GTEST_SKIP() << "the released config is not at " << shared_file("data/kimi-k3");
  const ModelConfig c = parse(released());
  // The lists count from 1: layer 4 is index 3, and the last two are both MLA.
  for (int64_t i = 0; i < 93; ++i)
    EXPECT_EQ(c.attention(i), i % 4 == 3 || i == 92 ? AttentionKind::kMla : AttentionKind::kKda)
        << i;
  EXPECT_EQ(c.count(AttentionKind::kKda), 69);
  EXPECT_EQ(c.count(AttentionKind::kMla), 24);
  EXPECT_EQ(c.moe_layers(), 92);
  EXPECT_FALSE(c.is_moe(0));
  EXPECT_TRUE(c.is_moe(1));
  EXPECT_EQ(c.qk_head_dim(), 192);
  EXPECT_EQ(c.kda_width(), 12288);
  EXPECT_EQ(c.expert_width(), 3584);
  EXPECT_EQ(c.shared_intermediate_size(), 6144);
  ASSERT_TRUE(c.vision.has_value());
  const VisionConfig& v = *c.vision;
  EXPECT_EQ(v.vt_hidden_size, 1024);
  EXPECT_EQ(v.qkv_hidden_size, 1536);
  EXPECT_EQ(v.vt_intermediate_size, 4096);
  EXPECT_EQ(v.vt_num_attention_heads, 12);
  EXPECT_EQ(v.vt_num_hidden_layers, 27);
  EXPECT_EQ(v.patch_size, 14);
  EXPECT_EQ(v.init_pos_emb_height, 64);
  EXPECT_EQ(v.init_pos_emb_width, 64);
  EXPECT_EQ(v.init_pos_emb_time, 4);
  EXPECT_EQ(v.projector_ln_eps, 1e-5f);
  EXPECT_EQ(v.head_dim(), 128);
  EXPECT_EQ(v.merged_size(), 4096);
}

TEST(Config, KimiLinear) {
  const ModelConfig c = parse(fixture_config("tiny-linear"));
  EXPECT_EQ(c.model_type, "kimi_linear");
  EXPECT_FALSE(c.nested);
  EXPECT_EQ(c.q_lora_rank, 0);
  EXPECT_EQ(c.attn_res_block_size, 0);
  EXPECT_EQ(c.routed_expert_hidden_size, 0);
  EXPECT_EQ(c.expert_width(), 64);
  EXPECT_FALSE(c.gate_lower_bound.has_value());
  EXPECT_FALSE(c.use_full_rank_gate);
  EXPECT_FALSE(c.mla_use_output_gate);
  EXPECT_EQ(c.hidden_activation, HiddenActivation::kSilu);
  EXPECT_EQ(c.routed_scaling_factor, 2.446f);
  EXPECT_EQ(c.media_placeholder_token_id, -1);
  EXPECT_FALSE(c.declares_mxfp4);
  EXPECT_FALSE(c.vision.has_value());
  EXPECT_EQ(c.count(AttentionKind::kMla), 2);
}

TEST(Config, OddNumbers) {
  const ModelConfig c = parse(fixture_config("tiny-odd"));
  EXPECT_EQ(c.rms_norm_eps, 3e-5f);
  EXPECT_EQ(c.gate_lower_bound, -3.5f);
  EXPECT_EQ(c.kda_num_heads, 3);
  EXPECT_EQ(c.num_attention_heads, 5);
  EXPECT_EQ(c.num_expert_group, 4);
  EXPECT_EQ(c.topk_group, 2);
  EXPECT_FALSE(c.latent_moe_use_norm);
  EXPECT_FALSE(c.is_moe(1));
  EXPECT_TRUE(c.is_moe(2));
  EXPECT_EQ(c.activation_situ_linear_beta, 20.0f);
}

TEST(Config, FlatK3AndNullsAndDefaults) {
  Json flat = fixture_config("tiny-text")["text_config"];
  flat["model_type"] = "kimi_k3";
  flat["k3_untrained"] = true;
  const ModelConfig c = parse(flat);
  EXPECT_FALSE(c.nested);
  EXPECT_TRUE(c.untrained);
  EXPECT_EQ(c.eos_token_id, 506);
  EXPECT_EQ(c.attn_res_block_size, 3);
  for (const char* optional :
       {"attn_res_block_size", "q_lora_rank", "moe_layer_freq", "num_expert_group", "topk_group",
        "eos_token_id", "routed_expert_hidden_size", "quantization_config", "activation_situ_beta",
        "activation_situ_linear_beta", "num_key_value_heads", "moe_router_activation_func"}) {
    flat[optional] = nullptr;
    EXPECT_EQ(parse_error(flat), "") << optional;
  }
  const ModelConfig bare = parse(flat);
  EXPECT_EQ(bare.attn_res_block_size, 0);
  EXPECT_EQ(bare.activation_situ_beta, 1.0f);
  EXPECT_EQ(bare.activation_situ_linear_beta, 0.0f);
  EXPECT_FALSE(bare.latent_moe_use_norm);  // there is no latent form to norm
  flat["activation_situ_beta"] = 0;
  EXPECT_EQ(parse(flat).activation_situ_beta, 1.0f);
}

// Which fields the reader reads: those it refuses when they hold a value of no sensible type.
std::set<std::string> fields_read(const Json& good) {
  std::set<std::string> read;
  const Json flat = good.flatten();
  for (const auto& [pointer, unused] : flat.items()) {
    for (std::string at = pointer; !at.empty(); at = at.substr(0, at.rfind('/'))) {
      Json bad = good;
      bad[Json::json_pointer(at)] = Json::array({Json::object({{"k", "abc"}})});
      if (!parse_error(bad).empty()) read.insert(at);
    }
  }
  return read;
}

std::string dotted(std::string pointer) {
  std::replace(pointer.begin(), pointer.end(), '/', '.');
  return pointer.substr(1);
}

// "/a/layers/3" is an element of the field "/a/layers".
std::string field_of(const std::string& pointer) {
  const size_t slash = pointer.rfind('/');
  return std::isdigit(static_cast<unsigned char>(pointer[slash + 1])) ? pointer.substr(0, slash)
                                                                      : pointer;
}

TEST(Config, EveryFieldIsCheckedAndNamed) {
  const Json good = fixture_config("tiny-text");
  const std::set<std::string> read = fields_read(good);
  const char* must[] = {"hidden_size",
                        "num_hidden_layers",
                        "vocab_size",
                        "num_attention_heads",
                        "q_lora_rank",
                        "kv_lora_rank",
                        "qk_nope_head_dim",
                        "qk_rope_head_dim",
                        "v_head_dim",
                        "mla_use_output_gate",
                        "intermediate_size",
                        "moe_intermediate_size",
                        "num_experts",
                        "num_experts_per_token",
                        "num_shared_experts",
                        "first_k_dense_replace",
                        "moe_layer_freq",
                        "routed_expert_hidden_size",
                        "latent_moe_use_norm",
                        "num_expert_group",
                        "topk_group",
                        "moe_renormalize",
                        "moe_router_activation_func",
                        "routed_scaling_factor",
                        "hidden_act",
                        "activation_situ_beta",
                        "activation_situ_linear_beta",
                        "attn_res_block_size",
                        "rms_norm_eps",
                        "tie_word_embeddings",
                        "bos_token_id",
                        "eos_token_id",
                        "pad_token_id",
                        "num_key_value_heads",
                        "linear_attn_config",
                        "quantization_config",
                        "mla_use_nope",
                        "linear_attn_config/num_heads",
                        "linear_attn_config/head_dim",
                        "linear_attn_config/kda_layers",
                        "linear_attn_config/full_attn_layers",
                        "linear_attn_config/gate_lower_bound",
                        "linear_attn_config/use_full_rank_gate",
                        "linear_attn_config/short_conv_kernel_size",
                        "quantization_config/format",
                        "quantization_config/quant_method"};
  for (const char* field : must)
    EXPECT_TRUE(read.contains(std::string("/text_config/") + field)) << field;
  for (const char* field :
       {"/model_type", "/bos_token_id", "/eos_token_id", "/pad_token_id", "/text_config",
        "/media_placeholder_token_id", "/tie_word_embeddings", "/vision_config",
        "/vision_config/vt_hidden_size", "/vision_config/qkv_hidden_size",
        "/vision_config/vt_intermediate_size", "/vision_config/vt_num_attention_heads",
        "/vision_config/vt_num_hidden_layers", "/vision_config/patch_size",
        "/vision_config/init_pos_emb_height", "/vision_config/init_pos_emb_width",
        "/vision_config/init_pos_emb_time", "/vision_config/merge_kernel_size",
        "/vision_config/projector_ln_eps"})
    EXPECT_TRUE(read.contains(field)) << field;
  EXPECT_FALSE(read.contains("/text_config/temperature"));
  // Each of them, with each wrong kind of value: one line, with the file and the full path.
  for (const std::string& field : read) {
    const Json::json_pointer at(field);
    for (const Json& value :
         {Json("abc"), Json(-1), Json(1e300), Json(1.5), Json::array(), Json::object(),
          Json(uint64_t{1} << 63), Json(true), Json::array({Json::array()})}) {
      const bool same_kind =
          good[at].type() == value.type() || (good[at].is_number() && value.is_number());
      Json bad = good;
      bad[at] = value;
      const std::string error = parse_error(bad);
      if (same_kind || error.empty()) continue;
      EXPECT_TRUE(error.starts_with("config.json: " + dotted(field_of(field))))
          << field << ": " << error;
      EXPECT_NE(error.find("expected"), std::string::npos) << error;
    }
    Json text = good;
    text[at] = "abc";
    EXPECT_NE(parse_error(text), "") << field;
  }
  Json example = good;
  example["text_config"]["hidden_size"] = "abc";
  EXPECT_EQ(
      parse_error(example),
      "config.json: text_config.hidden_size: expected an integer in 1..1048576, found \"abc\"");
}

TEST(Config, MissingFieldsAreNamed) {
  const Json good = fixture_config("tiny-text");
  for (const char* field :
       {"hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "kv_lora_rank",
        "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "intermediate_size",
        "moe_intermediate_size", "num_experts", "num_experts_per_token", "hidden_act",
        "rms_norm_eps", "linear_attn_config"}) {
    for (const bool null : {false, true}) {
      Json bad = good;
      if (null) {
        bad["text_config"][field] = nullptr;
      } else {
        bad["text_config"].erase(field);
      }
      EXPECT_EQ(parse_error(bad).find(fmt::format("config.json: text_config.{}: expected", field)),
                0u)
          << parse_error(bad);
    }
  }
}

TEST(Config, IrregularLayerLists) {
  const Json good = fixture_config("tiny-text");
  const auto with = [&](const char* list, const Json& value) {
    Json bad = good;
    bad["text_config"]["linear_attn_config"][list] = value;
    return parse_error(bad);
  };
  const std::string at = "config.json: text_config.linear_attn_config.";
  EXPECT_EQ(
      with("kda_layers", {1, 2, 3, 5, 6}),
      at +
          "kda_layers: expected every layer in kda_layers or full_attn_layers (they count from 1), "
          "found layer 7 in neither");
  EXPECT_EQ(with("kda_layers", {1, 2, 3, 5, 6, 7, 8}),
            at + "full_attn_layers[1]: expected each layer in one of kda_layers and "
                 "full_attn_layers, once, "
                 "found layer 8, which is already in kda_layers");
  EXPECT_NE(with("full_attn_layers", {4, 8, 8, 9}).find("full_attn_layers[2]"), std::string::npos);
  EXPECT_EQ(with("full_attn_layers", {4, 8, 9, 10}),
            at + "full_attn_layers[3]: expected an integer in 1..9, found 10");
  EXPECT_EQ(with("full_attn_layers", {0, 4, 8, 9}),
            at + "full_attn_layers[0]: expected an integer in 1..9, found 0");
  EXPECT_NE(with("kda_layers", {1, 2.5, 3}).find("kda_layers[1]"), std::string::npos);
  EXPECT_NE(with("kda_layers", {"1"}).find("kda_layers[0]"), std::string::npos);
  EXPECT_NE(with("kda_layers", 3).find("kda_layers: expected a list"), std::string::npos);
  // All layers of one kind are allowed.
  Json all = good;
  all["text_config"]["linear_attn_config"]["kda_layers"] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  all["text_config"]["linear_attn_config"]["full_attn_layers"] = Json::array();
  EXPECT_EQ(parse_error(all), "");
}

TEST(Config, ValuesOutOfRangeOrUnsupported) {
  const Json good = fixture_config("tiny-text");
  const std::tuple<const char*, Json, const char*> cases[] = {
      {"/text_config/hidden_size", 0, "expected an integer in 1..1048576, found 0"},
      {"/text_config/hidden_size", -64, "found -64"},
      {"/text_config/hidden_size", uint64_t{18446744073709551615u}, "found 18446744073709551615"},
      {"/text_config/num_hidden_layers", 1025, "1..1024"},
      {"/text_config/num_experts", 200000, "found 200000"},
      {"/text_config/num_experts_per_token", 17, "1..16, found 17"},
      {"/text_config/num_expert_group", 5, "a divisor of num_experts, 16"},
      {"/text_config/topk_group", 2, "1..1, found 2"},
      {"/text_config/num_key_value_heads", 2, "4, the number of heads, found 2"},
      {"/text_config/hidden_act", "gelu", R"("situ" or "silu", found "gelu")"},
      {"/text_config/moe_router_activation_func", "relu", R"("sigmoid" or "softmax" or nothing)"},
      {"/text_config/mla_use_nope", false, "true (no rotation)"},
      {"/text_config/num_nextn_predict_layers", 1, "0..0, found 1"},
      {"/text_config/rms_norm_eps", 0.0, "above 0 and at most 1"},
      {"/text_config/routed_scaling_factor", -1, "above 0"},
      {"/text_config/activation_situ_beta", -4, "of at least 0"},
      {"/text_config/linear_attn_config/gate_lower_bound", 0.5, "found 0.5"},
      {"/text_config/linear_attn_config/short_conv_kernel_size", 1, "2..64"},
      {"/text_config/eos_token_id", 512, "0..511, found 512"},
      {"/text_config/eos_token_id", 507, "506, as at the top level, found 507"},
      {"/text_config/quantization_config/format", "nvfp4-pack-quantized", "mxfp4-pack-quantized"},
      {"/text_config/quantization_config/quant_method", "fp8", "compressed-tensors"},
      {"/text_config/quantization_config/config_groups/group_0/weights/group_size", 16,
       "32..32, found 16"},
      {"/text_config/quantization_config/config_groups/group_0/weights/num_bits", 8,
       "4..4, found 8"},
      {"/model_type", "llama", R"("kimi_k3" or "kimi_linear", found "llama")"},
      {"/vision_config/merge_kernel_size", Json({3, 3}), "[2, 2], found [3,3]"},
      {"/vision_config/qkv_hidden_size", 50, "a multiple of 4 x 3 heads"},
      {"/vision_config/vt_hidden_size", 33, "an even number"},
      {"/vision_config/text_hidden_size", 65, "64..64, found 65"},
      {"/vision_config/attn_bias", true, "false (the tower has no biases)"},
      {"/vision_config/norm_type", "layernorm", "rmsnorm"},
  };
  for (const auto& [at, value, expected] : cases) {
    Json bad = good;
    bad[Json::json_pointer(at)] = value;
    const std::string error = parse_error(bad);
    EXPECT_NE(error.find(expected), std::string::npos) << at << ": " << error;
    EXPECT_NE(error.find(dotted(at)), std::string::npos) << error;
  }
  Json grouped = fixture_config("tiny-odd");
  grouped["text_config"]["num_experts_per_token"] = 13;
  EXPECT_NE(parse_error(grouped).find("groups with at least 13 experts"), std::string::npos);
  grouped["text_config"]["num_expert_group"] = 24;
  EXPECT_NE(parse_error(grouped).find("two experts in a group"), std::string::npos);
}

TEST(Config, ManyExperts) {
  Json wide = fixture_config("tiny-text");
  wide["text_config"]["num_experts"] = 1024;
  wide["text_config"]["num_experts_per_token"] = 24;
  EXPECT_EQ(parse(wide).num_experts, 1024);
}

TEST(Config, NotJson) {
  const auto error = [](const std::string& text) {
    return error_of([&] { parse_config(text, "config.json"); });
  };
  EXPECT_NE(error("{\"a\": }").find("config.json: not JSON: at line 1, column 7"),
            std::string::npos)
      << error("{\"a\": }");
  EXPECT_NE(error(""), "");
  EXPECT_EQ(error("{\"a\": 1e999}"), "config.json: not JSON: number overflow parsing '1e999'");
  EXPECT_NE(error("[]").find("a JSON object"), std::string::npos);
  EXPECT_EQ(error("{\"model_type\":\"kimi_k3\",\"a\":{\"b\":1,\"b\":2}}"),
            "config.json: field b: expected it once, found it twice");
  EXPECT_EQ(error("{\"a\":{\"b\":1},\"c\":{\"b\":2}}").find("config.json: model_type"), 0u);
  EXPECT_NE(error(std::string(500000, '[')), "");
  EXPECT_NE(error("{\"a\":" + std::string(400000, '[') + std::string(400000, ']') + "}"), "");
  EXPECT_NE(error(std::string(kMaxConfigBytes + 1, ' ')).find("size"), std::string::npos);
}

TEST(Config, DamagedConfigsNeverCrash) {
  const std::string text = fixture_config("tiny-text").dump();
  const Json good = Json::parse(text);
  std::vector<std::string> leaves;
  const Json flat = good.flatten();
  for (const auto& [pointer, unused] : flat.items()) leaves.push_back(pointer);
  std::mt19937 rng(7);
  const Json values[] = {
      0,   -1, 1,    2.5,     1e308,         int64_t{1} << 40, uint64_t{1} << 63,
      "x", "", true, nullptr, Json::array(), Json::object(),   Json::array({1, 1})};
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = text;
    if (i % 2) {
      Json changed = good;
      for (unsigned k = 0; k <= rng() % 3; ++k)
        changed[Json::json_pointer(leaves[rng() % leaves.size()])] =
            values[rng() % std::size(values)];
      damaged = changed.dump();
    } else {
      for (unsigned k = 0; k <= rng() % 4; ++k) {
        const size_t at = rng() % damaged.size();
        rng() % 2 ? damaged.replace(at, 1, 1, static_cast<char>(rng()))
                  : damaged.erase(at, rng() % 9);
      }
    }
    try {
      const ModelConfig c = parse_config(damaged, "config.json");
      EXPECT_EQ(c.attention_kinds.size(), static_cast<size_t>(c.num_hidden_layers));
    } catch (const InputError& error) {
      ++refused;
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace k3
