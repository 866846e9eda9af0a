// Ends a stream of text at the first of some strings.
//
//   StopStrings stop({"\n\n", "END"});
//   show(stop.push(piece));         // what can be shown now
//   if (stop.hit()) ...             // everything before the stop string has been returned
//   show(stop.flush());             // at the end, when none was hit
//
// Holds back a tail that could become a stop string. Thread rule: one stream, one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace k3 {

class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> strings);  // empty strings are refused: InputError
  std::string push(std::string_view piece);
  std::string flush();
  bool hit() const { return hit_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool hit_ = false;
};

}  // namespace k3
