#include "text/pretokenizer.h"

#include "base/utf8.h"
#include "text/test_support.h"
#include "text/unicode.h"

namespace k3 {
namespace {

std::vector<std::string> pieces(const std::string& text) {
  const auto views = Tokenizer::pieces(text);
  return {views.begin(), views.end()};
}

TEST(Unicode, SetsHaveTheirSizes) {
  size_t han = 0, upper = 0, lower = 0, letter = 0, number = 0, space = 0;
  for (char32_t code = 0; code < 0x110000; ++code) {
    const uint8_t cls = char_class(code);
    han += (cls & kCharHan) != 0;
    upper += (cls & kCharUpper) != 0;
    lower += (cls & kCharLower) != 0;
    letter += (cls & kCharLetter) != 0;
    number += (cls & kCharNumber) != 0;
    space += (cls & kCharSpace) != 0;
  }
  EXPECT_EQ(han, 99030u);
  EXPECT_EQ(upper, 42584u);
  EXPECT_EQ(lower, 42953u);
  EXPECT_EQ(letter, 141028u);
  EXPECT_EQ(number, 1911u);
  EXPECT_EQ(space, 25u);
  EXPECT_EQ(char_class(0x110000), 0);
  EXPECT_EQ(char_class(0xffffffff), 0);
}

TEST(Unicode, SpaceIsWhiteSpace) {
  for (const uint32_t code : {0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x20, 0x85, 0xa0, 0x1680, 0x2000,
                              0x200a, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000})
    EXPECT_TRUE(char_class(code) & kCharSpace) << code;
  for (const uint32_t code : {0x1c, 0x1f, 0x180e, 0x200b, 0xfeff, 0x3001})
    EXPECT_FALSE(char_class(code) & kCharSpace) << code;
}

TEST(Pretokenizer, KnowsTheAwkwardCases) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> table = {
      {" 中文", {" ", "中文"}},
      {" ⺀x", {" ⺀", "x"}},
      {"!⺀", {"!⺀"}},
      {"中⺀", {"中⺀"}},
      {"1〇〇〇", {"1〇〇", "〇"}},
      {"x々y", {"x", "々", "y"}},
      {"A中B", {"A", "中", "B"}},
      {"ABC한국DEF", {"ABC한국", "DEF"}},
      {"０１２３", {"０１２", "３"}},
      {"!\n/x", {"!\n", "/x"}},
      {"\u0301 A !", {"\u0301", " A", " !"}},
      {"!\u0301", {"!\u0301"}},
      {"don't", {"don't"}},
      {"it'ſ", {"it'ſ"}},
      {"1's", {"1", "'s"}},
      {"camelCase", {"camel", "Case"}},
      {"HTMLParser", {"HTMLParser"}},
      {"we'Ll go", {"we'Ll", " go"}},
      {"x'll'll", {"x'll", "'ll"}},
      {"x're'v'd", {"x're", "'v'd"}},
      {"a  b", {"a", " ", " b"}},
      {"a   ", {"a", "   "}},
      {"a \n \n  b", {"a", " \n \n", " ", " b"}},
      {"a\t中", {"a", "\t", "中"}},
      {"a  1", {"a", " ", " ", "1"}},
      {"\x1c\x1d x", {"\x1c\x1d", " x"}},
      {"a\u3000b", {"a", "\u3000b"}},
      {"\r\nab", {"\r\n", "ab"}},
      {"ABʰCD", {"ABʰ", "CD"}},
      {"\U00016FF0x", {"\U00016FF0", "x"}},
      {" \U00016FE2", {" \U00016FE2"}},
  };
  for (const auto& [text, expected] : table) EXPECT_EQ(pieces(text), expected) << text;
}

// A second reading of the pattern: every alternative spelled out over classes, with backtracking.
class SlowPattern {
 public:
  explicit SlowPattern(const std::string& text) {
    for (size_t i = 0; i < text.size();) {
      const Utf8Step step = utf8_next(std::string_view(text).substr(i));
      codes_.push_back(step.code);
      starts_.push_back(i);
      i += step.length;
    }
    starts_.push_back(text.size());
  }

  std::vector<size_t> ends() {
    std::vector<size_t> out;
    for (size_t at = 0; at < codes_.size();) {
      at = match(at);
      out.push_back(starts_[at]);
    }
    return out;
  }

