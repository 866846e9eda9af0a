#include "text/json.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <unordered_map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/utf8.h"
#include "text/unicode.h"

namespace k3 {
namespace {

using Kind = Json::Kind;

class Reader {
 public:
  // `tolerant` reads what split_json_arguments promises.
  Reader(std::string_view text, std::string_view source, bool tolerant)
      : text_(text), source_(source), tolerant_(tolerant) {}

  Json whole() {
    Json value = read_value();
    skip_space();
    if (at_ != text_.size()) fail("nothing after the value");
    return value;
  }

  std::vector<JsonArgument> arguments();

 private:
  [[noreturn]] void fail(std::string_view expected) const {
    throw InputError(source_, fmt::format("byte {}", at_), expected,
                     at_ < text_.size() ? fmt::format("'{}'", printable(text_.substr(at_), 20))
                                        : std::string("the end"));
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }

  void expect(char c, std::string_view expected) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) fail(expected);
    ++at_;
  }

  Json read_value();
  Json read_array();
  Json read_object();
  Json read_number();
  std::string read_string();
  void read_escape(std::string* out);
  uint32_t read_hex();
  bool skip_digits();
  void enter() {
    if (++depth_ > kJsonDepth) fail(fmt::format("at most {} levels", kJsonDepth));
  }

  std::string_view text_;
  std::string_view source_;
  bool tolerant_;
  size_t at_ = 0;
  int depth_ = 0;
};

Json Reader::read_value() {
  skip_space();
  Json value;
  switch (peek()) {
    case '{':
      return read_object();
    case '[':
      return read_array();
    case '"':
      value.kind = Kind::kString;
      value.text = read_string();
      return value;
    default:
      break;
  }
  if (take("null")) return value;
  value.kind = Kind::kBool;
  value.boolean = take("true");
  if (value.boolean || take("false")) return value;
  value.kind = Kind::kFloat;
  if (tolerant_)
    for (const char* word : {"NaN", "Infinity", "-Infinity"})
      if (take(word)) {
        value.text = word;
        return value;
      }
  return read_number();
}

Json Reader::read_array() {
  Json value;
  value.kind = Kind::kArray;
  enter();
  ++at_;
  skip_space();
  if (peek() == ']') {
    ++at_;
  } else {
    for (;;) {
      value.items.push_back(read_value());
      skip_space();
      if (peek() == ',') {
        ++at_;
        continue;
      }
      expect(']', "',' or ']'");
      break;
    }
  }
  --depth_;
  return value;
}

// Of a repeated key the last value counts, at the place of the first.
void merge_repeated_keys(std::vector<JsonMember>* members) {
  std::unordered_map<std::string_view, size_t> first;
  bool repeated = false;
  for (size_t i = 0; i < members->size(); ++i)
    repeated |= !first.emplace((*members)[i].key, i).second;
  if (!repeated) return;
  std::vector<JsonMember> kept;
  std::unordered_map<std::string, size_t> place;
  for (JsonMember& member : *members) {
    const auto [found, is_new] = place.emplace(member.key, kept.size());
    if (is_new)
      kept.push_back(std::move(member));
    else
      kept[found->second].value = std::move(member.value);
  }
  *members = std::move(kept);
}

Json Reader::read_object() {
  Json value;
  value.kind = Kind::kObject;
  enter();
  ++at_;
  skip_space();
  if (peek() == '}') {
    ++at_;
  } else {
    for (;;) {
      skip_space();
      if (peek() != '"') fail("a key in quotes");
      std::string key = read_string();
      expect(':', "':'");
      value.members.push_back({std::move(key), read_value()});
      skip_space();
      if (peek() == ',') {
        ++at_;
        continue;
      }
      expect('}', "',' or '}'");
      break;
    }
  }
  merge_repeated_keys(&value.members);
  --depth_;
  return value;
}

bool Reader::skip_digits() {
  const size_t start = at_;
  while (peek() >= '0' && peek() <= '9') ++at_;
  return at_ > start;
}

Json Reader::read_number() {
  const size_t start = at_;
  Json value;
  value.kind = Kind::kInteger;
  if (peek() == '-') ++at_;
  if (peek() == '0')
    ++at_;
  else if (!skip_digits())
    fail("a JSON value");
  // A point or exponent without digits is not part of the number: the reader that calls this then
  // finds it in the wrong place.
  size_t end = at_;
  if (peek() == '.') {
    ++at_;
    if (skip_digits()) {
      value.kind = Kind::kFloat;
      end = at_;
    }
  }
  at_ = end;
  if (peek() == 'e' || peek() == 'E') {
    ++at_;
    if (peek() == '+' || peek() == '-') ++at_;
    if (skip_digits()) {
      value.kind = Kind::kFloat;
      end = at_;
    }
  }
  at_ = end;
  value.text = text_.substr(start, end - start);
  return value;
}

