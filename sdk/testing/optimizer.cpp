// The promises of an optimizer.
#include <ditto/testing/checks.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

struct Given {
  std::string name;
  std::vector<int64_t> shape;
};
// The last has enough numbers for states in blocks, and rows that end in a part of one.
const std::vector<Given>& given_parameters() {
  static const std::vector<Given> all{
      {"a.weight", {6, 4}}, {"a.bias", {6}}, {"table", {5, 2, 3}}, {"b.weight", {40, 200}}};
  return all;
}

// Where a parameter is cut in two: numbers [0, first) and the rest, along a dim; flat: along its numbers.
struct Halves {
  int64_t dim = 0, first = 0;
  bool flat = false;

  std::vector<Tensor> of(const Tensor& whole) const {
    const Tensor x = flat ? whole.flatten() : whole;
    return {x.slice(dim, 0, first).contiguous(), x.slice(dim, first).contiguous()};
  }
  Tensor join(const Tensor& a, const Tensor& b, const std::vector<int64_t>& shape) const {
    return torch::cat({a, b}, dim).view(shape);
  }
};

// All that an optimizer of this granularity must bear.
std::vector<Halves> halves_of(const std::vector<int64_t>& shape, Optimizer::Granularity granularity, int64_t block) {
  const int64_t numel = c10::multiply_integers(shape), last = static_cast<int64_t>(shape.size()) - 1;
  if (granularity == Optimizer::Granularity::elementwise) return {{0, numel / 2 - 1, true}};
  std::vector<Halves> all{{0, shape[0] / 3}, {0, 0}};  // the second: a rank without a number of it
  if (granularity == Optimizer::Granularity::matrix) all.push_back({last, shape.back() / 2});
  if (granularity == Optimizer::Granularity::blockwise && shape.back() > block) all.push_back({last, block});
  return all;
}

// Parameters that are whole; or pairs of halves, which it joins for the first of them.
class WholesInOneProcess final : public WholeTensors {
 public:
  explicit WholesInOneProcess(std::vector<Halves> cuts = {}) : cuts_(std::move(cuts)) {}
  std::vector<Tensor> gather(const std::vector<Tensor>& local) const override {
    auto result = local;
    for (size_t i = 0; i < cuts_.size(); ++i) {
      if (!local[2 * i].defined()) continue;
      result[2 * i] = cuts_[i].join(local[2 * i], local[2 * i + 1], given_parameters()[i].shape);
      result[2 * i + 1] = Tensor();
    }
    return result;
  }
  std::vector<Tensor> scatter(const std::vector<Tensor>& whole, const std::vector<Tensor>&) const override {
    auto result = whole;
    for (size_t i = 0; i < cuts_.size(); ++i) {
      if (!whole[2 * i].defined()) continue;
      const auto pieces = cuts_[i].of(whole[2 * i]);
      result[2 * i] = pieces[0], result[2 * i + 1] = pieces[1];
    }
    return result;
  }
  std::vector<bool> here(const std::vector<Tensor>& local) const override {
    std::vector<bool> result(local.size());
    for (size_t i = 0; i < local.size(); ++i) result[i] = local[i].defined() && (cuts_.empty() || i % 2 == 0);
    return result;
  }

 private:
  std::vector<Halves> cuts_;  // along given_parameters()
};

// Some parameters and the optimizer that moves them; `exact`: as under run.numerics = "one", by the ops' references.
class Training {
 public:
  Training(const std::string& path, const OptionValues& options, bool exact = false) : exact_(exact) {
    for (const auto& [name, shape] : given_parameters())
      parameters_.push_back({name, normal(name, shape, at::kFloat).requires_grad_(), shape});
    open(path, options);
  }
  // The same numbers, every parameter cut in two.
  Training(const std::string& path, const OptionValues& options, const std::vector<Halves>& cuts, bool exact)
      : wholes_(cuts), cuts_(cuts), exact_(exact) {
    for (size_t i = 0; i < given_parameters().size(); ++i)
      for (const Tensor& piece :
           cuts[i].of(normal(given_parameters()[i].name, given_parameters()[i].shape, at::kFloat)))
        parameters_.push_back(
            {given_parameters()[i].name, piece.clone().requires_grad_(), given_parameters()[i].shape});
    open(path, options);
  }

