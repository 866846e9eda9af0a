#include "text/chat.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "text/base64.h"
#include "text/chat_request.h"
#include "text/image_size.h"

namespace k3 {
namespace {

using Kind = Json::Kind;

constexpr const char* kToolsNote =
    "# Tools\n"
    "Here are the available tools, described in JSONSchema.\n\n";
constexpr const char* kLaterToolsNote =
    "## New Tools Available\n"
    "The system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n";
constexpr const char* kEffortNote =
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "
    "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`.";
constexpr const char* kRequiredNote =
    "The system is invoked with `tool_choice=required`.\n"
    "You MUST call tools in the next message.";
constexpr const char* kNoToolsNote =
    "The system is invoked with `tool_choice=none`.\n"
    "You MUST NOT call any tools in the next message.";
constexpr const char* kFormatNote =
    "The system is invoked with `response_format={}`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional "
    "formatting.";
constexpr const char* kSchemaNote = "\nThe JSON data must match the following schema:\n";

constexpr std::string_view kMediaBegin = "<|media_begin|>";
constexpr std::string_view kMediaContent = "<|media_content|>";
constexpr std::string_view kMediaPad = "<|media_pad|>";
constexpr std::string_view kMediaEnd = "<|media_end|>";

std::string fenced(const std::string& json) { return "```json\n" + json + "\n```"; }

std::string escape_attribute(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

using Attributes = std::vector<std::pair<const char*, std::string>>;

class Renderer {
 public:
  Renderer(const Json& request, const ChatOptions& options)
      : request_(request), options_(options) {}

  ChatPrompt render();

 private:
  // Segments.
  void text(std::string_view value);
  void control(std::string_view name) { out_.segments.push_back({std::string(name), true, -1}); }
  void open(const char* tag, const Attributes& attributes = {});
  void close(const char* tag);
  void end_message();
  void note(const char* type, const std::string& body);

  // Messages.
  void message(const PlacedMessage& placed);
  void plain_message(const Json& message, const char* role, const std::string& path);
  void assistant_message(const Json& message, const std::string& path);
  void tool_message(const PlacedMessage& placed, const std::string& path);
  void call(const Json& call, size_t number, const std::string& path);
  void argument(const std::string& key, const char* type, const std::string& value);

  // Content.
  enum class Pictures { kAllowed, kRefused };
  void content(const Json& message, const std::string& path, Pictures pictures);
  void part(const Json& part, const std::string& path, Pictures pictures);
  void image(const Json& part, const std::string& path);
  std::string image_bytes(const std::string& url, const std::string& path);

  // The beginning and the end of the prompt.
  void opening_notes();
  void closing_notes();
  void generation_prompt();
  void continued_message(const Json& message, const std::string& path);
  const Json* message_to_continue(const std::vector<Json>& messages) const;

  const Json& request_;
  const ChatOptions& options_;
  ChatPrompt out_;
  const Json* last_assistant_ = nullptr;
  std::string last_assistant_path_;
  size_t results_ = 0;  // tool messages since then
};

std::string reasoning_of(const Json& message, const std::string& path) {
  const std::string reasoning = optional_string(message, "reasoning_content", path);
  return reasoning.empty() ? optional_string(message, "reasoning", path) : reasoning;
}

void Renderer::text(std::string_view value) {
  if (!value.empty()) out_.segments.push_back({std::string(value), false, -1});
}

void Renderer::open(const char* tag, const Attributes& attributes) {
  control(kOpenTag);
  text(tag);
  for (const auto& [key, value] : attributes) {
    text(fmt::format(" {}", key));
    text("=\"");
    text(escape_attribute(value));
    text("\"");
  }
  control(kEndTag);
}

void Renderer::close(const char* tag) {
  control(kCloseTag);
  text(tag);
  control(kEndTag);
}

void Renderer::end_message() {
  close("message");
  control(kEndOfMessage);
}

void Renderer::note(const char* type, const std::string& body) {
  open("message", {{"role", "system"}, {"type", type}});
  text(body);
  end_message();
}

ChatPrompt Renderer::render() {
  read_request(request_, &out_);
  const std::vector<Json>& messages = request_.get("messages")->items;
  const Json* continued = message_to_continue(messages);
  opening_notes();
  for (const PlacedMessage& placed : place_messages(messages))
    if (placed.message != continued) message(placed);
  closing_notes();
  if (continued)
    continued_message(*continued, fmt::format("messages[{}]", messages.size() - 1));
  else
    generation_prompt();
  return std::move(out_);
}

void Renderer::opening_notes() {
  // Tools of the request itself; those of later system messages stand at their places.
  if (optional_list(request_, "tools", ""))
    note("tool-declare",
         kToolsNote + fenced(write_json(*request_.get("tools"), JsonStyle::kSorted)));
  if (out_.thinking) note("thinking-effort", fmt::format(fmt::runtime(kEffortNote), out_.effort));
}

void Renderer::closing_notes() {
  if (out_.tool_choice == ToolChoice::kRequired) note("tool-choice", kRequiredNote);
  if (out_.tool_choice == ToolChoice::kNone) note("tool-choice", kNoToolsNote);
  if (out_.response_format == ResponseFormat::kJsonObject)
    note("response-format", fmt::format(fmt::runtime(kFormatNote), "json_object"));
  if (out_.response_format == ResponseFormat::kJsonSchema)
    note("response-format", fmt::format(fmt::runtime(kFormatNote), "json_schema") + kSchemaNote +
                                fenced(write_json(out_.schema, JsonStyle::kSorted)));
}

void Renderer::generation_prompt() {
  open("message", {{"role", "assistant"}});
  open(out_.thinking ? "think" : "response");
  out_.open_channel = out_.thinking ? OpenChannel::kThink : OpenChannel::kResponse;
}

const Json* Renderer::message_to_continue(const std::vector<Json>& messages) const {
  bool wanted = optional_flag(request_, "continue_final_message", "");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    if (!optional_flag(messages[i], "partial", path)) continue;
    if (i + 1 < messages.size()) refuse(path + ".partial", "true on the last message only", "true");
    wanted = true;
  }
  if (!wanted) return nullptr;
  const std::string path = fmt::format("messages[{}]", messages.size() - 1);
  const std::string role = message_role(messages.back(), path);
  if (role != "assistant") refuse(path + ".role", "assistant, to be continued", role);
  if (calls_of(messages.back(), path))
    refuse(path + ".tool_calls", "none in a message to be continued", "some");
  return &messages.back();
}

// The message goes on where it stops: in its content, or in its reasoning if it has only that.
void Renderer::continued_message(const Json& message, const std::string& path) {
  out_.continued = true;
  const std::string reasoning = reasoning_of(message, path);
  open("message", {{"role", "assistant"}});
  if (out_.thinking) {
    open("think");
    text(reasoning);
    const size_t before = out_.segments.size();
    content(message, path + ".content", Pictures::kRefused);
    if (out_.segments.size() == before && !reasoning.empty()) {
      out_.open_channel = OpenChannel::kThink;
      return;
    }
    out_.segments.resize(before);
    close("think");
  }
  open("response");
  content(message, path + ".content", Pictures::kRefused);
  out_.open_channel = OpenChannel::kResponse;
}

void Renderer::message(const PlacedMessage& placed) {
  const Json& message = *placed.message;
  const std::string path = fmt::format("messages[{}]", placed.index);
  const std::string role = message_role(message, path);
  if (role == "assistant") {
    assistant_message(message, path);
  } else if (role == "tool") {
    tool_message(placed, path);
  } else if (role == "system" && optional_list(message, "tools", path)) {
    note("tool-declare",
         kLaterToolsNote + fenced(write_json(*message.get("tools"), JsonStyle::kSorted)));
  } else {
    plain_message(message, role.c_str(), path);
  }
}

void Renderer::plain_message(const Json& message, const char* role, const std::string& path) {
  Attributes attributes = {{"role", role}};
  const std::string name = optional_string(message, "name", path);
  if (!name.empty()) attributes.emplace_back("name", name);
  open("message", attributes);
  content(message, path + ".content", Pictures::kAllowed);
  end_message();
}

void Renderer::assistant_message(const Json& message, const std::string& path) {
  last_assistant_ = &message;
  last_assistant_path_ = path;
  results_ = 0;
  Attributes attributes = {{"role", "assistant"}};
  const std::string name = optional_string(message, "name", path);
  if (!name.empty()) attributes.emplace_back("name", name);
  open("message", attributes);
  const std::string reasoning = reasoning_of(message, path);
  if (out_.thinking) {
    open("think");
    text(reasoning);
    close("think");
  }
  open("response");
  content(message, path + ".content", Pictures::kRefused);
  close("response");
  if (const std::vector<Json>* calls = calls_of(message, path)) {
    open("tools");
    for (size_t i = 0; i < calls->size(); ++i)
      call((*calls)[i], i + 1, fmt::format("{}.tool_calls[{}]", path, i));
    close("tools");
  }
  end_message();
}

void Renderer::call(const Json& call, size_t number, const std::string& path) {
  const Json& function = call_function(call, path);
  open("call", {{"tool", call_name(call, path)}, {"index", std::to_string(number)}});
  const Json* arguments = function.get("arguments");
  if (!arguments || (arguments->is(Kind::kString) && arguments->text.empty())) {
    // No arguments.
  } else if (arguments->is(Kind::kObject)) {
    for (const auto& [key, value] : arguments->members)
      argument(key, json_argument_type(value),
               value.is(Kind::kString) ? value.text : write_json(value, JsonStyle::kPython));
  } else if (arguments->is(Kind::kString)) {
    if (const auto split = split_json_arguments(arguments->text)) {
      for (const JsonArgument& a : *split) argument(a.key, a.type, a.value);
    } else {
      open("json", {{"type", "object"}});
      text(arguments->text);
      close("json");
    }
  } else {
    refuse(path + ".function.arguments", "an object or a string", arguments);
  }
  close("call");
}

void Renderer::argument(const std::string& key, const char* type, const std::string& value) {
  open("argument", {{"key", key}, {"type", type}});
  text(value);
  close("argument");
}

void Renderer::tool_message(const PlacedMessage& placed, const std::string& path) {
  const Json& message = *placed.message;
  const size_t number = ++results_;
  std::string name = placed.name;
  if (name.empty()) name = optional_string(message, "tool", path);
  if (name.empty()) name = optional_string(message, "name", path);
  if (name.empty() && last_assistant_) {
    const std::vector<Json>* calls = calls_of(*last_assistant_, last_assistant_path_);
    if (calls && number <= calls->size())
      name = call_name((*calls)[number - 1],
                       fmt::format("{}.tool_calls[{}]", last_assistant_path_, number - 1));
  }
  if (name.empty())
    refuse(path + ".name", "the name of the tool, or the id of an earlier call", "neither");
  open("message", {{"role", "tool"}, {"tool", name}, {"index", std::to_string(number)}});
  content(message, path + ".content", Pictures::kAllowed);
  end_message();
}

void Renderer::content(const Json& message, const std::string& path, Pictures pictures) {
  const Json* value = message.get("content");
  if (!value) return;
  if (value->is(Kind::kString)) {
    text(value->text);
    return;
  }
  if (!value->is(Kind::kArray)) refuse(path, "a string or a list of parts", value);
  for (size_t i = 0; i < value->items.size(); ++i)
    part(value->items[i], fmt::format("{}[{}]", path, i), pictures);
}

void Renderer::part(const Json& part, const std::string& path, Pictures pictures) {
  if (!part.is(Kind::kObject)) refuse(path, "an object", &part);
  const std::string type = optional_string(part, "type", path);
  if (type == "text") {
    const Json* value = part.get("text");
    if (!value || !value->is(Kind::kString)) refuse(path + ".text", "a string", value);
    text(value->text);
  } else if (type == "image_url" || type == "image") {
    if (pictures == Pictures::kRefused)
      refuse(path + ".type", "text in an assistant message", "'" + type + "'");
    image(part, path);
  } else {
    refuse(path + ".type", "text, image_url or image", part.get("type"));
  }
}

void Renderer::image(const Json& part, const std::string& path) {
  const std::string type = part.get("type")->text;
  const std::string url_path = path + "." + type;
  const Json* value = part.get(type);
  if (!value) value = part.get("image_url");
  if (value && value->is(Kind::kObject)) value = value->get("url");
  if (!value || !value->is(Kind::kString)) refuse(url_path, "{\"url\": …} or a string", value);
  ChatMedia media;
  media.bytes = image_bytes(value->text, url_path);
  const ImageSize size = read_image_size(media.bytes, "request: " + url_path);
  media.width = size.width;
  media.height = size.height;
  media.plan = plan_image(size.width, size.height, options_.image_plan);
  out_.segments.push_back({fmt::format("{}image {}x{}{}{}{}", kMediaBegin, size.width, size.height,
                                       kMediaContent, kMediaPad, kMediaEnd),
                           true, static_cast<int>(out_.media.size())});
  out_.media.push_back(std::move(media));
}

std::string Renderer::image_bytes(const std::string& url, const std::string& path) {
  constexpr std::string_view kScheme = "data:", kEncoding = ";base64";
  const std::string_view view = url;
  if (view.substr(0, kScheme.size()) != kScheme) {
    if (options_.fetch) return options_.fetch(url);
    refuse(path, "a data: URL with base64", "'" + printable(view, 60) + "'");
  }
  const size_t comma = view.find(',');
  const std::string_view head = view.substr(0, comma);
  std::string bytes;
  const bool encoded =
      head.size() >= kEncoding.size() && head.substr(head.size() - kEncoding.size()) == kEncoding;
  if (comma == std::string_view::npos || !encoded)
    refuse(path, "data:TYPE;base64,DATA", "'" + printable(view, 60) + "'");
  if (!base64_decode(view.substr(comma + 1), Base64::kLenient, &bytes))
    refuse(path, "base64 after the comma", "other characters");
  return bytes;
}

int32_t required_special(const Tokenizer& tokenizer, std::string_view name) {
  if (const std::optional<int> id = tokenizer.special(name)) return *id;
  throw InputError("tokenizer", "special tokens", fmt::format("'{}', which chat needs", name),
                   "none of this name in tokenizer_config.json");
}

int64_t pad_count(const ChatPrompt& prompt, const ChatSegment& segment, PadMode pads) {
  if (pads == PadMode::kOne) return 1;
  return prompt.media[static_cast<size_t>(segment.media)].plan.num_tokens;
}

}  // namespace

ChatPrompt render_chat(const Json& request, const ChatOptions& options) {
  return Renderer(request, options).render();
}

std::string prompt_text(const ChatPrompt& prompt, PadMode pads) {
  std::string out;
  for (const ChatSegment& segment : prompt.segments) {
    if (segment.media < 0) {
      out += segment.text;
      continue;
    }
    const size_t pad = segment.text.size() - kMediaEnd.size();
    out.append(segment.text, 0, pad);
    for (int64_t i = pad_count(prompt, segment, pads); i > 1; --i) out += kMediaPad;
    out += kMediaEnd;
  }
  return out;
}

std::vector<int32_t> prompt_ids(const Tokenizer& tokenizer, const ChatPrompt& prompt,
                                PadMode pads) {
  std::vector<int32_t> ids;
  for (const ChatSegment& segment : prompt.segments) {
    if (!segment.control) {
      tokenizer.append_encoded(segment.text, SpecialText::kPlain, &ids);
    } else if (segment.media < 0) {
      ids.push_back(required_special(tokenizer, segment.text));
    } else {
      const ChatMedia& media = prompt.media[static_cast<size_t>(segment.media)];
      ids.push_back(required_special(tokenizer, kMediaBegin));
      tokenizer.append_encoded(fmt::format("image {}x{}", media.width, media.height),
                               SpecialText::kPlain, &ids);
      ids.push_back(required_special(tokenizer, kMediaContent));
      ids.insert(ids.end(), static_cast<size_t>(pad_count(prompt, segment, pads)),
                 required_special(tokenizer, kMediaPad));
      ids.push_back(required_special(tokenizer, kMediaEnd));
    }
  }
  return ids;
}

}  // namespace k3
