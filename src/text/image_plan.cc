#include "text/image_plan.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "text/json.h"

namespace k3 {
namespace {

// Limits far above any use, below which no product overflows.
constexpr int64_t kLargestSide = 1 << 16;
constexpr int64_t kLargestPatchLimit = int64_t{1} << 32;

void read_field(const Json& settings, const char* name, int64_t largest, const std::string& file,
                int64_t* value) {
  const Json* field = settings.get(name);
  if (!field) return;
  const std::optional<int64_t> number = field->as_int();
  if (!number || *number < 1 || *number > largest)
    throw InputError(file, fmt::format("media_proc_cfg.{}", name),
                     fmt::format("a number from 1 to {}", largest), field->describe());
  *value = *number;
}

}  // namespace

ImagePlanSettings load_image_plan_settings(const Storage& storage, const std::string& folder) {
  ImagePlanSettings settings;
  const std::string file = folder + "/preprocessor_config.json";
  if (!storage.exists(file)) return settings;
  const Json config = parse_json(read_text(storage, file, uint64_t{16} << 20), file);
  const Json* media = config.get("media_proc_cfg");
  if (!media) return settings;
  read_field(*media, "patch_size", kLargestSide, file, &settings.patch_size);
  read_field(*media, "merge_kernel_size", kLargestSide, file, &settings.merge_kernel_size);
  read_field(*media, "in_patch_limit", kLargestPatchLimit, file, &settings.in_patch_limit);
  read_field(*media, "patch_limit_on_one_side", kLargestSide, file,
             &settings.patch_limit_on_one_side);
  if (const Json* fixed = media->get("fixed_output_tokens"))
    throw InputError(file, "media_proc_cfg.fixed_output_tokens", "null, as in every release",
                     fixed->describe());
  return settings;
}

ImagePlan plan_image(int64_t width, int64_t height, const ImagePlanSettings& settings) {
  const int64_t patch = settings.patch_size;
  const int64_t side = settings.patch_limit_on_one_side * patch;
  const auto patches = [&](int64_t length) {
    return static_cast<double>(std::max<int64_t>(1, length / patch));
  };
  const double scale = std::min(
      {1.0,
       std::sqrt(static_cast<double>(settings.in_patch_limit) / (patches(width) * patches(height))),
       static_cast<double>(side) / static_cast<double>(width),
       static_cast<double>(side) / static_cast<double>(height)});
  const auto shrink = [&](int64_t length) {
    const auto scaled = static_cast<int64_t>(static_cast<double>(length) * scale);
    return std::min(std::max<int64_t>(1, scaled), side);
  };
  const int64_t group = patch * settings.merge_kernel_size;
  const auto padding = [&](int64_t length) { return (group - length % group) % group; };

  ImagePlan plan;
  plan.width = shrink(width);
  plan.height = shrink(height);
  plan.pad_width = padding(plan.width);
  plan.pad_height = padding(plan.height);
  plan.grid_width = (plan.width + plan.pad_width) / patch;
  plan.grid_height = (plan.height + plan.pad_height) / patch;
  plan.num_tokens = (plan.grid_width / settings.merge_kernel_size) *
                    (plan.grid_height / settings.merge_kernel_size);
  return plan;
}

}  // namespace k3
