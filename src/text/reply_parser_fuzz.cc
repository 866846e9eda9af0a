// Any bytes as a reply, two forms at once: each byte is a token, the first few of them markers and
// the words of the format. One token at a time and all at once must give the same message. The
// bytes are also read as a chat request, an image header and call arguments.
#include <cstdlib>
#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "base/storage.h"
#include "text/base64.h"
#include "text/chat.h"
#include "text/image_size.h"
#include "text/reply_parser.h"

namespace {

// Tokens 256 on: words of the format, then the markers.
k3::Tokenizer fixed_tokenizer() {
  std::string vocabulary;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte)
    vocabulary +=
        fmt::format("{} {}\n", k3::base64_encode(std::string(1, static_cast<char>(byte))), rank++);
  for (const char* word :
       {"think", "response", "tools", "call tool=\"f\"", "argument key=\"k\" type=\"number\"",
        "argument key=\"s\"", "json", "message", "&quot;", "\xe4\xb8", "\xed\xa0"})
    vocabulary += fmt::format("{} {}\n", k3::base64_encode(word), rank++);
  std::string names;
  for (const char* name : {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"})
    names += fmt::format("{}\"{}\":{{\"content\":\"{}\"}}", names.empty() ? "" : ",", rank++, name);
  k3::MemoryStorage storage;
  storage.put("m/tiktoken.model", vocabulary);
  storage.put("m/tokenizer_config.json", "{\"added_tokens_decoder\":{" + names + "}}");
  return k3::Tokenizer::load(storage, "m");
}

k3::Reply parse(const k3::Tokenizer& tokenizer, const std::vector<int32_t>& ids, size_t step,
                bool callable) {
  k3::ReplyOptions options;
  options.tools_callable = callable;
  options.make_call_id = [] { return std::string("id"); };
  k3::ReplyParser parser(tokenizer, options);
  std::string content;
  const auto collect = [&](const std::vector<k3::ReplyDelta>& deltas) {
    for (const k3::ReplyDelta& delta : deltas)
      if (delta.kind == k3::ReplyDelta::Kind::kContent) content += delta.text;
  };
  for (size_t at = 0; at < ids.size(); at += step) {
    std::vector<k3::ReplyDelta> deltas;
    parser.feed(std::span(ids).subspan(at, std::min(step, ids.size() - at)), &deltas);
    collect(deltas);
  }
  std::vector<k3::ReplyDelta> deltas;
  k3::Reply reply = parser.finish(k3::ReplyEnd::kStop, &deltas);
  collect(deltas);
  if (content != reply.content) std::abort();
  return reply;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const k3::Tokenizer tokenizer = fixed_tokenizer();
  std::vector<int32_t> ids;
  for (size_t i = 0; i < size; ++i) ids.push_back(data[i] < 15 ? 256 + data[i] : data[i]);
  for (const bool callable : {true, false}) {
    const k3::Reply whole = parse(tokenizer, ids, size + 1, callable);
    const k3::Reply single = parse(tokenizer, ids, 1, callable);
    if (k3::write_json(k3::reply_message(whole), k3::JsonStyle::kCompact) !=
        k3::write_json(k3::reply_message(single), k3::JsonStyle::kCompact))
      std::abort();
    for (const k3::ReplyCall& call : whole.calls)
      if (call.arguments.empty()) std::abort();
  }
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    k3::prompt_ids(tokenizer, k3::render_chat(k3::parse_json(text, "fuzz")), k3::PadMode::kOne);
  } catch (const k3::InputError&) {
  }
  try {
    k3::read_image_size(text, "fuzz");
  } catch (const k3::InputError&) {
  }
  k3::split_json_arguments(text);
  return 0;
}
