// A model that learns: master weights, what the forward pass computes with, and gradients.
//
//   TrainableModel learner(config, account, {.dtype = Dtype::kBf16, .experts = Mxfp4Rule::kEven},
//   64); learner.initialize(seed);                                  // or learner.load(snapshot)
//   learner.refresh(ctx);                                      // whenever masters have moved
//   Tape tape(account, scratch);
//   learner.learn(tape);
//   learner.clear_gradients(ctx);
//   learner.model().gradients(ctx, tape, documents, targets, {1.0f / count});
//   learner.finish_gradients();
//   for (Parameter& p : learner.parameters()) ... move p.master along p.gradient ...
//
// Masters are float32. The forward pass computes with what an export would hold: masters rounded to
// `dtype`, routed experts packed as MXFP4 where a rule is given (quantisation-aware training; run
// it with Activations::kMxfp8), and the gradient passes straight through the rounding (training.md
// 6). So the model trained, evaluated and exported is one function. The selection bias of the
// router is a parameter that has no gradient: Quantile Balancing sets it. Memory: tags "masters",
// "gradients", "weights". Thread rule: as Context. Errors: InputError for a snapshot that does not
// fit.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"
#include "weights/mxfp4.h"

namespace k3 {

struct Parameter {
  std::string name;  // canonical; of an expert: its plain weight
  Shape shape;       // as exported
  Part part = Part::kNorms;
  Dtype dtype = Dtype::kF32;
  std::optional<ExpertName> expert;
  bool learns = true;  // false: the router's selection bias
  Rows master, gradient;
  Rows values;  // what the forward pass computes with, row by row
  int64_t elements() const { return master.rows * master.cols; }
};

class TrainableModel {
 public:
  struct Options {
    Dtype dtype = Dtype::kBf16;        // of matrices and norms as exported: kBf16 or kF32
    std::optional<Mxfp4Rule> experts;  // routed experts as MXFP4
  };
  // `chunk`: most tokens of one inference pass. `config` must outlive it.
  TrainableModel(const ModelConfig& config, MemoryAccount& account, const Options& options,
                 int64_t chunk);
  TrainableModel(const TrainableModel&) = delete;

  // Fresh weights (training.md 7): matrices and embeddings normal with `deviation`, norms 1,
  // Attention Residuals queries 0 (a plain mean), decays spread as in Mamba-2. A tensor's values
  // depend on its name and the seed alone.
  void initialize(uint64_t seed, float deviation = 0.02f);
  void load(const Snapshot& snapshot);

  void refresh(Context& ctx);
  void learn(Tape& tape) const;
  void clear_gradients(Context& ctx);
  void finish_gradients();  // from the forms that the kernels take to the stored tensors

  const ModelConfig& config() const { return config_; }
  const Options& options() const { return options_; }
  Model& model() { return *model_; }
  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  Parameter& parameter(const std::string& name);

 private:
  // A matrix of the forward pass, and the rows of a parameter that it is made of.
  struct Matrix {
    WeightView view;
    Rows values, gradient;
    const Parameter* mxfp4 = nullptr;           // whose masters are packed here
    bool transposed = false, absorbed = false;  // an absorbed half of kv_b_proj: inference only
    std::byte *data = nullptr, *scales = nullptr;
  };
  struct Derived {
    TrunkLayout::Vector vector;
    Parameter *stored, *proj;  // proj: of a kMixQuery
    float *values, *gradient;
  };
  void list_parameters();
  void place_masters(MemoryAccount& account);
  void bind(MemoryAccount& account, int64_t chunk);
  void add_matrix(const WeightView& view, const Parameter& p, int64_t first_row);

  const ModelConfig& config_;
  const Options options_;
  std::vector<Parameter> parameters_;
  std::map<std::string, size_t> index_;
  Buffer masters_, gradients_, values_, packed_, derived_;
  std::vector<Matrix> matrices_;
  std::vector<Derived> derived_vectors_;
  std::optional<Model> model_;
};

// Feeds ids to a sequence by the inference forward, and returns the logits after the last: what the
// engine computes on an export.
std::vector<float> last_logits(Context& ctx, Model& model, SequenceState& state,
                               std::span<const int32_t> ids);

}  // namespace k3
