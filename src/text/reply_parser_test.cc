#include "text/reply_parser.h"

#include <map>

#include "base/error.h"
#include "text/test_support.h"

namespace k3 {
namespace {

using Ids = std::vector<int32_t>;
using Kind = ReplyDelta::Kind;

ReplyOptions options(const std::string& channel = "think", bool callable = true) {
  ReplyOptions out;
  out.open_channel = channel == "think" ? OpenChannel::kThink : OpenChannel::kResponse;
  out.tools_callable = callable;
  out.make_call_id = [n = 0]() mutable { return fmt::format("id{}", n++); };
  return out;
}

nlohmann::ordered_json as_json(const Reply& reply) {
  return {{"message", nlohmann::ordered_json::parse(
                          write_json(reply_message(reply, false), JsonStyle::kCompact))},
          {"finish_reason", reply.finish_reason}};
}

// What a client of the stream puts together.
struct Streamed {
  std::string reasoning, content;
  std::vector<ReplyCall> calls;

  void add(const std::vector<ReplyDelta>& deltas) {
    for (const ReplyDelta& delta : deltas) {
      if (delta.kind == Kind::kCallStart) {
        EXPECT_EQ(delta.call, static_cast<int>(calls.size()));
        EXPECT_TRUE(delta.text.empty());
        calls.push_back({delta.id, delta.name, ""});
        continue;
      }
      EXPECT_FALSE(delta.text.empty());
      if (delta.kind == Kind::kReasoning) reasoning += delta.text;
      if (delta.kind == Kind::kContent) content += delta.text;
      if (delta.kind == Kind::kCallArguments) {
        ASSERT_EQ(delta.call, static_cast<int>(calls.size()) - 1);
        calls.back().arguments += delta.text;
      }
    }
  }

