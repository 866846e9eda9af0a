#include "base/storage.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"

namespace k3 {
namespace {

class Folder {
 public:
  Folder() {
    std::string pattern = ::testing::TempDir() + "k3-storage-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string read_some(const File& file, uint64_t offset, size_t length) {
  std::string text(length, '\0');
  file.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

// Address space that becomes memory only where it is touched, aligned for direct reads.
class Area {
 public:
  explicit Area(size_t size)
      : size_(size),
        data_(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    ::madvise(data_, size, MADV_HUGEPAGE);  // a page fault for every 4 KiB would take seconds
  }
  ~Area() { ::munmap(data_, size_); }
  std::span<std::byte> span() const { return {static_cast<std::byte*>(data_), size_}; }

 private:
  size_t size_;
  void* data_;
};

template <class F>
std::string input_error(F&& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

// The same contract for the two storages that hold files.
void expect_contract(Storage& storage, const std::string& path) {
  EXPECT_FALSE(storage.exists(path));
  EXPECT_NE(input_error([&] { storage.open(path); }).find(path + ": cannot open"),
            std::string::npos);
  {
    auto writer = storage.create(path);
    writer->write(bytes_of("hello "));
    EXPECT_FALSE(storage.exists(path));
    writer->write(bytes_of("world"));
    writer->commit();
  }
  EXPECT_TRUE(storage.exists(path));
  const auto file = storage.open(path);
  EXPECT_EQ(file->size(), 11u);
  EXPECT_EQ(file->path(), path);
  EXPECT_EQ(read_some(*file, 6, 5), "world");
  EXPECT_EQ(read_some(*file, 11, 0), "");
  EXPECT_EQ(input_error([&] { read_some(*file, 6, 6); }),
            path + ": truncated: expected 6 bytes from byte 6, found a file of 11 bytes");
  EXPECT_NE(input_error([&] { read_some(*file, ~uint64_t{0}, 2); }), "");
  EXPECT_EQ(read_text(storage, path), "hello world");
  EXPECT_EQ(input_error([&] { read_text(storage, path, 10); }),
            path + ": size: expected at most 10 bytes, found 11 bytes");
  { storage.create(path)->write(bytes_of("lost")); }  // never committed
  EXPECT_EQ(read_text(storage, path), "hello world");
}

TEST(Storage, MemoryKeepsTheContract) {
  MemoryStorage storage;
  expect_contract(storage, "a/b");
  storage.put("c", "x");
  EXPECT_EQ(storage.get("c"), "x");
  EXPECT_THROW(storage.get("d"), InputError);
}

TEST(Storage, DiskKeepsTheContract) {
  Folder folder;
  DiskStorage storage;
  expect_contract(storage, folder / "b");
  EXPECT_EQ(folder.files(), 1u);  // no temporary file is left
}

TEST(Storage, OnlyRegularFilesOpen) {
  Folder folder;
  const DiskStorage storage;
  EXPECT_NE(input_error([&] { storage.open(folder.path()); }).find("expected a regular file"),
            std::string::npos);
  EXPECT_NE(input_error([&] { storage.open("/dev/null"); }), "");
}

TEST(Storage, DirectReadsCoverAnyRange) {
  Folder folder;
  const DiskStorage storage;
  std::string content(100'003, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 131 + i / 4096);
  std::ofstream(folder / "x", std::ios::binary) << content;
  const auto file = storage.open(folder / "x");
  const size_t align = file->direct_alignment();
  const Area area(256 * 1024);
  for (const auto& [offset, length] : {std::pair<uint64_t, size_t>{0, 1},
                                       {1, 4096},
                                       {4095, 2},
                                       {4096, 4096},
                                       {99'000, 1003},
                                       {100'002, 1},
                                       {12'345, 54'321},
                                       {0, 100'003},
                                       {100'003, 0}}) {
    const auto room = area.span().first((length + 2 * align) / align * align);
    std::fill(room.begin(), room.end(), std::byte{0xee});
    const size_t at = file->read_direct(offset, length, room);
    EXPECT_LT(at, align);
    EXPECT_EQ(std::memcmp(room.data() + at, content.data() + offset, length), 0)
        << offset << "+" << length;
  }
  EXPECT_NE(input_error([&] { file->read_direct(100'000, 4, area.span()); }).find("truncated"),
            std::string::npos);
  const std::string mode = file->io_mode();
  EXPECT_TRUE(mode == "direct" || mode == "buffered") << mode;
}

// One call of the system moves at most 2 GiB; the release's embedding has 2.35 GB.
TEST(Storage, ReadsAboveTwoGigabytesAreWhole) {
  Folder folder;
  constexpr uint64_t kSize = 2'348'810'240 + 12'345;
  const int fd = ::open((folder / "big").c_str(), O_WRONLY | O_CREAT, 0644);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::ftruncate(fd, kSize), 0);  // a hole: it takes no room
  for (const uint64_t at : {uint64_t{0}, uint64_t{1} << 31, kSize - 4})
    ASSERT_EQ(::pwrite(fd, "mark", 4, static_cast<off_t>(at)), 4);
  ::close(fd);
  const DiskStorage storage;
  const auto file = storage.open(folder / "big");
  const Area area((kSize / 4096 + 3) * 4096);
  const auto expect_marks = [&](size_t from) {
    for (const uint64_t at : {uint64_t{0}, uint64_t{1} << 31, kSize - 4})
      EXPECT_EQ(std::memcmp(area.span().data() + from + at, "mark", 4), 0) << at;
  };
  file->read(0, area.span().first(kSize));
  expect_marks(0);
  std::memset(area.span().data() + kSize - 4, 0, 4);
  expect_marks(file->read_direct(0, kSize, area.span()));
}

TEST(Storage, FilesShrinkingWhileOpenAreTruncated) {
  Folder folder;
  std::ofstream(folder / "x") << std::string(10'000, 'a');
  const DiskStorage storage;
  const auto file = storage.open(folder / "x");
  std::filesystem::resize_file(folder / "x", 5'000);
  EXPECT_NE(input_error([&] { read_some(*file, 4'000, 2'000); }).find("truncated"),
            std::string::npos);
  const Area area(3 * 4096);
  EXPECT_NE(input_error([&] { file->read_direct(4'000, 2'000, area.span()); }).find("truncated"),
            std::string::npos);
}

TEST(Storage, AFullDiskFailsTheWorkAndLeavesNothing) {
  Folder folder;
  DiskStorage storage;
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{64 * 1024, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string error;
  try {
    auto writer = storage.create(folder / "x");
    const std::string chunk(40'000, 'a');
    for (int i = 0; i < 3; ++i) writer->write(bytes_of(chunk));
    writer->commit();
  } catch (const WorkError& failure) {
    error = failure.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(error.find((folder / "x") + ": cannot write"), std::string::npos) << error;
  EXPECT_EQ(folder.files(), 0u);
}

TEST(Storage, APathThatCannotBeWrittenIsRefusedBeforeAnyWork) {
  Folder folder;
  DiskStorage storage;
  EXPECT_THROW(storage.create(folder / "no/x"), InputError);
  EXPECT_THROW(storage.create(folder.path()), InputError);
}

TEST(Storage, ADeviceIsWrittenThroughAndStaysADevice) {
  Folder folder;
  DiskStorage storage;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::string got(5, ' ');
  std::thread reader([&] { std::ifstream(folder / "pipe").read(got.data(), 5); });
  const auto writer = storage.create(folder / "pipe");
  writer->write(bytes_of("hello"));
  writer->commit();
  reader.join();
  EXPECT_EQ(got, "hello");
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
}

TEST(Storage, ALinkIsFollowedAndTheModeKept) {
  namespace fs = std::filesystem;
  Folder folder;
  DiskStorage storage;
  std::ofstream(folder / "real") << "old";
  fs::permissions(folder / "real", fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("real", folder / "link");
  const auto writer = storage.create(folder / "link");
  writer->write(bytes_of("new"));
  writer->commit();
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_text(storage, folder / "real"), "new");
  EXPECT_EQ(fs::status(folder / "real").permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

// What is not committed has no name, so a killed process leaves nothing.
TEST(Storage, UncommittedOutputIsNowhereToBeSeen) {
  Folder folder;
  DiskStorage storage;
  const auto writer = storage.create(folder / "x");
  writer->write(bytes_of("half"));
  EXPECT_EQ(folder.files(), 0u);
}

TEST(Storage, FaultsAreInjectedPerRead) {
  MemoryStorage memory;
  memory.put("x", "0123456789");
  std::vector<uint64_t> offsets;
  FaultyStorage faulty(memory, [&](const FaultyStorage::Read& read) {
    offsets.push_back(read.offset);
    EXPECT_EQ(read.path, "x");
    if (read.index == 1) throw WorkError("x: read failed");
  });
  const auto file = faulty.open("x");
  EXPECT_EQ(read_some(*file, 2, 3), "234");
  EXPECT_THROW(read_some(*file, 4, 1), WorkError);
  std::byte direct[4];
  EXPECT_EQ(file->read_direct(5, 4, direct), 0u);
  EXPECT_EQ(direct[0], std::byte{'5'});
  EXPECT_EQ(offsets, (std::vector<uint64_t>{2, 4, 5}));
  EXPECT_THROW(faulty.create("y"), WorkError);
  EXPECT_TRUE(faulty.exists("x"));
}

TEST(Storage, OneFileServesManyThreads) {
  Folder folder;
  std::string content(1 << 20, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7 ^ i >> 9);
  std::ofstream(folder / "x", std::ios::binary) << content;
  const DiskStorage storage;
  const auto file = storage.open(folder / "x");
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const Area area(64 * 1024);
      for (size_t i = 0; i < 50; ++i) {
        const size_t offset =
            (i * 7919 + static_cast<size_t>(t) * 104'729) % (content.size() - 20'000);
        const size_t at = file->read_direct(offset, 20'000, area.span());
        wrong += std::memcmp(area.span().data() + at, content.data() + offset, 20'000) != 0;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace k3
