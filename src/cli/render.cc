// k3 render: a chat request on stdin to the prompt of the model.
#include <memory>

#include "cli/commands.h"
#include "cli/text_commands.h"
#include "text/chat.h"

namespace k3::cli {
namespace {

struct RenderOptions {
  TokenizerFolder folder;
  bool ids = false;
  bool expand = false;
};

}  // namespace

void add_render(CLI::App& app) {
  auto options = std::make_shared<RenderOptions>();
  CLI::App* command =
      app.add_subcommand("render", "Turn a chat request (JSON on stdin) into a prompt");
  options->folder.add_options(command);
  command->add_flag("--ids", options->ids, "print token ids instead of text");
  command->add_flag("--expand", options->expand,
                    "repeat the placeholder of an image for each of its tokens");
  command->callback([options] {
    const DiskStorage storage;
    const std::string folder = options->folder.path();
    ChatOptions chat;
    chat.image_plan = load_image_plan_settings(storage, folder);
    const ChatPrompt prompt = render_chat(parse_json(read_file_or_stdin("-"), "request"), chat);
    const PadMode pads = options->expand ? PadMode::kExpanded : PadMode::kOne;
    if (options->ids)
      write_output(join_ids(prompt_ids(Tokenizer::load(storage, folder), prompt, pads)));
    else
      write_output(prompt_text(prompt, pads));
  });
}

}  // namespace k3::cli
