#include "weights/tensor_names.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "weights/snapshot_test_support.h"

namespace k3 {
namespace {

TEST(TensorNames, ExpertNames) {
  const auto e = parse_expert_name("model.layers.7.block_sparse_moe.experts.120.w2.weight_packed");
  ASSERT_TRUE(e.has_value());
  EXPECT_EQ(e->layer, 7);
  EXPECT_EQ(e->expert, 120);
  EXPECT_EQ(e->matrix, ExpertMatrixId::kW2);
  EXPECT_EQ(e->kind, ExpertTensorKind::kPacked);
  for (const char* name : {"model.layers.0.block_sparse_moe.experts.0.w1.weight",
                           "model.layers.92.block_sparse_moe.experts.895.w3.weight_scale"}) {
    const auto parsed = parse_expert_name(name);
    ASSERT_TRUE(parsed.has_value()) << name;
    EXPECT_EQ(expert_tensor_name(*parsed), name);
  }
  for (const char* wrong :
       {"", "model.layers.", "model.layers.-1.block_sparse_moe.experts.0.w1.weight",
        "model.layers.07.block_sparse_moe.experts.0.w1.weight",
        "model.layers.7.block_sparse_moe.experts.00.w1.weight",
        "model.layers.7.block_sparse_moe.experts.+1.w1.weight",
        "model.layers.7.block_sparse_moe.experts.0.w4.weight",
        "model.layers.7.block_sparse_moe.experts.0.w1.weights",
        "model.layers.7.block_sparse_moe.experts.0.w1.weight_packed.x",
        "model.layers.7.block_sparse_moe.experts.99999999999.w1.weight",
        "model.layers.7.block_sparse_moe.experts.0.w", "language_model.model.layers.7",
        "model.layers.7.block_sparse_moe.experts..w1.weight"})
    EXPECT_FALSE(parse_expert_name(wrong).has_value()) << wrong;
}

TEST(TensorNames, ExpertShapes) {
  ModelConfig c;
  c.hidden_size = 7168;
  c.routed_expert_hidden_size = 3584;
  c.moe_intermediate_size = 3072;
  EXPECT_EQ(expert_tensor_shape(c, ExpertMatrixId::kW1, ExpertTensorKind::kPacked),
            (Shape{3072, 1792}));
  EXPECT_EQ(expert_tensor_shape(c, ExpertMatrixId::kW2, ExpertTensorKind::kScale),
            (Shape{3584, 96}));
  EXPECT_EQ(expert_tensor_shape(c, ExpertMatrixId::kW3, ExpertTensorKind::kPlain),
            (Shape{3072, 3584}));
  c.routed_expert_hidden_size = 0;
  EXPECT_EQ(expert_tensor_shape(c, ExpertMatrixId::kW2, ExpertTensorKind::kPlain),
            (Shape{7168, 3072}));
  c.moe_intermediate_size = 40;
  EXPECT_EQ(
      error_of([&] { check_mxfp4_sizes(c, "config.json"); }),
      "config.json: moe_intermediate_size: expected a multiple of 32 for packed experts, found 40");
}

// The names of the released index, no more and no less, and the counts of numerics.md 1.
TEST(TensorNames, TheReleasedIndex) {
  const std::string index = shared_file("data/kimi-k3/model.safetensors.index.json.gz");
  if (!std::filesystem::exists(index)) GTEST_SKIP() << "no released index at " << index;
  FILE* pipe = popen(("gzip -dc '" + index + "'").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string text(size_t{64} << 20, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), pipe));
  if (pclose(pipe) != 0) GTEST_SKIP() << "gzip is not installed";

  const ModelConfig c =
      parse_config(read_disk(shared_file("data/kimi-k3/config.json")), "config.json");
  std::set<std::string, std::less<>> expected;
  for (const ExpectedTensor& t : expected_tensors(c)) expected.insert("language_model." + t.name);
  for (const ExpectedTensor& t : expected_vision_tensors(c)) expected.insert(t.name);
  size_t total = 0, experts = 0;
  parse_safetensors_index(text, index, [&](std::string_view name, std::string_view) {
    ++total;
    std::string_view bare = name;
    if (bare.starts_with(kTextPrefix)) bare.remove_prefix(kTextPrefix.size());
    if (parse_expert_name(bare)) {
      ++experts;
    } else {
      EXPECT_EQ(expected.erase(std::string(name)), 1u) << name;
    }
  });
  EXPECT_EQ(total, 497'220u);
  EXPECT_EQ(experts, 6u * 896 * 92);
  EXPECT_TRUE(expected.empty()) << *expected.begin();
}

TEST(TensorNames, PartsHaveNames) {
  std::set<std::string> names;
  for (int i = 0; i < kParts; ++i) names.insert(name(static_cast<Part>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kParts));
  EXPECT_FALSE(names.contains("?"));
}

}  // namespace
}  // namespace k3
