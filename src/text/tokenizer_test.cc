#include "text/tokenizer.h"

#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/utf8.h"
#include "text/bpe.h"
#include "text/test_support.h"

namespace k3 {
namespace {

using Ids = std::vector<int32_t>;

SpecialText mode_of(bool allow_special) {
  return allow_special ? SpecialText::kParse : SpecialText::kPlain;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Tokenizer, EncodesTheFixtures) {
  K3_NEEDS_RELEASED_TOKENIZER(tokenizer);
  size_t cases = 0;
  for (const auto& c : test::fixture_cases("tokenizer/encode.json")) {
    const std::string text = c["text"];
    EXPECT_EQ(tokenizer.encode(text, mode_of(c["allow_special"])), c["ids"].get<Ids>())
        << c["name"];
    if (!c["allow_special"]) {
      const auto pieces = Tokenizer::pieces(text);
      EXPECT_EQ(std::vector<std::string>(pieces.begin(), pieces.end()),
                c["pieces"].get<std::vector<std::string>>())
          << c["name"];
    }
    EXPECT_EQ(tokenizer.decode(c["ids"].get<Ids>()), text) << c["name"];
    ++cases;
  }
  EXPECT_EQ(cases, 40u);
}

TEST(Tokenizer, DecodesTheFixtures) {
  K3_NEEDS_RELEASED_TOKENIZER(tokenizer);
  for (const auto& c : test::fixture_cases("tokenizer/decode.json")) {
    const Ids ids = c["ids"].get<Ids>();
    const bool skip = c["skip_special_tokens"];
    EXPECT_EQ(tokenizer.decode(ids, skip), c["text"]) << c["name"];
    if (!skip) {
      EXPECT_EQ(tokenizer.decode_bytes(ids), test::from_hex(c["bytes_hex"])) << c["name"];
    }
    StreamDecoder decoder(tokenizer, skip);
    std::vector<std::string> stream;
    for (const int32_t id : ids) stream.push_back(decoder.push(id));
    EXPECT_EQ(stream, c["stream"].get<std::vector<std::string>>()) << c["name"];
    EXPECT_EQ(decoder.flush(), c["flush"]) << c["name"];
  }
}

TEST(Tokenizer, ReplacesWhatIsNotUtf8) {
  K3_NEEDS_RELEASED_TOKENIZER(tokenizer);
  const auto fixture = test::fixture("tokenizer/invalid_utf8.json");
  for (const auto& c : fixture["cases"]) {
    const std::string bytes = test::from_hex(c["bytes_hex"]);
    EXPECT_EQ(tokenizer.encode(bytes), c["ids"].get<Ids>()) << c["name"];
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes)), c["text"]) << c["name"];
  }
}

TEST(Tokenizer, CutsLongTextAsTheReference) {
  K3_NEEDS_RELEASED_TOKENIZER(tokenizer);
  for (const auto& c : test::fixture_cases("tokenizer/long.json")) {
    std::string text;
    for (const auto& part : c["parts"])
      for (int i = 0; i < part[1].get<int>(); ++i) text += part[0].get<std::string>();
    const Ids ids = tokenizer.encode(text, mode_of(c["allow_special"]));
    EXPECT_EQ(ids.size(), c["n_ids"].get<size_t>()) << c["name"];
    std::string words;
    for (const int32_t id : ids)
      for (int shift = 0; shift < 32; shift += 8) words += static_cast<char>(id >> shift);
    EXPECT_EQ(test::sha256(words), c["ids_sha256_le32"]) << c["name"];
  }
}

// The third public value.
TEST(Tokenizer, EncodesAPublishedSentence) {
  K3_NEEDS_RELEASED_TOKENIZER(tokenizer);
  EXPECT_EQ(tokenizer.encode("Hello, Kernel Æther! The K3 model runs here. 你好世界"),
            (Ids{19180, 11, 53427, 3648, 228, 1007, 0, 646, 1040, 18, 3125, 11082, 2397, 13, 220,
                 33845, 2243}));
}

