#include "core/bench/bench_kernels.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include <ATen/record_function.h>
#include <torch/autograd.h>
#include <torch/csrc/profiler/util.h>
#include <torch/types.h>

#include <ditto/error.h>

#include "core/config/numerics.h"
#include "core/console/streams.h"
#include "core/measure/median.h"
#include "core/measure/roofline.h"
#include "core/train/step.h"

namespace ditto {

namespace {

using torch::Tensor;

constexpr int64_t kColdBytes = 256 << 20;  // of all sets of a call's inputs together
constexpr int64_t kMostSets = 100;

// An op, what it was called with, and how often.
struct SeenCall {
  std::string op;
  OpInputs inputs;
  bool grad;
  int64_t calls;
};

// With its strides, which a choice may depend on, unless places share a number.
Tensor copy_of(const Tensor& x) {
  const torch::NoGradGuard no_grad;
  for (int64_t d = 0; d < x.dim(); ++d)
    if (x.stride(d) == 0 && x.size(d) > 1) return x.clone();
  return torch::empty_strided(x.sizes(), x.strides(), x.options()).copy_(x);
}

OpInputs copy_of(const OpInputs& inputs) {
  OpInputs copy{{}, inputs.attributes};
  for (const Tensor& x : inputs.tensors)
    copy.tensors.push_back(x.defined() ? copy_of(x.detach()).requires_grad_(x.requires_grad()) : Tensor());
  return copy;
}

bool asks_for_gradient(const OpInputs& inputs) {
  return std::any_of(inputs.tensors.begin(), inputs.tensors.end(),
                     [](const Tensor& x) { return x.defined() && x.requires_grad(); });
}

std::string text_of(const std::string& op, const OpInputs& inputs) {
  static const std::map<at::ScalarType, std::string> kNames{
      {torch::kFloat, "fp32"}, {torch::kBFloat16, "bf16"}, {torch::kHalf, "fp16"}, {torch::kDouble, "fp64"}};
  const auto dtype = inputs.tensors.at(0).scalar_type();
  const auto name = kNames.find(dtype);
  std::string text = op + " " + (name == kNames.end() ? c10::toString(dtype) : name->second);
  for (const Tensor& x : inputs.tensors) text += x.defined() ? " " + c10::str(x.sizes()) : "";
  return text;
}

int64_t bytes_of_all(const std::vector<Tensor>& tensors) {
  int64_t bytes = 0;
  for (const Tensor& x : tensors) bytes += x.defined() ? static_cast<int64_t>(x.nbytes()) : 0;
  return bytes;
}

// The calls of one step, those with the same shapes and attributes as one.
std::vector<SeenCall> calls_of_a_step(Assembly& assembly) {
  Loader loader(assembly.train_data, assembly.recipe.loader, static_cast<uint64_t>(assembly.recipe.run.seed),
                [](const std::string& line) { report::tell(line); });
  const auto optimizer = assembly.make_optimizer();
  Ema ema(assembly.networks->learned(), assembly.recipe.ema);
  assembly.recipe.loader.encode_ahead = 0;  // one step is looked at, and one thread
  TrainingStep training(assembly, loader, *optimizer, ema);
  training.expect(0);
  std::vector<SeenCall> seen;
  std::map<std::string, size_t> places;
  auto& table = *assembly.networks->table;
  table.watch([&](const std::string& op, const OpInputs& inputs, const Tensors&) {
    const bool grad = torch::GradMode::is_enabled() && asks_for_gradient(inputs);
    auto key = text_of(op, inputs) + (grad ? " grad" : "");
    for (const auto& [name, value] : inputs.attributes)
      std::visit([&](const auto& of) { key += " " + name + " " + c10::str(of); }, value);
    const auto [place, is_new] = places.emplace(key, seen.size());
    if (is_new) seen.push_back({op, copy_of(inputs), grad, 0});
    ++seen[place->second].calls;
  });
  training.run(0);
  table.watch({});
  return seen;
}

// Operations of the matrix products in an op's reference, as LibTorch's profiler counts them; of convolutions, which it
// does not count on maps of every number of sides, those of their sums.
double flops_of(const Op& op, const OpInputs& inputs, const OpTable& known) {
  static thread_local double sum;
  sum = 0;
  const torch::NoGradGuard no_grad;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
        static const std::set<std::string> kProducts{"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"};
        if (kProducts.count(call.name()) == 0) return nullptr;
        sum += static_cast<double>(
            torch::profiler::impl::computeFlops(call.name(), torch::profiler::impl::saveExtraArgs(call)));
        return nullptr;
      })
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION}));
  const auto in = copy_of(inputs);
  Tensors results;
  if (op.leader.empty())
    results = op.reference(in);
  else
    op.use(in, [&](const std::string& name, const OpInputs& of) { return known.op(name).reference(of); });
  at::removeCallback(handle);
  if (op.name == "conv") {
    const auto& weight = in.tensor(1);
    return 2 * static_cast<double>(results.at(0).numel()) * static_cast<double>(weight.numel() / weight.size(0));
  }
  if (op.name == "conv_transposed") {
    const auto& weight = in.tensor(1);
    return 2 * static_cast<double>(in.tensor(0).numel()) * static_cast<double>(weight.numel() / weight.size(0));
  }
  return sum;
}

