// k3 parse: generated token ids to an assistant message.
#include <algorithm>
#include <memory>
#include <span>

#include "cli/commands.h"
#include "cli/text_commands.h"
#include "text/reply_parser.h"

namespace k3::cli {
namespace {

struct ParseOptions {
  TokenizerFolder folder;
  std::string ids;
  std::string open_channel = "think", tools_declared = "yes", end = "stop";
  size_t split = 0;  // 0: all at once
};

void parse_reply(const ParseOptions& options) {
  const Tokenizer tokenizer = Tokenizer::load(DiskStorage(), options.folder.path());
  const std::vector<int32_t> ids = parse_ids(options.ids, "--ids");
  ReplyParser parser(tokenizer,
                     {.open_channel = options.open_channel == "think" ? OpenChannel::kThink
                                                                      : OpenChannel::kResponse,
                      .tools_callable = options.tools_declared == "yes",
                      .make_call_id = {}});
  const size_t step = options.split > 0 ? options.split : std::max<size_t>(1, ids.size());
  for (size_t at = 0; at < ids.size(); at += std::min(step, ids.size() - at)) {
    std::vector<ReplyDelta> deltas;
    parser.feed(std::span(ids).subspan(at, std::min(step, ids.size() - at)), &deltas);
  }
  std::vector<ReplyDelta> deltas;
  const Reply reply =
      parser.finish(options.end == "stop" ? ReplyEnd::kStop : ReplyEnd::kLength, &deltas);
  Json result = Json::object();
  // Ids of calls are made up by whoever answers a client; here they would only be noise.
  result.add("message", reply_message(reply, false));
  result.add("finish_reason", Json::string(reply.finish_reason));
  write_output(write_json(result, JsonStyle::kCompact) + "\n");
}

}  // namespace

void add_parse(CLI::App& app) {
  auto options = std::make_shared<ParseOptions>();
  CLI::App* command = app.add_subcommand("parse", "Turn generated token ids into a message");
  options->folder.add_options(command);
  command->add_option("--ids", options->ids, "the generated ids, separated by commas")->required();
  command->add_option("--open-channel", options->open_channel, "what the prompt left open")
      ->check(CLI::IsMember({"think", "response"}));
  command->add_option("--tools-declared", options->tools_declared, "whether calls are returned")
      ->check(CLI::IsMember({"yes", "no"}));
  command->add_option("--end", options->end, "why generation ended")
      ->check(CLI::IsMember({"stop", "length"}));
  command->add_option("--split", options->split, "feed so many ids at a time (default: all)")
      ->check(whole(1));
  command->callback([options] { parse_reply(*options); });
}

}  // namespace k3::cli
