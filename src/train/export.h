// Masters written as a snapshot in the released layout.
//
//   write_snapshot(storage, learner, config_json, "models/nano", {.experts = Mxfp4Rule::kEven});
//
// Writes config.json, the shards and their index; tokenizer files are the caller's. Matrices and
// norms are rounded to the learner's dtype; experts are packed as MXFP4 under a rule, which the
// shards' metadata names, or written plain. Under the rule that the learner was trained with, the
// snapshot holds exactly the weights that its forward pass used. Errors: WorkError when writing
// fails; the index comes last, so a folder without it is no snapshot.
#pragma once

#include <optional>
#include <string>

#include "train/trainable_model.h"

namespace k3 {

struct ExportOptions {
  std::optional<Mxfp4Rule> experts;
  uint64_t shard_bytes = uint64_t{4} << 30;
};

void write_snapshot(Storage& storage, const TrainableModel& learner, const std::string& config_json,
                    const std::string& folder, const ExportOptions& options);

}  // namespace k3
