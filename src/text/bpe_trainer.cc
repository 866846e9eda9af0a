#include "text/bpe_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <queue>

#include "base/utf8.h"
#include "text/base64.h"
#include "text/tokenizer.h"

namespace k3 {
namespace {

constexpr size_t kLongestToken = 256;

// GPT-2's order: the printable bytes first, then the others.
std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens;
  const auto printable = [](int b) {
    return (b >= 33 && b < 127) || (b >= 161 && b < 173) || b >= 174;
  };
  for (const bool wanted : {true, false})
    for (int b = 0; b < 256; ++b)
      if (printable(b) == wanted) tokens.emplace_back(1, static_cast<char>(b));
  return tokens;
}

struct Hash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};
template <class T>
using ByBytes = std::unordered_map<std::string, T, Hash, std::equal_to<>>;

// A distinct piece of the text: its tokens are the bytes between neighbouring `starts`.
struct Word {
  std::string bytes;
  uint64_t count;
  std::vector<uint16_t> starts;

  size_t tokens() const { return starts.size() - 1; }
  std::string_view joined(size_t i) const {  // token i and the next one
    return std::string_view(bytes).substr(starts[i], starts[i + 2] - starts[i]);
  }
};

// A byte string that neighbouring tokens make, and where.
struct Candidate {
  std::string bytes;
  uint64_t count = 0;
  std::vector<uint32_t> words;  // those that had it; some may not any more
};

class Training {
 public:
  explicit Training(const std::unordered_map<std::string, uint64_t>& pieces) {
    for (const auto& [bytes, count] : pieces) {
      Word word{bytes, count, {}};
      for (size_t i = 0; i <= bytes.size(); ++i) word.starts.push_back(static_cast<uint16_t>(i));
      words_.push_back(std::move(word));
    }
    for (uint32_t w = 0; w < words_.size(); ++w) count_pairs(w);
  }

  // The next token, or none when no pair occurs twice.
  std::string next() {
    while (!queue_.empty()) {
      const Entry best = queue_.top();
      queue_.pop();
      Candidate& candidate = candidates_[best.candidate];
      if (best.count < candidate.count) continue;  // a better entry has been taken
      if (best.count > candidate.count) {
        push(best.candidate);
        continue;
      }
      if (best.count < 2) return {};
      const std::string token = candidate.bytes;
      ranks_.emplace(token, static_cast<uint32_t>(ranks_.size()));
      std::vector<uint32_t> words = std::move(candidate.words);
      std::sort(words.begin(), words.end());
      words.erase(std::unique(words.begin(), words.end()), words.end());
      for (const uint32_t w : words) {
        forget_pairs(w);
        merge(words_[w]);
        count_pairs(w);
      }
      return token;
    }
    return {};
  }

  uint64_t text_tokens() const {
    uint64_t sum = 0;
    for (const Word& word : words_) sum += word.count * word.tokens();
    return sum;
  }

 private:
  struct Entry {
    uint64_t count;
    uint32_t candidate;
    const std::vector<Candidate>* all;
    bool operator<(const Entry& other) const {  // the greatest is taken first
      if (count != other.count) return count < other.count;
      const std::string& a = (*all)[candidate].bytes;
      const std::string& b = (*all)[other.candidate].bytes;
      return a.size() != b.size() ? a.size() > b.size() : a > b;
    }
  };

  void push(uint32_t candidate) {
    if (candidates_[candidate].count > 0)
      queue_.push({candidates_[candidate].count, candidate, &candidates_});
  }

  void forget_pairs(uint32_t w) {
    const Word& word = words_[w];
    for (size_t i = 0; i + 1 < word.tokens(); ++i)
      candidates_[index_.find(word.joined(i))->second].count -= word.count;
  }

