#include "base/storage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace k3 {
namespace {

std::string truncated(const std::string& path, uint64_t offset, uint64_t length, uint64_t size) {
  return fmt::format("{}: truncated: expected {} bytes from byte {}, found a file of {} bytes",
                     path, length, offset, size);
}

class DiskFile : public File {
 public:
  explicit DiskFile(std::string path) : path_(std::move(path)) {
    // A named pipe must not hold us up; for a regular file the flag means nothing.
    buffered_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (buffered_ < 0)
      throw InputError(
          fmt::format("{}: cannot open: {}", printable(path_, 1000), std::strerror(errno)));
    struct stat info;
    if (fstat(buffered_, &info) != 0 || !S_ISREG(info.st_mode)) {
      ::close(buffered_);
      throw InputError(printable(path_, 1000), "file", "a regular file", "something else");
    }
    size_ = static_cast<uint64_t>(info.st_size);
  }
  ~DiskFile() override {
    ::close(buffered_);
    if (const int fd = direct_.load(); fd >= 0) ::close(fd);
  }

  const std::string& path() const override { return path_; }
  uint64_t size() const override { return size_; }
  size_t direct_alignment() const override { return 4096; }
  const char* io_mode() const override { return direct_fd() >= 0 ? "direct" : "buffered"; }

  void read(uint64_t offset, std::span<std::byte> out) const override {
    if (offset > size_ || out.size() > size_ - offset)
      throw InputError(truncated(path_, offset, out.size(), size_));
    if (pread_all(buffered_, offset, out) != out.size())
      throw InputError(truncated(path_, offset, out.size(), size_));
  }

  size_t read_direct(uint64_t offset, size_t length, std::span<std::byte> out) const override {
    if (offset > size_ || length > size_ - offset)
      throw InputError(truncated(path_, offset, length, size_));
    const size_t align = direct_alignment();
    const uint64_t begin = offset / align * align;
    const uint64_t end = (offset + length + align - 1) / align * align;
    const int fd = direct_fd();
    if (fd < 0) {
      read(offset, out.subspan(offset - begin, length));
      return offset - begin;
    }
    const size_t got = pread_all(fd, begin, out.first(end - begin));
    if (begin + got < offset + length) throw InputError(truncated(path_, offset, length, size_));
    return offset - begin;
  }

 private:
  // The direct descriptor is opened on first use: planning opens 96 shards and reads none.
  int direct_fd() const {
    int fd = direct_.load();
    if (fd != kUnopened) return fd;
    int fresh = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fresh < 0) fresh = kUnavailable;
    if (!direct_.compare_exchange_strong(fd, fresh)) {
      if (fresh >= 0) ::close(fresh);
      return fd;
    }
    return fresh;
  }

  // A single read call moves at most 2 GiB; this one moves all, or stops at the end of the file.
  size_t pread_all(int fd, uint64_t offset, std::span<std::byte> out) const {
    size_t done = 0;
    while (done < out.size()) {
      const size_t want = std::min<size_t>(out.size() - done, size_t{1} << 30);
      const ssize_t got = ::pread(fd, out.data() + done, want, static_cast<off_t>(offset + done));
      if (got < 0) {
        if (errno == EINTR) continue;
        throw WorkError(fmt::format("{}: read of {} bytes at byte {} failed: {}", path_, want,
                                    offset + done, std::strerror(errno)));
      }
      if (got == 0) break;
      done += static_cast<size_t>(got);
      if (offset + done >= size_) break;
    }
    return done;
  }

  static constexpr int kUnopened = -2, kUnavailable = -1;
  std::string path_;
  int buffered_;
  uint64_t size_ = 0;
  mutable std::atomic<int> direct_{kUnopened};
};

// Writes beside the final name and renames on commit. Where the file system can, the file has no
// name until then, so that not even a killed process leaves anything behind. What is not a regular
// file (a device, a pipe) is written to as it is; a symbolic link is followed.
class DiskWriter : public Writer {
 public:
  explicit DiskWriter(const std::string& path) : path_(path) {
    struct stat info;
    mode_t mode = 0666;
    if (::stat(path.c_str(), &info) == 0) {
      if (S_ISDIR(info.st_mode)) throw InputError(path_, "output file", "a file", "a folder");
      if (!S_ISREG(info.st_mode)) {
        through_ = true;
        fd_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
        if (fd_ < 0) refuse();
        return;
      }
      mode = info.st_mode & 07777;
      if (char* target = ::realpath(path.c_str(), nullptr)) {
        path_ = target;
        std::free(target);
      }
      if (::access(path_.c_str(), W_OK) != 0) refuse();
    }
    const size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    static std::atomic<int> count{0};
    temporary_ = fmt::format("{}.part-{}-{}", path_, ::getpid(), count++);
    fd_ = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
    if (fd_ < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
      named_ = true;
      fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    }
    if (fd_ < 0) refuse();
    if (mode != 0666) ::fchmod(fd_, mode);
  }
  ~DiskWriter() override {
    if (fd_ >= 0) ::close(fd_);
    if (named_) ::unlink(temporary_.c_str());
  }
  void write(std::span<const std::byte> data) override {
    while (!data.empty()) {
      const ssize_t put = ::write(fd_, data.data(), std::min<size_t>(data.size(), size_t{1} << 30));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) fail("write");
      data = data.subspan(static_cast<size_t>(put));
    }
  }
  void commit() override {
    if (through_) {
      if (::close(std::exchange(fd_, -1)) != 0) fail("close");
      return;
    }
    if (::fsync(fd_) != 0) fail("flush");
    if (!named_) {
      const std::string self = fmt::format("/proc/self/fd/{}", fd_);
      if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) != 0)
        fail("name");
      named_ = true;
    }
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename");
    named_ = false;
  }

 private:
  // The path is at fault: found out before any work is done.
  [[noreturn]] void refuse() const {
    throw InputError(path_, "output file", "a place that can be written", std::strerror(errno));
  }
  [[noreturn]] void fail(const char* what) const {
    throw WorkError(
        fmt::format("{}: cannot {}: {}", printable(path_, 1000), what, std::strerror(errno)));
  }
  std::string path_, temporary_;
  int fd_ = -1;
  bool named_ = false, through_ = false;
};

