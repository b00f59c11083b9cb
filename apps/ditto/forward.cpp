// ditto forward CHECKPOINT|RECIPE --in X.safetensors --out Y.safetensors [--grad]
#include <CLI/CLI.hpp>
#include <filesystem>
#include <numeric>

#include <fmt/format.h>
#include <torch/types.h>

#include <ditto/text.h>

#include "apps/ditto/commands.h"
#include "core/assembly/assembly.h"
#include "core/assembly/first_weights.h"
#include "core/checkpoint/tensor_file.h"
#include "core/console/progress.h"
#include "core/console/streams.h"
#include "core/measure/memory.h"
#include "core/mesh/gradient_sum.h"
#include "core/mesh/whole.h"
#include "core/network/saved_model.h"
#include "core/process/rank.h"

namespace ditto {

namespace {

struct ForwardArguments {
  std::string from, in, out, network, weights = "ema";
  std::vector<std::string> sets;
  bool grad = false, memory = false;
  int local_ranks = 0;
};

std::string sizes(std::vector<int64_t> shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : ", ") + (size < 0 ? "any" : std::to_string(size));
  return "[" + text + "]";
}

// [samples, …] as the model says of one sample; the same number of samples everywhere.
void check_shape(const std::string& path, const TensorSpec& input, const torch::Tensor& found) {
  auto expected = input.shape;
  expected.insert(expected.begin(), -1);
  bool fits = found.dim() == static_cast<int64_t>(expected.size());
  for (size_t d = 0; fits && d < expected.size(); ++d) fits = expected[d] < 0 || found.size(d) == expected[d];
  if (!fits)
    throw Error(ErrorKind::data, path, "\"" + input.name + "\" is " + sizes(found.sizes().vec()),
                "expected " + sizes(expected) + ", samples first: " + input.range);
}

// The file's tensors as a batch; real numbers in the dtype that inputs have in training.
Batch read_batch(const std::string& path, const Model& model, at::ScalarType real) {
  Batch batch;
  batch.tensors = read_tensors(path);
  for (const auto& input : model.takes()) {
    const auto it = batch.tensors.find(input.name);
    if (it == batch.tensors.end())
      throw Error(ErrorKind::data, path, "has no tensor \"" + input.name + "\"", "the model takes it: " + input.range);
    check_shape(path, input, it->second);
    it->second = it->second.to(input.dtype == torch::kFloat ? real : input.dtype);
  }
  const int64_t samples = batch.at("x").size(0);
  for (const auto& input : model.takes())
    if (batch.at(input.name).size(0) != samples)
      throw Error(ErrorKind::data, path,
                  fmt::format("\"{}\" has {} samples, and \"x\" {}", input.name, batch.at(input.name).size(0), samples),
                  "every input needs one row a sample");
  batch.ids.resize(static_cast<size_t>(samples));
  std::iota(batch.ids.begin(), batch.ids.end(), 0);
  batch.weights.assign(static_cast<size_t>(samples), 1.0);
  return batch;
}

// As a step of one micro-batch makes them.
NamedTensors gradients(Assembly& assembly, const torch::Tensor& prediction, const torch::Tensor& grad_output) {
  if (grad_output.sizes() != prediction.sizes())
    throw Error(ErrorKind::data, "grad_output", fmt::format("is {}", to_text(OptionValue(grad_output.sizes().vec()))),
                fmt::format("expected the prediction's shape, {}", to_text(OptionValue(prediction.sizes().vec()))));
  const double shares = assembly.mesh.size(Axis::tensor) * assembly.mesh.size(Axis::context);
  ((prediction * grad_output.to(prediction.options())).sum() / shares).backward();
  GradientSum sum(assembly.main->layout, assembly.mesh, assembly.recipe.run.deterministic);
  const StepPlan plan;
  for (auto& strategy : assembly.main->strategies) strategy->end_accumulation(0, plan);
  sum.after_micro_batch(0, plan);
  for (auto& strategy : assembly.main->strategies) strategy->sync_gradients();
  sum.finish(plan);
  NamedTensors result;
  for (const auto& entry : assembly.networks->learned().entries)
    result["grad." + entry.name] = whole(entry, entry.tensor.grad(), assembly.mesh);
  return result;
}

// Nothing is sampled: the model is run once.
void refuse_idle(const std::vector<std::string>& sets) {
  for (const auto& set : sets)
    for (const char* beginning : {"cache.", "guidance.", "sampler."})
      if (set.starts_with(beginning))
        throw Error(ErrorKind::config, "--set " + shown(set), "is of sampling, and forward runs the model once",
                    "leave it out");
}

void forward(Rank& rank, const ForwardArguments& a, const CommandLine& line) {
  refuse_idle(a.sets);
  const bool is_recipe = std::filesystem::is_regular_file(a.from);
  AssemblyParts parts;
  parts.frozen = FrozenWeights::none;
  SavedModel saved;
  if (is_recipe) {
    if (!a.network.empty())
      throw Error(ErrorKind::config, "--network " + a.network, "is of a run, and " + a.from + " is a recipe",
                  "give the run's folder, or one of its checkpoints");
    saved.recipe = Recipe::read(a.from, a.sets);
    saved.recipe.validate.every = 0;
    parts.data = true;
  } else {
    saved = open_saved(a.from, a.sets, a.network);
    parts.saved = saved.shapes;
    parts.weights = RunningModel::Weights::room;
  }
  rank.open(saved.recipe, line.plugin_path);
  rank.meet(saved.recipe);
  const auto& mesh = rank.mesh();
  if (mesh.data_ranks() > 1)
    throw Error(ErrorKind::config, "forward",
                fmt::format("{} data ranks would all run the same batch", mesh.data_ranks()),
                "give as many ranks as tensor and context degrees need");
  if (a.grad && mesh.size(Axis::pipeline) > 1)
    throw Error(ErrorKind::config, "forward --grad", "a pipeline has no rank that runs the whole model",
                "leave parallel.pipeline = 1");
  report::MemoryMeter meter{torch::Device(saved.recipe.run.device)};
  const report::MemoryMeter::Watch watch(meter);
  const int64_t before = meter.current();
  Assembly assembly(saved.recipe, rank.registry(), mesh, parts, {});
  if (is_recipe)
    read_first_weights(
        assembly,
        {mesh, [&](const auto& topic, const auto& facts) { rank.expect_same(topic, facts, ErrorKind::checkpoint); },
         [&](const std::string& line_said) {
           if (mesh.rank() == 0) report::tell(line_said);
         }});
  else
    assembly.networks->load(saved, a.weights);
  assembly.main->ctx->phase = Phase::evaluate;
  const auto batch = read_batch(a.in, *assembly.main->model,
                                assembly.main->ctx->compute == torch::kDouble ? torch::kDouble : torch::kFloat);
  const torch::AutoGradMode with_grad(a.grad);
  if (a.grad)
    for (auto& strategy : assembly.main->strategies) strategy->begin_step({});
  meter.reset_peak();
  const auto prediction = assembly.main->predict(batch.to(assembly.main->ctx->device));
  const int64_t peak = meter.peak() - before;
  NamedTensors result;
  if (a.grad) result = gradients(assembly, prediction, batch.at("grad_output"));
  result["prediction"] = prediction.detach();
  if (mesh.rank() > 0) return;
  write_tensors(a.out, result);
  if (a.memory) report::tell(fmt::format("memory: {} bytes of tensors at most, {}", peak, report::bytes_text(peak)));
}

int forward(const ForwardArguments& a, const CommandLine& line) {
  if (a.local_ranks > 0) return start_ranks(line, a.local_ranks);
  Rank rank(rank_info());
  return rank.run([&] {
    forward(rank, a, line);
    return 0;
  });
}

}  // namespace

