#include "base/error.h"

#include <gtest/gtest.h>

#include <string>

namespace k3 {
namespace {

TEST(Error, OneLineNamesPlaceExpectedAndFound) {
  const InputError error("model-00003-of-000096.safetensors", "tensor 'lm_head.weight'",
                         "shape [163840, 7168]", "shape [7168, 163840]");
  EXPECT_STREQ(
      error.what(),
      "model-00003-of-000096.safetensors: tensor 'lm_head.weight': expected shape [163840, 7168], "
      "found shape [7168, 163840]");
}

TEST(Error, HostilePartsStayOnOneLine) {
  const std::string line = InputError("a\nb", "c\rd", "e\x1b[2J", std::string("f\0g", 3)).what();
  EXPECT_EQ(line, "a\\x0ab: c\\x0dd: expected e\\x1b[2J, found f\\x00g");
}

TEST(Error, PrintableEscapesControlsAndIllFormedBytes) {
  EXPECT_EQ(printable("plain text, é and 名"), "plain text, é and 名");
  EXPECT_EQ(printable("\x7f\t"), "\\x7f\\x09");
  EXPECT_EQ(printable("\xc2\x85"), "\\xc2\\x85");  // a C1 control
  EXPECT_EQ(printable("a\xff\xc3"), "a\\xff\\xc3");
  EXPECT_EQ(printable("\xe2\x82x"), "\\xe2\\x82x");
  EXPECT_EQ(printable(""), "");
}

TEST(Error, PrintableCutsAtTheLimitBetweenCharacters) {
  EXPECT_EQ(printable(std::string(300, 'a')), std::string(200, 'a') + "…");
  EXPECT_EQ(printable("abcdef", 6), "abcdef");
  EXPECT_EQ(printable("abcdefg", 6), "abcdef…");
  EXPECT_EQ(printable("éééé", 3), "éé…");
}

TEST(Error, KindsAreTold) {
  EXPECT_THROW(throw InputError("x"), Error);
  EXPECT_THROW(throw WorkError("x"), Error);
  EXPECT_FALSE((std::is_base_of_v<InputError, WorkError>));
}

}  // namespace
}  // namespace k3
