// What the tests of this floor share: fixtures, the released tokenizer if it is there, and a small
// vocabulary with other ids.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/storage.h"
#include "text/base64.h"
#include "text/tokenizer.h"

namespace k3::test {

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

inline nlohmann::ordered_json fixture(const std::string& name) {
  return nlohmann::ordered_json::parse(read_file(std::string(K3_FIXTURES) + "/" + name));
}

inline nlohmann::ordered_json fixture_cases(const std::string& name) {
  return fixture(name)["cases"];
}

inline std::string released_folder() { return std::string(K3_SHARED) + "/data/tokenizer"; }

// Null where the released files are not at hand.
inline const Tokenizer* released_tokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    const DiskStorage storage;
    if (!storage.exists(released_folder() + "/tiktoken.model")) return std::unique_ptr<Tokenizer>();
    return std::make_unique<Tokenizer>(Tokenizer::load(storage, released_folder()));
  }();
  return tokenizer.get();
}

#define K3_NEEDS_RELEASED_TOKENIZER(name)                                             \
  const Tokenizer* name##_pointer = test::released_tokenizer();                       \
  if (!name##_pointer)                                                                \
    GTEST_SKIP() << "needs Moonshot's tiktoken.model in " << test::released_folder(); \
  const Tokenizer& name = *name##_pointer

// 256 bytes in byte order, then `merges`; the special names sit at ids of their own.
inline std::string small_vocabulary(const std::vector<std::string>& merges) {
  std::string text;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte)
    text += fmt::format("{} {}\n", base64_encode(std::string(1, static_cast<char>(byte))), rank++);
  for (const std::string& merge : merges)
    text += fmt::format("{} {}\n", base64_encode(merge), rank++);
  return text;
}

inline const std::vector<std::string>& small_merges() {
  static const std::vector<std::string> merges = {
      "th", "the", "in", " t", "en", "\xe4\xb8", "\xe4\xb8\xad", "ab", "bc", "aa", "aaaa"};
  return merges;
}

// Names at 267 + {3, 0, 7, 1, 2, 9, 4, 5, 6, 8}: an order no released model has.
inline std::string small_config() {
  const std::vector<std::pair<int, std::string>> names = {
      {3, "<|open|>"},      {0, "<|close|>"},    {7, "<|sep|>"},         {1, "<|end_of_msg|>"},
      {2, "[EOS]"},         {9, "[BOS]"},        {4, "<|media_begin|>"}, {5, "<|media_content|>"},
      {6, "<|media_pad|>"}, {8, "<|media_end|>"}};
  nlohmann::json config;
  for (const auto& [offset, name] : names)
    config["added_tokens_decoder"][std::to_string(267 + offset)] = {
        {"content", name}, {"special", offset != 3 && offset != 0 && offset != 7}};
  config["num_reserved_special_tokens"] = 12;
  config["bos_token"] = "[BOS]";
  return config.dump();
}

inline Tokenizer small_tokenizer() {
  MemoryStorage storage;
  storage.put("m/tiktoken.model", small_vocabulary(small_merges()));
  storage.put("m/tokenizer_config.json", small_config());
  return Tokenizer::load(storage, "m");
}

// A generator whose numbers do not depend on the library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  size_t below(size_t bound) { return static_cast<size_t>(next() % bound); }

 private:
  uint64_t state_;
};

inline std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

// SHA-256 in hexadecimal (FIPS 180-4); its constants are the fractional parts of roots of primes.
inline std::string sha256(std::string message) {
  const auto primes = [] {
    std::vector<uint32_t> found;
    for (uint32_t n = 2; found.size() < 64; ++n)
      if (std::none_of(found.begin(), found.end(), [&](uint32_t p) { return n % p == 0; }))
        found.push_back(n);
    return found;
  }();
  const auto fraction = [](long double x) {
    return static_cast<uint32_t>((x - static_cast<uint64_t>(x)) * 4294967296.0L);
  };
  std::array<uint32_t, 64> k;
  for (size_t i = 0; i < 64; ++i) k[i] = fraction(std::cbrt(static_cast<long double>(primes[i])));
  std::array<uint32_t, 8> hash;
  for (size_t i = 0; i < 8; ++i) hash[i] = fraction(std::sqrt(static_cast<long double>(primes[i])));
  const uint64_t bits = message.size() * 8;
  message += '\x80';
  while (message.size() % 64 != 56) message += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) message += static_cast<char>(bits >> shift);
  for (size_t block = 0; block < message.size(); block += 64) {
    std::array<uint32_t, 64> w;
    for (size_t i = 0; i < 16; ++i) {
      w[i] = 0;
      for (size_t b = 0; b < 4; ++b)
        w[i] = w[i] << 8 | static_cast<unsigned char>(message[block + i * 4 + b]);
    }
    for (size_t i = 16; i < 64; ++i)
      w[i] = w[i - 16] + w[i - 7] +
             (std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3) +
             (std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10);
    auto [a, b, c, d, e, f, g, h] = hash;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                          ((e & f) ^ (~e & g)) + k[i] + w[i];
      const uint32_t t2 =
          (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<uint32_t, 8> round = {a, b, c, d, e, f, g, h};
    for (size_t i = 0; i < 8; ++i) hash[i] += round[i];
  }
  std::string out;
  for (const uint32_t word : hash) out += fmt::format("{:08x}", word);
  return out;
}

}  // namespace k3::test