TEST(Tokenizer, NamesEverySpecialId) {
  K3_NEEDS_RELEASED_TOKENIZER(tokenizer);
  ASSERT_EQ(tokenizer.size(), 163840);
  ASSERT_EQ(tokenizer.first_special(), 163584);
  const std::map<int, std::string> named = {{163584, "[BOS]"},
                                            {163585, "[EOS]"},
                                            {163586, "<|end_of_msg|>"},
                                            {163587, "<|open|>"},
                                            {163588, "<|close|>"},
                                            {163589, "<|sep|>"},
                                            {163590, "[start_header_id]"},
                                            {163591, "[end_header_id]"},
                                            {163593, "[EOT]"},
                                            {163602, "<|media_begin|>"},
                                            {163603, "<|media_content|>"},
                                            {163604, "<|media_end|>"},
                                            {163605, "<|media_pad|>"},
                                            {163649, "<osagent_mode>"},
                                            {163838, "[UNK]"},
                                            {163839, "[PAD]"}};
  for (int id = 163584; id < 163840; ++id) {
    const auto found = named.find(id);
    const std::string name =
        found != named.end() ? found->second : fmt::format("<|reserved_token_{}|>", id);
    EXPECT_EQ(tokenizer.bytes(id), name);
    EXPECT_EQ(tokenizer.special(name), id);
    EXPECT_EQ(tokenizer.encode(name, SpecialText::kParse), Ids{id});
    EXPECT_EQ(tokenizer.flagged_special(id), found != named.end() && (id < 163587 || id > 163589));
  }
  EXPECT_EQ(tokenizer.flagged_specials().size(), 13u);
  EXPECT_EQ(tokenizer.special("<|reserved_token_0|>"), std::nullopt);
  EXPECT_EQ(tokenizer.role("eos_token"), 163585);
  EXPECT_EQ(tokenizer.role("pad_token"), 163839);
}

TEST(Tokenizer, DecodesEveryId) {
  K3_NEEDS_RELEASED_TOKENIZER(tokenizer);
  int invalid = 0;
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    const std::string text = tokenizer.decode(std::array{id});
    ASSERT_FALSE(text.empty());
    if (text != tokenizer.bytes(id)) ++invalid;
  }
  EXPECT_EQ(invalid, 1172);
  EXPECT_THROW(tokenizer.bytes(163840), InputError);
  EXPECT_THROW(tokenizer.bytes(-1), InputError);
  EXPECT_THROW(tokenizer.decode(std::array{163840}), InputError);
}

TEST(Tokenizer, LoadsFast) {
  K3_NEEDS_RELEASED_TOKENIZER(cached);
  const auto start = std::chrono::steady_clock::now();
  const Tokenizer tokenizer = Tokenizer::load(DiskStorage(), test::released_folder());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(tokenizer.size(), cached.size());
  RecordProperty("seconds", fmt::format("{:.3f}", seconds.count()));
  EXPECT_LT(seconds.count(), 3.0);  // half a second on an idle machine without sanitizers
}

// Four megabytes of one class: nothing in the way may cost more than n log n.
TEST(Tokenizer, StaysFastOnFourMegabytesOfOneClass) {
  K3_NEEDS_RELEASED_TOKENIZER(tokenizer);
  const std::vector<std::pair<const char*, std::string>> classes = {
      {"lower", "a"},     {"upper", "A"},
      {"space", " "},     {"newline", "\n"},
      {"digit", "7"},     {"punct", "!"},
      {"han", "中"},      {"kana", "あ"},
      {"emoji", "😀"},     {"mark", "\u0301"},
      {"angle", "<"},     {"mixed", "aB"},
      {"modifier", "ʰA"}, {"rare", "\U0001F9FF\U000118A0"}};
  test::Random random(7);
  const auto time = [&](const std::string& name, const std::string& text) {
    const auto start = std::chrono::steady_clock::now();
    const Ids ids = tokenizer.encode(text, SpecialText::kParse);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(tokenizer.decode_bytes(ids), text) << name;
    std::printf("  4 MB of %-8s %.3f s, %zu ids\n", name.c_str(), seconds.count(), ids.size());
    EXPECT_LT(seconds.count(), 30.0) << name;  // 2 s on an idle machine without sanitizers
  };
  for (const auto& [name, unit] : classes) {
    std::string text;
    while (text.size() < (size_t{4} << 20)) text += unit;
    time(name, text);
  }
  std::string letters;
  while (letters.size() < (size_t{4} << 20)) letters += static_cast<char>('a' + random.below(26));
  time("random", letters);
}

std::string random_text(test::Random& random, size_t length) {
  static const std::vector<std::string> units = {
      "a",  "B",  "the",    " ",        "  ",       "\n",       "\r\n",
      "\t", "1",  "42",     "〇",       "中",       "文",       "々",
      "⺀", "é",  "\u0301", "ſ",        "'s",       "'",        "!",
      "/",  "한", "😀",      "<|open|>", "[BOS]",    "\x1c",     "\u3000",
      "０", "ǅ",  "ʰ",      "\x80",     "\xe4\xb8", "\xf0\x9f", std::string(1, '\0')};
  std::string text;
  for (size_t i = 0; i < length; ++i) text += units[random.below(units.size())];
  return text;
}

