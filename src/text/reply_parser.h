// What the model writes, as an assistant message: reasoning, content and tool calls, told apart by
// token id, never by text.
//
//   ReplyParser parser(tokenizer, {.open_channel = prompt.open_channel,
//                                  .tools_callable = prompt.tools_callable()});
//   while (!parser.finished()) {
//     parser.feed(next_id(), &deltas);        // what can be sent now
//     send(deltas), deltas.clear();
//   }
//   const Reply reply = parser.finish(ReplyEnd::kStop, &deltas);
//
// Streamed and whole answers come from this one class; how the ids are grouped makes no difference.
// The texts of the deltas of one kind add up to the field of the reply, with two exceptions that
// streaming cannot take back: reasoning that turns out to be the answer (the model closed
// "response" without ever leaving "think") is sent once more as content, and a call that is not
// closed when generation ends has been announced but is not part of the reply.
//
// The parser never fails on what a model writes. Of text it holds back an incomplete UTF-8
// character, of arguments that are not strings everything until they are closed.
// Thread rule: one thread. The tokenizer must outlive the parser.
// Errors: InputError for an id outside the vocabulary, and at construction for a tokenizer without
// the control tokens of the format.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "text/chat.h"
#include "text/json.h"
#include "text/tokenizer.h"
#include "text/utf8_stream.h"

namespace k3 {

struct ReplyOptions {
  OpenChannel open_channel = OpenChannel::kThink;
  bool tools_callable = true;  // else calls are left out, without a trace in the content

  // Makes the id of a call; by default "call_" and 24 random hexadecimal digits.
  std::function<std::string()> make_call_id;
};

struct ReplyDelta {
  enum class Kind { kReasoning, kContent, kCallStart, kCallArguments };
  Kind kind;
  std::string text;      // empty for kCallStart
  int call = -1;         // for the last two kinds: which call, from 0
  std::string id, name;  // for kCallStart
};

struct ReplyCall {
  std::string id, name;
  std::string arguments;  // a JSON object as text
};

struct Reply {
  std::string reasoning;
  std::string content;
  std::vector<ReplyCall> calls;
  std::string finish_reason;  // "stop", "length" or "tool_calls"
};

enum class ReplyEnd {
  kStop,    // an end token, or a stop string
  kLength,  // the limit on tokens, or the end of the context
};

class ReplyParser {
 public:
  ReplyParser(const Tokenizer& tokenizer, ReplyOptions options);

  // Appends to *deltas what can be sent; neighbours of one kind are joined.
  void feed(int32_t id, std::vector<ReplyDelta>* deltas);
  void feed(std::span<const int32_t> ids, std::vector<ReplyDelta>* deltas);

  // An end token was fed or the message was closed: whatever follows is ignored.
  bool finished() const { return finished_; }

  // The last deltas and the whole reply. Nothing may be fed afterwards.
  Reply finish(ReplyEnd end, std::vector<ReplyDelta>* deltas);

 private:
  enum class Channel { kNone, kThink, kResponse, kTools };
  enum class Tag { kNone, kOpen, kClose };  // which kind of tag header is being collected
  enum class Element { kNone, kString, kLiteral, kJson, kIgnored };

  void add_text(std::string_view bytes);
  void flush_text();
  void place_text(std::string_view text);
  void process_header();
  void recover_header();
  void open_tag(const std::string& name, const std::string& header);
  void close_tag(const std::string& name);
  void return_skipped_answer();

  void open_call(const std::string& header);
  void close_call();
  void open_element(const std::string& name, const std::string& header);
  void element_text(std::string_view text);
  void close_element();

  void send_text(ReplyDelta::Kind kind, std::string_view text);
  void send_arguments(std::string_view text);

  const Tokenizer& tokenizer_;
  ReplyOptions options_;
  int32_t open_id_, close_id_, sep_id_;
  std::vector<int32_t> end_ids_;

  Channel channel_;
  bool opened_think_ = false;  // by a tag of the reply itself
  bool finished_ = false;
  Tag tag_ = Tag::kNone;
  std::string header_;
  Utf8Stream utf8_;

  bool call_open_ = false;
  bool call_kept_ = false;     // it has a name and calls may be returned
  bool call_is_json_ = false;  // its arguments are one json element
  size_t call_arguments_ = 0;
  Element element_ = Element::kNone;
  std::string element_key_, element_text_;

  Reply reply_;
  std::vector<ReplyDelta>* deltas_ = nullptr;  // of the current call
};

std::string random_call_id();

// The reply as the `message` object of a chat completion: content is null when empty,
// reasoning_content and tool_calls are left out when empty. Call ids are left out on request.
Json reply_message(const Reply& reply, bool with_call_ids = true);

}  // namespace k3
