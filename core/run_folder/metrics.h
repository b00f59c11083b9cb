// What a run measures: metrics.jsonl, one line a training step, and validation.jsonl, one line a validation.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/run_folder/json_lines.h"

namespace ditto::report {

// One kind of call on other ranks in a step.
struct CommCount {
  std::string axes, op, pass;  // "replicate+shard", "all_reduce", "backward"
  int64_t calls = 0, bytes = 0;
  double waited_s = 0;  // this rank stood still for the results
};

// Of an op's calls in a step, those that one variant computed.
struct KernelCount {
  std::string phase, op, variant;  // "backward", "attention backward", "cpu_simd"
  int64_t calls = 0;
};

// One training step. Loss and norm are those of the global batch, whatever the layout.
struct StepRecord {
  int64_t step = 0;              // steps done, this one included: the first line says 1
  int64_t samples = 0;           // samples used up since the run began, this step's included
  double loss = 0;               // weighted sum of `losses`, the number that is differentiated
  double grad_norm = 0;          // global, before clipping
  double lr = 0;                 // of this step, of the first parameter group
  double step_s = 0;             // seconds from the start of this step to the start of the next
  double samples_per_s = 0;      // learned from, of all ranks together
  std::optional<double> tflops;  // 10^12 floating point operations a second, of all ranks; none: model does not say
  std::optional<double> mfu;     // tflops over the machine's peak, 0 … 1; none: no peak is known
  int64_t mem_bytes = 0;         // peak of this rank's tensors during the step
  double data_wait = 0;          // share of step_s spent waiting for data, 0 … 1
  std::map<std::string, double> losses;  // by name, as the objective gives them
  bool skipped = false;                  // the guard left weights, EMA and optimizer as they were
  std::optional<double> ema_decay;       // none: the run has no EMA
  std::optional<double> loss_scale;      // of this step's backward; none: the run is not in fp16
  // Of rank 0, with `--trace comm`; empty: not traced.
  std::vector<CommCount> comm;
  std::map<std::string, int64_t> mem;  // bytes of tensors by what they are for: core/profile/trace.h, and "activations"
  std::vector<KernelCount> kernels;    // of rank 0, with `--trace kernels`; empty: not traced
};

struct ValidationRecord {
  int64_t step = 0;
  double loss = 0;  // mean over strata and samples
  // Mean loss at each of the fixed times, in ascending time; none where no sample of one counted.
  std::vector<std::optional<double>> strata;
  std::map<std::string, double> losses;    // by name
  std::map<std::string, double> measures;  // by name, no part of the loss: {"psnr": 24.5}
  int64_t samples = 0;                     // held-out samples that counted
  double seconds = 0;
  std::string weights;  // "ema" or "trained"
};

// One line, without its end. Doubles have the fewest digits that read back as the same double. JSON has no nan and no
// inf: such a value is null, and "not_finite" holds its name: {"loss": null, …, "not_finite": {"loss": "nan"}}.
std::string to_json(const StepRecord& record);
std::string to_json(const ValidationRecord& record);

// Both files of one run. Errors as JsonLines.
class MetricsLog {
 public:
  explicit MetricsLog(const std::string& folder);
  void append(const StepRecord& record) { steps_.append(to_json(record)); }
  void append(const ValidationRecord& record) { validations_.append(to_json(record)); }
  void sync() const {
    steps_.sync();
    validations_.sync();
  }
  // For a resume from `step`: forgets what was written after it, and what is torn. -1: a run that starts over. Returns
  // what became of metrics.jsonl.
  CutBack cut_back(int64_t step);

 private:
  JsonLines steps_, validations_;
};

}  // namespace ditto::report
