#include "tests/matrix/training.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>

#include <ATen/Parallel.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include "core/assembly/run_notes.h"
#include "core/checkpoint/checkpoint.h"
#include "core/diff/probe.h"
#include "core/measure/memory.h"
#include "core/mesh/gloo_mesh.h"
#include "core/mesh/whole.h"
#include "core/train/step.h"
#include "core/train/validation.h"
#include "tests/matrix/packed.h"
#include "tests/matrix/router.h"

namespace ditto::matrix {

using torch::Tensor;

namespace {

constexpr uint64_t kWeightSeed = 4711;

// FNV-1a: a name as a number.
int64_t hash(const std::string& name) {
  uint64_t value = 1469598103934665603ull;
  for (const unsigned char c : name) value = (value ^ c) * 1099511628211ull;
  return static_cast<int64_t>(value >> 1);
}

// A whole parameter without a zero in it: what starts at one stays near it.
Tensor weights_of(const LayoutEntry& entry) {
  const int64_t id = hash(entry.name);
  const auto normal =
      Random(kWeightSeed).normal(Purpose::initial_weights, std::array{id}, entry.full_shape, torch::kDouble)[0];
  if (entry.full_shape.size() == 1) return normal * 0.1 + (entry.parameter.init().kind == Init::Kind::ones ? 1.0 : 0.0);
  const bool has_kernel = entry.full_shape.size() > 3;  // [out, in, kernel…]
  const int64_t terms = has_kernel ? normal.numel() / entry.full_shape[0] : entry.full_shape.back();
  return normal * (0.7 / std::sqrt(static_cast<double>(terms)));
}

Tensor part(Tensor of, const std::vector<int64_t>& start, const std::vector<int64_t>& size) {
  for (size_t dim = 0; dim < size.size(); ++dim) of = of.narrow(static_cast<int64_t>(dim), start[dim], size[dim]);
  return of;
}

void fill(Assembly& assembly) {
  torch::NoGradGuard no_grad;
  for (auto& entry : assembly.main->layout.entries) {
    const auto all = weights_of(entry);
    for (const auto& piece : entry.slices())
      part(entry.tensor, piece.local_start, piece.size).copy_(part(all, piece.global_start, piece.size));
  }
  assembly.main->parameters_changed();
}

// Looks at the gradients as the optimizer gets them.
class Spy final : public Optimizer {
 public:
  Spy(std::shared_ptr<Optimizer> inner, const Layout& layout, std::function<void()> look)
      : inner_(std::move(inner)), look_(std::move(look)) {
    for (const auto& entry : layout.entries) parameters_.push_back({entry.name, entry.tensor, entry.full_shape});
  }
  Granularity granularity() const override { return inner_->granularity(); }
  bool averages() const override { return inner_->averages(); }
  bool skips() const override { return inner_->skips(); }
  void step(const Update& update) override {
    auto scaled = update;
    scaled.clip = 1;
    scaled.late_clip = Tensor();
    Update clipped{.clip = update.clip};
    clipped.late_clip = update.late_clip;
    in_parts(clipped, parameters_, look_);
    inner_->step(scaled);
  }
  std::map<std::string, OptimizerState> state() override { return inner_->state(); }
  Counters counters() const override { return inner_->counters(); }
  void set_counters(const Counters& counters) override { inner_->set_counters(counters); }

