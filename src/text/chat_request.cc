#include "text/chat_request.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/error.h"

namespace k3 {
namespace {

using Kind = Json::Kind;

std::string field_name(const std::string& path, const char* key) {
  return path.empty() ? key : fmt::format("{}.{}", path, key);
}

void read_thinking(const Json& request, ChatPrompt* prompt) {
  static const Json kNothing = Json::object();
  const Json* given = request.get("chat_template_kwargs");
  if (given && !given->is(Kind::kObject)) refuse("chat_template_kwargs", "an object", given);
  const Json& kwargs = given ? *given : kNothing;

  const auto effort_at = [](const Json& object, const char* key, const std::string& path,
                            bool none_allowed) {
    const std::string effort = optional_string(object, key, path);
    if (effort.empty() && !object.get(key)) return effort;
    if (effort == "low" || effort == "high" || effort == "max") return effort;
    if (none_allowed && effort == "none") return effort;
    refuse(field_name(path, key), none_allowed ? "low, high, max or none" : "low, high or max",
           object.get(key));
  };
  const std::string inner = effort_at(kwargs, "thinking_effort", "chat_template_kwargs", false);
  const std::string outer = effort_at(request, "reasoning_effort", "", true);

  prompt->thinking = outer != "none" || !inner.empty();
  for (const char* key : {"enable_thinking", "thinking"}) {  // the second is the name, so it wins
    const Json* value = kwargs.get(key);
    if (!value) continue;
    if (!value->is(Kind::kBool))
      refuse(field_name("chat_template_kwargs", key), "true or false", value);
    prompt->thinking = value->boolean;
  }
  if (!prompt->thinking) return;
  prompt->effort = !inner.empty() ? inner : !outer.empty() && outer != "none" ? outer : "max";
}

void add_tools(const std::vector<Json>* tools, const std::string& path, ChatPrompt* prompt) {
  if (!tools) return;
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    if (!tool.is(Kind::kObject)) refuse(fmt::format("{}[{}]", path, i), "an object", &tool);
    prompt->tools.push_back(tool);
  }
}

bool declares(const ChatPrompt& prompt, const std::string& name) {
  for (const Json& tool : prompt.tools) {
    const Json* function = tool.get("function");
    const Json* found = (function ? *function : tool).get("name");
    if (found && found->is(Kind::kString) && found->text == name) return true;
  }
  return false;
}

void read_tool_choice(const Json& request, ChatPrompt* prompt) {
  const Json* choice = request.get("tool_choice");
  if (!choice) return;
  const std::string expected = "auto, none, required, or {\"type\": \"function\", \"function\": …}";
  if (choice->is(Kind::kString)) {
    if (choice->text == "none")
      prompt->tool_choice = ToolChoice::kNone;
    else if (choice->text == "required")
      prompt->tool_choice = ToolChoice::kRequired;
    else if (choice->text != "auto")
      refuse("tool_choice", expected, choice);
    return;
  }
  const Json* function = choice->get("function");
  if (!choice->is(Kind::kObject) || !function || !function->is(Kind::kObject))
    refuse("tool_choice", expected, choice);
  prompt->tool_choice = ToolChoice::kNamed;
  prompt->named_tool = optional_string(*function, "name", "tool_choice.function");
  if (!declares(*prompt, prompt->named_tool))
    refuse("tool_choice.function.name", "the name of a declared tool", function->get("name"));
}

void read_response_format(const Json& request, ChatPrompt* prompt) {
  const Json* format = request.get("response_format");
  if (!format) return;
  if (!format->is(Kind::kObject)) refuse("response_format", "an object", format);
  const std::string type = optional_string(*format, "type", "response_format");
  if (type == "text") return;
  if (type == "json_object") {
    prompt->response_format = ResponseFormat::kJsonObject;
    return;
  }
  if (type != "json_schema")
    refuse("response_format.type", "text, json_object or json_schema", format->get("type"));
  prompt->response_format = ResponseFormat::kJsonSchema;
  const Json* schema = format->get("json_schema");
  if (!schema || !schema->is(Kind::kObject))
    refuse("response_format.json_schema", "an object", schema);
  // The schema itself, or an object around it.
  for (const char* key : {"schema", "json_schema"})
    if (const Json* inner = schema->get(key)) {
      schema = inner;
      break;
    }
  if (!schema->is(Kind::kObject) && !schema->is(Kind::kBool))
    refuse("response_format.json_schema.schema", "a JSON schema", schema);
  prompt->schema = *schema;
}

std::string message_path(size_t index) { return fmt::format("messages[{}]", index); }

// Position of each call by its id; of calls with the same id the first counts.
std::map<std::string, size_t> positions_by_id(const std::vector<Json>* calls,
                                              const std::string& path) {
  std::map<std::string, size_t> positions;
  if (!calls) return positions;
  for (size_t i = 0; i < calls->size(); ++i) {
    const std::string call_path = fmt::format("{}.tool_calls[{}]", path, i);
    const Json& call = (*calls)[i];
    if (!call.is(Kind::kObject)) refuse(call_path, "an object", &call);
    const std::string id = optional_string(call, "id", call_path);
    if (!id.empty()) positions.emplace(id, i);
  }
  return positions;
}

// Sorts `run`, consecutive tool messages, by the calls they answer. Leaves it alone if one of them
// answers none.
void match_results(const Json& assistant, size_t assistant_index, std::vector<PlacedMessage>* run) {
  const std::string path = message_path(assistant_index);
  const std::vector<Json>* calls = calls_of(assistant, path);
  const std::map<std::string, size_t> positions = positions_by_id(calls, path);
  std::vector<std::pair<size_t, PlacedMessage>> matched;
  for (const PlacedMessage& result : *run) {
    const std::string result_path = message_path(result.index);
    std::string id = optional_string(*result.message, "tool_call_id", result_path);
    if (id.empty()) id = optional_string(*result.message, "id", result_path);
    const auto found = positions.find(id);
    if (found == positions.end()) return;
    const std::string call_path = fmt::format("{}.tool_calls[{}]", path, found->second);
    matched.emplace_back(found->second, result);
    matched.back().second.name = call_name((*calls)[found->second], call_path);
  }
  std::stable_sort(matched.begin(), matched.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < run->size(); ++i) (*run)[i] = std::move(matched[i].second);
}

}  // namespace

