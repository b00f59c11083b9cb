// The host's own sections of a recipe. Components' sections belong to their plugins.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include <ditto/options.h>

namespace ditto {

// Of run.bf16_in_fp32 and run.memory_format: what is faster on the machine that a run begins on.
inline constexpr const char* kMeasured = "auto";
// The two of run.memory_format.
inline constexpr const char *kChannelsFirst = "channels_first", *kChannelsLast = "channels_last";

// Plugins that the host chooses where a recipe does not name them: these, and the defaults of options below. It names
// no others, and these nowhere else (tests/integration/host_names.sh).
inline constexpr const char* kExactKernels = "exact";   // of run.numerics = "one", besides those of plugins.kernels
inline constexpr const char* kCudaTransport = "nccl";   // of run.device = "cuda"
inline constexpr const char* kScaleGuidance = "cfg";    // of a guidance scale alone
inline constexpr const char* kRecompute = "recompute";  // of parallel.recompute, an option of that name
inline constexpr const char* kOffload = "offload";      // of parallel.offload
inline constexpr const char* kOnlineText = "t5";        // of conditioning.online_encoding
inline constexpr const char* kFittedText = "fit_text";  // of [conditioning]

// [run]
struct RunOptions {
  std::string name = "run", output, folder, device = "cpu", transport, precision = "fp32", numerics = "fast", init_from;
  int64_t steps = 1000, seed = 0, threads = 0, batch = 32, micro_batch = 0, token_leaf = 32;
  bool deterministic = true;
  std::string non_finite = "stop", read_results = "auto", memory_format = kMeasured, audit_policy = "stop",
              init_weights = "ema";
  std::string init_missing = "refuse", init_extra = "refuse", init_other_shape = "refuse";
  int64_t max_skipped = 3;
  double clip_norm = 0, loss_scale = 65536, audit = 0;
  int64_t loss_scale_every = 2000;
  std::vector<std::string> bf16_in_fp32{kMeasured};  // ops
  void read(OptionReader& option);

 private:
  void read_start(OptionReader& option);  // which weights to start from
};

// [lr_schedule]
struct LrScheduleOptions {
  std::string kind = "constant";
  double lr = 1e-4, final_share = 0.0;
  int64_t warmup = 0;
  void read(OptionReader& option);
};

// [ema]
struct EmaOptions {
  bool enabled = true, warmup = true;
  double decay = 0.9999;
  void read(OptionReader& option);
};

// [adapter], where a recipe has it: what is learned beside the model's own parameters, which are frozen.
struct AdapterOptions {
  int64_t rank = 0;
  double alpha = 0;
  std::vector<std::string> layers;
  std::string weights, format;
  void read(OptionReader& option);
};

// [tread], where a recipe has it: while training some tokens go around some blocks (TREAD, arXiv:2501.04765).
struct TreadOptions {
  double ratio = 0.5;
  int64_t start = 2, end = -4;
  void read(OptionReader& option);
};

// [parallel]
struct ParallelOptions {
  std::map<std::string, GivenOption> given;  // all of the section: strategies have options here too
  int64_t tensor = 1, context = 1, pipeline = 1, expert = 1, shard = 1, replicate = 0;
  std::string replicate_plugin = "ddp", tensor_plugin = "tensor", pipeline_plugin = "pipeline",
              expert_plugin = "expert", context_plugin, shard_plugin;
  std::string recompute = "none", offload = "none";
  std::vector<std::string> strategies;
  double timeout_s = 600, hang_s = 300;
  void read(OptionReader& option);

  // No option: axes of one rank whose strategies are put in place all the same, for tests of them on one device.
  std::set<std::string> alone;
  bool serves(const char* axis, int64_t degree) const { return degree > 1 || alone.count(axis) > 0; }
  // Plugins that serve no axis, in the order of sharding: those with an option that names them, then `strategies`.
  std::vector<std::string> without_axis() const;
};

// [checkpoint]
struct CheckpointOptions {
  int64_t every = 500, keep = 3, keep_every = 0;
  void read(OptionReader& option);
  int64_t most_kept(int64_t steps) const;  // of a run of so many
};

// [[validate.picture]]: one picture of the sheets that a training draws. What is empty, or 0 steps, is as without it.
struct SheetPicture {
  std::string section;  // "validate.picture.0"
  int64_t seed = 0, steps = 0;
  double guidance = 1;
  bool has_guidance = false;
  std::string of_class, prompt, condition, size;
  void read(OptionReader& option);
};

// [validate]
struct ValidateOptions {
  int64_t every = 0, samples = 256, batch = 0, grid_every = 0, grid = 16;
  std::string strata = "auto";
  std::vector<SheetPicture> pictures;  // none: `grid` of them
  void read(OptionReader& option);
};

// [record], beside what run.toml notes there of a run.
struct RecordOptions {
  bool receipts = false;
  int64_t average_every = 10;
  void read(OptionReader& option);
};

// [plugins]
struct PluginOptions {
  std::vector<std::string> kernels{"cpu", kExactKernels};
  void read(OptionReader& option);
};

namespace report {

// [log]
struct LogOptions {
  std::string progress = "auto";
  double plain_every = 10;
  bool tensorboard = true;
  int64_t tensorboard_every = 1;
  double tensorboard_flush = 5;
  double peak_tflops = 0;
  bool roofline = false;
  int64_t grid_columns = 0;
  int64_t grid_cell = 64;

  void read(OptionReader& option) {
    option("progress", progress, "how progress is shown on standard error; auto: a bar on a terminal, else lines")
        .one_of({"auto", "bar", "plain", "none"});
    option("plain_every", plain_every, "seconds between plain lines of progress, which log.txt gets too").above(0);
    option("tensorboard", tensorboard, "write TensorBoard events into the run's folder");
    option("tensorboard_every", tensorboard_every,
           "steps between scalars in TensorBoard (metrics.jsonl has every step)")
        .at_least(1);
    option("tensorboard_flush", tensorboard_flush, "seconds between writes of events to the disk").at_least(0);
    option("peak_tflops", peak_tflops, "peak of one device, in 10^12 operations a second, for mfu; 0: not known")
        .at_least(0);
    option("roofline", roofline,
           "measure the peak for mfu by a matrix product, 0.2 s between steps 1 and 2, if peak_tflops is not given");
    option.only_if(tensorboard, {"tensorboard_every", "tensorboard_flush"}, "is of TensorBoard's events");
    option.only_if(peak_tflops == 0, {"roofline"}, "measures the peak, which peak_tflops says");
    option("grid_columns", grid_columns, "pictures in a row of a sample sheet; 0: a column a class, else nearly square")
        .between(0, 4096);
    option("grid_cell", grid_cell, "pixels: smaller samples are enlarged by a whole factor on sheets").between(1, 4096);
  }
};

}  // namespace report

}  // namespace ditto
