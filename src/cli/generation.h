// What continuing a prompt and answering a file of requests share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "text/tokenizer.h"
#include "weights/config.h"

namespace k3::cli {

// Ids that end a text: the config's, generation_config.json's if there is one, and what the
// tokenizer calls an end.
std::vector<int32_t> end_ids(const std::string& dir, const ModelConfig& config,
                             const std::optional<Tokenizer>& tokenizer);
// What may be drawn: all that the tokenizer can spell. Empty: everything.
std::vector<bool> drawable_ids(const ModelConfig& config,
                               const std::optional<Tokenizer>& tokenizer);

struct RunOptions;

// Answers chat requests, many at a time. In: a line an object {"id", "request", "max_tokens",
// "temperature"}; out: a line an object {"id", "message", "finish_reason"}, in the same order.
// Fields that a line lacks are the given ones.
void answer_requests(const RunOptions& run, const SamplingOptions& sampling, int64_t max_tokens,
                     const std::string& requests, const std::string& output);

}  // namespace k3::cli