  // Of the sum of squares to a target: the gradient depends on the parameter itself.
  void gradients(int64_t number) {
    for (size_t i = 0; i < parameters_.size(); ++i)
      parameters_[i].tensor.mutable_grad() = parameters_[i].tensor.detach() * 0.5 + noise(i, number);
  }
  void step(int64_t number) {
    gradients(number);
    update();
  }
  void update() { optimizer->step({.lr = 0.01, .average = average_, .exact = exact_}); }
  void steps(int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) step(i);
  }
  void copy_from(const Training& other) {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].tensor.copy_(other.parameters_[i].tensor);
    auto theirs = other.optimizer->state();
    for (auto& [kind, own] : optimizer->state())
      for (size_t i = 0; i < own.tensors.size(); ++i)
        if (own.tensors[i].defined()) own.tensors[i].copy_(theirs.at(kind).tensors.at(i));
    optimizer->set_counters(other.optimizer->counters());
    for (size_t i = 0; i < average_.size(); ++i) average_[i].copy_(other.average_[i]);
  }
  std::vector<Tensor> values() const {
    std::vector<Tensor> all;
    for (const auto& p : parameters_) all.push_back(p.tensor.detach().clone());
    return all;
  }
  std::vector<OptimizedParameter>& parameters() { return parameters_; }

  std::shared_ptr<Optimizer> optimizer;

 private:
  void open(const std::string& path, const OptionValues& options) {
    optimizer = make<Optimizer>(path, options, {parameters_, &wholes_, exact_ ? &ops_ : nullptr, exact_});
    if (!optimizer->averages()) return;
    for (const auto& p : parameters_) average_.push_back(p.tensor.detach().clone());
  }
  Tensor noise(size_t i, int64_t number) const {
    const auto& p = parameters_[i];
    const Tensor whole = normal("gradient " + p.name + std::to_string(number), p.full_shape, at::kFloat);
    return cuts_.empty() ? whole : cuts_[i / 2].of(whole)[i % 2];
  }
  WholesInOneProcess wholes_;
  std::vector<Halves> cuts_;  // along given_parameters(); empty: whole ones
  std::vector<OptimizedParameter> parameters_;
  std::vector<Tensor> average_;  // of an optimizer that makes it
  const bool exact_;
  const OpTable ops_;
};

std::string same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (const auto problem = difference(a[i], b[i], 0); !problem.empty())
      return given_parameters()[i].name + " " + problem;
  return {};
}

std::string moves(const std::string& path, const OptionValues& options) {
  Training training(path, options);
  const auto before = training.values();
  training.step(0);
  for (size_t i = 0; i < before.size(); ++i) {
    if (const auto problem = not_finite(training.values()[i]); !problem.empty())
      return given_parameters()[i].name + " " + problem;
    if (training.values()[i].equal(before[i])) return given_parameters()[i].name + " did not move";
  }
  return {};
}

std::string descends(const std::string& path, const OptionValues& options) {
  const Tensor target = normal("target", {6, 4}, at::kFloat);
  std::vector<OptimizedParameter> parameters{
      {"a.weight", normal("a.weight", {6, 4}, at::kFloat).requires_grad_(), {6, 4}}};
  Tensor& x = parameters[0].tensor;
  const WholesInOneProcess wholes;
  const auto optimizer = make<Optimizer>(path, options, {parameters, &wholes});
  const std::vector<Tensor> average =
      optimizer->averages() ? std::vector<Tensor>{x.detach().clone()} : std::vector<Tensor>();
  const auto loss = [&] { return (x.detach() - target).square().sum().item<double>(); };
  const double before = loss();
  for (int i = 0; i < 50; ++i) {
    x.mutable_grad() = 2 * (x.detach() - target);
    optimizer->step({.lr = 0.01, .average = average});
  }
  return loss() < before ? "" : "after 50 steps the loss went from " + text(before) + " to " + text(loss());
}

std::string repeats(const std::string& path, const OptionValues& options) {
  Training a(path, options), b(path, options);
  a.steps(0, 4), b.steps(0, 4);
  return same(a.values(), b.values());
}

std::vector<int64_t> in_blocks(std::vector<int64_t> shape, int64_t block) {
  shape.back() = (shape.back() + block - 1) / block;
  return shape;
}

