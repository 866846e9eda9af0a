#include "text/reply_parser.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <random>

#include <fmt/format.h>

#include "base/error.h"
#include "base/utf8.h"
#include "text/unicode.h"

namespace k3 {
namespace {

constexpr size_t kLongestHeader = 4096;
constexpr std::string_view kBlanks = " \t\n\r\v\f";

// Whichever of these a tokenizer has ends a reply; the first it must have.
constexpr std::string_view kEndNames[] = {kEndOfMessage, "[EOS]", "[EOT]"};

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

std::string_view header_name(std::string_view header) {
  header = trim(header);
  return header.substr(0, header.find_first_of(kBlanks));
}

bool known_tag(std::string_view name) {
  constexpr std::string_view kTags[] = {"think",    "response", "tools",  "call",
                                        "argument", "json",     "message"};
  return std::find(std::begin(kTags), std::end(kTags), name) != std::end(kTags);
}

// `&quot;` and then `&amp;`, the reverse of how attributes are written.
std::string unescape(std::string_view value) {
  std::string out;
  while (!value.empty()) {
    const size_t plain = std::min(value.find('&'), value.size());
    out += value.substr(0, plain);
    value.remove_prefix(plain);
    if (value.substr(0, 6) == "&quot;") {
      out += '"';
      value.remove_prefix(6);
    } else if (value.substr(0, 5) == "&amp;") {
      out += '&';
      value.remove_prefix(5);
    } else if (!value.empty()) {
      out += '&';
      value.remove_prefix(1);
    }
  }
  return out;
}

// The value of `key="value"` in a header; nothing if it is not there. A lost closing quote is
// forgiven.
std::optional<std::string> attribute(std::string_view header, std::string_view key) {
  header = trim(header);
  header.remove_prefix(header_name(header).size());
  while (!(header = trim(header)).empty()) {
    const size_t end = std::min(header.find_first_of(kBlanks), header.size());
    const size_t equals = header.find('=');
    if (equals >= end || header.substr(equals + 1, 1) != "\"") {
      header.remove_prefix(end);
      continue;
    }
    const std::string_view name = header.substr(0, equals);
    header.remove_prefix(equals + 2);
    const size_t quote = std::min(header.find('"'), header.size());
    const std::string_view value = header.substr(0, quote);
    header.remove_prefix(std::min(quote + 1, header.size()));
    if (name == key) return unescape(value);
  }
  return std::nullopt;
}

size_t count_leading_space(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = utf8_next(text.substr(at));
    if ((char_class(step.code) & kCharSpace) == 0) break;
    at += step.length;
  }
  return at;
}

int32_t control_id(const Tokenizer& tokenizer, std::string_view name) {
  if (const std::optional<int> id = tokenizer.special(name)) return *id;
  throw InputError("tokenizer", "special tokens", fmt::format("'{}', which chat needs", name),
                   "none of this name in tokenizer_config.json");
}

}  // namespace

ReplyParser::ReplyParser(const Tokenizer& tokenizer, ReplyOptions options)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      open_id_(control_id(tokenizer, kOpenTag)),
      close_id_(control_id(tokenizer, kCloseTag)),
      sep_id_(control_id(tokenizer, kEndTag)),
      channel_(options_.open_channel == OpenChannel::kThink ? Channel::kThink
                                                            : Channel::kResponse) {
  control_id(tokenizer, kEndOfMessage);
  for (const std::string_view name : kEndNames)
    if (const std::optional<int> id = tokenizer.special(name)) end_ids_.push_back(*id);
  if (!options_.make_call_id) options_.make_call_id = random_call_id;
}

void ReplyParser::feed(std::span<const int32_t> ids, std::vector<ReplyDelta>* deltas) {
  for (const int32_t id : ids) feed(id, deltas);
}

void ReplyParser::feed(int32_t id, std::vector<ReplyDelta>* deltas) {
  const std::string_view bytes = tokenizer_.bytes(id);
  if (finished_) return;
  deltas_ = deltas;
  const bool end = std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end();
  if (id == open_id_ || id == close_id_ || end) {
    if (tag_ != Tag::kNone) recover_header();
    flush_text();
    if (end)
      finished_ = true;
    else if (!finished_)
      tag_ = id == open_id_ ? Tag::kOpen : Tag::kClose;
  } else if (id == sep_id_) {
    flush_text();
    if (tag_ != Tag::kNone) process_header();
  } else if (tag_ != Tag::kNone) {
    header_ += bytes;
    if (header_.size() > kLongestHeader) recover_header();
  } else {
    add_text(bytes);
  }
}

