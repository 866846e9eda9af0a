// The parts of a chat request that hold for the whole prompt, read and checked: whether and how
// hard to think, which tools may be called, which form the reply must have. Used by render_chat();
// see chat.h for the example, thread rule and errors.
#pragma once

#include <string>
#include <vector>

#include "text/chat.h"

namespace k3 {

// Throws "request: FIELD: expected EXPECTED, found FOUND".
[[noreturn]] void refuse(const std::string& field, const std::string& expected,
                         const std::string& found);
[[noreturn]] void refuse(const std::string& field, const std::string& expected, const Json* found);

// `object`[`key`] as a string; empty if it is missing or null.
std::string optional_string(const Json& object, const char* key, const std::string& path);

// The list at `key`; nullptr if it is missing, null or empty.
const std::vector<Json>* optional_list(const Json& object, const char* key,
                                       const std::string& path);

// Whether a boolean is there and true.
bool optional_flag(const Json& object, const char* key, const std::string& path);

// Fills in thinking, effort, tools, tool_choice, named_tool, response_format and schema.
void read_request(const Json& request, ChatPrompt* prompt);

// The calls of an assistant message; nullptr if there are none.
const std::vector<Json>* calls_of(const Json& message, const std::string& path);

// The object with a call's name and arguments, which may stand without the "function" wrapper.
const Json& call_function(const Json& call, const std::string& path);
std::string call_name(const Json& call, const std::string& path);

// A tool message in the place it is rendered at. `name` is that of the call whose result it is,
// if results and calls could be matched by id.
struct PlacedMessage {
  const Json* message;
  size_t index;  // in the request
  std::string name;
};

// The messages of the request, each run of tool results put into the order of the calls if every
// one of them answers a call by id.
std::vector<PlacedMessage> place_messages(const std::vector<Json>& messages);

// The role of a message: user, system (also for developer), assistant or tool.
std::string message_role(const Json& message, const std::string& path);

}  // namespace k3
