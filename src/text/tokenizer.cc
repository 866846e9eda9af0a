#include "text/tokenizer.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "base/error.h"
#include "base/utf8.h"
#include "text/bpe.h"
#include "text/json.h"
#include "text/pretokenizer.h"
#include "text/unicode.h"

namespace k3 {
namespace {

constexpr int64_t kReleasedSpecials = 256;
// A named id further than this past the vocabulary is a mistake, not a larger reserve.
constexpr int64_t kMostSpecials = 65536;

// The id that a key of added_tokens_decoder stands for, relative to the first special id.
int64_t special_offset(const std::string& key, int32_t first, const std::string& file) {
  int64_t id = -1;
  const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error != std::errc() || stop != key.data() + key.size() || id < first ||
      id >= first + kMostSpecials)
    throw InputError(file, "added_tokens_decoder",
                     fmt::format("ids from {} (the size of tiktoken.model) to {}", first,
                                 first + kMostSpecials - 1),
                     fmt::format("'{}'", key));
  return id - first;
}

}  // namespace

Tokenizer Tokenizer::load(const Storage& storage, const std::string& folder) {
  const std::string vocabulary_file = folder + "/tiktoken.model";
  const std::string config_file = folder + "/tokenizer_config.json";
  Tokenizer tokenizer;
  tokenizer.vocabulary_ = Vocabulary::parse(read_text(storage, vocabulary_file), vocabulary_file);
  tokenizer.read_config(read_text(storage, config_file, uint64_t{64} << 20), config_file);
  return tokenizer;
}

void Tokenizer::read_config(const std::string& text, const std::string& file) {
  const Json config = parse_json(text, file);
  if (config.kind != Json::Kind::kObject)
    throw InputError(file, "content", "a JSON object", config.describe());
  const int32_t first = first_special();
  int64_t count = kReleasedSpecials;
  if (const Json* reserved = config.get("num_reserved_special_tokens")) {
    const std::optional<int64_t> value = reserved->as_int();
    if (!value || *value < 0 || *value > kMostSpecials)
      throw InputError(file, "num_reserved_special_tokens",
                       fmt::format("a number from 0 to {}", kMostSpecials), reserved->describe());
    count = *value;
  }
  const Json* added = config.get("added_tokens_decoder");
  if (added && added->kind != Json::Kind::kObject)
    throw InputError(file, "added_tokens_decoder", "an object", added->describe());
  if (added)
    for (const JsonMember& member : added->members)
      count = std::max(count, special_offset(member.key, first, file) + 1);

  specials_.resize(static_cast<size_t>(count));
  if (added)
    for (const auto& [key, value] : added->members) {
      Special& special = specials_[static_cast<size_t>(special_offset(key, first, file))];
      const Json* content = value.get("content");
      const Json* flag = value.get("special");
      if (!content || content->kind != Json::Kind::kString || content->text.empty())
        throw InputError(file, "added_tokens_decoder." + key + ".content", "a name",
                         content ? content->describe() : "nothing");
      if (flag && flag->kind != Json::Kind::kBool)
        throw InputError(file, "added_tokens_decoder." + key + ".special", "true or false",
                         flag->describe());
      special.name = content->text;
      special.flagged = flag && flag->boolean;
    }
  for (size_t i = 0; i < specials_.size(); ++i)
    if (specials_[i].name.empty())
      specials_[i].name = fmt::format("<|reserved_token_{}|>", first + static_cast<int64_t>(i));
  index_names(file);

  for (const char* key : {"bos_token", "eos_token", "pad_token", "unk_token"}) {
    const Json* value = config.get(key);
    if (value && value->kind == Json::Kind::kObject) value = value->get("content");
    if (!value || value->kind != Json::Kind::kString) continue;
    if (const std::optional<int> id = special(value->text)) roles_[key] = *id;
  }
}

void Tokenizer::index_names(const std::string& file) {
  for (size_t i = 0; i < specials_.size(); ++i)
    by_name_.emplace_back(specials_[i].name, first_special() + static_cast<int32_t>(i));
  std::sort(by_name_.begin(), by_name_.end());
  for (size_t i = 0; i < by_name_.size(); ++i) {
    const std::string& name = by_name_[i].first;
    if (i > 0 && name == by_name_[i - 1].first)
      throw InputError(
          file, "added_tokens_decoder", "every name once",
          fmt::format("'{}' for {} and {}", name, by_name_[i - 1].second, by_name_[i].second));
    if (first_bytes_.find(name[0]) == std::string::npos) first_bytes_ += name[0];
  }
}

