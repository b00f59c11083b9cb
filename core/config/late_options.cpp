#include "core/config/late_options.h"

#include <fmt/format.h>

#include "core/config/numerics.h"

namespace ditto {

std::vector<std::string> late_options(const Recipe& recipe) {
  const int64_t steps = recipe.run.steps;
  std::vector<std::string> lines;
  const auto add = [&](bool late, const char* option, int64_t value, const std::string& what) {
    if (late && steps > 0)
      lines.push_back(fmt::format("{} = {} is more than run.steps = {}: {}", option, value, steps, what));
  };
  add(recipe.lr_schedule.warmup > steps, "lr_schedule.warmup", recipe.lr_schedule.warmup,
      fmt::format("the learning rate ends at {:.3g} and never comes to lr_schedule.lr = {:.3g}",
                  recipe.lr_schedule.lr * static_cast<double>(steps) / static_cast<double>(recipe.lr_schedule.warmup),
                  recipe.lr_schedule.lr));
  add(recipe.validate.every > steps, "validate.every", recipe.validate.every, "no validation will be made");
  add(recipe.checkpoint.keep_every > steps, "checkpoint.keep_every", recipe.checkpoint.keep_every,
      "no checkpoint will be kept for it");
  if (const auto idle = idle_bf16(recipe); !idle.empty()) lines.push_back(idle);
  return lines;
}

}  // namespace ditto