TEST(Tokenizer, RoundTripsRandomText) {
  const Tokenizer small = test::small_tokenizer();
  const Tokenizer* released = test::released_tokenizer();
  test::Random random(1);
  for (int i = 0; i < 4000; ++i) {
    const std::string text = random_text(random, random.below(60));
    for (const Tokenizer* tokenizer : {&small, released}) {
      if (!tokenizer) continue;
      const Ids plain = tokenizer->encode(text),
                parsed = tokenizer->encode(text, SpecialText::kParse);
      EXPECT_EQ(tokenizer->decode_bytes(plain), utf8_repair(text));
      EXPECT_EQ(tokenizer->decode_bytes(parsed), utf8_repair(text));
      for (const int32_t id : plain) EXPECT_LT(id, tokenizer->first_special());
      StreamDecoder decoder(*tokenizer);
      std::string streamed;
      for (const int32_t id : plain) streamed += decoder.push(id);
      EXPECT_EQ(streamed + decoder.flush(), utf8_repair(text));
    }
  }
}

TEST(Tokenizer, IsSafeOnManyThreads) {
  const Tokenizer tokenizer = test::small_tokenizer();
  test::Random random(2);
  const std::string text = random_text(random, 2000);
  const Ids expected = tokenizer.encode(text);
  std::vector<Ids> found(4);
  std::vector<std::thread> threads;
  for (Ids& ids : found) threads.emplace_back([&] { ids = tokenizer.encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : found) EXPECT_EQ(ids, expected);
}

// Plainest possible: look at every pair, every time.
Ids merge_naively(const Vocabulary& vocabulary, const std::string& piece) {
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  for (;;) {
    int32_t best_rank = -1;
    size_t best = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const int32_t rank = vocabulary.find(parts[i] + parts[i + 1]);
      if (rank >= 0 && (best_rank < 0 || rank < best_rank)) best_rank = rank, best = i;
    }
    if (best_rank < 0) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(vocabulary.find(part));
  return ids;
}

TEST(Bpe, BothWaysMergeLikeThePlainOne) {
  const Vocabulary vocabulary =
      Vocabulary::parse(test::small_vocabulary({"ab", "ba", "aa", "aba", "bab", "aab", "abab", "bb",
                                                "aaaa", "abba", "abc", "cc", "ccc", "bccc"}),
                        "test");
  test::Random random(3);
  for (int i = 0; i < 3000; ++i) {
    std::string piece;
    for (size_t n = 1 + random.below(kShortPiece); n > 0; --n)
      piece += static_cast<char>('a' + random.below(3));
    const Ids expected = merge_naively(vocabulary, piece);
    Ids short_way, long_way;
    append_bpe_short(vocabulary, piece, &short_way);
    append_bpe_long(vocabulary, piece, &long_way);
    ASSERT_EQ(short_way, expected) << piece;
    ASSERT_EQ(long_way, expected) << piece;
  }
}

TEST(Tokenizer, WorksWithOtherIds) {
  const Tokenizer tokenizer = test::small_tokenizer();
  EXPECT_EQ(tokenizer.first_special(), 267);
  EXPECT_EQ(tokenizer.size(), 279);
  EXPECT_EQ(tokenizer.special("<|open|>"), 270);
  EXPECT_EQ(tokenizer.special("<|close|>"), 267);
  EXPECT_EQ(tokenizer.special("<|reserved_token_277|>"), 277);
  EXPECT_EQ(tokenizer.role("bos_token"), 276);
  EXPECT_EQ(tokenizer.encode("the"), Ids{257});
  EXPECT_EQ(tokenizer.encode("[BOS]the<|open|", SpecialText::kParse),
            (Ids{276, 257, '<', '|', 'o', 'p', 260, '|'}));
}

// Without "num_reserved_special_tokens" 256 ids follow, or more if a name lies beyond.
TEST(Tokenizer, ReservesSpecialIds) {
  MemoryStorage storage;
  storage.put("m/tiktoken.model", test::small_vocabulary({}));
  const auto size_with = [&](const std::string& config) {
    storage.put("m/tokenizer_config.json", config);
    return Tokenizer::load(storage, "m").size();
  };
  EXPECT_EQ(size_with("{}"), 512);
  EXPECT_EQ(size_with(R"({"added_tokens_decoder":{"260":{"content":"[X]"}}})"), 512);
  EXPECT_EQ(size_with(R"({"added_tokens_decoder":{"600":{"content":"[X]"}}})"), 601);
  EXPECT_EQ(size_with(R"({"num_reserved_special_tokens":0})"), 256);
  EXPECT_EQ(size_with(R"({"num_reserved_special_tokens":2,)"
                      R"("added_tokens_decoder":{"260":{"content":"[X]"}}})"),
            261);
}

TEST(Tokenizer, PrefersTheLongestOfNamesThatStartTogether) {
  MemoryStorage storage;
  storage.put("m/tiktoken.model", test::small_vocabulary({}));
  storage.put("m/tokenizer_config.json",
              R"({"added_tokens_decoder":{"256":{"content":"[A"},"257":{"content":"[A]"},)"
              R"("258":{"content":"]]"}}})");
  const Tokenizer tokenizer = Tokenizer::load(storage, "m");
  EXPECT_EQ(tokenizer.encode("[A]][A[", SpecialText::kParse), (Ids{257, ']', 256, '['}));
}

