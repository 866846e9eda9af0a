#include "text/bpe_trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/storage.h"
#include "text/bpe.h"
#include "text/tokenizer.h"

namespace k3 {
namespace {

// Sentences of few words, so that merges happen, with numbers, capitals, Han and marks between.
std::vector<std::string> sentences(int count, uint32_t seed) {
  const char* const words[] = {"the",   "they", "then",   "there",  "other",  "weather", "Whether",
                               "lowe",  "low",  "lower",  "lowest", "newest", "wide",    "1234",
                               "don't", "中文", "中国文", "naïve",  "ABC",    "aaaa",    "--"};
  std::mt19937 random(seed);
  std::vector<std::string> out;
  for (int i = 0; i < count; ++i) {
    std::string line;
    for (int k = 0; k < 12; ++k)
      line += std::string(k ? " " : "") + words[random() % std::size(words)];
    out.push_back(line + ".\n");
  }
  return out;
}

Tokenizer tokenizer_of(const BpeVocabulary& v) {
  MemoryStorage storage;
  storage.put("t/tiktoken.model", tiktoken_file(v.tokens));
  storage.put("t/tokenizer_config.json", tokenizer_config(static_cast<int32_t>(v.tokens.size())));
  return Tokenizer::load(storage, "t");
}

TEST(BpeTrainer, TakesTheMostFrequentPairOfEqualsTheLesser) {
  BpeTrainer trainer;
  // "ab" 4 times, "bc" 3, then "abc" 3 in "abc" and so on.
  for (const char* word : {"abc", "abc", "abc", "ab"}) trainer.add(word);
  const BpeVocabulary v = trainer.train(300);
  ASSERT_EQ(v.tokens.size(), 258u);  // afterwards no pair occurs twice
  EXPECT_EQ(v.tokens[0], "!");
  EXPECT_EQ(v.tokens[220], " ");
  EXPECT_EQ(v.tokens[256], "ab");
  EXPECT_EQ(v.tokens[257], "abc");
  EXPECT_EQ(v.text_tokens, 4u);
  EXPECT_EQ(v.bytes, 11u);
}

TEST(BpeTrainer, CountsWhatTheTokenizerDoes) {
  BpeTrainer trainer;
  std::string text;
  for (const std::string& line : sentences(300, 1)) {
    trainer.add(line);
    text += line;
  }
  for (const int32_t size : {256, 260, 270, 300}) {
    const BpeVocabulary v = trainer.train(size);
    ASSERT_EQ(v.tokens.size(), static_cast<size_t>(size));
    const Tokenizer tokenizer = tokenizer_of(v);
    uint64_t tokens = 0;
    for (const std::string& line : sentences(300, 1)) tokens += tokenizer.encode(line).size();
    EXPECT_EQ(tokens, v.text_tokens) << size;
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(BpeTrainer, EveryTokenIsReachedByItsOwnMerges) {
  BpeTrainer trainer;
  for (const std::string& line : sentences(500, 2)) trainer.add(line);
  const BpeVocabulary v = trainer.train(400);
  const Vocabulary vocabulary = Vocabulary::parse(tiktoken_file(v.tokens), "tiktoken.model");
  for (size_t rank = 0; rank < v.tokens.size(); ++rank) {
    std::vector<int32_t> ids;
    append_bpe_short(vocabulary, v.tokens[rank], &ids);
    EXPECT_EQ(ids, std::vector<int32_t>{static_cast<int32_t>(rank)}) << v.tokens[rank];
  }
}

TEST(BpeTrainer, TheOrderOfTheTextDoesNotMatter) {
  std::vector<std::string> lines = sentences(200, 3);
  BpeTrainer forward, backward;
  for (const std::string& line : lines) forward.add(line);
  std::reverse(lines.begin(), lines.end());
  for (const std::string& line : lines) backward.add(line);
  EXPECT_EQ(forward.train(320).tokens, backward.train(320).tokens);
}

TEST(BpeTrainer, AnyBytesWillDo) {
  EXPECT_EQ(BpeTrainer().train(500).tokens.size(), 256u);
  BpeTrainer trainer;
  trainer.add("");
  trainer.add(std::string("\xff\xfe\0bad \xe4\xb8", 9));
  trainer.add(std::string(100000, '='));  // no word, and no token
  trainer.add(std::string(100000, 'x'));
  const BpeVocabulary v = trainer.train(300);
  for (const std::string& token : v.tokens) EXPECT_LE(token.size(), 256u);
  const Tokenizer tokenizer = tokenizer_of(v);
  EXPECT_EQ(tokenizer.special("<|open|>"), tokenizer.first_special() + 3);
  EXPECT_EQ(tokenizer.size(), tokenizer.first_special() + kSpecialIds);
}

}  // namespace
}  // namespace k3
