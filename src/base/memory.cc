#include "base/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/error.h"

namespace k3 {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = uint64_t{2} << 20;

// A line such as "VmRSS:   12345 kB" of /proc/self/status.
uint64_t status_kib(const char* key) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line))
    if (line.rfind(key, 0) == 0) return std::strtoull(line.c_str() + std::strlen(key), nullptr, 10);
  return 0;
}

}  // namespace

uint64_t MemoryAccount::used() const {
  std::lock_guard lock(mutex_);
  return used_;
}
uint64_t MemoryAccount::peak() const {
  std::lock_guard lock(mutex_);
  return peak_;
}
uint64_t MemoryAccount::used(const std::string& tag) const {
  std::lock_guard lock(mutex_);
  const auto found = tags_.find(tag);
  return found == tags_.end() ? 0 : found->second;
}
std::map<std::string, uint64_t> MemoryAccount::by_tag() const {
  std::lock_guard lock(mutex_);
  return tags_;
}

void MemoryAccount::charge(const std::string& tag, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes > limit_ - used_)
    throw WorkError(fmt::format("memory: '{}' needs {} more, but {} of the {} limit are in use",
                                tag, format_size(bytes), format_size(used_), format_size(limit_)));
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  tags_[tag] += bytes;
}

void MemoryAccount::release(const std::string& tag, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  used_ -= bytes;
  tags_[tag] -= bytes;
}

uint64_t Buffer::rounded(uint64_t bytes) {
  const uint64_t unit = bytes >= 2 * kHugePage ? kHugePage : kPage;
  return (bytes + unit - 1) / unit * unit;
}

void Buffer::map(uint64_t bytes, int flags) {
  size_ = bytes;
  mapped_ = rounded(bytes);
  // Huge pages need an aligned start: map one more and give back what is not used.
  const bool huge = mapped_ >= 2 * kHugePage;
  const uint64_t reserve = huge ? mapped_ + kHugePage : mapped_;
  void* raw =
      mmap(nullptr, reserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (raw == MAP_FAILED)
    throw WorkError(
        fmt::format("memory: the system refused {} for '{}'", format_size(mapped_), tag_));
  auto start = reinterpret_cast<uintptr_t>(raw);
  if (huge) {
    const uintptr_t aligned = (start + kHugePage - 1) / kHugePage * kHugePage;
    if (aligned > start) munmap(raw, aligned - start);
    const uintptr_t end = start + reserve;
    if (end > aligned + mapped_)
      munmap(reinterpret_cast<void*>(aligned + mapped_), end - aligned - mapped_);
    start = aligned;
    madvise(reinterpret_cast<void*>(start), mapped_, MADV_HUGEPAGE);
  }
  data_ = reinterpret_cast<std::byte*>(start);
}

Buffer::Buffer(MemoryAccount& account, std::string tag, uint64_t bytes)
    : account_(&account), tag_(std::move(tag)) {
  if (bytes == 0) return;
  account.charge(tag_, rounded(bytes));
  charged_ = rounded(bytes);
  try {
    map(bytes, 0);
  } catch (...) {
    account.release(tag_, charged_);
    throw;
  }
}

Buffer Buffer::reserved(MemoryAccount& account, std::string tag, uint64_t most) {
  Buffer buffer;
  buffer.account_ = &account;
  buffer.tag_ = std::move(tag);
  buffer.map(most, MAP_NORESERVE);
  return buffer;
}

void Buffer::charge(uint64_t bytes) {
  constexpr uint64_t kStep = 4 * kHugePage;  // so that the account is asked rarely
  const uint64_t upto = std::min(mapped_, (bytes + kStep - 1) / kStep * kStep);
  if (upto < bytes)
    throw WorkError(fmt::format("memory: '{}' needs {} where {} were set aside", tag_,
                                format_size(bytes), format_size(mapped_)));
  account_->charge(tag_, upto - charged_);
  charged_ = upto;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  reset();
  account_ = std::exchange(other.account_, nullptr);
  tag_ = std::move(other.tag_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  mapped_ = std::exchange(other.mapped_, 0);
  charged_ = std::exchange(other.charged_, 0);
  return *this;
}

void Buffer::reset() {
  if (data_) {
    munmap(data_, mapped_);
    account_->release(tag_, charged_);
  }
  data_ = nullptr;
  size_ = mapped_ = charged_ = 0;
}

uint64_t resident_bytes() { return status_kib("VmRSS:") * 1024; }
uint64_t peak_resident_bytes() { return status_kib("VmHWM:") * 1024; }

uint64_t parse_size(const std::string& text, const std::string& option) {
  const auto wrong = [&] {
    return InputError(option, "size", "a number with an optional K, M, G or T, e.g. 12G",
                      "'" + text + "'");
  };
  const size_t used = std::min(text.find_first_not_of("0123456789."), text.size());
  double value = 0;
  try {
    value = std::stod(text.substr(0, used));
  } catch (const std::logic_error&) {
    throw wrong();
  }
  if (std::count(text.begin(), text.begin() + static_cast<int64_t>(used), '.') > 1) throw wrong();
  std::string unit;
  for (const char c : text.substr(used))
    unit += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (unit.size() > 1 && unit.back() == 'B') unit.pop_back();
  if (unit.size() > 1 && unit.back() == 'I') unit.pop_back();
  constexpr std::string_view kUnits = "KMGT";
  if (unit == "B") unit.clear();
  if (unit.size() > 1 || (!unit.empty() && kUnits.find(unit[0]) == kUnits.npos)) throw wrong();
  if (!unit.empty()) value = std::ldexp(value, 10 * (static_cast<int>(kUnits.find(unit[0])) + 1));
  if (!(value >= 0) || value > 1e18) throw wrong();
  return static_cast<uint64_t>(value);
}

std::string format_size(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < (uint64_t{1} << 20)) return fmt::format("{:.1f} KiB", value / 1024);
  if (bytes < (uint64_t{1} << 30)) return fmt::format("{:.1f} MiB", value / (1 << 20));
  return fmt::format("{:.2f} GiB", value / (1 << 30));
}

}  // namespace k3