uint32_t Reader::read_hex() {
  uint32_t code = 0;
  const std::string_view digits = text_.substr(at_, 4);
  const char* last = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), last, code, 16);
  if (digits.size() != 4 || error != std::errc() || stop != last) fail("four hexadecimal digits");
  at_ += 4;
  return code;
}

void Reader::read_escape(std::string* out) {
  constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
  const char name = peek();
  if (const size_t i = kNames.find(name); name != '\0' && i != std::string_view::npos) {
    ++at_;
    out->push_back(kValues[i]);
    return;
  }
  if (name != 'u') fail("an escape");
  ++at_;
  uint32_t code = read_hex();
  if (code >= 0xd800 && code <= 0xdfff) {
    // A high and a low one together are one character; alone they are none.
    uint32_t low = 0;
    const size_t before = at_;
    if (code <= 0xdbff && take("\\u")) low = read_hex();
    if (low >= 0xdc00 && low <= 0xdfff) {
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else {
      at_ = before;
      code = 0xfffd;
    }
  }
  utf8_append(*out, code);
}

std::string Reader::read_string() {
  ++at_;
  std::string out;
  for (;;) {
    const size_t start = at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
           (tolerant_ || static_cast<unsigned char>(text_[at_]) >= 0x20))
      ++at_;
    out.append(text_.substr(start, at_ - start));
    if (at_ == text_.size()) fail("'\"'");
    if (text_[at_] == '"') break;
    if (text_[at_] != '\\') fail("an escape in place of a control character");
    ++at_;
    read_escape(&out);
  }
  ++at_;
  return out;
}

std::vector<JsonArgument> Reader::arguments() {
  std::vector<JsonArgument> out;
  expect('{', "an object");
  enter();
  skip_space();
  if (peek() == '}') return out;
  for (;;) {
    skip_space();
    if (peek() != '"') fail("a key in quotes");
    JsonArgument argument;
    argument.key = read_string();
    expect(':', "':'");
    skip_space();
    const size_t start = at_;
    const Json value = read_value();
    argument.type = json_argument_type(value);
    argument.value =
        value.is(Kind::kString) ? value.text : std::string(text_.substr(start, at_ - start));
    out.push_back(std::move(argument));
    skip_space();
    if (peek() == '}') return out;
    expect(',', "',' or '}'");
  }
}

// Whether a number that no double holds is too large (rather than too small).
bool exceeds_double(std::string_view number) {
  int64_t magnitude = 0;  // of the first digit that is not 0, as a power of ten
  bool point = false, found = false;
  size_t i = 0;
  for (; i < number.size() && number[i] != 'e' && number[i] != 'E'; ++i) {
    if (number[i] == '.') point = true;
    if (number[i] < '0' || number[i] > '9') continue;
    found |= number[i] != '0';
    if (found && !point) ++magnitude;
    if (!found && point) --magnitude;
  }
  if (i < number.size()) {
    ++i;
    const bool negative = number[i] == '-';
    if (negative || number[i] == '+') ++i;
    int64_t exponent = 0;
    for (; i < number.size(); ++i)
      exponent = std::min<int64_t>(exponent * 10 + (number[i] - '0'), int64_t{1} << 50);
    magnitude += negative ? -exponent : exponent;
  }
  return magnitude > 0;
}

double to_double(std::string_view number) {
  double value = 0;
  const char* last = number.data() + number.size();
  if (std::from_chars(number.data(), last, value).ec == std::errc::result_out_of_range) {
    value = exceeds_double(number) ? std::numeric_limits<double>::infinity() : 0.0;
    if (number[0] == '-') value = -value;
  }
  return value;
}

void append_number(const Json& value, std::string* out) {
  if (value.is(Kind::kFloat))
    *out += python_float(to_double(value.text));
  else
    *out += value.text == "-0" ? "0" : value.text;
}

}  // namespace

Json Json::string(std::string value) {
  Json json;
  json.kind = Kind::kString;
  json.text = std::move(value);
  return json;
}

Json Json::object() {
  Json json;
  json.kind = Kind::kObject;
  return json;
}

Json Json::array() {
  Json json;
  json.kind = Kind::kArray;
  return json;
}

void Json::add(std::string key, Json value) {
  members.push_back({std::move(key), std::move(value)});
}

const Json* Json::find(std::string_view key) const {
  for (const JsonMember& member : members)
    if (member.key == key) return &member.value;
  return nullptr;
}

