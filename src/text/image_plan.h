// How large a picture becomes on its way into the vision tower, and how many tokens it takes.
//
//   const ImagePlanSettings settings = load_image_plan_settings(storage, folder);
//   const ImagePlan plan = plan_image(1920, 1080, settings);   // plan.num_tokens == 2691
//
// A picture is only ever shrunk: to the limit on patches in all and on one side. It is then padded
// right and bottom to whole groups of merge_kernel_size patches; each group is one token.
// Units: sizes in pixels, grids in patches.
// Thread rule: pure functions.
// Errors: InputError naming the file and field for settings that make no sense.
#pragma once

#include <cstdint>
#include <string>

#include "base/storage.h"

namespace k3 {

// The values of the Kimi K3 release.
struct ImagePlanSettings {
  int64_t patch_size = 14;
  int64_t merge_kernel_size = 2;
  int64_t in_patch_limit = 65536;  // before padding and merging
  int64_t patch_limit_on_one_side = 512;
};

struct ImagePlan {
  int64_t width = 0, height = 0;          // after shrinking, before padding
  int64_t pad_width = 0, pad_height = 0;  // added on the right and at the bottom
  int64_t grid_width = 0, grid_height = 0;
  int64_t num_tokens = 0;
};

// `media_proc_cfg` of the folder's preprocessor_config.json; the release's values for what it does
// not say, or if there is no such file.
ImagePlanSettings load_image_plan_settings(const Storage& storage, const std::string& folder);

// Both sides must be at least 1.
ImagePlan plan_image(int64_t width, int64_t height, const ImagePlanSettings& settings);

}  // namespace k3