std::string state_shapes(const std::string& path, const OptionValues& options) {
  Training training(path, options);
  const auto check = [&](const std::string& when) -> std::string {
    for (const auto& [kind, state] : training.optimizer->state()) {
      const auto& tensors = state.tensors;
      if (tensors.size() != given_parameters().size()) return when + " \"" + kind + "\" has another number of tensors";
      for (size_t i = 0; i < tensors.size(); ++i)
        if (tensors[i].defined() && !state.whole &&
            tensors[i].sizes() != at::IntArrayRef(in_blocks(given_parameters()[i].shape, state.block)))
          return when + " \"" + kind + "\" of " + given_parameters()[i].name + " has shape " +
                 shape_text(tensors[i].sizes());
    }
    return {};
  };
  const auto problem = check("before a step");
  if (!problem.empty()) return problem;
  training.step(0);
  return check("after a step");
}

std::string round_trip(const std::string& path, const OptionValues& options) {
  Training whole(path, options), restored(path, options);
  whole.steps(0, 3);
  restored.copy_from(whole);
  whole.steps(3, 6), restored.steps(3, 6);
  return same(restored.values(), whole.values());
}

// The largest block that a number of state stands for.
int64_t block_of(Optimizer& optimizer) {
  int64_t block = 1;
  for (const auto& [kind, state] : optimizer.state()) block = std::max(block, state.block);
  return block;
}

std::string slices(const std::string& path, const OptionValues& options, bool exact = false) {
  Training whole(path, options, exact);
  const auto granularity = whole.optimizer->granularity();
  const int64_t block = block_of(*whole.optimizer);
  whole.steps(0, 4);
  // Every parameter in its first way of being cut, then in its second …; those with fewer ways in their last again.
  for (size_t way = 0; way < 3; ++way) {
    std::vector<Halves> cuts;
    for (const auto& [name, shape] : given_parameters()) {
      const auto all = halves_of(shape, granularity, block);
      cuts.push_back(all[std::min(way, all.size() - 1)]);
    }
    Training cut(path, options, cuts, exact);
    cut.steps(0, 4);
    const auto pieces = cut.values();
    std::vector<Tensor> joined;
    for (size_t i = 0; i < given_parameters().size(); ++i)
      joined.push_back(cuts[i].join(pieces[2 * i], pieces[2 * i + 1], given_parameters()[i].shape));
    if (const auto problem = same(joined, whole.values()); !problem.empty()) return problem;
  }
  return {};
}

// As under run.numerics = "one": the other update's numbers up to rounding, and the same bits of slices.
std::string exactly(const std::string& path, const OptionValues& options) {
  Training fast(path, options), exact(path, options, true);
  fast.steps(0, 4), exact.steps(0, 4);
  for (size_t i = 0; i < given_parameters().size(); ++i)
    if (const auto problem = difference(exact.values()[i], fast.values()[i], 1e-5); !problem.empty())
      return given_parameters()[i].name + " " + problem;
  return slices(path, options, true);
}

std::string undefined_gradient(const std::string& path, const OptionValues& options) {
  Training training(path, options);
  training.step(0);
  const Tensor before = training.values()[1];
  for (auto& p : training.parameters()) p.tensor.mutable_grad() = torch::ones_like(p.tensor.detach());
  training.parameters()[1].tensor.mutable_grad().reset();
  training.update();
  return training.values()[1].equal(before) ? "" : "the parameter moved";
}

// A stage of a pipeline may hold none of the parameters, and its counters may be the ones that are saved.
std::string without_parameters(const std::string& path, const OptionValues& options) {
  Training training(path, options);
  const WholesInOneProcess wholes;
  const auto idle = make<Optimizer>(path, options, {{}, &wholes});
  for (int64_t number = 0; number < 2; ++number) {
    training.step(number);
    idle->step({.lr = 0.01});
  }
  const auto expected = training.optimizer->counters();
  for (const auto& [name, value] : idle->counters())
    if (!expected.count(name) || expected.at(name) != value)
      return "its counter \"" + name + "\" is " + text(value) + " after two updates";
  return idle->counters().size() == expected.size() ? "" : "it has other counters";
}