void add_forward_command(CLI::App& app, CommandLine& line) {
  auto* command = app.add_subcommand("forward", "Run a model once on given inputs: to compare it with a reference");
  auto a = std::make_shared<ForwardArguments>();
  command->add_option("from", a->from, "a recipe (weights as at its start), a run's folder, or a checkpoint")
      ->required();
  command->add_option("--in", a->in, "safetensors file with the model's inputs by name: x, t, label, …")->required();
  command->add_option("--out", a->out, "safetensors file for \"prediction\"")->required();
  command->add_flag(
      "--grad", a->grad,
      "also write the gradients of sum(prediction * grad_output), as grad.NAME; grad_output is in the input");
  command->add_flag("--memory", a->memory,
                    "say how much memory tensors took at most while the model ran, its weights included");
  command->add_option("--weights", a->weights, "ema (if there is one) or weights")
      ->check(CLI::IsMember({"ema", "weights"}))
      ->capture_default_str();
  command->add_option("--network", a->network, "another network that trained in the run, [network.NAME]");
  command->add_option("--set", a->sets, "KEY=VALUE: overrides an option of the recipe")->allow_extra_args(false);
  command->add_option("--local-ranks", a->local_ranks, "start this many ranks on this machine")
      ->check(CLI::Range(1, 1'000'000));
  add_plugin_path(*command, line);
  command->footer("Example: ditto forward runs/digits --in x.safetensors --out y.safetensors --grad");
  command->callback([a, &line] { line.exit_code = forward(*a, line); });
}

}  // namespace ditto
