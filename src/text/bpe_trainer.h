// Learns a byte-level vocabulary in tiktoken's format, with K3's pieces and special names.
//
//   BpeTrainer trainer;
//   trainer.add(text);                                  // any number of times
//   const BpeVocabulary learned = trainer.train(4096);
//   write(dir + "/tiktoken.model", tiktoken_file(learned.tokens));
//   write(dir + "/tokenizer_config.json", tokenizer_config(4096));
//
// Text is cut into pieces as the tokenizer cuts it; ill-formed UTF-8 counts as U+FFFD. The first
// 256 tokens are the bytes in GPT-2's order. Then, again and again, the byte string that most pairs
// of neighbouring tokens make becomes a token; of equals the shorter, then the lesser one. After
// each, the pieces are what append_bpe would make of them with the vocabulary so far (the rank of a
// concatenation decides, not a list of merges), so that what is counted is what the tokenizer will
// do. Pieces of more than 256 bytes are left out: they are no words, and a token is no longer.
// Ownership: a trainer keeps each distinct piece once. Thread rule: one thread. The result depends
// on the text alone, not on how it was cut into calls of add, as long as pieces stay whole.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace k3 {

struct BpeVocabulary {
  std::vector<std::string> tokens;  // by rank
  uint64_t bytes = 0, pieces = 0;   // of the text
  uint64_t text_tokens = 0;         // that the text becomes
};

class BpeTrainer {
 public:
  void add(std::string_view text);

  // At least 256 tokens; fewer than `size` when no pair occurs twice any more.
  BpeVocabulary train(
      int32_t size, const std::function<void(uint64_t done, uint64_t total)>& progress = {}) const;

 private:
  std::unordered_map<std::string, uint64_t> pieces_;
};

// The content of tiktoken.model: base64 and rank, a token a line.
std::string tiktoken_file(const std::vector<std::string>& tokens);
// The content of tokenizer_config.json: K3's special names, 256 ids from `ordinary` on.
std::string tokenizer_config(int32_t ordinary);
constexpr int32_t kSpecialIds = 256;

}  // namespace k3
