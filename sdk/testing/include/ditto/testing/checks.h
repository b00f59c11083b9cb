// The contract tests: what the host relies on, checked on one plugin. Each opens the library at `path`, makes the
// component with `options`, and reports on every promise of its interface. All numbers are made from names: two runs
// find the same.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ditto/cache.h>
#include <ditto/data.h>
#include <ditto/encoder.h>
#include <ditto/guidance.h>
#include <ditto/kernels.h>
#include <ditto/model.h>
#include <ditto/objective.h>
#include <ditto/optimizer.h>
#include <ditto/parallel/strategy.h>
#include <ditto/sampler.h>
#include <ditto/scheduler.h>
#include <ditto/testing/open.h>
#include <ditto/testing/report.h>

namespace ditto::testing {

// What a recipe offers a model: "x" and "t"; with classes a "label", and with a width of text "text" and "text_mask".
ModelNeeds model_needs(const std::vector<int64_t>& x, int64_t out_channels, int64_t classes = 0,
                       int64_t text_width = 0);

struct ModelChecks {
  // Parameters whose gradient is zero by the model's mathematics (a key bias without a norm of keys): full names.
  std::vector<std::string> without_gradient;
  // Changes the batch that was made from Model::takes, where that says too little (an index with a range of its own).
  std::function<void(Batch&)> adjust;
  double bf16_tolerance = 0.1;  // largest error in bf16 over the largest number of the prediction
};
// Sizes small enough for a second on one core: the checks run the model some dozens of times in fp64.
Report check_model(const std::string& path, const ModelNeeds& needs, const OptionValues& options = {},
                   const ModelChecks& extra = {});

// LibTorch's functions that a model calls under run.numerics = "one", forward and backward, and that are more than one
// operation of IEEE arithmetic a number ("aten::softmax"): its results then differ among machines and micro-batches.
// Not what the op table computes. Throws Error(config) where the model says itself that it has no exact form.
std::vector<std::string> inexact_calls(const std::string& path, const ModelNeeds& needs,
                                       const OptionValues& options = {});
std::vector<std::string> inexact_calls(Model& model);  // whose weights it writes over

// How a model fared on one layout of ranks.
struct Trial {
  enum class Outcome { ok, refused, wrong };
  std::string layout;  // "tensor 2, sequence"; "by itself": on one rank
  Outcome outcome = Outcome::ok;
  std::string what;  // refused: by whom and why; wrong: which field or parameter, and what mistake it looks like
};
struct TrialParts {
  std::function<std::shared_ptr<Model>()> model;  // alike each time; ranks, which are threads, call it together
  // A strategy by its id. None: of the library lib/ditto/plugins/parallel/libID.so beside the SDK's own.
  std::function<std::shared_ptr<ParallelStrategy>(const std::string& id, const OptionValues& options,
                                                  const ParallelStrategy::Needs& needs)>
      strategy = {};
  std::function<void(Batch&)> adjust = {};    // as ModelChecks has it
  std::shared_ptr<const OpTable> table = {};  // none: the reference kernels
  // Called on the thread of each rank of a layout, with all that it does there: for naming what crashes. None: as it
  // is.
  std::function<void(const std::string& layout, const std::function<void()>& body)> around = {};
};
// Trains the model on 2 and 4 ranks, by every strategy of Ditto's and some together, in fp64, and compares it with one
// rank to 1e-12: losses, every parameter's gradient, every field of the stream after each block, and both once more
// after an update. So are packs: a micro-batch's samples in one row of tokens, against the same one by one. All
// parameters have small random numbers instead of their initial ones, which may hide what follows.
std::vector<Trial> try_layouts(const TrialParts& parts);
// A line for each, and a sentence for each that is wrong.
std::string to_text(const std::vector<Trial>& trials);

// The same of the model at `path`. What a strategy refuses by name is no failure.
Report try_model(const std::string& path, const ModelNeeds& needs, const OptionValues& options = {},
                 const ModelChecks& extra = {});

struct ObjectiveChecks {
  // Adds what the objective needs beside "clean" and "label" (0 … 9) of four samples.
  std::function<void(Batch&)> adjust;
  // False for one whose losses pull elsewhere than to the schedule's target, or, without a schedule, to x.
  bool least_at_target = true;
  // False for one of recipes without a scheduler, which makes x itself.
  bool scheduled = true;
};
// Whatever network it asks for is there, and the model hands out the features of 8 blocks, and moments [4, 2, 2].
Report check_objective(const std::string& path, const OptionValues& options = {}, const ObjectiveChecks& extra = {});

struct ParallelChecks {
  std::vector<int> degrees = {2};  // of the strategy's axis, to be tried
};
// Against one rank, in fp64, on a small video model with attention of every kind, text, experts and a long skip. Ranks
// are threads of this process, which talk over the loopback device. One without an axis is tried beside copies.
Report check_parallel(const std::string& path, const OptionValues& options = {}, const ParallelChecks& extra = {});

Report check_scheduler(const std::string& path, const OptionValues& options = {});
Report check_sampler(const std::string& path, const OptionValues& options = {});
// Whatever networks it asks for are there; noise levels sigma / alpha of 0.001 … 1000 are tried.
Report check_guidance(const std::string& path, const OptionValues& options = {});
Report check_cache(const std::string& path, const OptionValues& options = {});
Report check_optimizer(const std::string& path, const OptionValues& options = {});
// Every row on every case of its op, in each dtype and on each device where it says that it can: with its tensors, all
// of them and each by itself, as the case has them, as a slice of something wider, transposed, and with two dims
// swapped; and with a gradient that is one row, expanded. A row that copies such tensors says so
// (KernelRow::copies), and one that says it is exact has the same bits by any number of threads, of a sample alone and
// among three, and of leaves.
Report check_kernels(const std::string& path, const OptionValues& options = {});
// `folder`: relative paths in the options are relative to it.
Report check_source(const std::string& path, const OptionValues& options = {}, const std::string& folder = ".");
// That the fingerprint of what there is to learn from knows the size, the first and the last bytes of every file that
// samples are made of, of more than 64: in a copy of `folder` (the options' paths are relative to it), each is changed
// in turn. Takes four openings a file. No such file is one without which the source does not open.
Report check_source_files(const std::string& path, const OptionValues& options, const std::string& folder);
// Of `data`, with texts of two lengths; and on ranks that share its parameters, in fp64, against one rank.
Report check_encoder(const std::string& path, const TensorSpecs& data, const OptionValues& options = {});

struct EncoderTrialParts {
  std::function<std::shared_ptr<Encoder>()> encoder;  // alike each time; ranks, which are threads, call it together
  decltype(TrialParts::strategy) strategy = {};       // these as TrialParts has them
  std::shared_ptr<const OpTable> table = {};
  decltype(TrialParts::around) around = {};
};
// Encodes, and decodes where it does, on 2 and 4 ranks that share its parameters, by every strategy that may cut them,
// in fp64, and compares what it makes with one rank to 1e-12; and on one rank a sample alone with a batch.
std::vector<Trial> try_encoder_layouts(const EncoderTrialParts& parts);

}  // namespace ditto::testing
