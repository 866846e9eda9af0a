#include "base/json_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "base/error.h"

namespace k3 {

using Json = nlohmann::json;

std::string shown_json(const Json* value) {
  if (!value) return "nothing";
  switch (value->type()) {
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return fmt::format("a list of {}", value->size());
    default:
      return printable(value->dump(-1, ' ', false, Json::error_handler_t::replace), 80);
  }
}

nlohmann::json parse_json_document(std::string_view text, std::string_view path, uint64_t limit) {
  if (text.size() > limit)
    throw InputError(path, "size", fmt::format("at most {} bytes", limit),
                     fmt::format("{} bytes", text.size()));
  std::vector<std::set<std::string>> keys;
  std::string twice;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    const auto level = static_cast<size_t>(depth);
    if (event == Json::parse_event_t::object_start) {
      if (keys.size() <= level) keys.resize(level + 1);
      keys[level].clear();
    } else if (event == Json::parse_event_t::key && twice.empty()) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys[level - 1].insert(key).second) twice = key;
    }
    return true;
  };
  Json document;
  try {
    document = Json::parse(text, watch);
  } catch (const Json::exception& error) {
    // Its text already says line and column, or which number is too large; the tag before it is the
    // json library's own.
    std::string_view what = error.what();
    if (const size_t tag = what.find("] "); tag != std::string_view::npos)
      what.remove_prefix(tag + 2);
    if (const size_t at = what.find("at line"); at != std::string_view::npos)
      what.remove_prefix(at);
    throw InputError(fmt::format("{}: not JSON: {}", printable(path, 1000), printable(what, 300)));
  }
  if (!twice.empty()) throw InputError(path, "field " + twice, "it once", "it twice");
  if (!document.is_object())
    throw InputError(path, "the file", "a JSON object", shown_json(&document));
  return document;
}

void JsonFields::fail(std::string_view key, std::string_view expected,
                      std::string_view found) const {
  throw InputError(file_, prefix_ + std::string(key), expected, found);
}

void JsonFields::only(std::initializer_list<const char*> keys) const {
  for (const auto& [key, value] : object_.items()) {
    std::string known;
    bool found = false;
    for (const char* k : keys) {
      found = found || key == k;
      known += (known.empty() ? "" : ", ") + std::string(k);
    }
    if (!found)
      throw InputError(file_, prefix_ + printable(key, 60), "one of " + known, "an unknown field");
  }
}

const nlohmann::json* JsonFields::find(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

int64_t JsonFields::integer(const char* key, int64_t low, int64_t high) const {
  return integer(key, object_.contains(key) ? &object_[key] : nullptr, low, high);
}

int64_t JsonFields::integer_or(const char* key, int64_t low, int64_t high, int64_t absent) const {
  const Json* value = find(key);
  return value ? integer(key, value, low, high) : absent;
}

int64_t JsonFields::integer(std::string_view key, const Json* value, int64_t low,
                            int64_t high) const {
  // Unsigned is the type of every number without a sign; those past 2^63 stay out of range.
  if (value && value->is_number_integer()) {
    const auto number = value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX
                            ? std::numeric_limits<int64_t>::max()
                            : value->get<int64_t>();
    if (number >= low && number <= high) return number;
  }
  fail(key, fmt::format("an integer in {}..{}", low, high), shown_json(value));
}

float JsonFields::number(const char* key, double low, double high, bool open) const {
  return number(key, object_.contains(key) ? &object_[key] : nullptr, low, high, open);
}

float JsonFields::number_or(const char* key, double low, double high, bool open,
                            float absent) const {
  const Json* value = find(key);
  return value ? number(key, value, low, high, open) : absent;
}

float JsonFields::number(const char* key, const Json* value, double low, double high,
                         bool open) const {
  if (value && value->is_number()) {
    const auto number = value->get<double>();
    if (std::isfinite(number) && number <= high && (open ? number > low : number >= low))
      return static_cast<float>(number);
  }
  fail(key, fmt::format("a number {} {} and at most {}", open ? "above" : "of at least", low, high),
       shown_json(value));
}

bool JsonFields::boolean_or(const char* key, bool absent) const {
  const Json* value = find(key);
  if (!value) return absent;
  if (!value->is_boolean()) fail(key, "true or false", shown_json(value));
  return value->get<bool>();
}

size_t JsonFields::choice(const char* key, std::initializer_list<const char*> choices) const {
  const Json* value = find(key);
  std::string expected;
  size_t i = 0;
  for (const char* text : choices) {
    if (text ? value && value->is_string() && value->get_ref<const std::string&>() == text : !value)
      return i;
    expected += (i++ ? " or " : "") + (text ? fmt::format("\"{}\"", text) : std::string("nothing"));
  }
  fail(key, expected, shown_json(value));
}

JsonFields JsonFields::object(const char* key) const {
  const Json* value = find(key);
  if (!value || !value->is_object()) fail(key, "an object", shown_json(value));
  return JsonFields(*value, file_, prefix_ + key + ".");
}

const nlohmann::json& JsonFields::list(const char* key) const {
  const Json* value = find(key);
  if (!value || !value->is_array()) fail(key, "a list", shown_json(value));
  return *value;
}

std::string JsonFields::text(const char* key) const {
  const Json* value = find(key);
  if (!value || !value->is_string()) fail(key, "a text", shown_json(value));
  return value->get<std::string>();
}

}  // namespace k3
