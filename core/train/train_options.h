// What a training is asked for beside its recipe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ditto/kernels.h>

#include "core/process/same_start.h"
#include "core/profile/trace.h"
#include "core/ranks/watch.h"
#include "core/receipts/receipt.h"

namespace ditto {

// Steps that were made before are made again. Of them nothing is saved, and who asked hears of each, on every rank.
struct Replay {
  int64_t last_step = 0;
  std::function<void(const Receipt& beginning)> begins;  // may throw
  std::function<bool(const Receipt&)> made;              // whether to go on
};

struct TrainOptions {
  std::string resume = "auto";            // auto, never, or a checkpoint or run
  std::vector<std::string> allow_change;  // keys of the recipe that may differ on a resume
  RankWatch* watch = nullptr;             // is told what is being done; outlives the trainer
  // Throws Error(kind) unless all ranks have the same. Without a function nobody asks.
  std::function<void(const std::string& topic, const Facts&, ErrorKind kind)> expect_same = [](const auto&...) {};
  std::map<std::string, KernelChoices> kept;  // by kernel sets, where the run begins anew: what they keep to
  TraceOptions trace;                         // of every step what is counted, of the last one the Chrome trace
  std::optional<Replay> replay;               // of a recipe with [record] receipts
};

}  // namespace ditto