 private:
  std::shared_ptr<Optimizer> inner_;
  std::vector<OptimizedParameter> parameters_;
  std::function<void()> look_;
};

Tensor gradient_of(const LayoutEntry& entry) {
  const auto& grad = entry.tensor.grad();
  return grad.defined() ? grad : torch::zeros_like(entry.tensor, torch::TensorOptions().requires_grad(false));
}

void keep_state(Optimizer& optimizer, const std::vector<LayoutEntry>& entries, const Mesh& mesh, Record& record) {
  for (const auto& [kind, of] : optimizer.state())
    for (size_t i = 0; i < entries.size(); ++i) {
      if (!of.tensors[i].defined() || of.whole) continue;  // which one rank holds: its weights show what it is
      const auto& tensor = of.tensors[i];
      const bool codes = !tensor.is_floating_point();
      record.state[kind + " " + entries[i].name] = whole(of.block > 1 ? entries[i].in_blocks(of.block) : entries[i],
                                                         codes ? tensor.to(torch::kInt) : tensor, mesh)
                                                       .cpu();
    }
}

// On samples of the run, with an uneven last micro-batch.
std::vector<double> validated(const Case& one, Assembly& assembly, Ema& ema) {
  assembly.validation_data = source_of(one);
  assembly.main->ctx->observe = nullptr;
  Loader loader(assembly.validation_data, assembly.recipe.loader, static_cast<uint64_t>(assembly.recipe.run.seed), {});
  const auto record = validate(assembly, ema, loader);
  std::vector<double> numbers{record.loss, static_cast<double>(record.samples)};
  for (const auto& mean : record.strata) numbers.push_back(mean.value_or(0));
  for (const auto& [name, loss] : record.losses) numbers.push_back(loss);
  return numbers;
}

void describe(const Assembly& assembly, Record& record) {
  for (auto entry : assembly.main->layout.entries) {
    AxisSet axes, data_axes;
    for (const Axis axis : kAxes)
      if (assembly.mesh.size(axis) > 1 && entry.is_copy(axis)) (is_data_axis(axis) ? data_axes : axes).insert(axis);
    if (!axes.empty()) record.copies[axes] += entry.tensor.numel();
    if (!data_axes.empty()) record.data_copies[data_axes] += entry.tensor.numel();
    entry.cuts.erase(Axis::shard);
    record.units[to_text(entry.unit)].push_back(local_shape(entry));
  }
}

// A checkpoint as the trainer makes it, of what a case has made.
struct Checkpoint {
  Assembly& assembly;
  Optimizer& optimizer;
  Ema& ema;
  const TrainRequest& request;

  checkpoint::TrainState state() const {
    checkpoint::TrainState state;
    state.layout = &assembly.main->layout;
    state.ema = &ema.tensors();
    state.optimizer = &optimizer;
    return state;
  }
  std::string folder(const std::string& name) const { return (std::filesystem::path(request.folder) / name).string(); }

