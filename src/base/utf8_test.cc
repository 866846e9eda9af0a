#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace k3 {
namespace {

TEST(Utf8, EveryCodePointComesBack) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    std::string text;
    utf8_append(text, code);
    const Utf8Step step = utf8_next(text);
    ASSERT_TRUE(step.valid) << std::hex << uint32_t{code};
    ASSERT_EQ(step.code, code);
    ASSERT_EQ(step.length, text.size());
    ASSERT_EQ(text.size(), code < 0x80 ? 1u : code < 0x800 ? 2u : code < 0x10000 ? 3u : 4u);
  }
}

// The standard's own definition of well-formed three-byte and shorter sequences, over all of them.
bool well_formed(unsigned a, unsigned b, unsigned c, unsigned length) {
  const auto tail = [](unsigned x) { return x >= 0x80 && x <= 0xbf; };
  if (length == 1) return a < 0x80;
  if (length == 2) return a >= 0xc2 && a <= 0xdf && tail(b);
  const unsigned low = a == 0xe0 ? 0xa0 : 0x80, high = a == 0xed ? 0x9f : 0xbf;
  return a >= 0xe0 && a <= 0xef && b >= low && b <= high && tail(c);
}

TEST(Utf8, EveryPairAndTripleOfBytes) {
  for (unsigned a = 0; a < 256; ++a)
    for (unsigned b = 0; b < 256; ++b) {
      const char pair[] = {static_cast<char>(a), static_cast<char>(b)};
      const Utf8Step two = utf8_next(std::string_view(pair, 2));
      const bool valid = well_formed(a, b, 0, 1) || well_formed(a, b, 0, 2);
      ASSERT_EQ(two.valid, valid) << a << " " << b;
      ASSERT_TRUE(valid || two.code == 0xfffd);
      if (a < 0xe0 || a > 0xef) continue;
      for (unsigned c = 0; c < 256; c += 3) {
        const char triple[] = {pair[0], pair[1], static_cast<char>(c)};
        const Utf8Step three = utf8_next(std::string_view(triple, 3));
        ASSERT_EQ(three.valid, well_formed(a, b, c, 3)) << a << " " << b << " " << c;
      }
    }
}

TEST(Utf8, MaximalSubpartsCountAsOne) {
  // Table 3-8 of the Unicode standard: 61 F1 80 80 E1 80 C2 62 80 63 80 BF 64.
  const std::string text = "\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64";
  EXPECT_EQ(utf8_repair(text), "a\ufffd\ufffd\ufffdb\ufffdc\ufffd\ufffdd");
  EXPECT_EQ(utf8_repair("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"),
            "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffdA");  // table 3-9
  EXPECT_EQ(utf8_repair("\xed\xa0\x80\xed\xbf\xbf"), "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd");
  EXPECT_EQ(utf8_repair("\xf4\x91\x92\x93\xff\x41"), "\ufffd\ufffd\ufffd\ufffd\ufffdA");
  EXPECT_EQ(utf8_repair("ok é"), "ok é");
  EXPECT_EQ(utf8_repair(""), "");
}

TEST(Utf8, IncompleteOnlyAtTheEnd) {
  for (const char* whole : {"é", "名", "\U0001F600"}) {
    const std::string text = whole;
    for (size_t n = 1; n < text.size(); ++n) {
      const Utf8Step step = utf8_next(std::string_view(text).substr(0, n));
      EXPECT_FALSE(step.valid);
      EXPECT_TRUE(step.incomplete) << n;
      EXPECT_EQ(step.length, n);
      EXPECT_FALSE(utf8_next(text.substr(0, n) + "x").incomplete);
    }
    EXPECT_FALSE(utf8_next(text).incomplete);
  }
  EXPECT_FALSE(utf8_next("\xff").incomplete);
  EXPECT_FALSE(utf8_next("\x80").incomplete);
  EXPECT_FALSE(utf8_next("\xed\xa0").incomplete);  // a surrogate: nothing can complete it
}

}  // namespace
}  // namespace k3
