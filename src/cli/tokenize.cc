// k3 tokenize [TEXT]: text to token ids.
#include <memory>

#include "cli/commands.h"
#include "cli/text_commands.h"
#include "text/tokenizer.h"

namespace k3::cli {
namespace {

struct TokenizeOptions {
  TokenizerFolder folder;
  std::string text, file;
  bool special = false;
};

}  // namespace

void add_tokenize(CLI::App& app) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Turn text into token ids");
  options->folder.add_options(command);
  CLI::Option* text = command->add_option("text", options->text, "the text (default: stdin)");
  command->add_option("--file", options->file, "read the text from a file; - is stdin")
      ->excludes(text);
  command->add_flag("--special", options->special, "read the names of special tokens as such");
  command->callback([options, text] {
    const Tokenizer tokenizer = Tokenizer::load(DiskStorage(), options->folder.path());
    const std::string input = text->count() > 0
                                  ? options->text
                                  : read_file_or_stdin(options->file.empty() ? "-" : options->file);
    const SpecialText mode = options->special ? SpecialText::kParse : SpecialText::kPlain;
    write_output(join_ids(tokenizer.encode(input, mode)) + "\n");
  });
}

}  // namespace k3::cli
