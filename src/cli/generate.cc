// k3 generate: continues a prompt.

#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/generation.h"
#include "cli/options.h"
#include "engine/sampler.h"
#include "engine/stop_strings.h"
#include "text/tokenizer.h"

namespace k3::cli {
namespace {

struct GenerateOptions {
  RunOptions run;
  SamplingOptions sampling;
  std::string prompt, ids, seed, requests, output;
  std::vector<std::string> stop;
  int64_t max_tokens = 128;
  bool has_prompt = false, ignore_eos = false, print_ids = false;
};

// Far beyond a million tokens; what is read is held in memory.
constexpr uint64_t kMaxPromptBytes = 8 << 20;

bool has_tokenizer(const std::string& dir) {
  const DiskStorage disk;
  return disk.exists(dir + "/tiktoken.model") && disk.exists(dir + "/tokenizer_config.json");
}

// The prompt as ids, or nothing left to the tokenizer when --ids is given.
std::vector<int32_t> prompt_ids(const GenerateOptions& o,
                                const std::optional<Tokenizer>& tokenizer) {
  if (!o.ids.empty()) {
    if (o.has_prompt) throw InputError("generate: expected a text prompt or --ids, found both");
    auto ids = parse_ids(o.ids, "--ids");
    if (ids.empty()) throw InputError("--ids", "token ids", "at least one", "none");
    return ids;
  }
  if (!o.has_prompt && isatty(STDIN_FILENO))
    std::fputs("reading the prompt from the terminal; end it with Ctrl-D\n", stderr);
  const std::string text = o.has_prompt ? o.prompt : read_file_or_stdin("-", kMaxPromptBytes);
  auto ids = tokenizer->encode(utf8_repair(text));
  if (ids.empty())
    throw InputError("generate: expected a prompt of at least one token, found an empty one");
  return ids;
}

// The continuation as it comes: text, ids, or nothing until the JSON object at the end.
class Output {
 public:
  Output(const GenerateOptions& o, const std::optional<Tokenizer>& tokenizer)
      : options_(o), stop_(o.stop) {
    if (tokenizer) decoder_.emplace(*tokenizer, true);
  }
  void add(int32_t id) {
    if (options_.print_ids) show(fmt::format("{}{}", ids_++ ? "," : "", id));
    if (!decoder_) return;
    const std::string text = stop_.push(decoder_->push(id));
    text_ += text;
    if (!options_.print_ids) show(text);
  }
  bool stopped() const { return stop_.hit(); }
  void finish() {
    if (decoder_) {
      const std::string text = stop_.push(decoder_->flush()) + stop_.flush();
      text_ += text;
      if (!options_.print_ids) show(text);
    }
    show("\n");
  }
  // Null without a tokenizer.
  nlohmann::json text() const { return decoder_ ? nlohmann::json(text_) : nlohmann::json(); }

 private:
  void show(const std::string& text) {
    if (options_.run.json) return;
    std::cout << text << std::flush;
    if (!std::cout) throw WorkError("stdout: cannot write");
  }