  void count_pairs(uint32_t w) {
    const Word& word = words_[w];
    for (size_t i = 0; i + 1 < word.tokens(); ++i) {
      const std::string_view bytes = word.joined(i);
      auto found = index_.find(bytes);
      if (found == index_.end()) {
        found = index_.emplace(std::string(bytes), static_cast<uint32_t>(candidates_.size())).first;
        candidates_.push_back({std::string(bytes), 0, {}});
      }
      Candidate& candidate = candidates_[found->second];
      candidate.count += word.count;
      if (candidate.words.empty() || candidate.words.back() != w) candidate.words.push_back(w);
      push(found->second);
    }
  }

  // Merges what the vocabulary allows, the lowest rank first, the leftmost of equals.
  void merge(Word& word) {
    for (;;) {
      constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
      uint32_t lowest = kNone;
      size_t at = 0;
      for (size_t i = 0; i + 1 < word.tokens(); ++i) {
        const auto found = ranks_.find(word.joined(i));
        if (found == ranks_.end() || found->second >= lowest) continue;
        lowest = found->second;
        at = i;
      }
      if (lowest == kNone) return;
      word.starts.erase(word.starts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
  }

  std::vector<Word> words_;
  std::vector<Candidate> candidates_;
  ByBytes<uint32_t> index_;  // of candidates
  ByBytes<uint32_t> ranks_;  // of the tokens learned so far
  std::priority_queue<Entry> queue_;
};

}  // namespace

void BpeTrainer::add(std::string_view text) {
  const std::string valid = utf8_repair(text);
  for (const std::string_view piece : Tokenizer::pieces(valid)) ++pieces_[std::string(piece)];
}

BpeVocabulary BpeTrainer::train(
    int32_t size, const std::function<void(uint64_t done, uint64_t total)>& progress) const {
  BpeVocabulary out;
  std::unordered_map<std::string, uint64_t> words;
  for (const auto& [piece, count] : pieces_) {
    out.bytes += piece.size() * count;
    out.pieces += count;
    if (piece.size() <= kLongestToken) words.emplace(piece, count);
  }
  Training training(words);
  out.tokens = byte_tokens();
  while (static_cast<int64_t>(out.tokens.size()) < size) {
    std::string token = training.next();
    if (token.empty()) break;
    out.tokens.push_back(std::move(token));
    if (progress) progress(out.tokens.size(), static_cast<uint64_t>(size));
  }
  out.text_tokens = training.text_tokens();
  return out;
}

std::string tiktoken_file(const std::vector<std::string>& tokens) {
  std::string file;
  for (size_t rank = 0; rank < tokens.size(); ++rank)
    file += fmt::format("{} {}\n", base64_encode(tokens[rank]), rank);
  return file;
}

std::string tokenizer_config(int32_t ordinary) {
  struct Name {
    int32_t offset;
    const char* name;
    bool flagged;
  };
  // tokenizer.md 3, counted from the first special id.
  constexpr Name kNames[] = {
      {0, "[BOS]", true},
      {1, "[EOS]", true},
      {2, "<|end_of_msg|>", true},
      {3, "<|open|>", false},
      {4, "<|close|>", false},
      {5, "<|sep|>", false},
      {6, "[start_header_id]", true},
      {7, "[end_header_id]", true},
      {9, "[EOT]", true},
      {18, "<|media_begin|>", true},
      {19, "<|media_content|>", true},
      {20, "<|media_end|>", true},
      {21, "<|media_pad|>", true},
      {65, "<osagent_mode>", true},
      {254, "[UNK]", true},
      {255, "[PAD]", true},
  };
  nlohmann::ordered_json added;
  for (const Name& n : kNames)
    added[fmt::format("{}", ordinary + n.offset)] = {
        {"content", n.name}, {"lstrip", false},      {"normalized", false},
        {"rstrip", false},   {"single_word", false}, {"special", n.flagged}};
  const nlohmann::ordered_json config = {
      {"added_tokens_decoder", added},
      {"bos_token", "[BOS]"},
      {"clean_up_tokenization_spaces", false},
      {"eos_token", "[EOS]"},
      {"pad_token", "[PAD]"},
      {"tokenizer_class", "TikTokenTokenizer"},
      {"unk_token", "[UNK]"},
  };
  return config.dump(2) + "\n";
}

}  // namespace k3
