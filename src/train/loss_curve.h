// The loss over the steps of a run, as a picture.
//
//   write(path, loss_curve({{1, 8.4}, {2, 8.1}}, {{100, 5.2}}));
//
// An SVG of the training loss (thin: every step; thick: smoothed) and the validation loss (dots),
// with axes labelled in steps and nats. Thread rule: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace k3 {

struct LossPoint {
  int64_t step;
  double loss;
};
std::string loss_curve(const std::vector<LossPoint>& training,
                       const std::vector<LossPoint>& validation);

}  // namespace k3
