// k3 inspect: what is in a snapshot, and whether all of it is as the config says.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/storage.h"
#include "base/threads.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "text/tokenizer.h"
#include "weights/snapshot.h"

namespace k3::cli {
namespace {

struct Options {
  std::string model;
  bool json = false, verify = false, data = false, quiet = false;
};

using Json = nlohmann::ordered_json;

Json to_json(const Snapshot& snapshot, const SnapshotSummary& sum) {
  const ModelConfig& c = snapshot.config();
  Json out;
  out["model_type"] = c.model_type;
  out["untrained"] = c.untrained;
  out["parameters"] = sum.parameters;
  out["active_parameters"] = sum.active_parameters;
  out["layers"] = {{"total", c.num_hidden_layers},
                   {"kda", sum.kda_layers},
                   {"mla", sum.mla_layers},
                   {"moe", sum.moe_layers},
                   {"dense", sum.dense_layers}};
  out["experts"] = {{"per_layer", c.num_experts},
                    {"per_token", c.num_experts_per_token},
                    {"format", snapshot.mxfp4_experts() ? "mxfp4" : "plain"}};
  out["vision"] = snapshot.has_vision();
  out["tensors"] = sum.tensors;
  out["shards"] = snapshot.shards();
  Json& bytes = out["bytes"] = Json::object();
  for (int part = 0; part < kParts; ++part)
    bytes[name(static_cast<Part>(part))] = sum.bytes[static_cast<size_t>(part)];
  out["total_bytes"] = sum.total_bytes;
  out["io_mode"] = sum.io_mode;
  return out;
}

// 2779931834976 as "2.78 T"; counts have billions where bytes have giga.
std::string scaled(double value, const char* unit) {
  const char* prefix[] = {"", "k", "M", *unit ? "G" : "B", "T"};
  int power = 0;
  while (value >= 1000 && power < 4) {
    value /= 1000;
    ++power;
  }
  return fmt::format("{:.{}f} {}{}", value, power ? 2 : 0, prefix[power], unit);
}

void print_table(const Snapshot& snapshot, const SnapshotSummary& sum) {
  const ModelConfig& c = snapshot.config();
  const auto line = [](const char* what, const std::string& text) {
    fmt::print("{:<12}{}\n", what, text);
  };
  line("model", fmt::format("{} ({}{})", printable(snapshot.dir(), 1000), c.model_type,
                            c.untrained ? ", untrained" : ""));
  line("parameters", fmt::format("{}, {} of them active for a token",
                                 scaled(static_cast<double>(sum.parameters), ""),
                                 scaled(static_cast<double>(sum.active_parameters), "")));
  line("layers", fmt::format("{}: {} KDA and {} MLA; {} MoE and {} dense", c.num_hidden_layers,
                             sum.kda_layers, sum.mla_layers, sum.moe_layers, sum.dense_layers));
  line("experts", fmt::format("{} a MoE layer, {} chosen, {} shared, {}", c.num_experts,
                              c.num_experts_per_token, c.num_shared_experts,
                              snapshot.mxfp4_experts() ? "MXFP4" : "not packed"));
  line("vision", snapshot.has_vision() ? fmt::format("{} layers", c.vision->vt_num_hidden_layers)
                                       : std::string("none"));
  line("tensors",
       fmt::format("{} in {} files, {} reads", sum.tensors, snapshot.shards(), sum.io_mode));
  line("bytes", scaled(static_cast<double>(sum.total_bytes), "B"));
  for (int part = 0; part < kParts; ++part)
    if (const uint64_t bytes = sum.bytes[static_cast<size_t>(part)])
      fmt::print("  {:<16}{:>12}{:>8.2f} %\n", name(static_cast<Part>(part)),
                 scaled(static_cast<double>(bytes), "B"),
                 100.0 * static_cast<double>(bytes) / static_cast<double>(sum.total_bytes));
}

// The tokenizer's files may be absent, both of them; what is there must be right and fit the model.
void check_tokenizer(const Storage& storage, const std::string& folder, const ModelConfig& config,
                     std::vector<std::string>& problems) {
  if (!storage.exists(folder + "/tiktoken.model") &&
      !storage.exists(folder + "/tokenizer_config.json"))
    return;
  try {
    check_vocabulary(Tokenizer::load(storage, folder), folder, config);
  } catch (const InputError& error) {
    problems.push_back(error.what());
  }
}

void inspect(const Options& options) {
  const DiskStorage storage;
  std::vector<std::string> problems;
  Json report;
  try {
    const Snapshot snapshot =
        Snapshot::open(storage, options.model, options.verify ? &problems : nullptr);
    if (options.data) {
      Progress progress(options.quiet);
      const std::vector<std::string> found = snapshot.verify_data(
          [&](uint64_t done, uint64_t total) { progress.show("verify", done, total, "bytes"); },
          std::max(2, hardware_threads()));
      problems.insert(problems.end(), found.begin(), found.end());
    }
    if (options.verify) check_tokenizer(storage, options.model, snapshot.config(), problems);
    const SnapshotSummary sum = summarize(snapshot);
    if (options.json) report = to_json(snapshot, sum);
    if (!options.json) print_table(snapshot, sum);
  } catch (const InputError& error) {
    // No config or no index: nothing to sum up, but a report that was asked for still comes.
    if (!options.verify && !options.json) throw;
    problems = {error.what()};
  }
  if (options.json) {
    report["problems"] = problems;
    fmt::print("{}\n", report.dump(2, ' ', false, Json::error_handler_t::replace));
  } else if (options.verify) {
    fmt::print("{:<12}{}\n", "problems", problems.empty() ? "none" : "");
    for (const std::string& problem : problems) fmt::print("  {}\n", problem);
  }
  if (!problems.empty()) throw InputError(problems.front());
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("inspect", "what is in a snapshot, and whether it is whole");
  options->model = default_model_dir();
  command->add_option("--model", options->model, "a snapshot in the released layout")
      ->type_name("DIR")
      ->capture_default_str();
  command->add_flag("--json", options->json, "one JSON object on stdout");
  CLI::Option* verify = command->add_flag("--verify", options->verify,
                                          "list every problem of the headers, not only the first");
  command
      ->add_flag("--data", options->data,
                 "also read every byte and look for NaN, infinity and scale bytes of 255")
      ->needs(verify);
  command->add_flag("--quiet", options->quiet, "no progress on stderr");
  command->callback([options] { inspect(*options); });
}

}  // namespace k3::cli