// A call that stands for those of a step, on several sets of numbers.
class CallTimer {
 public:
  CallTimer(const Op& op, const SeenCall& call, double seconds, double flops)
      : op_(op), grad_(call.grad), seconds_(seconds), flops_(flops) {
    const int64_t bytes = std::max<int64_t>(bytes_of_all(call.inputs.tensors), 1);
    const auto sets = std::clamp<int64_t>((kColdBytes + bytes - 1) / bytes, 1, kMostSets);
    for (int64_t i = 0; i < sets; ++i) sets_.push_back(copy_of(call.inputs));
  }

  // Of the only variant that `table` may choose. Throws Error(config) where it cannot.
  KernelBench::Variant time(const OpTable& table, const std::string& variant) {
    KernelBench::Variant timed{variant};
    if (grad_) timed.backward.emplace();
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    run_once(table, timed);
    const std::chrono::duration<double> first = Clock::now() - begin;
    if (first.count() > seconds_) return timed;  // a slow one has no need to be warm
    timed.forward.seconds.clear();
    if (grad_) timed.backward->seconds.clear();
    const auto start = Clock::now();
    do run_once(table, timed);
    while (std::chrono::duration<double>(Clock::now() - start).count() < seconds_);
    return timed;
  }

 private:
  void run_once(const OpTable& table, KernelBench::Variant& timed) {
    const torch::AutoGradMode mode(grad_);
    const OpInputs& inputs = sets_[next_++ % sets_.size()];
    Tensors outputs;
    const auto seconds = [](const auto& work) {
      const auto began = std::chrono::steady_clock::now();
      work();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    };
    timed.forward.seconds.push_back(seconds([&] { outputs = computed(table, timed.name, inputs); }));
    timed.forward.bytes = bytes_of_all(inputs.tensors) + bytes_of_all(outputs);
    timed.forward.flops = flops_;
    if (!grad_) return;
    Tensors roots, grads, leaves, found;
    for (const Tensor& out : outputs)
      if (out.requires_grad()) roots.push_back(out), grads.push_back(torch::full_like(out.detach(), 0.5));
    for (const Tensor& x : inputs.tensors)
      if (x.defined() && x.requires_grad()) leaves.push_back(x);
    auto& backward = *timed.backward;
    backward.seconds.push_back(
        seconds([&] { found = torch::autograd::grad(roots, leaves, grads, false, false, true); }));
    // What is handed on as it came is neither read nor written.
    std::erase_if(found, [&](const Tensor& x) {
      return std::any_of(grads.begin(), grads.end(),
                         [&](const Tensor& grad) { return x.defined() && x.is_alias_of(grad); });
    });
    backward.bytes = bytes_of_all(inputs.tensors) + bytes_of_all(grads) + bytes_of_all(found);
    backward.flops = 2 * flops_;
  }

  // Of a family, what its ops are used for.
  Tensors computed(const OpTable& table, const std::string& variant, const OpInputs& inputs) const {
    if (op_.leader.empty()) return table.run(op_.name, inputs);
    (void)table.variant(op_.name, inputs);  // throws where it cannot
    return op_.use(inputs, [&](const std::string& op, const OpInputs& of) { return table.run_as(variant, op, of); });
  }

  const Op& op_;
  bool grad_;
  double seconds_, flops_;
  std::vector<OpInputs> sets_;
  size_t next_ = 0;
};

// Of the recipe.
struct Kernels {
  std::vector<KernelRow> rows;
  std::vector<Op> added;
  std::map<std::string, GivenOption> pins;
  bool exact;

