#include "core/train/lr_schedule.h"

#include <algorithm>

#include <ditto/math/elementary.h>

namespace ditto {

double LrSchedule::at(int64_t step) const {
  const auto& o = options_;
  if (step < o.warmup) return o.lr * static_cast<double>(step + 1) / static_cast<double>(o.warmup);
  if (o.kind == "constant") return o.lr;
  const double span = static_cast<double>(std::max<int64_t>(1, steps_ - 1 - o.warmup));
  const double done = std::min(1.0, static_cast<double>(step - o.warmup) / span);
  const double left = o.kind == "linear" ? 1 - done : 0.5 * (1 + elementary::cos_sin_of_turn(done / 2).cos);
  return o.lr * (o.final_share + (1 - o.final_share) * left);
}

}  // namespace ditto
