#include "train/loss_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace k3 {
namespace {

constexpr double kWidth = 800, kHeight = 420, kLeft = 60, kRight = 20, kTop = 20, kBottom = 45;
constexpr size_t kMostPoints = 2000;

// A round number of about `span` / 5: 1, 2 or 5 times a power of ten.
double tick(double span) {
  const double rough = std::max(span, 1e-9) / 5,
               power = std::pow(10, std::floor(std::log10(rough)));
  for (const double m : {1.0, 2.0, 5.0})
    if (rough <= m * power) return m * power;
  return 10 * power;
}

}  // namespace

std::string loss_curve(const std::vector<LossPoint>& training,
                       const std::vector<LossPoint>& validation) {
  double low = INFINITY, high = -INFINITY, last = 1;
  for (const auto* points : {&training, &validation})
    for (const LossPoint& p : *points) {
      if (!std::isfinite(p.loss)) continue;
      low = std::min(low, p.loss);
      high = std::max(high, p.loss);
      last = std::max(last, static_cast<double>(p.step));
    }
  if (!(low <= high)) low = 0, high = 1;
  const double step_y = tick(high - low), step_x = std::max(1.0, tick(last));
  low = std::floor(low / step_y) * step_y;
  high = std::max(low + step_y, std::ceil(high / step_y) * step_y);
  const auto x = [&](double step) { return kLeft + step / last * (kWidth - kLeft - kRight); };
  const auto y = [&](double loss) {
    return kTop + (high - loss) / (high - low) * (kHeight - kTop - kBottom);
  };
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      kWidth, kHeight);
  for (double v = low; v <= high + step_y / 2; v += step_y)
    svg += fmt::format(
        "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.4g}</text>\n",
        kLeft, kWidth - kRight, y(v), y(v), kLeft - 6, y(v) + 4, v);
  for (double v = 0; v <= last; v += step_x)
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.0f}</text>\n", x(v),
                       kHeight - kBottom + 18, v);
  svg += fmt::format(
      "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">step</text>\n<text x=\"14\" y=\"{}\" "
      "transform=\"rotate(-90 14 {})\" text-anchor=\"middle\">loss (nats a token)</text>\n",
      (kLeft + kWidth - kRight) / 2, kHeight - 8, kHeight / 2, kHeight / 2);
  // Long runs are drawn by the means of equal stretches.
  const size_t stretch = std::max<size_t>(1, training.size() / kMostPoints);
  std::string thin, thick;
  double smooth = NAN;
  for (size_t i = 0; i < training.size(); i += stretch) {
    double sum = 0, count = 0;
    for (size_t k = i; k < std::min(training.size(), i + stretch); ++k) {
      sum += training[k].loss;
      ++count;
    }
    const double mean = sum / count;
    if (!std::isfinite(mean)) continue;
    smooth = std::isnan(smooth) ? mean : 0.95 * smooth + 0.05 * mean;
    const double at = x(static_cast<double>(training[i].step));
    thin += fmt::format("{:.1f},{:.1f} ", at, y(mean));
    thick += fmt::format("{:.1f},{:.1f} ", at, y(smooth));
  }
  svg += fmt::format(
      "<polyline fill=\"none\" stroke=\"#9bc\" stroke-width=\"0.7\" points=\"{}\"/>\n<polyline "
      "fill=\"none\" stroke=\"#147\" stroke-width=\"2\" points=\"{}\"/>\n",
      thin, thick);
  for (const LossPoint& p : validation)
    if (std::isfinite(p.loss))
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"#c41\"/>\n",
                         x(static_cast<double>(p.step)), y(p.loss));
  svg += fmt::format(
      "<text x=\"{0}\" y=\"{1}\" text-anchor=\"end\" fill=\"#147\">training (smoothed)</text>"
      "<text x=\"{0}\" y=\"{2}\" text-anchor=\"end\" fill=\"#c41\">validation</text>\n</svg>\n",
      kWidth - kRight - 6, kTop + 16, kTop + 32);
  return svg;
}

}  // namespace k3
