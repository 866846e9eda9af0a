#include "engine/stop_strings.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace k3 {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  for (const std::string& s : strings_)
    if (s.empty())
      throw InputError("--stop", "string", "at least one character", "an empty string");
}

std::string StopStrings::push(std::string_view piece) {
  if (hit_) return {};
  held_ += piece;
  size_t first = std::string::npos;
  for (const std::string& s : strings_) first = std::min(first, held_.find(s));
  if (first != std::string::npos) {
    hit_ = true;
    held_.resize(first);
    return std::exchange(held_, {});
  }
  // The longest tail that begins a stop string stays.
  size_t keep = 0;
  for (const std::string& s : strings_)
    for (size_t n = std::min(held_.size(), s.size() - 1); n > keep; --n)
      if (held_.compare(held_.size() - n, n, s, 0, n) == 0) {
        keep = n;
        break;
      }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopStrings::flush() { return hit_ ? std::string() : std::exchange(held_, {}); }

}  // namespace k3