  void save() const {
    const auto* gloo = dynamic_cast<const GlooMesh*>(&request.mesh);
    checkpoint::Saver saver(folder(request.one.save_to), {}, request.mesh, gloo->own_world(request.one.save_to));
    auto now = state();
    now.step = request.one.resumed + request.one.steps;
    now.samples = now.step * request.one.batch;
    saver.save(now);
    saver.wait();
  }
  void load(TrainingStep& training) const {
    auto now = state();
    const auto found = checkpoint::resolve(folder(request.one.load_from), request.mesh.world());
    checkpoint::load(*found.path, now);
    assembly.main->parameters_changed();
    training.updates = now.step;
    training.samples = now.samples;
  }
};

int64_t out_channels(const Recipe& recipe, Registry& registry, int64_t channels) {
  OptionReader option(recipe.scheduler.options);
  const auto& factory = registry.factory<Scheduler>(recipe.scheduler.plugin, recipe.scheduler.where);
  return factory.make(option, {})->out_channels(channels);
}

// Of one training; 0: the process's.
class Threads {
 public:
  explicit Threads(int64_t count) : before_(at::get_num_threads()) {
    if (count > 0) at::set_num_threads(static_cast<int>(count));
  }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  const int before_;
};

}  // namespace

Record train(const TrainRequest& request) {
  const Case& one = request.one;
  Recipe recipe = recipe_of(one);
  const Threads threads(recipe.run.threads);
  recipe.run.device = request.device;
  report::MemoryMeter memory{torch::Device(request.device)};
  AssemblyParts parts;
  parts.objective = true;
  parts.saved = shapes_of(one);
  parts.saved->model.out_channels = out_channels(recipe, request.registry, parts.saved->model.shape("x").at(0));
  Assembly assembly(recipe, request.registry, request.mesh, parts, {});
  auto& entries = assembly.main->layout.entries;
  if (one.packed) assembly.main->replace(pack(assembly.main->model));
  if (!one.real_init) fill(assembly);
  assembly.train_data = source_of(one);
  Loader loader(assembly.train_data, recipe.loader, static_cast<uint64_t>(recipe.run.seed), {});

  Record record;
  describe(assembly, record);
  FaultHooks hooks;
  const auto look = [&] {
    if (hooks.before_optimizer) hooks.before_optimizer();
    if (!record.gradients.empty()) return;
    for (const auto& entry : entries)
      record.gradients[entry.name] = whole(entry, gradient_of(entry), request.mesh).cpu();
  };
  Spy optimizer(assembly.make_optimizer(), assembly.main->layout, look);
  Ema ema(assembly.main->layout, recipe.ema);
  std::optional<diff::Probe> probe;
  if (!request.events.empty()) probe.emplace(assembly);
  TrainingStep training(assembly, loader, optimizer, ema);
  if (probe) training.observers.push_back(&*probe);
  const int64_t samples = (one.resumed + one.steps) * one.batch;
  if (!one.packed) watch_routers(assembly, record, request.one_rank, one.replay && request.one_rank, samples);
  if (request.tamper) request.tamper(assembly, hooks);
  const Checkpoint checkpoint{assembly, optimizer, ema, request};
  if (!one.load_from.empty()) checkpoint.load(training);
  memory.reset_peak();
  for (int64_t step = one.resumed; step < one.resumed + one.steps; ++step) {
    request.mesh.traffic().clear();
    const auto result = training.run(step);
    record.losses.push_back(result.loss);
    record.norms.push_back(result.grad_norm);
  }
  record.peak_bytes = memory.peak();
  record.traffic = request.mesh.traffic().counts();
  if (probe) probe->events().write(request.events);
  if (!one.save_to.empty()) checkpoint.save();
  for (size_t i = 0; i < entries.size(); ++i) {
    record.parameters[entries[i].name] = whole(entries[i], entries[i].tensor, request.mesh).cpu();
    if (recipe.ema.enabled) record.average[entries[i].name] = whole(entries[i], ema.tensors()[i], request.mesh).cpu();
  }
  keep_state(optimizer, entries, request.mesh, record);
  if (one.is_validated()) record.validation = validated(one, assembly, ema);
  return record;
}

namespace {

struct Kept {
  const char* name;
  Tensors Record::*tensors;
};
constexpr Kept kKept[] = {{"gradient", &Record::gradients},
                          {"parameter", &Record::parameters},
                          {"average", &Record::average},
                          {"state", &Record::state},
                          {"picks", &Record::picks}};
struct KeptNumbers {
  const char* name;
  std::vector<double> Record::*numbers;
};
constexpr KeptNumbers kKeptNumbers[] = {
    {"losses", &Record::losses}, {"norms", &Record::norms}, {"validation", &Record::validation}};

}  // namespace

void save(const Record& record, const std::string& path) {
  c10::Dict<std::string, Tensor> all;
  for (const auto& kept : kKeptNumbers) all.insert(kept.name, torch::tensor(record.*kept.numbers, torch::kDouble));
  for (const auto& kept : kKept)
    for (const auto& [name, tensor] : record.*kept.tensors) all.insert(std::string(kept.name) + " " + name, tensor);
  const auto bytes = torch::pickle_save(all);
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw Error(ErrorKind::checkpoint, path, "cannot be written", "");
}

Record load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  if (bytes.empty()) throw Error(ErrorKind::checkpoint, path, "the run on one rank left no record", "see its error");
  Record record;
  for (const auto& item : torch::pickle_load(bytes).toGenericDict()) {
    const auto name = item.key().toStringRef();
    const auto tensor = item.value().toTensor();
    for (const auto& kept : kKeptNumbers)
      if (name == kept.name)
        record.*kept.numbers = {tensor.data_ptr<double>(), tensor.data_ptr<double>() + tensor.numel()};
    for (const auto& kept : kKept)
      if (name.starts_with(std::string(kept.name) + " "))
        (record.*kept.tensors)[name.substr(name.find(' ') + 1)] = tensor;
  }
  return record;
}

}  // namespace ditto::matrix
