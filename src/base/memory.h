// One account for memory.
//
//   MemoryAccount account(12 << 30);
//   Buffer weights(account, "trunk", bytes);         // throws WorkError above the limit
//   account.used("trunk");                           // what a tag holds now
//
// Every allocation over 1 MB goes through an account, under a tag that `k3 plan` computes too. The
// limit is hard: what would pass it fails, it never swaps. Buffers are page-aligned, zeroed, and
// ask for huge pages from 4 MiB up. A reserved Buffer has its address and its zeros from the start
// and is charged as it is committed. Ownership: a Buffer owns its bytes and gives them back to the
// operating system (and to the account) when it goes. Thread rule: an account may be used from any
// thread; a Buffer belongs to one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace k3 {

class MemoryAccount {
 public:
  explicit MemoryAccount(uint64_t limit_bytes) : limit_(limit_bytes) {}
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  uint64_t limit() const { return limit_; }
  uint64_t used() const;
  uint64_t peak() const;
  uint64_t used(const std::string& tag) const;
  std::map<std::string, uint64_t> by_tag() const;

  void charge(const std::string& tag, uint64_t bytes);  // throws WorkError above the limit
  void release(const std::string& tag, uint64_t bytes);

 private:
  const uint64_t limit_;
  mutable std::mutex mutex_;
  uint64_t used_ = 0, peak_ = 0;
  std::map<std::string, uint64_t> tags_;
};

class Buffer {
 public:
  Buffer() = default;
  Buffer(MemoryAccount& account, std::string tag, uint64_t bytes);
  // Addresses for `most` bytes, none of them charged yet: for what cannot be planned.
  static Buffer reserved(MemoryAccount& account, std::string tag, uint64_t most);
  // Charges the first `bytes`, which may be touched from now on. Throws WorkError above the limit.
  void commit(uint64_t bytes) {
    if (bytes > charged_) charge(bytes);
  }
  ~Buffer() { reset(); }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  explicit operator bool() const { return data_ != nullptr; }
  void reset();

  // What an allocation of `bytes` really takes from the account.
  static uint64_t rounded(uint64_t bytes);

 private:
  void map(uint64_t bytes, int flags);
  void charge(uint64_t bytes);

  MemoryAccount* account_ = nullptr;
  std::string tag_;
  std::byte* data_ = nullptr;
  uint64_t size_ = 0, mapped_ = 0, charged_ = 0;
};

// Resident set of this process now and at its peak, from the kernel; 0 where it cannot be read.
uint64_t resident_bytes();
uint64_t peak_resident_bytes();

// "12G", "512M", "1.5GiB", "800000": bytes. G, M, K are powers of 1024. Throws InputError naming
// `option`.
uint64_t parse_size(const std::string& text, const std::string& option);
std::string format_size(uint64_t bytes);  // "1.50 GiB"

}  // namespace k3
