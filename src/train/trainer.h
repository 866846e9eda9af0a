// Training: steps over packed documents, and a state that a checkpoint holds whole.
//
//   Trainer trainer(model_config, config, data, account, pool, kernels(best_isa()));
//   trainer.initialize();                          // or trainer.load(snapshot)
//   while (trainer.steps_done() < config.steps) {
//     const StepReport r = trainer.step();
//     trainer.save(storage, "run/checkpoint.safetensors");
//   }
//
// A step takes `batch` rows of documents, a few at a time, adds up the gradients of their mean
// loss, clips them, moves every master once (train/optimizer.h), sets the routers' biases by
// Quantile Balancing, clips attention logits that grew too large (QK-Clip), and packs the weights
// anew. Its bits depend on the config, the data and the masters alone: not on threads, and after
// restore() not on where the run was interrupted. A loss or gradient that is not finite stops the
// step before anything moved: WorkError naming the tensor. Memory: as TrainableModel's, "moments",
// and scratch that grows to what a micro-batch needs. Thread rule: one call at a time.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "train/dataset.h"
#include "train/quantile_balancing.h"
#include "train/train_config.h"
#include "train/trainable_model.h"

namespace k3 {

// What one step saw, before the weights moved.
struct StepReport {
  int64_t step = 0;          // counts from 1
  double loss = 0;           // mean over the targets, in nats
  int64_t tokens = 0;        // inputs
  int64_t targets = 0;       // of them, with something to learn
  double gradient_norm = 0;  // before clipping
  float rate = 0;            // the learning rate
  double seconds = 0;
  std::map<std::string, double> update_rms;  // by part of the model, over the rate and before decay
  struct Layer {
    int64_t layer;
    LoadBalance balance;
  };
  std::vector<Layer> moe;
  struct Logit {
    int64_t layer;
    float largest;
  };
  std::vector<Logit> max_logit;    // of attention, MLA layers
  std::vector<double> block_norm;  // root mean square of each Attention Residuals block
};

class Trainer {
 public:
  // References must outlive it.
  Trainer(const ModelConfig& model, const TrainConfig& config, const TokenDataset& data,
          MemoryAccount& account, ThreadPool& pool, const Kernels& kernels);

  void initialize();
  void load(const Snapshot& snapshot);

  StepReport step();
  int64_t steps_done() const { return steps_done_; }
  // Mean loss over the first rows of the held-out documents, always the same ones.
  double validate();
  // What the model as it stands writes after `ids`, at most `count` ids, until `end`.
  std::vector<int32_t> continuation(std::span<const int32_t> ids, int64_t count, int32_t end);
  // Whole: masters, moments, place in the data. restore() throws InputError for a checkpoint of
  // another config or other data.
  void save(Storage& storage, const std::string& path) const;
  void restore(const Storage& storage, const std::string& path);

  TrainableModel& learner() { return learner_; }
  // Of the matrix products of the weights, forward and backward; a multiply-add counts two. The
  // head works for targets only.
  double flops(int64_t tokens, int64_t targets) const;

 private:
  class Observations;
  void check_finite(const StepReport& report) const;
  void move(StepReport& report);
  void balancers_from_masters();
  void clip_logits(const Observations& seen);
  Context context(Observer* observer = nullptr) {
    return {pool_, kernels_, scratch_, config_.experts ? Activations::kMxfp8 : Activations::kFp32,
            observer};
  }

  const ModelConfig& model_config_;
  const TrainConfig& config_;
  const TokenDataset& data_;
  MemoryAccount& account_;
  ThreadPool& pool_;
  const Kernels& kernels_;
  Scratch scratch_;
  TrainableModel learner_;
  Tape tape_;
  Packer packer_;
  std::vector<UpdateRule> rules_;        // by parameter
  std::vector<OptimizerState> moments_;  // by parameter
  // What one thread moves parameters with.
  struct Mover {
    Mover(MemoryAccount& account, int64_t bytes) : scratch(account, bytes) {}
    ThreadPool pool{1};
    Scratch scratch;
  };
  std::vector<std::unique_ptr<Mover>> movers_;  // by thread
  std::vector<size_t> largest_first_;           // parameters that learn
  std::vector<QuantileBalancer> balancers_;     // by MoE layer, in order
  std::vector<Rows> biases_;                    // their masters, [1, experts]
  const uint64_t fingerprint_;                  // of the data
  int64_t steps_done_ = 0;
};

// The config that decides a run, of a checkpoint: what `k3 export` needs.
struct CheckpointInfo {
  int64_t step = 0;
  Dtype dtype = Dtype::kBf16;
  std::optional<Mxfp4Rule> experts;
};
CheckpointInfo checkpoint_info(const SafetensorsFile& checkpoint);
// The masters of a checkpoint.
void load_masters(const SafetensorsFile& checkpoint, TrainableModel& learner);

}  // namespace k3
