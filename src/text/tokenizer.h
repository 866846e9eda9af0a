// Text to token ids and back, for every model whose folder has tiktoken.model and
// tokenizer_config.json.
//
//   const Tokenizer tokenizer = Tokenizer::load(storage, "models/kimi-k3");
//   std::vector<int32_t> ids = tokenizer.encode("Hello, world!");       // plain text
//   std::string text = tokenizer.decode(ids);                           // "Hello, world!"
//   std::optional<int> end = tokenizer.special("<|end_of_msg|>");       // by name, never by number
//
// Ids 0 … n-1 are the n ordinary tokens of tiktoken.model. Special ids follow: those named in
// tokenizer_config.json under "added_tokens_decoder" have that name, every other one is
// "<|reserved_token_N|>" with N its id. There are 256 of them, as in all released models, unless
// tokenizer_config.json says otherwise with "num_reserved_special_tokens" (a small model's
// vocabulary need not be 256 larger than its text), and never fewer than reach the highest named
// id.
//
// encode() never adds a first or last token, never normalises, and takes any bytes: ill-formed
// UTF-8 counts as U+FFFD, one for each maximal subpart. Very long text is cut as described in
// pretokenizer.h.
//
// Thread rule: immutable after load(); every const function may run on many threads at once.
// Errors: InputError naming the file, line or id.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/storage.h"
#include "text/utf8_stream.h"
#include "text/vocabulary.h"

namespace k3 {

// What special names inside text mean.
enum class SpecialText {
  kPlain,  // nothing: they are ordinary text. For everything a user, tool or model wrote
  kParse,  // they become their ids, leftmost first, the longest of those that start together
};

class Tokenizer {
 public:
  // Reads the two files of `folder`. Throws InputError if they are missing or wrong.
  static Tokenizer load(const Storage& storage, const std::string& folder);

  std::vector<int32_t> encode(std::string_view text, SpecialText mode = SpecialText::kPlain) const;
  void append_encoded(std::string_view text, SpecialText mode, std::vector<int32_t>* ids) const;

  // The concatenated bytes of the tokens; a special id stands for its name.
  std::string decode_bytes(std::span<const int32_t> ids) const;

  // The same as text, with U+FFFD for what is not valid UTF-8. `skip_special` leaves out the ids
  // flagged special (which the tags of the chat format are not).
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // Throws InputError if `id` is not in the vocabulary. The view lives as long as the tokenizer.
  std::string_view bytes(int32_t id) const;

  // One more than the highest id.
  int32_t size() const { return first_special() + static_cast<int32_t>(specials_.size()); }
  int32_t first_special() const { return vocabulary_.size(); }

  // The id of a special name, reserved names included.
  std::optional<int> special(std::string_view name) const;
  bool flagged_special(int32_t id) const;
  std::vector<int32_t> flagged_specials() const;

  // The special token that tokenizer_config.json names as e.g. "bos_token", "eos_token",
  // "pad_token".
  std::optional<int> role(std::string_view key) const;

  // The pieces of plain text before byte-pair encoding, views into `text`, which must be valid
  // UTF-8. For tests and for training vocabularies.
  static std::vector<std::string_view> pieces(std::string_view text);

 private:
  struct Special {
    std::string name;
    bool flagged = false;
  };
  Tokenizer() = default;
  void read_config(const std::string& text, const std::string& file);
  void index_names(const std::string& file);
  size_t match_special(std::string_view text, size_t at, int32_t* id) const;
  void append_plain(std::string_view text, std::vector<int32_t>* ids) const;
  void append_with_specials(std::string_view text, std::vector<int32_t>* ids) const;

  Vocabulary vocabulary_;
  std::vector<Special> specials_;                         // by id - first_special()
  std::vector<std::pair<std::string, int32_t>> by_name_;  // sorted
  std::string first_bytes_;                               // those that a special name starts with
  std::map<std::string, int32_t, std::less<>> roles_;
};

// Ids that arrive one at a time, as text that can be shown at once.
//
//   StreamDecoder decoder(tokenizer);
//   for (int32_t id : ids) show(decoder.push(id));
//   show(decoder.flush());
//
// Holds back an incomplete UTF-8 character (at most 3 bytes). The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}
  std::string push(int32_t id);
  std::string flush();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  Utf8Stream stream_;
};

}  // namespace k3
