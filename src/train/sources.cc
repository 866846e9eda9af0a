#include "train/sources.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "text/chat.h"
#include "train/dataset.h"

namespace k3 {
namespace {

constexpr size_t kReadBytes = size_t{4} << 20;
constexpr size_t kMaxLine = size_t{64} << 20;
constexpr size_t kDocumentBytes = size_t{16} << 10;  // of a plain text, cut at a line's end

// Calls line(text, number) for every line of a file, without its newline.
void each_line(const File& file, const std::function<void(std::string_view, int64_t)>& line,
               const std::function<void(uint64_t)>& tell) {
  std::string kept;
  int64_t number = 0;
  for (uint64_t at = 0; at < file.size();) {
    const size_t before = kept.size();
    kept.resize(before + static_cast<size_t>(std::min<uint64_t>(kReadBytes, file.size() - at)));
    const std::span<char> fresh(kept.data() + before, kept.size() - before);
    file.read(at, std::as_writable_bytes(fresh));
    at += fresh.size();
    size_t begin = 0;
    for (size_t end; (end = kept.find('\n', std::max(begin, before))) != std::string::npos;
         begin = end + 1)
      line(std::string_view(kept).substr(begin, end - begin), ++number);
    kept.erase(0, begin);
    if (kept.size() > kMaxLine)
      throw InputError(file.path(), fmt::format("line {}", number + 1),
                       fmt::format("at most {} bytes", kMaxLine), "a longer one");
    tell(at);
  }
  if (!kept.empty()) line(kept, ++number);
}

// A text as documents of about kDocumentBytes that end with a line.
void each_document(const File& file, const std::function<void(std::string_view)>& document,
                   const std::function<void(uint64_t)>& tell) {
  std::string text;
  each_line(
      file,
      [&](std::string_view line, int64_t) {
        text.append(line).push_back('\n');
        if (text.size() < kDocumentBytes) return;
        document(text);
        text.clear();
      },
      tell);
  if (!text.empty()) document(text);
}

std::string text_of(std::string_view line, const std::string& where) {
  const Json json = parse_json(line, where);
  const Json* text = json.find("text");
  if (!text || !text->is(Json::Kind::kString))
    throw InputError(where, "text", "a string", text ? text->describe() : "nothing");
  return text->text;
}

bool blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

int32_t end_of_document(const Tokenizer& tokenizer, const std::string& folder) {
  if (const auto id = tokenizer.special("[EOS]")) return *id;
  throw InputError(folder, "special tokens", "[EOS], which closes documents", "none of that name");
}

std::vector<int32_t> chat_document(const Tokenizer& tokenizer, const std::string& text,
                                   const std::string& where) {
  Json request = parse_json(text, where);
  Json* messages = nullptr;
  for (JsonMember& m : request.members)
    if (m.key == "messages") messages = &m.value;
  if (!messages || !messages->is(Json::Kind::kArray))
    throw InputError(where, "messages", "a list", messages ? messages->describe() : "nothing");
  const auto end_id = tokenizer.special(kEndOfMessage);
  if (!end_id) throw InputError(where, "tokenizer", std::string(kEndOfMessage), "none");
  const std::vector<Json> all = messages->items;
  // The prompt of the first `count` messages; it ends where the assistant would begin to write.
  const auto prompt = [&](size_t count) {
    messages->items.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
    try {
      return prompt_ids(tokenizer, render_chat(request), PadMode::kOne);
    } catch (const InputError& error) {
      throw InputError(where + ": " + error.what());
    }
  };
  const std::vector<int32_t> whole = prompt(all.size());
  std::vector<int32_t> document;
  for (size_t i = 0; i < all.size(); ++i) {
    const Json* role = all[i].find("role");
    if (!role || role->text != "assistant") continue;
    const std::vector<int32_t> before = prompt(i);
    const auto at = whole.begin() + static_cast<std::ptrdiff_t>(document.size());
    if (before.size() > whole.size() || !std::equal(before.begin(), before.end(), whole.begin()) ||
        before.size() < document.size())
      throw InputError(where, fmt::format("messages[{}]", i),
                       "an assistant message that its prompt leads to",
                       "one whose prompt differs from the conversation's");
    const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(before.size());
    std::transform(at, begin, std::back_inserter(document), context_only);
    const auto end = std::find(begin, whole.end(), *end_id);
    if (end == whole.end())
      throw InputError(where, fmt::format("messages[{}]", i), "an end of message", "none");
    document.insert(document.end(), begin, end + 1);
  }
  if (document.empty())
    throw InputError(where, "messages", "an assistant message to learn", "none");
  return document;
}

std::vector<std::string> shard_paths(const TrainConfig& config, const std::string& folder) {
  std::vector<std::string> paths;
  for (const DataSource& source : config.data)
    paths.push_back(source.form == DataSource::Form::kTokens
                        ? source.file
                        : fmt::format("{}/{:03}.safetensors", folder, paths.size()));
  return paths;
}

void tokenize_sources(Storage& storage, const TrainConfig& config, const Tokenizer* tokenizer,
                      int64_t vocab_size, const std::string& folder,
                      const std::function<void(const std::string&, uint64_t, uint64_t)>& progress) {
  const std::vector<std::string> paths = shard_paths(config, folder);
  for (size_t i = 0; i < paths.size(); ++i) {
    const DataSource& source = config.data[i];
    if (source.form == DataSource::Form::kTokens) continue;
    const auto file = storage.open(source.file);
    const auto tell = [&](uint64_t done) { progress(source.file, done, file->size()); };
    const auto where = [&](int64_t line) { return fmt::format("{}: line {}", source.file, line); };
    TokenWriter writer(storage, paths[i], vocab_size);
    const auto add_text = [&](std::string_view text) {
      std::vector<int32_t> ids = tokenizer->encode(text);
      if (ids.empty()) return;
      ids.push_back(end_of_document(*tokenizer, config.tokenizer));
      writer.add(ids);
    };
    switch (source.form) {
      case DataSource::Form::kText:
        each_document(*file, add_text, tell);
        break;
      case DataSource::Form::kDocuments:
        each_line(
            *file,
            [&](std::string_view line, int64_t number) {
              if (!blank(line)) add_text(text_of(line, where(number)));
            },
            tell);
        break;
      case DataSource::Form::kChat:
        each_line(
            *file,
            [&](std::string_view line, int64_t number) {
              if (!blank(line))
                writer.add(chat_document(*tokenizer, std::string(line), where(number)));
            },
            tell);
        break;
      case DataSource::Form::kTokens:
        break;
    }
    if (writer.documents() == 0)
      throw InputError(source.file, "training data", "at least one document", "none");
    writer.commit();
  }
}

}  // namespace k3
