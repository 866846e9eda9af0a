#include "text/json.h"

#include "base/error.h"
#include "text/test_support.h"

namespace k3 {
namespace {

std::string sorted(std::string_view text) {
  return write_json(parse_json(text, "test"), JsonStyle::kSorted);
}

std::string python(std::string_view text) {
  return write_json(parse_json(text, "test"), JsonStyle::kPython);
}

TEST(Json, PrintsAsPythonDoes) {
  const std::vector<std::pair<const char*, const char*>> table = {
      {"10", "10"},
      {"10.0", "10.0"},
      {"1e2", "100.0"},
      {"-0", "0"},
      {"-0.0", "-0.0"},
      {"0.1", "0.1"},
      {"0.5", "0.5"},
      {"1e-4", "0.0001"},
      {"0.00001", "1e-05"},
      {"1.25e-7", "1.25e-07"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"123456789012345680000.0", "1.2345678901234568e+20"},
      {"12345678901234567890123", "12345678901234567890123"},
      {"-98765432109876543210", "-98765432109876543210"},
      {"0.1e1", "1.0"},
      {"3.14159", "3.14159"},
      {"1e100", "1e+100"},
      {"5e-324", "5e-324"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"1e400", "Infinity"},
      {"-1e400", "-Infinity"},
      {"1e-400", "0.0"},
      {"-1e-400", "-0.0"},
      {"0.000001e-330", "0.0"},
      {"100000e304", "Infinity"},
      {"9007199254740993.0", "9007199254740992.0"},
      {R"("a\"\\\/\b\f\n\r\t")", R"("a\"\\/\b\f\n\r\t")"},
      {R"("\u0001\u001f\u007f\u2028é")", "\"\\u0001\\u001f\x7f\u2028é\""},
      {R"("\ud83d\ude00")", "\"😀\""},
      {R"("a\ud83db")",
       "\"a\ufffd"
       "b\""},
      {R"("\ude00\ud83d")", "\"\ufffd\ufffd\""},
      {R"("\ud83d\ud83d\ude00")", "\"\ufffd😀\""},
      {R"("\ud83d\n")", "\"\ufffd\\n\""},
      {R"("\u0000")", R"("\u0000")"},
      {" [ 1 , true,false , null ] ", "[1,true,false,null]"},
      {R"({"b":1,"a":{"d":[],"c":{}},"é":2,"z":3,"B":4})",
       R"({"B":4,"a":{"c":{},"d":[]},"b":1,"z":3,"é":2})"},
      {R"({"a":1,"b":2,"a":3})", R"({"a":3,"b":2})"},
  };
  for (const auto& [text, expected] : table) EXPECT_EQ(sorted(text), expected) << text;
  EXPECT_EQ(python(R"({"b":1,"a":[1,"中"],"b":2.50})"), R"({"b": 2.5, "a": [1, "中"]})");
}

TEST(Json, SortsByCodePointAlsoBeyondTheBasicPlane) {
  EXPECT_EQ(sorted("{\"\U0001F600\":1,\"\uffee\":2,\"a\":3}"),
            "{\"a\":3,\"\uffee\":2,\"\U0001F600\":1}");
}

TEST(Json, SurrogateEscapesAsInTheFixture) {
  const auto fixture = test::fixture("tokenizer/invalid_utf8.json");
  const Tokenizer* tokenizer = test::released_tokenizer();
  for (const auto& c : fixture["json_surrogates"]) {
    const std::string text = parse_json(c["json"].get<std::string>(), "test").text;
    EXPECT_EQ(text, c["text"]);
    if (tokenizer) {
      EXPECT_EQ(tokenizer->encode(text), c["ids"].get<std::vector<int32_t>>());
    }
  }
}

TEST(Json, RepairsBytesThatAreNotUtf8) { EXPECT_EQ(sorted("\"a\xff\""), "\"a\ufffd\""); }

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"",
                           " ",
                           "{",
                           "[",
                           "[1,]",
                           "{\"a\"}",
                           "{\"a\":1,}",
                           "{a:1}",
                           "01",
                           "1.",
                           ".5",
                           "+1",
                           "1e",
                           "-",
                           "nul",
                           "True",
                           "NaN",
                           "Infinity",
                           "-Infinity",
                           "\"",
                           "\"\\",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\\u12g4\"",
                           "\"\n\"",
                           "1 2",
                           "[1]]",
                           "'a'",
                           "\xef\xbb\xbf{}"}) {
    EXPECT_FALSE(is_valid_json(text)) << text;
    EXPECT_THROW(parse_json(text, "test"), InputError) << text;
  }
  try {
    parse_json("{\"a\": tru}", "body");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "body: byte 6: expected a JSON value, found 'tru}'");
  }
}