Reply ReplyParser::finish(ReplyEnd end, std::vector<ReplyDelta>* deltas) {
  deltas_ = deltas;
  if (!finished_) {
    if (tag_ != Tag::kNone && end == ReplyEnd::kStop) recover_header();
    flush_text();
    finished_ = true;
  }
  if (call_open_ && call_kept_) reply_.calls.pop_back();
  call_open_ = false;
  if (end == ReplyEnd::kLength)
    reply_.finish_reason = "length";
  else
    reply_.finish_reason = reply_.calls.empty() ? "stop" : "tool_calls";
  return std::move(reply_);
}

void ReplyParser::add_text(std::string_view bytes) {
  std::string text;
  utf8_.push(bytes, &text);
  place_text(text);
}

void ReplyParser::flush_text() {
  std::string text;
  utf8_.flush(&text);
  place_text(text);
}

void ReplyParser::place_text(std::string_view text) {
  if (text.empty()) return;
  if (element_ != Element::kNone) {
    element_text(text);
    return;
  }
  if (channel_ == Channel::kNone) {
    text.remove_prefix(count_leading_space(text));
    if (text.empty()) return;
    channel_ = Channel::kResponse;  // the model forgot the tag
  }
  if (channel_ == Channel::kThink) {
    reply_.reasoning += text;
    send_text(ReplyDelta::Kind::kReasoning, text);
  } else if (channel_ == Channel::kResponse) {
    reply_.content += text;
    send_text(ReplyDelta::Kind::kContent, text);
  }
}

void ReplyParser::process_header() {
  const Tag tag = tag_;
  const std::string header = utf8_repair(header_);
  tag_ = Tag::kNone;
  header_.clear();
  const std::string name(header_name(header));
  if (tag == Tag::kOpen)
    open_tag(name, header);
  else
    close_tag(name);
}

// The end of the header was lost. If its name makes sense it counts as complete, else it is text.
void ReplyParser::recover_header() {
  if (known_tag(header_name(header_))) {
    process_header();
    return;
  }
  std::string text(tag_ == Tag::kOpen ? kOpenTag : kCloseTag);
  text += header_;
  tag_ = Tag::kNone;
  header_.clear();
  add_text(text);
}

void ReplyParser::open_tag(const std::string& name, const std::string& header) {
  if (name == "think") {
    channel_ = Channel::kThink;
    opened_think_ = true;
  } else if (name == "response") {
    channel_ = Channel::kResponse;
  } else if (name == "tools") {
    channel_ = Channel::kTools;
  } else if (name == "call") {
    open_call(header);
  } else if (name == "argument" || name == "json") {
    open_element(name, header);
  }
}

void ReplyParser::close_tag(const std::string& name) {
  if (name == "think") {
    channel_ = Channel::kNone;
  } else if (name == "response") {
    return_skipped_answer();
    channel_ = Channel::kNone;
  } else if (name == "tools") {
    close_call();
    channel_ = Channel::kNone;
  } else if (name == "call") {
    close_call();
  } else if (name == "argument" || name == "json") {
    close_element();
  } else if (name == "message") {
    return_skipped_answer();
    finished_ = true;
  }
}

// On long prompts the model sometimes answers inside the think channel that the prompt opened, and
// closes the response it never opened: what was taken for reasoning is the answer.
void ReplyParser::return_skipped_answer() {
  if (channel_ != Channel::kThink || opened_think_ || !reply_.content.empty()) return;
  reply_.content = std::move(reply_.reasoning);
  reply_.reasoning.clear();
  send_text(ReplyDelta::Kind::kContent, reply_.content);
}