TEST(Tokenizer, RefusesWrongFiles) {
  const std::string good = test::small_vocabulary(test::small_merges());
  const std::string no_byte = good.substr(good.find('\n') + 1);
  const std::string hi = base64_encode("hi");
  const std::vector<std::pair<std::string, std::string>> vocabularies = {
      {"", "m/tiktoken.model: line 1: expected a token and its rank, found an empty file"},
      {good + "x 267\n", "m/tiktoken.model: line 268: expected base64"},
      {good + hi + "\n", "line 268"},
      {good + hi + "  267\n", "line 268"},
      {good + hi + " 267 \n", "line 268"},
      {good + hi + " -1\n", "line 268"},
      {good + hi + " 267\r\n", "line 268"},
      {good + "\n" + hi + " 267\n", "line 268"},
      {good + " 267\n", "line 268"},
      {good + "aGk 267\n", "line 268"},
      {good + "aGl= 267\n", "line 268"},  // unused bits that are not zero
      {good + hi + " 99999999999\n", "line 268"},
      {good + hi + " 268\n", "line 268: expected ranks 0 to 267 without a gap, found rank 268"},
      {good + hi + " 5\n",
       "line 268: expected every rank once, found rank 5 again, first on line 6"},
      {good + base64_encode("the") + " 267\n",
       "line 268: expected every token once, found the token of line 258 again"},
      {no_byte, "line 266: expected ranks 0 to 265"},
      {hi + " 0\n" + no_byte,
       "single bytes: expected a token for each of the 256, found none for byte 0x00"},
  };
  for (const auto& [text, expected] : vocabularies) {
    MemoryStorage storage;
    storage.put("m/tiktoken.model", text);
    storage.put("m/tokenizer_config.json", "{}");
    const std::string message = message_of([&] { Tokenizer::load(storage, "m"); });
    EXPECT_NE(message.find(expected), std::string::npos) << expected << "\n" << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
  const std::vector<std::pair<std::string, std::string>> configs = {
      {"", "tokenizer_config.json: byte 0"},
      {"[]", "expected a JSON object, found an array"},
      {R"({"added_tokens_decoder":[]})", "added_tokens_decoder: expected an object"},
      {R"({"added_tokens_decoder":{"x":{"content":"a"}}})", "found 'x'"},
      {R"({"added_tokens_decoder":{"5":{"content":"a"}}})", "ids from 267"},
      {R"({"added_tokens_decoder":{"99999999":{"content":"a"}}})", "found '99999999'"},
      {R"({"added_tokens_decoder":{"267":{}}})",
       "added_tokens_decoder.267.content: expected a name"},
      {R"({"added_tokens_decoder":{"267":{"content":""}}})", "expected a name"},
      {R"({"added_tokens_decoder":{"267":7}})", "expected a name"},
      {R"({"added_tokens_decoder":{"267":{"content":"a","special":1}}})", "expected true or false"},
      {R"({"added_tokens_decoder":{"267":{"content":"a"},"268":{"content":"a"}}})",
       "every name once, found 'a' for 267 and 268"},
      {R"({"num_reserved_special_tokens":-1})", "num_reserved_special_tokens"},
  };
  for (const auto& [text, expected] : configs) {
    MemoryStorage storage;
    storage.put("m/tiktoken.model", good);
    storage.put("m/tokenizer_config.json", text);
    const std::string message = message_of([&] { Tokenizer::load(storage, "m"); });
    EXPECT_NE(message.find(expected), std::string::npos) << expected << "\n" << message;
  }
  MemoryStorage empty;
  EXPECT_THROW(Tokenizer::load(empty, "m"), InputError);
}

// The file need not be in rank order, and its last line need not end.
TEST(Tokenizer, AcceptsAnyLineOrder) {
  std::string text = test::small_vocabulary(test::small_merges());
  text.pop_back();
  const size_t cut = text.find('\n', 500) + 1;
  MemoryStorage storage;
  storage.put("m/tiktoken.model", text.substr(cut) + "\n" + text.substr(0, cut));
  storage.put("m/tokenizer_config.json", test::small_config());
  EXPECT_EQ(Tokenizer::load(storage, "m").encode("the bc 中"),
            test::small_tokenizer().encode("the bc 中"));
}

}  // namespace
}  // namespace k3