TEST(Json, LimitsDepth) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') +
           std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_TRUE(is_valid_json(nested(kJsonDepth)));
  EXPECT_FALSE(is_valid_json(nested(kJsonDepth + 1)));
  EXPECT_FALSE(is_valid_json(std::string(1000000, '[')));
  EXPECT_FALSE(split_json_arguments("{\"a\":" + std::string(1000000, '[')));
}

TEST(Json, ReadsNumbers) {
  EXPECT_EQ(parse_json("42", "t").as_int(), 42);
  EXPECT_EQ(parse_json("-42", "t").as_int(), -42);
  EXPECT_EQ(parse_json("42.0", "t").as_int(), std::nullopt);
  EXPECT_EQ(parse_json("12345678901234567890123", "t").as_int(), std::nullopt);
  EXPECT_EQ(parse_json("2.5", "t").as_double(), 2.5);
  EXPECT_EQ(parse_json("2", "t").as_double(), 2.0);
  EXPECT_EQ(parse_json("\"2\"", "t").as_double(), std::nullopt);
}

std::string split(std::string_view text) {
  const auto arguments = split_json_arguments(text);
  if (!arguments) return "raw";
  std::string out;
  for (const JsonArgument& a : *arguments) out += a.key + "|" + a.type + "|" + a.value + ";";
  return out;
}

TEST(SplitArguments, KeepsTheSourceBytes) {
  EXPECT_EQ(split(R"({"f":1e2 , "o":{"k" : [1,2 ,3]}})"),
            R"(f|number|1e2;o|object|{"k" : [1,2 ,3]};)");
  EXPECT_EQ(split(R"({"s":"a\n\u00e9","z":{"x":"\u4e2d"}})"),
            "s|string|a\né;z|object|{\"x\":\"\\u4e2d\"};");
  EXPECT_EQ(split(" \t\r\n{ } trailing"), "");
  EXPECT_EQ(split(R"({"a":1,"a":"x"})"), "a|number|1;a|string|x;");
  EXPECT_EQ(split(R"({"a":NaN,"b":-Infinity,"c":[Infinity]})"),
            "a|number|NaN;b|number|-Infinity;c|array|[Infinity];");
  EXPECT_EQ(split("{\"a\":\"x\ny\x01\"}"), "a|string|x\ny\x01;");
  EXPECT_EQ(split(R"({"a":true,"b":null,"c":-0.50})"),
            "a|boolean|true;b|null|null;c|number|-0.50;");
  EXPECT_EQ(split(R"({"a":"\ud800"})"), "a|string|\ufffd;");
  EXPECT_EQ(split(R"({"k\"1":{}}{"b":1})"), "k\"1|object|{};");
}

TEST(SplitArguments, LeavesWhatIsNoObject) {
  for (const char* text :
       {"", "  ", "[1]", "\"x\"", "{\"a\":1,}", "{\"a\": 1,", "{\"a\"}", "{'a':1}", "null",
        "{\"a\":01}", "{\"a\":.5}", "{,}", "\xc2\xa0{}", "\v{}"})
    EXPECT_EQ(split(text), "raw") << text;
}

}  // namespace
}  // namespace k3
