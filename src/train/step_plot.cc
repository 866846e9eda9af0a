#include "train/step_plot.h"

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

// Where values lie on the picture.
struct Axes {
  double low = INFINITY, high = -INFINITY, last = 1, step_x, step_y;

  explicit Axes(const std::vector<StepLine>& lines) {
    for (const StepLine& line : lines)
      for (const StepPoint& p : line.points) {
        if (!std::isfinite(p.value)) continue;
        low = std::min(low, p.value);
        high = std::max(high, p.value);
        last = std::max(last, static_cast<double>(p.step));
      }
    if (!(low <= high)) low = 0, high = 1;
    step_y = tick(high - low);
    step_x = std::max(1.0, tick(last));
    low = std::floor(low / step_y) * step_y;
    high = std::max(low + step_y, std::ceil(high / step_y) * step_y);
  }
  double x(double step) const { return kLeft + step / last * (kWidth - kLeft - kRight); }
  double y(double value) const {
    return kTop + (high - value) / (high - low) * (kHeight - kTop - kBottom);
  }
};

std::string grid(const Axes& axes, std::string_view y_label) {
  std::string svg;
  for (double v = axes.low; v <= axes.high + axes.step_y / 2; v += axes.step_y)
    svg += fmt::format(
        "<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.4g}</text>\n",
        kLeft, kWidth - kRight, axes.y(v), axes.y(v), kLeft - 6, axes.y(v) + 4, v);
  for (double v = 0; v <= axes.last; v += axes.step_x)
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.0f}</text>\n",
                       axes.x(v), kHeight - kBottom + 18, v);
  return svg + fmt::format(
                   "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">step</text>\n"
                   "<text x=\"14\" y=\"{}\" transform=\"rotate(-90 14 {})\" "
                   "text-anchor=\"middle\">{}</text>\n",
                   (kLeft + kWidth - kRight) / 2, kHeight - 8, kHeight / 2, kHeight / 2, y_label);
}

// Long runs are drawn by the means of equal stretches.
std::string smoothed(const Axes& axes, const StepLine& line) {
  const std::vector<StepPoint>& points = line.points;
  const size_t stretch = std::max<size_t>(1, points.size() / kMostPoints);
  std::string thin, thick;
  double smooth = NAN;
  for (size_t i = 0; i < points.size(); i += stretch) {
    double sum = 0, count = 0;
    for (size_t k = i; k < std::min(points.size(), i + stretch); ++k) {
      sum += points[k].value;
      ++count;
    }
    const double mean = sum / count;
    if (!std::isfinite(mean)) continue;
    smooth = std::isnan(smooth) ? mean : 0.95 * smooth + 0.05 * mean;
    const double at = axes.x(static_cast<double>(points[i].step));
    thin += fmt::format("{:.1f},{:.1f} ", at, axes.y(mean));
    thick += fmt::format("{:.1f},{:.1f} ", at, axes.y(smooth));
  }
  return fmt::format(
      "<polyline fill=\"none\" stroke=\"{0}\" stroke-opacity=\"0.35\" stroke-width=\"0.7\" "
      "points=\"{1}\"/>\n<polyline fill=\"none\" stroke=\"{0}\" stroke-width=\"2\" "
      "points=\"{2}\"/>\n",
      line.colour, thin, thick);
}

std::string dots(const Axes& axes, const StepLine& line) {
  std::string svg;
  for (const StepPoint& p : line.points)
    if (std::isfinite(p.value))
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n",
                         axes.x(static_cast<double>(p.step)), axes.y(p.value), line.colour);
  return svg;
}

}  // namespace

std::string step_plot(std::string_view y_label, const std::vector<StepLine>& lines) {
  const Axes axes(lines);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      kWidth, kHeight);
  svg += grid(axes, y_label);
  double below = kTop;
  for (const StepLine& line : lines) {
    svg += line.form == StepLine::kDots ? dots(axes, line) : smoothed(axes, line);
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"{}\">{}</text>\n",
                       kWidth - kRight - 6, below += 16, line.colour, line.label);
  }
  return svg + "</svg>\n";
}

}  // namespace k3
