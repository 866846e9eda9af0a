// The tensors a config calls for: names, shapes, and what each is part of.
//
//   for (const ExpectedTensor& t : expected_tensors(config)) ...   // all but the routed experts
//   auto e = parse_expert_name("model.layers.7.block_sparse_moe.experts.12.w2.weight_packed");
//
// Names here are canonical: as released, without the `language_model.` that K3 snapshots put before
// the text model's. The routed experts (half a million tensors) are recognised, not listed.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weights/config.h"
#include "weights/safetensors.h"

namespace k3 {

// What a tensor is part of, for accounting. kNorms holds every RMS norm and all Attention Residual
// vectors; kRouter the gate and its selection bias; kLatent the two latent projections.
enum class Part : uint8_t {
  kEmbed,
  kHead,
  kKda,
  kMla,
  kSharedExperts,
  kDenseMlp,
  kRouter,
  kLatent,
  kNorms,
  kExperts,
  kVision
};
constexpr int kParts = 11;
const char* name(Part part);  // "shared_experts"

struct ExpectedTensor {
  std::string name;
  Shape shape;
  Part part = Part::kNorms;
  int32_t layer = -1;  // -1 outside the decoder layers
  // A_log holds one value per head, padded to any length and of any rank: then `shape` is [heads]
  // and a stored tensor of at least that many elements fits.
  bool padded = false;
  // How many elements are real parameters when `padded`.
  int64_t elements() const { return shape.elements(); }
};

constexpr std::string_view kTextPrefix = "language_model.";

// Every tensor of the text model but the routed experts.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);
// The vision tower and projector; empty without a vision_config. A snapshot holds all or none.
std::vector<ExpectedTensor> expected_vision_tensors(const ModelConfig& config);
bool is_vision_name(std::string_view canonical);

// How stored tensors of this dtype may appear among the dense ones: BF16 or F32.
bool is_dense_dtype(Dtype dtype);

enum class ExpertMatrixId : uint8_t { kW1, kW2, kW3 };  // gate, down, up
enum class ExpertTensorKind : uint8_t { kPacked, kScale, kPlain };

struct ExpertName {
  int32_t layer = 0;
  int32_t expert = 0;
  ExpertMatrixId matrix = ExpertMatrixId::kW1;
  ExpertTensorKind kind = ExpertTensorKind::kPlain;
};
std::optional<ExpertName> parse_expert_name(std::string_view canonical);
std::string expert_tensor_name(const ExpertName& name);
Shape expert_tensor_shape(const ModelConfig& config, ExpertMatrixId matrix, ExpertTensorKind kind);

// Throws when the experts' sizes do not split into blocks of 32.
void check_mxfp4_sizes(const ModelConfig& config, std::string_view path);

}  // namespace k3
