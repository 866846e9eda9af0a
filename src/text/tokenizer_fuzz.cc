// Any bytes as a vocabulary file, and as text for a fixed one: plain and special encodings must
// decode to the repaired text, and a stream must show the same.
#include <cstdlib>
#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "base/storage.h"
#include "base/utf8.h"
#include "text/base64.h"
#include "text/json.h"
#include "text/tokenizer.h"

namespace {

k3::Tokenizer load(const std::string& vocabulary, const std::string& config) {
  k3::MemoryStorage storage;
  storage.put("m/tiktoken.model", vocabulary);
  storage.put("m/tokenizer_config.json", config);
  return k3::Tokenizer::load(storage, "m");
}

k3::Tokenizer fixed_tokenizer() {
  std::string vocabulary;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte)
    vocabulary +=
        fmt::format("{} {}\n", k3::base64_encode(std::string(1, static_cast<char>(byte))), rank++);
  for (const char* merge : {"ab", "aa", "aaaa", " a", "\n\n", "  ", "\xe4\xb8", "\xe4\xb8\xad"})
    vocabulary += fmt::format("{} {}\n", k3::base64_encode(merge), rank++);
  return load(vocabulary, R"({"added_tokens_decoder":{"264":{"content":"<|a|>"},)"
                          R"("265":{"content":"<|a"},"266":{"content":"[B]","special":true}}})");
}

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const k3::Tokenizer tokenizer = fixed_tokenizer();
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::string repaired = k3::utf8_repair(text);
  for (const k3::SpecialText mode : {k3::SpecialText::kPlain, k3::SpecialText::kParse}) {
    const std::vector<int32_t> ids = tokenizer.encode(text, mode);
    require(tokenizer.decode_bytes(ids) == repaired);
    k3::StreamDecoder decoder(tokenizer);
    std::string streamed;
    for (const int32_t id : ids) streamed += decoder.push(id);
    require(streamed + decoder.flush() == repaired);
  }
  try {
    load(text, "{}");
  } catch (const k3::InputError&) {
  }
  try {
    const k3::Json value = k3::parse_json(text, "fuzz");
    const std::string sorted = k3::write_json(value, k3::JsonStyle::kSorted);
    require(k3::write_json(value, k3::JsonStyle::kPython).size() >= sorted.size());
    load("", text);
  } catch (const k3::InputError&) {
  }
  return 0;
}
