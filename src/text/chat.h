// A chat request as the prompt of the model: the tags, notes and media blocks of the K3 format.
//
//   const Json request = parse_json(body, "request");          // an OpenAI chat completions body
//   const ChatPrompt prompt = render_chat(request);
//   const std::vector<int32_t> ids = prompt_ids(tokenizer, prompt, PadMode::kExpanded);
//
// A prompt is a list of segments; each is tokenized alone, since joining neighbours would let
// merges cross them. Only the four control tokens and media blocks become special ids, found by
// name in the model's tokenizer; whatever a user, tool or model wrote is plain text and can never
// become one.
//
// What of the request counts: messages, tools, tool_choice, response_format, reasoning_effort,
// chat_template_kwargs (thinking, enable_thinking, thinking_effort), continue_final_message.
// Everything else is left to the caller.
//
// Units: picture sizes in pixels of the source.
// Thread rule: pure functions; a ChatPrompt is a value.
// Errors: InputError "request: FIELD: expected …, found …" for a request that must be refused.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/image_plan.h"
#include "text/json.h"
#include "text/tokenizer.h"

namespace k3 {

// The channel that a prompt leaves open for the model to write into.
enum class OpenChannel { kThink, kResponse };

enum class ToolChoice { kAuto, kNone, kRequired, kNamed };
enum class ResponseFormat { kText, kJsonObject, kJsonSchema };

struct ChatSegment {
  std::string text;      // of a media block: with one pad
  bool control = false;  // the name of a control token, or a media block
  int media = -1;        // index into ChatPrompt::media
};

struct ChatMedia {
  std::string bytes;  // the encoded picture
  int64_t width = 0, height = 0;
  ImagePlan plan;
};

struct ChatPrompt {
  std::vector<ChatSegment> segments;
  std::vector<ChatMedia> media;  // in the order of the rendered prompt
  OpenChannel open_channel = OpenChannel::kThink;
  bool thinking = true;
  std::string effort;      // "low", "high", "max"; empty with thinking off
  bool continued = false;  // the reply goes on with the last message of the request

  // Every tool declared anywhere in the request, as sent. A named choice is enforced while
  // decoding, not by the prompt.
  std::vector<Json> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string named_tool;

  ResponseFormat response_format = ResponseFormat::kText;
  Json schema;  // for kJsonSchema

  // Whether calls in the reply may be returned.
  bool tools_callable() const { return !tools.empty() && tool_choice != ToolChoice::kNone; }
};

struct ChatOptions {
  ImagePlanSettings image_plan;

  // Called with an image URL that is not a data: URL; returns the encoded picture or throws
  // InputError. Empty: such URLs are refused (a server must not fetch what a client names unless
  // its owner says so).
  std::function<std::string(const std::string& url)> fetch;
};

ChatPrompt render_chat(const Json& request, const ChatOptions& options = {});

// Whether a media block has the one pad that the format describes, or one for each token of the
// picture.
enum class PadMode { kOne, kExpanded };

std::string prompt_text(const ChatPrompt& prompt, PadMode pads);

// Throws InputError if the tokenizer lacks a control token that the prompt needs.
std::vector<int32_t> prompt_ids(const Tokenizer& tokenizer, const ChatPrompt& prompt, PadMode pads);

// The names of the control tokens.
inline constexpr std::string_view kOpenTag = "<|open|>";
inline constexpr std::string_view kCloseTag = "<|close|>";
inline constexpr std::string_view kEndTag = "<|sep|>";
inline constexpr std::string_view kEndOfMessage = "<|end_of_msg|>";

}  // namespace k3