void ReplyParser::open_call(const std::string& header) {
  close_call();
  channel_ = Channel::kTools;
  const std::string name = attribute(header, "tool").value_or("");
  call_open_ = true;
  call_kept_ = !name.empty() && options_.tools_callable;
  call_is_json_ = false;
  call_arguments_ = 0;
  if (!call_kept_) return;
  reply_.calls.push_back({options_.make_call_id(), name, {}});
  deltas_->push_back({ReplyDelta::Kind::kCallStart,
                      {},
                      static_cast<int>(reply_.calls.size()) - 1,
                      reply_.calls.back().id,
                      name});
}

void ReplyParser::close_call() {
  close_element();
  if (!call_open_) return;
  call_open_ = false;
  if (!call_kept_) return;
  if (call_arguments_ > 0)
    send_arguments("}");
  else if (reply_.calls.back().arguments.empty())
    send_arguments("{}");
}

void ReplyParser::open_element(const std::string& name, const std::string& header) {
  close_element();
  if (!call_open_) return;  // a tag of no meaning here: its content stays what it is
  element_ = Element::kIgnored;
  element_text_.clear();
  if (!call_kept_ || call_is_json_) return;
  if (name == "json") {
    if (call_arguments_ > 0) return;
    call_is_json_ = true;
    element_ = Element::kJson;
    return;
  }
  const std::optional<std::string> key = attribute(header, "key");
  if (!key) return;
  element_key_ = *key;
  const bool string = attribute(header, "type").value_or("string") == "string";
  element_ = string ? Element::kString : Element::kLiteral;
  send_arguments(call_arguments_++ == 0 ? "{" : ", ");
  send_arguments(json_string(element_key_));
  send_arguments(string ? ": \"" : ": ");
}

void ReplyParser::element_text(std::string_view text) {
  if (element_ == Element::kString) {
    std::string escaped;
    append_json_escaped(text, &escaped);
    send_arguments(escaped);
  } else if (element_ == Element::kJson) {
    send_arguments(text);
  } else if (element_ == Element::kLiteral) {
    element_text_ += text;
  }
}

void ReplyParser::close_element() {
  if (element_ == Element::kString) {
    send_arguments("\"");
  } else if (element_ == Element::kLiteral) {
    const std::string_view literal = trim(element_text_);
    // Spliced as it is, so that the next turn renders the same bytes.
    send_arguments(is_valid_json(literal) ? std::string(literal) : json_string(element_text_));
  }
  element_ = Element::kNone;
}

void ReplyParser::send_text(ReplyDelta::Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (!deltas_->empty() && deltas_->back().kind == kind)
    deltas_->back().text += text;
  else
    deltas_->push_back({kind, std::string(text), -1, {}, {}});
}

void ReplyParser::send_arguments(std::string_view text) {
  if (text.empty()) return;
  reply_.calls.back().arguments += text;
  const int call = static_cast<int>(reply_.calls.size()) - 1;
  ReplyDelta* last = deltas_->empty() ? nullptr : &deltas_->back();
  if (last && last->kind == ReplyDelta::Kind::kCallArguments && last->call == call)
    last->text += text;
  else
    deltas_->push_back({ReplyDelta::Kind::kCallArguments, std::string(text), call, {}, {}});
}

std::string random_call_id() {
  std::random_device device;
  std::string id = "call_";
  for (int i = 0; i < 3; ++i) id += fmt::format("{:08x}", static_cast<uint32_t>(device()));
  return id;
}

Json reply_message(const Reply& reply, bool with_call_ids) {
  Json message = Json::object();
  message.add("role", Json::string("assistant"));
  message.add("content", reply.content.empty() ? Json() : Json::string(reply.content));
  if (!reply.reasoning.empty()) message.add("reasoning_content", Json::string(reply.reasoning));
  if (reply.calls.empty()) return message;
  Json calls = Json::array();
  for (const ReplyCall& call : reply.calls) {
    Json function = Json::object();
    function.add("name", Json::string(call.name));
    function.add("arguments", Json::string(call.arguments));
    Json entry = Json::object();
    if (with_call_ids) entry.add("id", Json::string(call.id));
    entry.add("type", Json::string("function"));
    entry.add("function", std::move(function));
    calls.items.push_back(std::move(entry));
  }
  message.add("tool_calls", std::move(calls));
  return message;
}

}  // namespace k3
