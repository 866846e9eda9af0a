#include "weights/reader.h"

#include <gtest/gtest.h>

#include <unistd.h>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace k3 {
namespace {

std::string pattern(size_t bytes) {
  std::string s(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) s[i] = static_cast<char>((i * 2654435761u) >> 13);
  return s;
}

TEST(Reader, StagesAnyPlaceOfAFileOnDisk) {
  const std::string content = pattern(100'003);
  const std::string path = ::testing::TempDir() + "/k3_reader_" + std::to_string(getpid());
  DiskStorage disk;
  {
    auto writer = disk.create(path);
    writer->write(std::as_bytes(std::span(content)));
    writer->commit();
  }
  MemoryAccount account(uint64_t{64} << 20);
  Reader reader(account, 3, 20'000);
  const auto file = disk.open(path);
  std::atomic<int> wrong{0};
  Completion completion;
  uint64_t expected = 0;
  for (const uint64_t offset : {0u, 1u, 4095u, 4096u, 50'001u, 99'000u})
    for (const size_t length : {1u, 1003u, 4096u, 20'000u}) {
      if (offset + length > content.size()) continue;
      expected += length;
      reader.submit(Reader::kTrunk, completion, [&, offset, length](Reader::Lane& lane) {
        const auto bytes = lane.stage(*file, offset, length);
        if (bytes.size() != length ||
            std::memcmp(bytes.data(), content.data() + offset, length) != 0)
          ++wrong;
      });
    }
  completion.wait();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(reader.bytes_read(), expected);
  std::remove(path.c_str());
}

TEST(Reader, RetriesThenReportsAndGoesOn) {
  MemoryStorage memory;
  memory.put("f", pattern(1000));
  std::atomic<int> failures{0}, left{2};
  FaultyStorage faulty(memory, [&](const FaultyStorage::Read&) {
    if (left-- > 0) {
      ++failures;
      throw WorkError("injected");
    }
  });
  MemoryAccount account(uint64_t{64} << 20);
  Reader reader(account, 1, 1000);
  const auto file = faulty.open("f");
  const auto read = [&] {
    Completion completion;
    reader.submit(Reader::kExperts, completion,
                  [&](Reader::Lane& lane) { lane.stage(*file, 0, 1000); });
    completion.wait();
  };
  read();
  EXPECT_EQ(failures.load(), 2);
  EXPECT_EQ(reader.retries(), 2u);
  left = 3;
  EXPECT_THROW(read(), WorkError);
  left = 0;
  read();
}

TEST(Reader, ATruncatedFileIsNotRetried) {
  MemoryStorage memory;
  memory.put("f", pattern(10));
  MemoryAccount account(uint64_t{64} << 20);
  Reader reader(account, 1, 1000);
  const auto file = memory.open("f");
  Completion completion;
  reader.submit(Reader::kExperts, completion,
                [&](Reader::Lane& lane) { lane.stage(*file, 5, 10); });
  EXPECT_THROW(completion.wait(), InputError);
  EXPECT_EQ(reader.retries(), 0u);
}

TEST(Reader, ACompletionWaitsForItsJobsWhenItGoes) {
  MemoryAccount account(uint64_t{64} << 20);
  Reader reader(account, 2, 1000);
  std::atomic<int> done{0};
  {
    Completion completion;
    for (int i = 0; i < 10; ++i)
      reader.submit(Reader::kTrunk, completion, [&](Reader::Lane&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ++done;
      });
  }
  EXPECT_EQ(done.load(), 10);
}

}  // namespace
}  // namespace k3
