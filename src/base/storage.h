// The one door to files. Everything the library reads or writes goes through a Storage, so that a
// test can hand in files from memory, or a disk that fails.
//
//   auto file = storage.open("model-00001-of-000003.safetensors");   // throws InputError if absent
//   file->read(8, buffer);                                           // exactly buffer.size() bytes
//
// Implementations: DiskStorage (the real one), MemoryStorage (tests, fuzzers), FaultyStorage
// (wraps another and fails on demand). What a Writer got appears under its name on commit(), whole.
// create() throws InputError when the path cannot be written, before any work is done.
// Thread rule: a Storage and its files may be used from many threads at once; a Writer from one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace k3 {

class File {
 public:
  virtual ~File() = default;
  virtual const std::string& path() const = 0;
  virtual uint64_t size() const = 0;

  // Fills `out` from `offset`. Throws InputError when the file is shorter (a truncated file), and
  // WorkError when the device fails.
  virtual void read(uint64_t offset, std::span<std::byte> out) const = 0;

  // Like read, past the page cache where the device allows it. Reads the blocks that cover
  // [offset, offset + length) into `out`, whose address and size must be multiples of
  // direct_alignment(), and returns where in `out` the byte at `offset` lies. `out` must have
  // room for length + 2 * direct_alignment() bytes.
  virtual size_t read_direct(uint64_t offset, size_t length, std::span<std::byte> out) const = 0;

  // 4096 on a disk; 1 where direct reads do not exist and read_direct is a plain read.
  virtual size_t direct_alignment() const = 0;

  // "direct" or "buffered": what read_direct really does on this file.
  virtual const char* io_mode() const = 0;
};

class Writer {
 public:
  virtual ~Writer() = default;  // without commit() nothing appears under the final name
  virtual void write(std::span<const std::byte> data) = 0;
  virtual void commit() = 0;
};

class Storage {
 public:
  virtual ~Storage() = default;
  virtual std::unique_ptr<File> open(const std::string& path) const = 0;
  virtual bool exists(const std::string& path) const = 0;
  virtual std::unique_ptr<Writer> create(const std::string& path) = 0;
};

// The whole of a small file (configs, tokenizer files). Throws InputError above `limit` bytes.
std::string read_text(const Storage& storage, const std::string& path,
                      uint64_t limit = uint64_t{1} << 30);

// A small file, whole or not at all.
void write_text(Storage& storage, const std::string& path, const std::string& text);

class DiskStorage : public Storage {
 public:
  std::unique_ptr<File> open(const std::string& path) const override;
  bool exists(const std::string& path) const override;
  std::unique_ptr<Writer> create(const std::string& path) override;
};

class MemoryStorage : public Storage {
 public:
  std::unique_ptr<File> open(const std::string& path) const override;
  bool exists(const std::string& path) const override;
  std::unique_ptr<Writer> create(const std::string& path) override;

  void put(const std::string& path, std::string content);
  std::string get(const std::string& path) const;

 private:
  friend class MemoryWriter;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const std::string>> files_;
};

// Calls `fault` before every read of every file; what it throws is the read's result. So a test
// says which read fails, how often, and how slowly.
class FaultyStorage : public Storage {
 public:
  struct Read {
    const std::string& path;
    uint64_t offset;
    size_t length;
    uint64_t index;  // counts all reads through this storage from 0
  };
  FaultyStorage(const Storage& base, std::function<void(const Read&)> fault)
      : base_(base), fault_(std::move(fault)) {}
  std::unique_ptr<File> open(const std::string& path) const override;
  bool exists(const std::string& path) const override { return base_.exists(path); }
  std::unique_ptr<Writer> create(const std::string&) override;

 private:
  friend class FaultyFile;
  const Storage& base_;
  std::function<void(const Read&)> fault_;
  mutable std::atomic<uint64_t> reads_{0};
};

}  // namespace k3
