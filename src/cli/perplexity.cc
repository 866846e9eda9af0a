// k3 perplexity: how well a model predicts a text.

#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "ops/cross_entropy.h"
#include "text/tokenizer.h"

namespace k3::cli {
namespace {

struct PerplexityOptions {
  RunOptions run;
  std::string file;
  int64_t context = 2048, stride = 0;
};

void run(const PerplexityOptions& o) {
  if (o.run.listed_kernels()) return;
  const int64_t stride = o.stride ? o.stride : o.context / 2;
  if (stride < 1 || stride >= o.context)
    throw InputError("--stride", "tokens", "1 to --context - 1", fmt::format("{}", stride));
  const Tokenizer tokenizer = Tokenizer::load(DiskStorage(), o.run.model_dir());
  const std::vector<int32_t> ids = tokenizer.encode(utf8_repair(read_file_or_stdin(o.file)));
  const auto length = static_cast<int64_t>(ids.size());
  if (length < 2) throw InputError(o.file, "text", "at least 2 tokens", fmt::format("{}", length));
  const int64_t window = std::min(o.context, length);
  Run run(o.run, o.run.engine(window, window, 1, true));
  check_vocabulary(tokenizer, o.run.model_dir(), run.engine().config());

  // Windows overlap by context - stride; each token after the first is scored once, in the first
  // window that holds it.
  double sum = 0;
  int64_t scored = 0, next = 1;
  for (int64_t begin = 0; next < length; begin += stride) {
    const int64_t end = std::min(length, begin + o.context);
    SequenceState state = run.engine().new_sequence();
    const Engine::Feed feed{
        &state,
        std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), true};
    run.engine().run({&feed, 1}, [&](const Engine::Logits& l) {
      const int64_t target = begin + l.position + 1;
      if (target < next || target >= end) return;
      sum +=
          log_sum_exp(l.values) - l.values[static_cast<size_t>(ids[static_cast<size_t>(target)])];
      ++scored;
    });
    next = end;
    run.progress().show("perplexity", static_cast<uint64_t>(end), static_cast<uint64_t>(length),
                        "tokens");
  }
  run.finish();
  const double nll = sum / static_cast<double>(scored);
  if (o.run.json)
    std::cout
        << nlohmann::ordered_json{{"nll", nll}, {"ppl", std::exp(nll)}, {"tokens", scored}}.dump()
        << "\n";
  else
    std::cout << fmt::format("tokens {}  nll {:.6f}  perplexity {:.4f}\n", scored, nll,
                             std::exp(nll));
}

}  // namespace

void add_perplexity(CLI::App& app) {
  auto o = std::make_shared<PerplexityOptions>();
  CLI::App* sub =
      app.add_subcommand("perplexity", "negative log-likelihood and perplexity of a text");
  o->run.add(*sub);
  sub->add_option("file", o->file, "the text (- is standard input)")->required();
  sub->add_option("--context", o->context, "tokens of a window")
      ->check(whole(2))
      ->capture_default_str();
  sub->add_option("--stride", o->stride,
                  "tokens from window to window (default: half of --context)")
      ->check(whole(1));
  sub->add_flag("--json", o->run.json, "print one JSON object");
  sub->callback([o] { run(*o); });
}

}  // namespace k3::cli
