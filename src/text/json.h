// JSON values that remember what a general reader forgets: the order of keys, the digits of large
// integers, and whether a number was written as an integer.
//
//   const Json request = parse_json(R"({"n": 1e2, "big": 12345678901234567890123})", "request");
//   write_json(request, JsonStyle::kSorted);   // {"big":12345678901234567890123,"n":100.0}
//
// The printed forms are those of Python's json.dumps with ensure_ascii=False, which the prompts of
// the chat format are made with. Objects follow its dict: of a repeated key the last value counts,
// at the place of the first. Not a general JSON library: values are read and printed, not edited.
// Units: text is UTF-8; ill-formed input and unpaired surrogate escapes become U+FFFD.
// Thread rule: values.
// Errors: InputError naming the source, the byte, and what was expected. Deeper than 256 levels is
// an error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace k3 {

struct JsonMember;

struct Json {
  enum class Kind : uint8_t { kNull, kBool, kInteger, kFloat, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  std::string text;  // the value of a string; the source text of a number
  std::vector<Json> items;
  std::vector<JsonMember> members;

  static Json string(std::string value);
  static Json object();
  static Json array();
  void add(std::string key, Json value);  // to an object, which must not have the key yet

  // The member of an object; nullptr if there is none, or if this is no object.
  const Json* find(std::string_view key) const;

  // Like find, but a member that is null counts as absent.
  const Json* get(std::string_view key) const;

  bool is(Kind wanted) const { return kind == wanted; }
  std::optional<int64_t> as_int() const;    // an integer in range
  std::optional<double> as_double() const;  // any number

  // For error messages: the value itself if it is short, else its kind.
  std::string describe() const;
};

struct JsonMember {
  std::string key;
  Json value;
};

constexpr int kJsonDepth = 256;

// `source` is named in errors.
Json parse_json(std::string_view text, std::string_view source);
bool is_valid_json(std::string_view text);

enum class JsonStyle {
  kSorted,   // keys in code point order, "," and ":" : tools and schemas
  kPython,   // keys in their own order, ", " and ": " : arguments
  kCompact,  // keys in their own order, "," and ":" : output
};
std::string write_json(const Json& value, JsonStyle style);
void append_json(const Json& value, JsonStyle style, std::string* out);

// `text`, escaped, with the quotes; and without them, for strings written in pieces.
std::string json_string(std::string_view text);
void append_json_escaped(std::string_view text, std::string* out);

// The shortest decimal that reads back as `value`, as Python prints it: 1.0, 1e-05, 1e+16.
std::string python_float(double value);

// The members of a JSON object in a string of tool-call arguments, split one level deep.
struct JsonArgument {
  std::string key;
  const char* type;   // "string", "number", "boolean", "null", "object" or "array"
  std::string value;  // a string's characters; of any other value the exact source bytes
};

// More tolerant than parse_json, like the reader behind the chat format: control characters in
// strings, NaN and ±Infinity are accepted, repeated keys stay, and what follows the closing brace
// is ignored. Nothing if the text does not hold an object.
std::optional<std::vector<JsonArgument>> split_json_arguments(std::string_view text);

// The argument type of a value that was already read.
const char* json_argument_type(const Json& value);

}  // namespace k3
