#include "cli/options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "cli/commands.h"

namespace k3::cli {
namespace {

template <class T>
T choice(const std::string& option, const std::string& value,
         const std::vector<std::pair<const char*, T>>& known) {
  std::string names;
  for (const auto& [text, meaning] : known) {
    if (value == text) return meaning;
    names += (names.empty() ? "" : ", ") + std::string(text);
  }
  throw InputError(option, "value", "one of " + names, "'" + value + "'");
}

}  // namespace

Progress::Progress(bool quiet) : quiet_(quiet), terminal_(isatty(STDERR_FILENO) != 0) {}

void Progress::show(const std::string& what, uint64_t done, uint64_t total, const char* unit,
                    const std::string& note) {
  using namespace std::chrono;
  const auto now = steady_clock::now();
  if (what != what_) {
    clear();
    what_ = what;
    start_ = last_ = now;
  }
  const double seconds = duration<double>(now - start_).count();
  const auto pause = terminal_ ? milliseconds(200) : milliseconds(10000);
  if (quiet_ || seconds < 2 || (shown_ && now - last_ < pause) || total == 0) return;
  last_ = now;
  shown_ = true;
  const double rate = static_cast<double>(done) / seconds;
  const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
  const bool bytes = std::string(unit) == "bytes";
  const std::string amount =
      bytes ? fmt::format("{} of {}, {}/s", format_size(done), format_size(total),
                          format_size(static_cast<uint64_t>(rate)))
            : fmt::format("{} of {} {}, {:.1f}/s", done, total, unit, rate);
  std::fputs(fmt::format("{}{}: {}{}{}, {:.0f} s left{}", terminal_ ? "\r\x1b[K" : "", what, amount,
                         note.empty() ? "" : ", ", note, left, terminal_ ? "" : "\n")
                 .c_str(),
             stderr);
  std::fflush(stderr);
}

void Progress::clear() {
  if (shown_ && terminal_) std::fputs("\r\x1b[K", stderr);
  shown_ = false;
}

void RunOptions::add_model(CLI::App& app) {
  app.add_option("--model", model, "snapshot folder (default: the bundled model)");
  app.add_option("--ram", ram,
                 "hard ceiling on resident memory, e.g. 12G (default: 9/10 of what is free)");
  app.add_option("--threads", threads, "threads (default: all)")->check(whole(1, 1024));
  app.add_option("--trunk", trunk, "dense weights as bf16 or int8")->capture_default_str();
  app.add_option("--activations", activations,
                 "arithmetic of expert and int8 products: 16, int8, mxfp8, fp32")
      ->capture_default_str();
  app.add_flag("--exact", exact, "reference arithmetic; overrides --trunk and --activations");
  app.add_option("--kernels", kernels, "scalar, avx2, avx512, or list");
  app.add_flag("--quiet", quiet, "no progress");
}

void RunOptions::add(CLI::App& app) {
  add_model(app);
  app.add_option("--report", report, "write a JSON report about the run");
  app.add_flag("--verbose", verbose, "print the configuration and the plan");
}

bool RunOptions::listed_kernels() const {
  if (kernels != "list") return false;
  for (const Isa isa : isas())
    std::cout << name(isa) << (isa == best_isa() ? " (default)" : "") << "\n";
  return true;
}

std::string RunOptions::model_dir() const {
  if (model.empty()) return default_model_dir();
  if (!DiskStorage().exists(model + "/config.json"))
    throw InputError("--model", "folder", "a snapshot with a config.json", model);
  return model;
}

EngineOptions RunOptions::engine(int64_t prompt, int64_t context, int64_t batch,
                                 bool all_logits) const {
  EngineOptions o;
  o.model_dir = model_dir();
  if (!ram.empty()) {
    o.ram = parse_size(ram, "--ram");
    if (o.ram == 0) throw InputError("--ram", "size", "more than 0", ram);
  }
  o.threads = threads;
  o.int8_trunk = choice<bool>("--trunk", trunk, {{"bf16", false}, {"int8", true}});
  o.activations = choice<Activations>("--activations", activations,
                                      {{"16", Activations::k16},
                                       {"int8", Activations::kInt8},
                                       {"mxfp8", Activations::kMxfp8},
                                       {"fp32", Activations::kFp32}});
  o.exact = exact;
  if (!kernels.empty())
    o.isa = choice<Isa>("--kernels", kernels,
                        {{"scalar", Isa::kScalar}, {"avx2", Isa::kAvx2}, {"avx512", Isa::kAvx512}});
  if (chunk < 0) throw InputError("--chunk", "tokens", "at least 1", fmt::format("{}", chunk));
  o.chunk = chunk;
  o.prompt = prompt;
  o.context = context;
  o.batch = batch;
  o.all_logits = all_logits;
  return o;
}

Run::Run(const RunOptions& options, const EngineOptions& engine)
    : options_(options), progress_(options.quiet), start_(std::chrono::steady_clock::now()) {
  if (!options.report.empty()) {
    check_output("--report", options.report, options);
    report_ = disk_.create(options.report);
  }
  EngineOptions o = engine;
  o.progress = [this](const char* what, uint64_t done, uint64_t total) {
    progress_.show(what, done, total, "bytes");
  };
  engine_.emplace(disk_, o);
  progress_.clear();
  if (engine_->config().untrained && !options.quiet)
    std::fputs("note: this model is untrained (random weights): its output means nothing\n",
               stderr);
  if (!options.verbose) return;
  const Plan& plan = engine_->plan();
  std::string line = fmt::format(
      "model {}; {} threads; kernels {}; trunk {}; activations {}; chunk {}\n", o.model_dir,
      engine_->options().threads, name(engine_->kernels().isa),
      engine_->options().int8_trunk ? "int8" : "bf16",
      engine_->options().exact ? "exact" : name(engine_->options().activations), plan.chunk);
  for (const auto& [tag, bytes] : plan.parts)
    line += fmt::format("  {:14} {:>12}\n", tag, format_size(bytes));
  line += fmt::format("  {:14} {:>12} of {}\n", "total", format_size(plan.total_bytes),
                      format_size(plan.ram));
  std::fputs(line.c_str(), stderr);
}

void Run::feed(std::span<const Engine::Feed> feeds, const Engine::Sink& sink, Observer* observer) {
  engine_->run(feeds, sink, observer, [&](int64_t done, int64_t total) {
    progress_.show("prefill", static_cast<uint64_t>(done), static_cast<uint64_t>(total), "tokens");
  });
  progress_.clear();
}

void Run::finish() {
  progress_.clear();
  if (options_.report.empty()) return;
  const Engine::Statistics s = engine_->statistics();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
  const EngineOptions& o = engine_->options();
  const nlohmann::ordered_json report = {
      {"kernels", name(engine_->kernels().isa)},
      {"threads", o.threads},
      {"trunk", o.int8_trunk ? "int8" : "bf16"},
      {"activations", o.exact ? "exact" : name(o.activations)},
      {"forward_calls", s.forward_calls},
      {"chunks", s.chunks},
      {"experts_read", s.experts_read},
      {"expert_hits", s.expert_hits},
      {"bytes_read", s.bytes_read},
      {"read_retries", s.retries},
      {"io_mode", s.io_mode},
      {"peak_account_bytes", engine_->account().peak() + engine_->plan().program_bytes},
      {"peak_rss_bytes", peak_resident_bytes()},
      {"seconds", seconds.count()},
  };
  const std::string text = report.dump(2) + "\n";
  report_->write(std::as_bytes(std::span(text)));
  report_->commit();
}

void check_vocabulary(const Tokenizer& tokenizer, const std::string& folder,
                      const ModelConfig& config) {
  if (tokenizer.size() > config.vocab_size)
    throw InputError(folder + "/tiktoken.model", "vocabulary",
                     fmt::format("at most the model's {} ids", config.vocab_size),
                     fmt::format("{}", tokenizer.size()));
}

void copy_tokenizer(Storage& storage, const std::string& from, const std::string& to) {
  for (const char* name : {"tiktoken.model", "tokenizer_config.json", "generation_config.json"})
    if (storage.exists(from + "/" + name))
      write_text(storage, to + "/" + name, read_text(storage, from + "/" + name));
}

void check_output(const std::string& option, const std::string& path, const RunOptions& options) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path out = fs::weakly_canonical(path, ignored);
  if (fs::is_regular_file(out, ignored) &&
      fs::equivalent(out.parent_path(), options.model_dir(), ignored))
    throw InputError(option, "output file", "a place outside the model's folder", path);
  if (option != "--report" && !options.report.empty() &&
      out == fs::weakly_canonical(options.report, ignored))
    throw InputError(option, "output file", "another file than --report", path);
}