  OpTable pinned(const std::string& op, const std::string& variant) const {
    return OpTable(rows, {{op, GivenOption{variant, "ditto bench kernels"}}}, {}, added);
  }
  // "": the recipe refuses the call.
  std::string chosen(const Op& op, const SeenCall& call) const {
    const OpTable table(rows, pins, {}, added, exact);
    const torch::AutoGradMode mode(call.grad);
    try {
      if (!op.leader.empty()) return table.variant(op.name, call.inputs);
      table.run(op.name, copy_of(call.inputs));
      return table.chosen().begin()->second;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::config) throw;
      return {};
    }
  }
};

// Of ops that a step did not call: the largest of their test cases.
void add_test_cases(std::vector<SeenCall>& calls, const Kernels& kernels, const OpTable& known, at::ScalarType dtype) {
  std::set<std::string> ops;
  for (const auto* list : {&ditto::ops(), &kernels.added})
    for (const Op& op : *list)
      if (op.leader.empty() || op.leader == op.name) ops.insert(op.name);
  for (const auto& call : calls) ops.erase(call.op);
  for (const auto& name : ops) {
    OpInputs largest;
    for (const auto& one : known.op(name).cases)
      if (auto inputs = one.inputs(dtype); bytes_of_all(inputs.tensors) > bytes_of_all(largest.tensors))
        largest = std::move(inputs);
    if (largest.tensors.empty()) continue;
    const bool grad = known.op(name).leader.empty() && asks_for_gradient(largest);
    calls.push_back({name, std::move(largest), grad, 0});
  }
}

KernelBench::Call time_call(const SeenCall& call, const Kernels& kernels, const OpTable& known, double seconds) {
  const Op& op = known.op(call.op);
  const auto chosen = kernels.chosen(op, call);
  std::vector<std::string> variants{"reference"};
  for (const auto& row : kernels.rows)
    if (row.op == call.op) variants.push_back(row.variant);
  std::stable_partition(variants.begin(), variants.end(), [&](const auto& variant) { return variant == chosen; });
  KernelBench::Call timed{call.op, text_of(call.op, call.inputs), call.calls};
  CallTimer timer(op, call, seconds, flops_of(op, call.inputs, known));
  for (const auto& variant : variants) try {
      timed.timed.push_back(timer.time(kernels.pinned(call.op, variant), variant));
      timed.timed.back().chosen = variant == chosen;
      timed.timed.back().copies = std::any_of(kernels.rows.begin(), kernels.rows.end(), [&](const KernelRow& row) {
        return row.op == call.op && row.variant == variant && row.copies;
      });
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::config) throw;
      timed.cannot.push_back(variant);
    }
  return timed;
}

}  // namespace

double KernelBench::Pass::median() const { return report::median(seconds); }

bool KernelBench::is_bound_by_products(const Pass& pass) const {
  return pass.flops / matmul_flops > static_cast<double>(pass.bytes) / stream_bytes;
}

double KernelBench::share(const Pass& pass) const {
  return std::max(pass.flops / matmul_flops, static_cast<double>(pass.bytes) / stream_bytes) / pass.median();
}

KernelBench bench_kernels(Recipe recipe, Registry& registry, const Mesh& mesh, const KernelBenchOptions& options) {
  AssemblyParts parts;
  parts.data = parts.objective = true;
  Assembly assembly(recipe, registry, mesh, parts, {});
  Components components(recipe, registry);
  const Kernels kernels{components.kernel_rows(), components.added_ops(), recipe.kernels, is_one_number(recipe)};
  const OpTable known(kernels.rows, {}, {}, kernels.added);
  std::set<std::string> asked(options.ops.begin(), options.ops.end());
  for (const auto& op : asked) known.op(op);  // refused before the step is taken
  const auto dtype = assembly.main->ctx->compute;
  auto calls = calls_of_a_step(assembly);
  add_test_cases(calls, kernels, known, dtype);
  if (!asked.empty()) std::erase_if(calls, [&](const SeenCall& call) { return asked.count(call.op) == 0; });
  std::stable_sort(calls.begin(), calls.end(), [](const auto& a, const auto& b) { return a.op < b.op; });

  KernelBench bench;
  bench.matmul_flops = 1e9 * report::matmul_gflops(dtype);
  bench.stream_bytes = 1e9 * report::stream_gbytes();
  for (const auto& call : calls) bench.calls.push_back(time_call(call, kernels, known, options.seconds));
  return bench;
}

}  // namespace ditto