class MemoryFile : public File {
 public:
  MemoryFile(std::string path, std::shared_ptr<const std::string> content)
      : path_(std::move(path)), content_(std::move(content)) {}
  const std::string& path() const override { return path_; }
  uint64_t size() const override { return content_->size(); }
  size_t direct_alignment() const override { return 1; }
  const char* io_mode() const override { return "buffered"; }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    if (offset > size() || out.size() > size() - offset)
      throw InputError(truncated(path_, offset, out.size(), size()));
    if (!out.empty()) std::memcpy(out.data(), content_->data() + offset, out.size());
  }
  size_t read_direct(uint64_t offset, size_t length, std::span<std::byte> out) const override {
    read(offset, out.first(length));
    return 0;
  }

 private:
  std::string path_;
  std::shared_ptr<const std::string> content_;
};

}  // namespace

class MemoryWriter : public Writer {
 public:
  MemoryWriter(MemoryStorage& storage, std::string path)
      : storage_(storage), path_(std::move(path)) {}
  void write(std::span<const std::byte> data) override {
    content_.append(reinterpret_cast<const char*>(data.data()), data.size());
  }
  void commit() override { storage_.put(path_, std::move(content_)); }

 private:
  MemoryStorage& storage_;
  std::string path_, content_;
};

class FaultyFile : public File {
 public:
  FaultyFile(const FaultyStorage& storage, std::unique_ptr<File> base)
      : storage_(storage), base_(std::move(base)) {}
  const std::string& path() const override { return base_->path(); }
  uint64_t size() const override { return base_->size(); }
  size_t direct_alignment() const override { return base_->direct_alignment(); }
  const char* io_mode() const override { return base_->io_mode(); }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    storage_.fault_({path(), offset, out.size(), storage_.reads_++});
    base_->read(offset, out);
  }
  size_t read_direct(uint64_t offset, size_t length, std::span<std::byte> out) const override {
    storage_.fault_({path(), offset, length, storage_.reads_++});
    return base_->read_direct(offset, length, out);
  }

 private:
  const FaultyStorage& storage_;
  std::unique_ptr<File> base_;
};

void write_text(Storage& storage, const std::string& path, const std::string& text) {
  const auto writer = storage.create(path);
  writer->write(std::as_bytes(std::span(text)));
  writer->commit();
}

std::string read_text(const Storage& storage, const std::string& path, uint64_t limit) {
  const auto file = storage.open(path);
  if (file->size() > limit)
    throw InputError(path, "size", fmt::format("at most {} bytes", limit),
                     fmt::format("{} bytes", file->size()));
  std::string text(file->size(), '\0');
  file->read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::unique_ptr<File> DiskStorage::open(const std::string& path) const {
  return std::make_unique<DiskFile>(path);
}
bool DiskStorage::exists(const std::string& path) const {
  return ::access(path.c_str(), F_OK) == 0;
}
std::unique_ptr<Writer> DiskStorage::create(const std::string& path) {
  return std::make_unique<DiskWriter>(path);
}

std::unique_ptr<File> MemoryStorage::open(const std::string& path) const {
  std::lock_guard lock(mutex_);
  const auto found = files_.find(path);
  if (found == files_.end())
    throw InputError(fmt::format("{}: cannot open: no such file", printable(path, 1000)));
  return std::make_unique<MemoryFile>(path, found->second);
}
bool MemoryStorage::exists(const std::string& path) const {
  std::lock_guard lock(mutex_);
  return files_.contains(path);
}
std::unique_ptr<Writer> MemoryStorage::create(const std::string& path) {
  return std::make_unique<MemoryWriter>(*this, path);
}
void MemoryStorage::put(const std::string& path, std::string content) {
  std::lock_guard lock(mutex_);
  files_[path] = std::make_shared<const std::string>(std::move(content));
}
std::string MemoryStorage::get(const std::string& path) const {
  std::lock_guard lock(mutex_);
  const auto found = files_.find(path);
  if (found == files_.end()) throw InputError(path + ": cannot open: no such file");
  return *found->second;
}

std::unique_ptr<File> FaultyStorage::open(const std::string& path) const {
  return std::make_unique<FaultyFile>(*this, base_.open(path));
}
std::unique_ptr<Writer> FaultyStorage::create(const std::string& path) {
  throw WorkError(fmt::format("{}: cannot create: the disk is full", path));
}

}  // namespace k3
