// What `k3 train` is told: one JSON file, checked field by field.
//
//   const TrainConfig c = parse_train_config(text, "run.json");
//
//   {
//     "model": {...},                          // a config.json, or the path of one; not with
//     --init "tokenizer": "tokenizer",                // folder; needed for text, documents and
//     chat "data": [{"file": "books.txt", "as": "text"}], "steps": 2000, "batch": 32, "length":
//     512, "optimizer": {"kind": "muon"}, "schedule": {"form": "cosine", "peak": 0.002}
//   }
//
// Kinds of data: "text" (any bytes; cut into documents at line ends), "documents" (a line a JSON
// object with "text"), "chat" (a line a chat request whose assistant messages are to be learnt),
// "tokens" (shards of train/dataset.h). Paths are relative to the file's folder. A step takes
// `batch` rows of at most `length` tokens, `micro_batch` rows at a time. Errors: InputError naming
// the field; unknown fields are errors. Thread rule: a value.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/optimizer.h"
#include "weights/mxfp4.h"

namespace k3 {

struct DataSource {
  enum class Form { kText, kDocuments, kChat, kTokens };
  std::string file;
  Form form = Form::kText;
};

struct TrainConfig {
  std::string model_json;  // text of the model's config.json; empty with --init
  std::string model_path;  // what errors about it name
  std::string tokenizer;   // folder, or empty
  std::vector<DataSource> data;
  int64_t length = 512;
  bool whole = false;  // "whole_documents"
  double held_out = 0.01;

  int64_t steps = 0, batch = 16, micro_batch = 16;
  uint64_t seed = 1;
  float deviation = 0.02f;           // "init_deviation"
  Dtype dtype = Dtype::kBf16;        // "precision"
  std::optional<Mxfp4Rule> experts;  // "quantization": {"experts": ...}
  bool recompute = false;
  bool quantile_balancing = true;

  OptimizerOptions optimizer;
  double clip = 1;    // of the gradients' norm; 0 = off
  float qk_clip = 0;  // 0 = off
  Schedule schedule;  // steps filled in

  int64_t validate_every = 0, validation_rows = 16;
  int64_t sample_every = 0, sample_tokens = 64;
  std::vector<std::string> sample_prompts;
  int64_t checkpoint_every = 0;  // 0: at the end only

  // The fields that decide the weights, as one line: what --resume compares.
  std::string identity;
};

TrainConfig parse_train_config(std::string_view json, const std::string& path);

}  // namespace k3
