// What --trace asks for, of the steps of a training.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/measure/memory.h"
#include "core/profile/chrome_trace.h"
#include "core/profile/step_breakdown.h"
#include "core/profile/trace.h"
#include "core/run_folder/metrics.h"
#include "core/train/training.h"

namespace ditto {

class StepTrace {
 public:
  // Both outlive it.
  StepTrace(Training& training, const TraceOptions& asked) : training_(training), asked_(asked) {}

  void require_writable() const;                    // of the file, before it is worked for; Error(config)
  void observe(const report::MemoryMeter& memory);  // the assembled training's steps; `memory` outlives these

  // Around each step. The last one has its Chrome trace.
  void begin_step(int64_t last_step);
  void end_step();
  void add_to(report::StepRecord& record) const;  // what was counted of the step

  bool is_told() const { return asked_.comm || asked_.kernels || chrome_; }  // there is something to tell
  // At the end, by all ranks: writes the Chrome trace. Returns tables of the last step, for people.
  std::string tell();

 private:
  std::vector<report::CommCount> comm() const;
  std::map<std::string, int64_t> memory_shares() const;

  Training& training_;
  const TraceOptions& asked_;
  std::optional<StepBreakdown> breakdown_;
  std::optional<ChromeTrace> chrome_;         // while it records
  std::vector<report::KernelCount> kernels_;  // of the last step
};

}  // namespace ditto