const Json* Json::get(std::string_view key) const {
  const Json* value = find(key);
  return value && !value->is(Kind::kNull) ? value : nullptr;
}

std::optional<int64_t> Json::as_int() const {
  int64_t value = 0;
  const char* last = text.data() + text.size();
  if (kind != Kind::kInteger) return std::nullopt;
  const auto [stop, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc() || stop != last) return std::nullopt;
  return value;
}

std::optional<double> Json::as_double() const {
  if (kind != Kind::kInteger && kind != Kind::kFloat) return std::nullopt;
  return to_double(text);
}

std::string Json::describe() const {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return boolean ? "true" : "false";
    case Kind::kInteger:
    case Kind::kFloat:
      return printable(text, 60);
    case Kind::kString:
      return fmt::format("'{}'", printable(text, 60));
    case Kind::kArray:
      return "an array";
    case Kind::kObject:
      return "an object";
  }
  return {};
}

Json parse_json(std::string_view text, std::string_view source) {
  if (is_valid_utf8(text)) return Reader(text, source, false).whole();
  const std::string repaired = utf8_repair(text);
  return Reader(repaired, source, false).whole();
}

bool is_valid_json(std::string_view text) {
  try {
    Reader(text, "", false).whole();
    return true;
  } catch (const InputError&) {
    return false;
  }
}

std::string python_float(double value) {
  if (value != value) return "NaN";
  if (value == std::numeric_limits<double>::infinity()) return "Infinity";
  if (value == -std::numeric_limits<double>::infinity()) return "-Infinity";
  // Take the shortest digits and their exponent apart, then lay them out.
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const std::string_view shortest(buffer, static_cast<size_t>(end.ptr - buffer));
  const size_t e = shortest.find('e');
  int exponent = 0;
  const char* exponent_digits = shortest.data() + e + 1;
  std::from_chars(exponent_digits + (*exponent_digits == '+'), end.ptr, exponent);
  std::string out, digits;
  for (const char c : shortest.substr(0, e)) {
    if (c == '-') out += c;
    if (c >= '0' && c <= '9') digits += c;
  }
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out.append(1, '.').append(digits, 1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) {
    out.append("0.").append(static_cast<size_t>(-exponent - 1), '0');
    return out.append(digits);
  }
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole)
    return out.append(digits).append(whole - digits.size(), '0').append(".0");
  return out.append(digits, 0, whole).append(1, '.').append(digits, whole);
}

void append_json_escaped(std::string_view text, std::string* out) {
  for (const char c : text) {
    switch (c) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      case '\b':
        *out += "\\b";
        break;
      case '\f':
        *out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20)
          *out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
          out->push_back(c);
    }
  }
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  append_json_escaped(text, &out);
  out += '"';
  return out;
}

void append_json(const Json& value, JsonStyle style, std::string* out) {
  const std::string_view comma = style == JsonStyle::kPython ? ", " : ",";
  const std::string_view colon = style == JsonStyle::kPython ? ": " : ":";
  switch (value.kind) {
    case Kind::kNull:
      *out += "null";
      return;
    case Kind::kBool:
      *out += value.boolean ? "true" : "false";
      return;
    case Kind::kInteger:
    case Kind::kFloat:
      append_number(value, out);
      return;
    case Kind::kString:
      *out += json_string(value.text);
      return;
    case Kind::kArray:
      *out += '[';
      for (size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) *out += comma;
        append_json(value.items[i], style, out);
      }
      *out += ']';
      return;
    case Kind::kObject:
      break;
  }
  std::vector<const JsonMember*> members;
  for (const JsonMember& member : value.members) members.push_back(&member);
  if (style == JsonStyle::kSorted)
    std::sort(members.begin(), members.end(),
              [](const JsonMember* a, const JsonMember* b) { return a->key < b->key; });
  *out += '{';
  for (size_t i = 0; i < members.size(); ++i) {
    if (i > 0) *out += comma;
    *out += json_string(members[i]->key);
    *out += colon;
    append_json(members[i]->value, style, out);
  }
  *out += '}';
}

std::string write_json(const Json& value, JsonStyle style) {
  std::string out;
  append_json(value, style, &out);
  return out;
}

std::optional<std::vector<JsonArgument>> split_json_arguments(std::string_view text) {
  try {
    return Reader(text, "", true).arguments();
  } catch (const InputError&) {
    return std::nullopt;
  }
}

const char* json_argument_type(const Json& value) {
  switch (value.kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return "boolean";
    case Kind::kInteger:
    case Kind::kFloat:
      return "number";
    case Kind::kString:
      return "string";
    case Kind::kArray:
      return "array";
    case Kind::kObject:
      return "object";
  }
  return "null";
}

}  // namespace k3
