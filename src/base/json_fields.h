// Configuration files: a JSON document whose fields are fetched by name, with type and range
// checked.
//
//   const nlohmann::json document = parse_json_document(text, "config.json", 1 << 20);
//   const JsonFields top(document, "config.json", "");
//   const int64_t steps = top.integer("steps", 1, 1 << 30);
//   const JsonFields o = top.object("optimizer");      // errors say "optimizer.beta1"
//   top.only({"steps", "optimizer"});                  // a field that means nothing is an error
//
// Null counts as absent, as it does in the released code. Ownership: JsonFields views a document
// that outlives it. Thread rule: const. Errors: InputError naming the file, the full path of the
// field, what was expected and found.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace k3 {

// The document, an object, refused when it names a field of an object twice (the last would win
// silently) or is longer than `limit` bytes.
nlohmann::json parse_json_document(std::string_view text, std::string_view path, uint64_t limit);

// A value as it stands, or what it is, for an error's "found".
std::string shown_json(const nlohmann::json* value);

class JsonFields {
 public:
  using Json = nlohmann::json;
  JsonFields(const Json& object, std::string_view file, std::string prefix)
      : object_(object), file_(file), prefix_(std::move(prefix)) {}

  [[noreturn]] void fail(std::string_view key, std::string_view expected,
                         std::string_view found) const;
  void only(std::initializer_list<const char*> keys) const;

  const Json* find(const char* key) const;
  int64_t integer(const char* key, int64_t low, int64_t high) const;
  int64_t integer_or(const char* key, int64_t low, int64_t high, int64_t absent) const;
  int64_t integer(std::string_view key, const Json* value, int64_t low, int64_t high) const;
  // In low..high, both possible, low excluded when `open`.
  float number(const char* key, double low, double high, bool open) const;
  float number_or(const char* key, double low, double high, bool open, float absent) const;
  float number(const char* key, const Json* value, double low, double high, bool open) const;
  bool boolean_or(const char* key, bool absent) const;
  std::string text(const char* key) const;
  // The index of the text among `choices`; nullptr stands for the absent field if it is a choice.
  size_t choice(const char* key, std::initializer_list<const char*> choices) const;
  JsonFields object(const char* key) const;
  const Json& list(const char* key) const;

  const Json& json() const { return object_; }

 private:
  const Json& object_;
  std::string_view file_;
  std::string prefix_;
};

}  // namespace k3