void refuse(const std::string& field, const std::string& expected, const std::string& found) {
  throw InputError("request", field, expected, found);
}

void refuse(const std::string& field, const std::string& expected, const Json* found) {
  refuse(field, expected, found ? found->describe() : "nothing");
}

std::string optional_string(const Json& object, const char* key, const std::string& path) {
  const Json* value = object.get(key);
  if (!value) return {};
  if (!value->is(Kind::kString)) refuse(field_name(path, key), "a string", value);
  return value->text;
}

const std::vector<Json>* optional_list(const Json& object, const char* key,
                                       const std::string& path) {
  const Json* value = object.get(key);
  if (!value) return nullptr;
  if (!value->is(Kind::kArray)) refuse(field_name(path, key), "an array", value);
  return value->items.empty() ? nullptr : &value->items;
}

bool optional_flag(const Json& object, const char* key, const std::string& path) {
  const Json* value = object.get(key);
  if (!value) return false;
  if (!value->is(Kind::kBool)) refuse(field_name(path, key), "true or false", value);
  return value->boolean;
}

void read_request(const Json& request, ChatPrompt* prompt) {
  if (!request.is(Kind::kObject)) refuse("body", "an object", &request);
  const std::vector<Json>* messages = optional_list(request, "messages", "");
  if (!messages) refuse("messages", "at least one message", "none");
  add_tools(optional_list(request, "tools", ""), "tools", prompt);
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    const std::string path = message_path(i);
    if (message_role(message, path) == "system")
      add_tools(optional_list(message, "tools", path), path + ".tools", prompt);
  }
  read_thinking(request, prompt);
  read_tool_choice(request, prompt);
  read_response_format(request, prompt);
}

const std::vector<Json>* calls_of(const Json& message, const std::string& path) {
  return optional_list(message, "tool_calls", path);
}

const Json& call_function(const Json& call, const std::string& path) {
  if (!call.is(Kind::kObject)) refuse(path, "an object", &call);
  const Json* function = call.get("function");
  if (!function) return call;
  if (!function->is(Kind::kObject)) refuse(path + ".function", "an object", function);
  return *function;
}

std::string call_name(const Json& call, const std::string& path) {
  const std::string name = optional_string(call_function(call, path), "name", path + ".function");
  if (name.empty()) refuse(path + ".function.name", "the name of a function", "none");
  return name;
}

std::string message_role(const Json& message, const std::string& path) {
  if (!message.is(Kind::kObject)) refuse(path, "an object", &message);
  const Json* role = message.get("role");
  const std::string name = optional_string(message, "role", path);
  if (name == "developer") return "system";
  if (name == "user" || name == "system" || name == "assistant" || name == "tool") return name;
  refuse(path + ".role", "user, system, developer, assistant or tool", role);
}

std::vector<PlacedMessage> place_messages(const std::vector<Json>& messages) {
  std::vector<PlacedMessage> placed;
  const Json* assistant = nullptr;
  size_t assistant_index = 0;
  for (size_t i = 0; i < messages.size();) {
    const std::string role = message_role(messages[i], message_path(i));
    if (role != "tool") {
      if (role == "assistant") assistant = &messages[i], assistant_index = i;
      placed.push_back({&messages[i], i, {}});
      ++i;
      continue;
    }
    std::vector<PlacedMessage> run;
    for (; i < messages.size() && message_role(messages[i], message_path(i)) == "tool"; ++i)
      run.push_back({&messages[i], i, {}});
    if (assistant) match_results(*assistant, assistant_index, &run);
    placed.insert(placed.end(), run.begin(), run.end());
  }
  return placed;
}

}  // namespace k3
