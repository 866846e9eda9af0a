// Any bytes as the config of a training run: an InputError of one line, or numbers in their ranges.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "train/train_config.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const k3::TrainConfig c = k3::parse_train_config(text, "no-such-folder/run.json");
    require(c.steps > 0 && c.micro_batch >= 1 && c.micro_batch <= c.batch && c.length > 0);
    require(c.schedule.warmup + c.schedule.decay <= c.steps);
    require(!c.data.empty());
    const float rate = k3::learning_rate(c.schedule, c.steps - 1);
    require(rate >= 0 && rate <= c.schedule.peak);
  } catch (const k3::InputError& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
  return 0;
}