// The same as its parts one after the other, bit for bit.
std::string does_all(const std::string& path, const OptionValues& options) {
  torch::NoGradGuard no_grad;
  Training parts(path, options), all(path, options);
  const bool averages = all.optimizer->averages();
  std::vector<Tensor> average, followed, copies;
  for (const Tensor& weight : all.values()) {
    average.push_back(weight.clone()), followed.push_back(weight.clone());
    copies.push_back(torch::zeros_like(weight, at::kBFloat16));
  }
  for (int64_t number = 0; number < 3; ++number) {
    parts.gradients(number), all.gradients(number);
    for (auto& p : parts.parameters()) p.tensor.grad().mul_(0.25);
    parts.optimizer->step({.lr = 0.01, .average = averages ? followed : std::vector<Tensor>()});
    if (!averages) follow({.average = followed, .decay = 0.9}, parts.parameters());
    all.optimizer->step({.lr = 0.01, .clip = 0.25, .average = average, .decay = 0.9, .copies = copies});
  }
  if (const auto problem = same(all.values(), parts.values()); !problem.empty()) return problem;
  if (const auto problem = same(average, followed); !problem.empty()) return "the average of " + problem;
  for (size_t i = 0; i < copies.size(); ++i)
    if (!copies[i].equal(all.values()[i].to(at::kBFloat16)))
      return "the copy of " + given_parameters()[i].name + " is another";
  return {};
}

// Of what the device alone knows: the clip is as the host's, and a skipped update leaves nothing, whatever gradients
// hold.
std::string heeds_device(const std::string& path, const OptionValues& options, bool exact) {
  torch::NoGradGuard no_grad;
  Training known(path, options, exact), late(path, options, exact);
  std::vector<Tensor> average, late_average, copies, late_copies;
  for (const Tensor& weight : known.values()) {
    average.push_back(weight.clone()), late_average.push_back(weight.clone());
    copies.push_back(torch::zeros_like(weight, at::kBFloat16));
    late_copies.push_back(weight.to(at::kBFloat16));
  }
  const auto update_late = [&](bool is_skipped) {
    Update asked{.lr = 0.01, .average = late_average, .decay = 0.9, .copies = late_copies, .exact = exact};
    asked.late_clip = torch::scalar_tensor(0.25, at::kDouble);
    asked.skip = torch::scalar_tensor(is_skipped, at::kBool);
    late.optimizer->step(asked);
  };
  for (int64_t number = 0; number < 3; ++number) {
    const auto counters = late.optimizer->counters();
    for (auto& p : late.parameters())
      p.tensor.mutable_grad() = torch::full_like(p.tensor.detach(), number == 1 ? 1.0 : std::nan(""));
    update_late(true);
    late.optimizer->set_counters(counters);
    known.gradients(number), late.gradients(number);
    known.optimizer->step(
        {.lr = 0.01, .clip = 0.25, .average = average, .decay = 0.9, .copies = copies, .exact = exact});
    update_late(false);
    for (const auto& [what, a, b] :
         {std::tuple("", late.values(), known.values()), std::tuple("the average of ", late_average, average),
          std::tuple("the copy of ", late_copies, copies)})
      if (const auto problem = same(a, b); !problem.empty()) return what + problem;
  }
  return {};
}

}  // namespace

Report check_optimizer(const std::string& path, const OptionValues& options) {
  Report report("optimizer " + path);
  // Some virtual machines announce AMX and end a program that uses it. Must be said before the first product in bf16.
  setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16", 0);
  report.check("a step moves every parameter that has a gradient", [&] { return moves(path, options); });
  report.check("a parameter without a gradient stays", [&] { return undefined_gradient(path, options); });
  report.check("50 steps lower a sum of squares", [&] { return descends(path, options); });
  report.check("two runs give the same bits", [&] { return repeats(path, options); });
  report.check("clipping, average and copies are part of an update", [&] { return does_all(path, options); });
  report.check("state tensors lie along the parameters, before and after a step",
               [&] { return state_shapes(path, options); });
  report.check("a run goes on bit for bit from saved state and counters", [&] { return round_trip(path, options); });
  report.check("it can be made without parameters", [&] { return make<Optimizer>(path, options), std::string(); });
  report.check("without parameters it counts its updates all the same",
               [&] { return without_parameters(path, options); });
  // Flat slices of an elementwise one; of a blockwise one slices that cut no block; any of one that asks for whole
  // ones.
  report.check("slices of a parameter move as the whole does, bit for bit", [&] { return slices(path, options); });
  if (make<Optimizer>(path, options)->exact())
    report.check("exact updates are the others up to rounding, and the same for slices",
                 [&] { return exactly(path, options); });
  if (const auto one = make<Optimizer>(path, options); one->skips())
    report.check("an update is clipped, or skipped, as tensors say", [&] {
      const auto problem = heeds_device(path, options, false);
      return problem.empty() && one->exact() ? heeds_device(path, options, true) : problem;
    });
  return report;
}

}  // namespace ditto::testing