  const GenerateOptions& options_;
  StopStrings stop_;
  std::optional<StreamDecoder> decoder_;
  std::string text_;
  int64_t ids_ = 0;
};

void run(const GenerateOptions& o) {
  if (o.run.listed_kernels()) return;
  SamplingOptions sampling = o.sampling;
  sampling.seed = o.seed.empty() ? std::random_device()() : std::stoull(o.seed);
  check_sampling(sampling);
  if (o.requests.empty() != o.output.empty())
    throw InputError("generate: expected --requests and --output together, found one");
  if (!o.requests.empty()) {
    check_output("--output", o.output, o.run);
    answer_requests(o.run, sampling, o.max_tokens, o.requests, o.output);
    return;
  }
  const std::string dir = o.run.model_dir();
  std::optional<Tokenizer> tokenizer;
  const bool needed = o.ids.empty() || !o.print_ids || !o.stop.empty();
  if (needed || has_tokenizer(dir)) tokenizer = Tokenizer::load(DiskStorage(), dir);
  const std::vector<int32_t> prompt = prompt_ids(o, tokenizer);
  const auto length = static_cast<int64_t>(prompt.size());
  Run run(o.run, o.run.engine(length, length + o.max_tokens));
  Engine& engine = run.engine();
  if (tokenizer) check_vocabulary(*tokenizer, dir, engine.config());

  Sampler sampler(sampling, drawable_ids(engine.config(), tokenizer));
  const std::vector<int32_t> ends = end_ids(dir, engine.config(), tokenizer);
  Output output(o, tokenizer);
  SequenceState state = engine.new_sequence();
  std::vector<int32_t> generated;
  int32_t next = -1;
  bool ended = false;
  const auto sample = [&](const Engine::Logits& l) { next = sampler.sample(l.values, generated); };

  const auto start = std::chrono::steady_clock::now();
  auto first = start;
  const auto seconds = [](auto from, auto to) {
    return std::chrono::duration<double>(to - from).count();
  };
  std::span<const int32_t> ids = prompt;
  for (int64_t i = 0; i < o.max_tokens; ++i) {
    const Engine::Feed feed{&state, ids, false};
    if (i == 0)
      run.feed({&feed, 1}, sample);
    else
      engine.run({&feed, 1}, sample);
    if (i == 0) first = std::chrono::steady_clock::now();
    if (!o.ignore_eos && std::find(ends.begin(), ends.end(), next) != ends.end()) {
      ended = true;
      break;
    }
    generated.push_back(next);
    output.add(next);
    if (output.stopped()) break;
    ids = {&generated.back(), 1};
  }
  output.finish();
  if (o.run.json)
    std::cout << nlohmann::ordered_json{{"text", output.text()},
                                        {"ids", generated},
                                        {"finish_reason",
                                         ended || output.stopped() ? "stop" : "length"},
                                        {"prompt_tokens", length},
                                        {"seed", sampling.seed}}
                     .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
              << "\n";
  if (!o.run.quiet && o.max_tokens > 0) {
    const double decode = seconds(first, std::chrono::steady_clock::now());
    const auto steps = static_cast<double>(state.length() - length);
    std::fputs(
        fmt::format(
            "prompt {} tokens, {:.1f} tokens/s; generated {} tokens{}; seed {}\n", length,
            static_cast<double>(length) / std::max(1e-9, seconds(start, first)), generated.size(),
            steps > 0 ? fmt::format(", {:.1f} tokens/s", steps / std::max(1e-9, decode)) : "",
            sampling.seed)
            .c_str(),
        stderr);
  }
  run.finish();
}

}  // namespace

std::vector<int32_t> end_ids(const std::string& dir, const ModelConfig& config,
                             const std::optional<Tokenizer>& tokenizer) {
  std::vector<int32_t> ids;
  const auto add = [&](int64_t id) { ids.push_back(static_cast<int32_t>(id)); };
  if (config.eos_token_id >= 0) add(config.eos_token_id);
  const std::string path = dir + "/generation_config.json";
  const DiskStorage disk;
  if (disk.exists(path)) {
    const auto json = nlohmann::json::parse(read_text(disk, path, 1 << 20), nullptr, false);
    if (!json.is_object()) throw InputError(path, "file", "a JSON object", "something else");
    auto eos = json.value("eos_token_id", nlohmann::json::array());
    if (!eos.is_array()) eos = nlohmann::json::array({eos});
    for (const auto& id : eos) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
          id.get<int64_t>() >= config.vocab_size)
        throw InputError(path, "eos_token_id",
                         fmt::format("ids from 0 to {}", config.vocab_size - 1), id.dump());
      add(id.get<int64_t>());
    }
  }
  if (tokenizer)
    for (const char* name : {"<|end_of_msg|>", "[EOS]", "[EOT]"})
      if (const auto id = tokenizer->special(name)) add(*id);
  return ids;
}

std::vector<bool> drawable_ids(const ModelConfig& config,
                               const std::optional<Tokenizer>& tokenizer) {
  std::vector<bool> drawable;
  if (tokenizer && tokenizer->size() < config.vocab_size) {
    drawable.assign(static_cast<size_t>(config.vocab_size), false);
    std::fill(drawable.begin(), drawable.begin() + tokenizer->size(), true);
  }
  return drawable;
}

void add_generate(CLI::App& app) {
  auto o = std::make_shared<GenerateOptions>();
  CLI::App* sub = app.add_subcommand("generate", "continue a text prompt");
  o->run.add(*sub);
  auto* prompt = sub->add_option("prompt", o->prompt, "the prompt (default: standard input)");
  sub->add_option("--ids", o->ids, "raw token ids instead of text, e.g. 1,2,3");
  sub->add_option("--max-tokens", o->max_tokens, "most tokens to generate")
      ->check(whole(0, 1 << 20))
      ->capture_default_str();
  sub->add_option("--temperature", o->sampling.temperature, "0 is greedy")->capture_default_str();
  o->sampling.top_p = 0.95f;
  sub->add_option("--top-p", o->sampling.top_p)->capture_default_str();
  sub->add_option("--top-k", o->sampling.top_k, "0 is off")->capture_default_str();
  sub->add_option("--min-p", o->sampling.min_p, "0 is off")->capture_default_str();
  sub->add_option("--repetition-penalty", o->sampling.repetition_penalty, "1 is off")
      ->capture_default_str();
  sub->add_option("--presence-penalty", o->sampling.presence_penalty)->capture_default_str();
  sub->add_option("--frequency-penalty", o->sampling.frequency_penalty)->capture_default_str();
  sub->add_option("--seed", o->seed, "repeats a run (default: a random one, printed at the end)")
      ->check(seed());
  sub->add_option("--stop", o->stop, "stop before this string (repeatable)")
      ->allow_extra_args(false);
  sub->add_option("--requests", o->requests,
                  "chat requests to answer instead: a JSON object a line, {\"id\", \"request\", "
                  "\"max_tokens\", \"temperature\"}")
      ->excludes(prompt);
  sub->add_option("--output", o->output, "file for their answers, a line each");
  sub->add_option("--chunk", o->run.chunk, "tokens of a forward pass")->check(whole(1, 1 << 20));
  sub->add_flag("--ignore-eos", o->ignore_eos, "go on past the end token");
  sub->add_flag("--print-ids", o->print_ids, "ids instead of text");
  sub->add_flag("--json", o->run.json, "one JSON object instead, at the end");
  sub->callback([o, prompt] {
    o->has_prompt = prompt->count() > 0;
    run(*o);
  });
}

}  // namespace k3::cli