std::optional<int> Tokenizer::special(std::string_view name) const {
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                      [](const auto& a, const auto& b) { return a.first < b; });
  if (found == by_name_.end() || found->first != name) return std::nullopt;
  return found->second;
}

std::optional<int> Tokenizer::role(std::string_view key) const {
  const auto found = roles_.find(key);
  return found == roles_.end() ? std::nullopt : std::optional<int>(found->second);
}

bool Tokenizer::flagged_special(int32_t id) const {
  return id >= first_special() && id < size() &&
         specials_[static_cast<size_t>(id - first_special())].flagged;
}

std::vector<int32_t> Tokenizer::flagged_specials() const {
  std::vector<int32_t> ids;
  for (int32_t id = first_special(); id < size(); ++id)
    if (flagged_special(id)) ids.push_back(id);
  return ids;
}

std::string_view Tokenizer::bytes(int32_t id) const {
  if (id < 0 || id >= size())
    throw InputError("token ids", "id", fmt::format("0 to {}", size() - 1), fmt::format("{}", id));
  if (id < first_special()) return vocabulary_.bytes(id);
  return specials_[static_cast<size_t>(id - first_special())].name;
}

std::string Tokenizer::decode_bytes(std::span<const int32_t> ids) const {
  std::string out;
  for (const int32_t id : ids) out += bytes(id);
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  for (const int32_t id : ids) {
    const std::string_view token = bytes(id);
    if (!skip_special || !flagged_special(id)) out += token;
  }
  return utf8_repair(out);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, SpecialText mode) const {
  std::vector<int32_t> ids;
  append_encoded(text, mode, &ids);
  return ids;
}

void Tokenizer::append_encoded(std::string_view text, SpecialText mode,
                               std::vector<int32_t>* ids) const {
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = utf8_repair(text);
    text = repaired;
  }
  TextCutter cutter(text);
  for (std::string_view stretch; cutter.next(&stretch);) {
    if (mode == SpecialText::kParse)
      append_with_specials(stretch, ids);
    else
      append_plain(stretch, ids);
  }
}

void Tokenizer::append_plain(std::string_view text, std::vector<int32_t>* ids) const {
  for (size_t at = 0; at < text.size();) {
    const size_t end = next_piece(text, at);
    append_bpe(vocabulary_, text.substr(at, end - at), ids);
    at = end;
  }
}

void Tokenizer::append_with_specials(std::string_view text, std::vector<int32_t>* ids) const {
  size_t plain = 0;
  for (size_t at = 0; (at = text.find_first_of(first_bytes_, at)) != std::string_view::npos;) {
    int32_t id = 0;
    const size_t length = match_special(text, at, &id);
    if (length == 0) {
      ++at;
      continue;
    }
    append_plain(text.substr(plain, at - plain), ids);
    ids->push_back(id);
    plain = at += length;
  }
  append_plain(text.substr(plain), ids);
}

// The length of the longest special name at `at`, 0 if there is none. Narrows the sorted names
// character by character, so that text full of beginnings of names costs no more than any other.
size_t Tokenizer::match_special(std::string_view text, size_t at, int32_t* id) const {
  auto first = by_name_.begin(), last = by_name_.end();
  size_t length = 0;
  for (size_t depth = 0; at + depth < text.size() && first != last; ++depth) {
    const auto symbol = [&](const auto& entry) {
      return depth < entry.first.size() ? static_cast<unsigned char>(entry.first[depth]) : -1;
    };
    const int wanted = static_cast<unsigned char>(text[at + depth]);
    first = std::partition_point(first, last, [&](const auto& e) { return symbol(e) < wanted; });
    last = std::partition_point(first, last, [&](const auto& e) { return symbol(e) <= wanted; });
    if (first != last && first->first.size() == depth + 1) {
      length = depth + 1;
      *id = first->second;
    }
  }
  return length;
}

std::vector<std::string_view> Tokenizer::pieces(std::string_view text) {
  std::vector<std::string_view> out;
  TextCutter cutter(text);
  for (std::string_view stretch; cutter.next(&stretch);)
    for (size_t at = 0; at < stretch.size();) {
      const size_t end = next_piece(stretch, at);
      out.push_back(stretch.substr(at, end - at));
      at = end;
    }
  return out;
}

std::string StreamDecoder::push(int32_t id) {
  std::string text;
  const std::string_view bytes = tokenizer_.bytes(id);
  if (!skip_special_ || !tokenizer_.flagged_special(id)) stream_.push(bytes, &text);
  return text;
}

std::string StreamDecoder::flush() {
  std::string text;
  stream_.flush(&text);
  return text;
}

}  // namespace k3
