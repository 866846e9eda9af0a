// k3 detokenize IDS: token ids to bytes.
#include <memory>

#include "cli/commands.h"
#include "cli/text_commands.h"
#include "text/tokenizer.h"

namespace k3::cli {
namespace {

struct DetokenizeOptions {
  TokenizerFolder folder;
  std::string ids;
};

}  // namespace

void add_detokenize(CLI::App& app) {
  auto options = std::make_shared<DetokenizeOptions>();
  CLI::App* command =
      app.add_subcommand("detokenize", "Turn token ids into the bytes they stand for");
  options->folder.add_options(command);
  CLI::Option* ids =
      command->add_option("ids", options->ids, "ids separated by commas (default: stdin)");
  command->callback([options, ids] {
    const Tokenizer tokenizer = Tokenizer::load(DiskStorage(), options->folder.path());
    const std::string list = ids->count() > 0 ? options->ids : read_file_or_stdin("-");
    write_output(tokenizer.decode_bytes(parse_ids(list, "IDS")));
  });
}

}  // namespace k3::cli
