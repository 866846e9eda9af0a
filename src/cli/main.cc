// k3: the command line. Results go to stdout, progress to stderr, every error is one line.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <new>

#include "base/error.h"
#include "cli/commands.h"

namespace k3::cli {

std::string default_model_dir() {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const char* model : {"nano", "random-bytes"}) {
    for (const fs::path& root :
         {program / "models", program / ".." / "models", fs::path(K3_SOURCE_DIR) / "models"}) {
      const fs::path at = root / model;
      if (fs::exists(at / "config.json", ignored))
        return fs::weakly_canonical(at, ignored).string();
    }
  }
  return (fs::path(K3_SOURCE_DIR) / "models" / "random-bytes")
      .string();  // `make model` puts it there
}

}  // namespace k3::cli

namespace {

int fail(int code, const std::string& line) {
  std::fputs(("k3: " + line + "\n").c_str(), stderr);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Kimi K3: run, inspect and plan models in the released layout"};
  app.name("k3");
  app.require_subcommand(1);
  app.set_version_flag("--version", "k3 0.1.0");
  using namespace k3::cli;
  for (const auto add :
       {add_generate, add_logits, add_trace, add_tokenize, add_detokenize, add_render, add_parse,
        add_inspect, add_plan, add_perplexity, add_bench, add_tokenizer, add_train, add_export})
    add(app);
  try {
    app.parse(argc, argv);
    if (!std::cout.flush() || std::fflush(stdout) != 0) return fail(1, "stdout: cannot write");
    return 0;
  } catch (const CLI::Success& help) {
    app.exit(help);
    return std::cout.flush() ? 0 : fail(1, "stdout: cannot write");
  } catch (const CLI::ParseError& error) {
    std::string line = error.what();
    // CLI11 does not say which word it took for no command.
    const auto commands = app.get_subcommands([](CLI::App*) { return true; });
    const auto known = [&](const std::string& word) {
      return std::any_of(commands.begin(), commands.end(),
                         [&](CLI::App* command) { return command->get_name() == word; });
    };
    if (error.get_name() == "RequiredError" && line.find("subcommand") != std::string::npos)
      for (int i = argc; i-- > 1;)  // the first unknown word stays
        if (argv[i][0] != '-' && !known(argv[i]))
          line = fmt::format("command: expected one that k3 --help lists, found '{}'", argv[i]);
    for (char& c : line)
      if (c == '\n') c = ' ';
    return fail(2, k3::printable(line, 1000));
  } catch (const k3::InputError& error) {
    return fail(2, error.what());
  } catch (const k3::Error& error) {
    return fail(1, error.what());
  } catch (const std::bad_alloc&) {
    return fail(1, "memory: the system refused an allocation");
  } catch (const std::exception& error) {
    return fail(1, k3::printable(error.what(), 1000));
  }
}
