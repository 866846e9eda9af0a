// The subcommands of k3, one file each. add_X registers a subcommand; its callback does the work,
// writes results to stdout and progress to stderr, and throws InputError or WorkError, which main
// turns into one line and the exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace k3::cli {

// The folder of the bundled model: beside the program, or in the source tree it was built from.
std::string default_model_dir();

void add_generate(CLI::App& app);
void add_logits(CLI::App& app);
void add_trace(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_detokenize(CLI::App& app);
void add_render(CLI::App& app);
void add_parse(CLI::App& app);
void add_inspect(CLI::App& app);
void add_plan(CLI::App& app);
void add_perplexity(CLI::App& app);
void add_bench(CLI::App& app);
void add_tokenizer(CLI::App& app);
void add_train(CLI::App& app);
void add_export(CLI::App& app);

}  // namespace k3::cli