  void expect_matches(const Reply& reply) const {
    EXPECT_EQ(content, reply.content);
    // Reasoning that turned out to be the answer was sent twice.
    if (reply.reasoning.empty() && !reasoning.empty())
      EXPECT_EQ(reply.content.rfind(reasoning, 0), 0u);
    else
      EXPECT_EQ(reasoning, reply.reasoning);
    ASSERT_GE(calls.size(), reply.calls.size());
    ASSERT_LE(calls.size(), reply.calls.size() + 1);
    for (size_t i = 0; i < reply.calls.size(); ++i) {
      EXPECT_EQ(calls[i].id, reply.calls[i].id);
      EXPECT_EQ(calls[i].name, reply.calls[i].name);
      EXPECT_EQ(calls[i].arguments, reply.calls[i].arguments);
    }
  }
};

// Feeds `ids` in the groups that end at `cuts`; checks that the stream adds up.
Reply parse(const Tokenizer& tokenizer, const Ids& ids, ReplyOptions opts, ReplyEnd end,
            const std::vector<size_t>& cuts = {}) {
  ReplyParser parser(tokenizer, std::move(opts));
  Streamed streamed;
  size_t at = 0;
  const auto feed_until = [&](size_t cut) {
    std::vector<ReplyDelta> deltas;
    parser.feed(std::span(ids).subspan(at, cut - at), &deltas);
    streamed.add(deltas);
    at = cut;
  };
  for (const size_t cut : cuts) feed_until(cut);
  feed_until(ids.size());
  std::vector<ReplyDelta> deltas;
  Reply reply = parser.finish(end, &deltas);
  streamed.add(deltas);
  streamed.expect_matches(reply);
  return reply;
}

std::vector<size_t> every(size_t step, size_t size) {
  std::vector<size_t> cuts;
  for (size_t at = step; at < size; at += step) cuts.push_back(at);
  return cuts;
}

// The fixtures as ids of the tokenizer at hand: markers by name, text in plain mode.
Ids ids_of(const Tokenizer& tokenizer, const nlohmann::ordered_json& segments) {
  Ids ids;
  for (const auto& segment : segments)
    tokenizer.append_encoded(segment[0].get<std::string>(),
                             segment[1] == 1 ? SpecialText::kParse : SpecialText::kPlain, &ids);
  return ids;
}

void check_fixtures(const Tokenizer& tokenizer, bool released_ids) {
  const auto cases = test::fixture_cases("chat/parse.json");
  EXPECT_EQ(cases.size(), 20u);
  for (const auto& c : cases) {
    const Ids ids = released_ids ? c["ids"].get<Ids>() : ids_of(tokenizer, c["segments"]);
    const nlohmann::ordered_json expected = {{"message", c["message"]},
                                             {"finish_reason", c["finish_reason"]}};
    const ReplyEnd end = c["end"] == "stop" ? ReplyEnd::kStop : ReplyEnd::kLength;
    const auto result = [&](const std::vector<size_t>& cuts) {
      return as_json(
          parse(tokenizer, ids, options(c["open_channel"], c["tools_declared"]), end, cuts));
    };
    EXPECT_EQ(result({}), expected) << c["name"];
    for (size_t step = 1; step <= 7; ++step)
      EXPECT_EQ(result(every(step, ids.size())), expected) << c["name"] << step;
    for (size_t cut = 0; cut <= ids.size(); ++cut)
      EXPECT_EQ(result({cut}), expected) << c["name"] << cut;
  }
}

TEST(ReplyParser, ParsesTheFixturesInEverySplit) {
  K3_NEEDS_RELEASED_TOKENIZER(tokenizer);
  check_fixtures(tokenizer, true);
}

TEST(ReplyParser, ParsesTheFixturesWithOtherIds) { check_fixtures(test::small_tokenizer(), false); }

class ReplyParserCases : public testing::Test {
 protected:
  Reply reply(const std::string& text, ReplyEnd end = ReplyEnd::kStop,
              const std::string& channel = "think", bool callable = true) {
    const Ids ids = tokenizer_.encode(text, SpecialText::kParse);
    const Reply whole = parse(tokenizer_, ids, options(channel, callable), end);
    const Reply single =
        parse(tokenizer_, ids, options(channel, callable), end, every(1, ids.size()));
    EXPECT_EQ(as_json(whole), as_json(single));
    return whole;
  }
  // "reasoning|content|name(arguments)…|finish_reason"
  std::string summary(const std::string& text, ReplyEnd end = ReplyEnd::kStop,
                      const std::string& channel = "think", bool callable = true) {
    const Reply r = reply(text, end, channel, callable);
    std::string out = r.reasoning + "|" + r.content + "|";
    for (const ReplyCall& call : r.calls) out += call.name + "(" + call.arguments + ")";
    return out + "|" + r.finish_reason;
  }
  const Tokenizer tokenizer_ = test::small_tokenizer();
};

const std::string kThinkDone = "r<|close|>think<|sep|>";
const std::string kDone = "<|close|>message<|sep|><|end_of_msg|>";
const std::string kCall = "<|open|>call tool=\"f\" index=\"1\"<|sep|>";
const std::string kCallDone = "<|close|>call<|sep|>";

std::string argument(const std::string& attributes, const std::string& value) {
  return "<|open|>argument " + attributes + "<|sep|>" + value + "<|close|>argument<|sep|>";
}

TEST_F(ReplyParserCases, EndTokensEnd) {
  EXPECT_EQ(summary("r<|end_of_msg|>rest"), "r|||stop");
  EXPECT_EQ(summary("r[EOS]rest"), "r|||stop");
  EXPECT_EQ(summary("r<|end_of_msg|>", ReplyEnd::kLength), "r|||length");
  EXPECT_EQ(summary("r[BOS]"), "r[BOS]|||stop");
  EXPECT_EQ(summary("a<|close|>message<|sep|>b", ReplyEnd::kStop, "response"), "|a||stop");
}

TEST_F(ReplyParserCases, SkippedThinkingIsTheAnswer) {
  EXPECT_EQ(summary("a<|close|>message<|sep|>"), "|a||stop");
  EXPECT_EQ(summary("a<|close|>response<|sep|>b" + kDone), "|ab||stop");
  EXPECT_EQ(summary("a<|close|>message<|end_of_msg|>"), "|a||stop");
  // Not if the model opened think itself, nor if there is content, nor without any close.
  EXPECT_EQ(summary("<|open|>think<|sep|>a" + kDone), "a|||stop");
  EXPECT_EQ(summary("a<|open|>response<|sep|>b<|open|>think<|sep|>c" + kDone), "ac|b||stop");
  EXPECT_EQ(summary("a<|end_of_msg|>"), "a|||stop");
}

TEST_F(ReplyParserCases, SkippedThinkingIsSentOnceMore) {
  ReplyParser parser(tokenizer_, options());
  std::vector<ReplyDelta> deltas;
  parser.feed(tokenizer_.encode("ab<|close|>response<|sep|>", SpecialText::kParse), &deltas);
  ASSERT_EQ(deltas.size(), 2u);
  EXPECT_EQ(deltas[0].kind, Kind::kReasoning);
  EXPECT_EQ(deltas[0].text, "ab");
  EXPECT_EQ(deltas[1].kind, Kind::kContent);
  EXPECT_EQ(deltas[1].text, "ab");
}

TEST_F(ReplyParserCases, LostEndsOfTags) {
  EXPECT_EQ(summary("r<|close|>think<|close|>think<|open|>response<|sep|>a" + kDone), "r|a||stop");
  EXPECT_EQ(summary("r<|close|> think <|open|>response<|end_of_msg|>"), "r|||stop");
  // A name that means nothing is text, with its marker.
  EXPECT_EQ(summary("r<|close|>thing x<|close|>think<|sep|>a" + kDone),
            "r<|close|>thing x|a||stop");
  EXPECT_EQ(summary("r<|open|><|end_of_msg|>"), "r<|open|>|||stop");
  EXPECT_EQ(summary("r<|open|>html", ReplyEnd::kStop), "r<|open|>html|||stop");
  EXPECT_EQ(summary("r<|open|>html", ReplyEnd::kLength), "r|||length");
  EXPECT_EQ(summary("r<|sep|>s" + kThinkDone + "<|sep|>a" + kDone), "rsr|a||stop");
}

TEST_F(ReplyParserCases, LongHeaders) {
  const std::string unknown = "x " + std::string(4094, 'y');
  EXPECT_EQ(summary("<|open|>" + unknown + "<|sep|>z<|end_of_msg|>"), "z|||stop");
  EXPECT_EQ(summary("<|open|>" + unknown + "!?<|sep|>z<|end_of_msg|>"),
            "<|open|>" + unknown + "!?z|||stop");
  EXPECT_EQ(summary("<|close|>think " + std::string(5000, 'y') + "<|end_of_msg|>"),
            "|" + std::string(5000 - 4097 + 6, 'y') + "||stop");
}

TEST_F(ReplyParserCases, OtherTagsKeepTheirContent) {
  EXPECT_EQ(
      summary(kThinkDone + "<|open|>response<|sep|>a<|open|>b<|sep|>c<|close|>b<|sep|>d" + kDone),
      "r|acd||stop");
  // Arguments outside a call mean nothing.
  EXPECT_EQ(summary("a" + argument("key=\"k\"", "v") + "<|open|>json<|sep|>{}" + kDone,
                    ReplyEnd::kStop, "response"),
            "|av{}||stop");
}

TEST_F(ReplyParserCases, TextBetweenChannels) {
  EXPECT_EQ(summary(kThinkDone + " \n\u3000 a b \n" + kDone), "r|a b \n||stop");
  EXPECT_EQ(summary(kThinkDone + "<|open|>response<|sep|> a <|close|>response<|sep|>\n\nb" + kDone),
            "r| a b||stop");
  EXPECT_EQ(summary(kThinkDone + "<|open|>tools<|sep|>junk" + kCall + "junk" + kCallDone + "junk" +
                    kDone),
            "r||f({})|tool_calls");
}

TEST_F(ReplyParserCases, ArgumentsComeBackAsJson) {
  const std::string open = kThinkDone + "<|open|>tools<|sep|>" + kCall;
  const auto arguments = [&](const std::string& body) {
    const Reply r = reply(open + body + kCallDone + "<|close|>tools<|sep|>" + kDone);
    EXPECT_EQ(r.calls.size(), 1u);
    return r.calls.empty() ? "" : r.calls[0].arguments;
  };
  EXPECT_EQ(arguments(""), "{}");
  EXPECT_EQ(arguments(argument("key=\"a\"", "x\"\\\n\x01")), R"({"a": "x\"\\\n\u0001"})");
  EXPECT_EQ(arguments(argument("key=\"a\" type=\"number\"", " 1e2\n")), R"({"a": 1e2})");
  EXPECT_EQ(arguments(argument("key=\"a\" type=\"number\"", " one ")), R"({"a": " one "})");
  EXPECT_EQ(arguments(argument("key=\"a\" type=\"number\"", "")), R"({"a": ""})");
  EXPECT_EQ(arguments(argument("key=\"a\" type=\"number\"", "NaN")), R"({"a": "NaN"})");
  EXPECT_EQ(arguments(argument("type=\"object\" key=\"o\"", "{\"k\" : [1,2 ,3]}")),
            R"({"o": {"k" : [1,2 ,3]}})");
  EXPECT_EQ(arguments(argument("key=\"a\"", "1") + argument("key=\"a\"", "2")),
            R"({"a": "1", "a": "2"})");
  EXPECT_EQ(arguments(argument("type=\"string\"", "no key")), "{}");
  EXPECT_EQ(arguments("<|open|>json type=\"object\"<|sep|> {\"a\":1} <|close|>json<|sep|>"),
            " {\"a\":1} ");
  EXPECT_EQ(arguments("<|open|>json<|sep|><|close|>json<|sep|>"), "{}");
  // The first kind decides.
  EXPECT_EQ(arguments("<|open|>json<|sep|>{}<|close|>json<|sep|>" + argument("key=\"a\"", "1")),
            "{}");
  EXPECT_EQ(arguments(argument("key=\"a\"", "1") + "<|open|>json<|sep|>{}<|close|>json<|sep|>"),
            R"({"a": "1"})");
  // Elements that the next tag closes.
  EXPECT_EQ(
      arguments(
          "<|open|>argument key=\"a\"<|sep|>1<|open|>argument key=\"b\" type=\"null\"<|sep|>null"),
      R"({"a": "1", "b": null})");
  EXPECT_EQ(arguments(argument("key=\"a\"", std::string("\xe4\xb8", 2))), "{\"a\": \"\ufffd\"}");
}

TEST_F(ReplyParserCases, Attributes) {
  const auto name = [&](const std::string& header) {
    const Reply r = reply(kThinkDone + "<|open|>" + header + "<|sep|>" + kCallDone + kDone);
    return r.calls.empty() ? "none" : r.calls[0].name;
  };
  EXPECT_EQ(name("call tool=\"a b\tc\""), "a b\tc");
  EXPECT_EQ(name("  call\n tool=\"f\"  "), "f");
  EXPECT_EQ(name("call index=\"1\" tool=\"f\""), "f");
  EXPECT_EQ(name("call x tool=\"f\""), "f");
  EXPECT_EQ(name("call x=1 tool=\"f\""), "f");
  EXPECT_EQ(name("call tool=\"f"), "f");
  EXPECT_EQ(name("call tool=\"a&amp;quot;&quot;&lt;&\""), "a&quot;\"&lt;&");
  EXPECT_EQ(name("call tool=\"\""), "none");
  EXPECT_EQ(name("call"), "none");
  EXPECT_EQ(name("call tool=f"), "none");
  EXPECT_EQ(name("call tools=\"f\""), "none");
}

TEST_F(ReplyParserCases, CallsThatAreNotClosed) {
  const std::string open =
      kThinkDone + "<|open|>tools<|sep|>" + kCall + "<|open|>argument key=\"a\"<|sep|>v";
  EXPECT_EQ(summary(open, ReplyEnd::kLength), "r|||length");
  EXPECT_EQ(summary(open + kDone), "r|||stop");
  EXPECT_EQ(summary(open + "<|close|>tools<|sep|>" + kDone), "r||f({\"a\": \"v\"})|tool_calls");
  EXPECT_EQ(summary(open + "<|open|>call tool=\"g\"<|sep|>" + kCallDone + kDone),
            "r||f({\"a\": \"v\"})g({})|tool_calls");
  EXPECT_EQ(summary(open + kCallDone, ReplyEnd::kLength), "r||f({\"a\": \"v\"})|length");
}

TEST_F(ReplyParserCases, CallsThatMayNotBeMade) {
  const std::string text =
      kThinkDone + "<|open|>response<|sep|>a<|close|>response<|sep|><|open|>tools<|sep|>" + kCall +
      argument("key=\"k\"", "v") + kCallDone + "<|close|>tools<|sep|>b" + kDone;
  EXPECT_EQ(summary(text, ReplyEnd::kStop, "think", false), "r|ab||stop");
  EXPECT_EQ(summary(text), "r|ab|f({\"k\": \"v\"})|tool_calls");
}

// The first delta of a call comes at its tag, and strings as they are written.
TEST_F(ReplyParserCases, StreamsCalls) {
  ReplyParser parser(tokenizer_, options("response"));
  const auto feed = [&](const std::string& text) {
    std::vector<ReplyDelta> deltas;
    parser.feed(tokenizer_.encode(text, SpecialText::kParse), &deltas);
    std::string out;
    for (const ReplyDelta& d : deltas)
      out += d.kind == Kind::kCallStart ? fmt::format("[{} {} {}]", d.call, d.id, d.name)
                                        : fmt::format("{}:{}", d.call, d.text);
    return out;
  };
  EXPECT_EQ(feed("<|open|>tools<|sep|><|open|>call tool=\"f\""), "");
  EXPECT_EQ(feed("<|sep|>"), "[0 id0 f]");
  EXPECT_EQ(feed("<|open|>argument key=\"a\"<|sep|>"), "0:{\"a\": \"");
  EXPECT_EQ(feed("x\n"), "0:x\\n");
  EXPECT_EQ(feed("<|close|>argument<|sep|>"), "0:\"");
  EXPECT_EQ(feed("<|open|>argument key=\"n\" type=\"number\"<|sep|>1"), "0:, \"n\": ");
  EXPECT_EQ(feed("2"), "");
  EXPECT_EQ(feed("<|close|>argument<|sep|>"), "0:12");
  EXPECT_EQ(feed("<|close|>call<|sep|>"), "0:}");
  EXPECT_EQ(feed("<|open|>call tool=\"g\"<|sep|>"), "[1 id1 g]");
}

TEST_F(ReplyParserCases, RefusesIdsOutsideTheVocabulary) {
  ReplyParser parser(tokenizer_, options());
  std::vector<ReplyDelta> deltas;
  EXPECT_THROW(parser.feed(tokenizer_.size(), &deltas), InputError);
  EXPECT_THROW(parser.feed(-1, &deltas), InputError);
}

TEST_F(ReplyParserCases, DefaultCallIdsAreUnique) {
  const std::string id = random_call_id();
  EXPECT_EQ(id.size(), 29u);
  EXPECT_EQ(id.substr(0, 5), "call_");
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef", 5), std::string::npos);
  EXPECT_NE(id, random_call_id());
}

// Damaged transcripts: nothing throws, no marker leaks that was not written as text, the stream
// adds up, and every split gives the same message.
TEST(ReplyParser, SurvivesDamagedTranscripts) {
  const Tokenizer tokenizer = test::small_tokenizer();
  std::vector<Ids> transcripts;
  for (const auto& c : test::fixture_cases("chat/parse.json"))
    transcripts.push_back(ids_of(tokenizer, c["segments"]));
  Ids markers;
  for (const char* name : {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "[EOS]"})
    markers.push_back(*tokenizer.special(name));
  const Ids names = tokenizer.encode("think response tools call argument json message key=\"k\"");
  test::Random random(6);
  size_t with_calls = 0;
  for (int i = 0; i < 100000; ++i) {
    Ids ids = transcripts[random.below(transcripts.size())];
    for (size_t edits = 1 + random.below(6); edits > 0 && !ids.empty(); --edits) {
      const auto at = ids.begin() + static_cast<std::ptrdiff_t>(random.below(ids.size()));
      const int32_t id =
          random.below(2) == 0 ? markers[random.below(markers.size())]
          : random.below(2) == 0
              ? names[random.below(names.size())]
              : static_cast<int32_t>(random.below(static_cast<size_t>(tokenizer.size())));
      switch (random.below(4)) {
        case 0:
          ids.erase(at);
          break;
        case 1:
          ids.insert(at, id);
          break;
        case 2:
          *at = id;
          break;
        default: {
          const Ids& other = transcripts[random.below(transcripts.size())];
          ids.erase(at, ids.end());
          ids.insert(ids.end(),
                     other.begin() + static_cast<std::ptrdiff_t>(random.below(other.size())),
                     other.end());
        }
      }
    }
    const std::string channel = random.below(4) == 0 ? "response" : "think";
    const ReplyEnd end = random.below(2) == 0 ? ReplyEnd::kStop : ReplyEnd::kLength;
    const Reply whole = parse(tokenizer, ids, options(channel), end);
    const Reply split =
        parse(tokenizer, ids, options(channel), end, every(1 + random.below(3), ids.size()));
    ASSERT_EQ(whole.content, split.content);
    ASSERT_EQ(whole.reasoning, split.reasoning);
    ASSERT_EQ(whole.calls.size(), split.calls.size());
    ASSERT_EQ(whole.finish_reason, split.finish_reason);
    for (size_t k = 0; k < whole.calls.size(); ++k)
      ASSERT_EQ(whole.calls[k].arguments, split.calls[k].arguments);
    with_calls += !whole.calls.empty();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(with_calls, 10000u);
}

// The time for a token does not depend on how much was written before it.
TEST(ReplyParser, IsLinear) {
  const Tokenizer tokenizer = test::small_tokenizer();
  const Ids line = tokenizer.encode("the answer is in the text ");
  ReplyParser parser(tokenizer, options());
  std::vector<ReplyDelta> deltas;
  size_t fed = 0;
  for (; fed < 2000000; fed += line.size()) {
    parser.feed(line, &deltas);
    deltas.clear();
  }
  EXPECT_EQ(parser.finish(ReplyEnd::kLength, &deltas).reasoning.size(), fed / line.size() * 26);
}

}  // namespace
}  // namespace k3
