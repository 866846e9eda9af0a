// What changes over the steps of a run, as a picture.
//
//   write(path, step_plot("loss (nats a token)", {{"training", "#147", StepLine::kSmoothed,
//   losses},
//                                                 {"validation", "#c41", StepLine::kDots, held}}));
//
// An SVG with labelled axes. A smoothed line is drawn over its own points, which are thin; values
// that are not finite are left out. Thread rule: pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace k3 {

struct StepPoint {
  int64_t step;
  double value;
};

struct StepLine {
  enum Form { kSmoothed, kDots };
  std::string label;
  std::string colour;  // as SVG takes it
  Form form;
  std::vector<StepPoint> points;
};

std::string step_plot(std::string_view y_label, const std::vector<StepLine>& lines);

}  // namespace k3
