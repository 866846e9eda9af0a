#include "base/memory.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace k3 {
namespace {

TEST(MemoryAccount, ChargesByTagAndRefusesAboveTheLimit) {
  MemoryAccount account(1 << 20);
  {
    Buffer a(account, "a", 5000);
    EXPECT_EQ(account.used("a"), Buffer::rounded(5000));
    EXPECT_GE(a.size(), 5000u);
    EXPECT_THROW(Buffer(account, "b", 2 << 20), WorkError);
    EXPECT_EQ(account.used("b"), 0u);
    Buffer moved = std::move(a);
    EXPECT_EQ(account.used(), Buffer::rounded(5000));
  }
  EXPECT_EQ(account.used(), 0u);
  EXPECT_EQ(account.peak(), Buffer::rounded(5000));
}

TEST(Buffer, IsZeroedAlignedAndWritable) {
  MemoryAccount account(uint64_t{64} << 20);
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{4097}, uint64_t{9} << 20}) {
    Buffer b(account, "x", bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 4096, 0u);
    EXPECT_EQ(b.data()[bytes - 1], std::byte{0});
    b.data()[bytes - 1] = std::byte{1};
  }
  EXPECT_EQ(account.used(), 0u);
}

TEST(ParseSize, UnitsAndMistakes) {
  EXPECT_EQ(parse_size("12G", "--ram"), uint64_t{12} << 30);
  EXPECT_EQ(parse_size("1.5GiB", "--ram"), uint64_t{3} << 29);
  EXPECT_EQ(parse_size("512mb", "--ram"), uint64_t{512} << 20);
  EXPECT_EQ(parse_size("800000", "--ram"), 800000u);
  for (const char* wrong : {"", "G", "-1G", "12X", "12GG", "1e400", "nan", "0x10", " 1"})
    EXPECT_THROW(parse_size(wrong, "--ram"), InputError) << wrong;
}

}  // namespace
}  // namespace k3