CLI::Validator whole(int64_t least, int64_t most) {
  return CLI::Validator(
      [=](std::string& text) {
        int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size() && value >= least &&
            value <= most)
          return std::string();
        return fmt::format("expected a whole number from {} to {}, found '{}'", least, most, text);
      },
      fmt::format("{}..{}", least, most), "whole");
}

CLI::Validator positive() {
  return CLI::Validator(
      [](std::string& text) {
        double value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size() && value >= 1e-9 &&
            value <= 1e9)
          return std::string();
        return fmt::format("expected a number from 1e-9 to 1e9, found '{}'", text);
      },
      "above 0", "positive");
}

CLI::Validator seed() {
  return CLI::Validator(
      [](std::string& text) {
        uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size()) return std::string();
        return fmt::format("expected a whole number from 0 to 2^64 - 1, found '{}'", text);
      },
      "", "seed");
}

std::vector<int32_t> parse_ids(const std::string& text, const std::string& option) {
  std::vector<int32_t> ids;
  std::string number;
  bool comma = false;  // a comma stands before the next number
  const auto flush = [&] {
    if (number.empty()) return;
    comma = false;
    if (number.size() > 9)
      throw InputError(option, "token id", "a number below 2^31", "'" + number + "'");
    ids.push_back(static_cast<int32_t>(std::stol(number)));
    number.clear();
  };
  for (const char ch : text) {
    if (ch >= '0' && ch <= '9') {
      number += ch;
    } else if (ch == ',') {
      flush();
      if (comma || ids.empty())
        throw InputError(option, "token ids", "a number between commas", "none");
      comma = true;
    } else if (ch == ' ' || ch == '\n' || ch == '\r' || ch == '\t') {
      flush();
    } else {
      throw InputError(option, "token ids", "numbers separated by commas or spaces",
                       "'" + std::string(1, ch) + "'");
    }
  }
  flush();
  if (comma) throw InputError(option, "token ids", "a number after the last comma", "none");
  return ids;
}

std::string read_file_or_stdin(const std::string& path, uint64_t limit) {
  if (path != "-") return read_text(DiskStorage(), path, limit);
  std::string all;
  char part[65536];
  while (std::cin.read(part, sizeof part), std::cin.gcount() > 0) {
    all.append(part, static_cast<size_t>(std::cin.gcount()));
    if (all.size() > limit)
      throw InputError("standard input", "size", fmt::format("at most {} bytes", limit), "more");
  }
  return all;
}

}  // namespace k3::cli