 private:
  bool is(size_t i, int mask) const { return i < codes_.size() && (char_class(codes_[i]) & mask); }
  bool newline(size_t i) const {
    return i < codes_.size() && (codes_[i] == '\n' || codes_[i] == '\r');
  }
  size_t run(size_t i, int mask) const {
    while (is(i, mask)) ++i;
    return i;
  }
  size_t suffix(size_t i) const {
    const auto folded = [&](size_t k) -> char32_t {
      if (k >= codes_.size()) return 0;
      const char32_t c = codes_[k];
      return c == 0x17f ? 's' : c >= 'A' && c <= 'Z' ? c + 32 : c;
    };
    if (folded(i) != '\'') return i;
    for (const std::u32string_view tail : {U"s", U"t", U"re", U"ve", U"m", U"ll", U"d"}) {
      bool same = true;
      for (size_t k = 0; k < tail.size(); ++k) same &= folded(i + 1 + k) == tail[k];
      if (same) return i + 1 + tail.size();
    }
    return i;
  }
  size_t word(size_t at, bool lower_needed) const {
    const bool prefixable = !newline(at) && !is(at, kCharLetter | kCharNumber);
    for (int prefix = prefixable ? 1 : 0; prefix >= 0; --prefix) {
      const size_t start = at + static_cast<size_t>(prefix);
      for (size_t x = run(start, kCharUpper) + 1; x-- > start;) {  // give back one at a time
        const size_t y = run(x, kCharLower);
        if (lower_needed ? y > x : x > start) return suffix(y);
      }
    }
    return 0;
  }
  size_t match(size_t at) const {
    if (is(at, kCharHan)) return run(at, kCharHan);
    if (const size_t end = word(at, true)) return end;
    if (const size_t end = word(at, false)) return end;
    if (is(at, kCharNumber)) return std::min(run(at, kCharNumber), at + 3);
    for (int prefix = codes_[at] == ' ' ? 1 : 0; prefix >= 0; --prefix) {
      const size_t start = at + static_cast<size_t>(prefix);
      size_t end = start;
      while (end < codes_.size() && !is(end, kCharSpace | kCharLetter | kCharNumber)) ++end;
      if (end == start) continue;
      while (newline(end)) ++end;
      return end;
    }
    const size_t end = run(at, kCharSpace);
    for (size_t k = end; k > at; --k)
      if (newline(k - 1)) return k;
    return end == codes_.size() || end == at + 1 ? end : end - 1;
  }

  std::vector<char32_t> codes_;
  std::vector<size_t> starts_;
};

TEST(Pretokenizer, AgreesWithABacktrackingReading) {
  const std::vector<std::string> units = {
      "a",  "b", "A",  "B",   "ǅ", "ʰ",  "한",   "\u0301",     "中",         "々",     "〇",
      "⺀", "1", "２", "½",   " ", "  ", "\t",   "\n",         "\r",         "\u3000", "!",
      "/",  "'", "'s", "'LL", "ſ", "😀",  "\x1c", "\U00016FF0", "\U00016FE2", "\u00a0"};
  test::Random random(4);
  for (int i = 0; i < 100000; ++i) {
    std::string text;
    for (size_t n = 1 + random.below(12); n > 0; --n) text += units[random.below(units.size())];
    std::vector<size_t> ends;
    for (size_t at = 0; at < text.size();) ends.push_back(at = next_piece(text, at));
    ASSERT_EQ(ends, SlowPattern(text).ends()) << text;
  }
}

std::vector<size_t> stretch_lengths(const std::string& text) {
  std::vector<size_t> out;
  TextCutter cutter(text);
  for (std::string_view stretch; cutter.next(&stretch);) out.push_back(stretch.size());
  return out;
}

TEST(TextCutter, CutsRunsAndChunks) {
  using Lengths = std::vector<size_t>;
  EXPECT_EQ(stretch_lengths(""), Lengths{});
  EXPECT_EQ(stretch_lengths(std::string(25000, 'a')), Lengths{25000});
  EXPECT_EQ(stretch_lengths(std::string(25001, 'a')), (Lengths{25000, 1}));
  EXPECT_EQ(stretch_lengths(std::string(60000, ' ')), (Lengths{25000, 25000, 10000}));
  // U+001C counts as white space here, though not for the split rule.
  EXPECT_EQ(stretch_lengths(std::string(20000, ' ') + std::string(10000, '\x1c')),
            (Lengths{25000, 5000}));
  std::string words;
  for (int i = 0; i < 225000; ++i) words += "a ";
  EXPECT_EQ(stretch_lengths(words), (Lengths{400000, 50000}));
  // The start of a chunk starts the count again, and a run's own cut does not end the chunk.
  const std::string tail = words.substr(0, 390000) + std::string(50000, 'b');
  EXPECT_EQ(stretch_lengths(tail), (Lengths{400000, 25000, 15000}));
  const std::string head = std::string(30000, 'b') + words;
  EXPECT_EQ(stretch_lengths(head), (Lengths{25000, 375000, 80000}));
  // Characters count, not bytes.
  std::string han;
  for (int i = 0; i < 25001; ++i) han += "中";
  EXPECT_EQ(stretch_lengths(han), (Lengths{75000, 3}));
}

}  // namespace
}  // namespace k3
