// The promises of a kernel plugin: every row agrees with its op's meaning, wherever it says that it can compute it.
#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/record_function.h>
#include <torch/cuda.h>

#include <ditto/testing/checks.h>

#include "kernels/kernel_answers.h"
#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

bool is_real(const Tensor& x) { return x.defined() && x.is_floating_point(); }

// Of a row that can make its first output again, from what it says that it needs for it.
std::string difference_again(const KernelRow& row, const OpInputs& inputs) {
  const torch::NoGradGuard no_grad;
  auto results = row.forward(inputs);
  const Tensor first = std::exchange(results.at(0), Tensor());
  OpInputs some{Tensors(inputs.tensors.size()), inputs.attributes};
  for (const size_t i : row.again_of)
    if (i < some.tensors.size()) some.tensors[i] = inputs.tensors[i];
  return same_bits(row.again(some, results), first) ? "" : "made again, the first output has other bits";
}

// LibTorch's copies on this thread while it lives.
class Copies {
 public:
  Copies()
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&seen).scopes({at::RecordScope::FUNCTION}))) {
    count() = 0;
  }
  ~Copies() { at::removeCallback(handle_); }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;
  static int& count() {
    static thread_local int copies;  // the callback is a plain function
    return copies;
  }

 private:
  static std::unique_ptr<at::ObserverContext> seen(const at::RecordFunction& call) {
    if (std::string(call.name()) == "aten::copy_") ++count();
    return nullptr;
  }
  at::CallbackHandle handle_;
};

// How a case's tensors lie: all of them, or one by itself.
struct Laid {
  Strides strides = Strides::own;
  std::optional<size_t> alone = {};

  OpInputs of(const OpInputs& numbers) const {
    auto inputs = moved(numbers, numbers.tensors.at(0).device(), numbers.tensors[0].scalar_type());
    for (size_t i = 0; i < inputs.tensors.size(); ++i)
      if (!alone || *alone == i) inputs.tensors[i] = laid(inputs.tensors[i], strides);
    return inputs;
  }
  std::string text() const {
    if (strides == Strides::own) return "";
    return (alone ? ", input " + std::to_string(*alone) : std::string(", all inputs")) + " " + to_text(strides);
  }
};

std::vector<Laid> all_ways(const OpInputs& numbers) {
  std::vector<Laid> ways{{}};
  for (const Strides strides : kOtherStrides) {
    const int64_t fewest = strides == Strides::swapped ? 3 : 1;  // dims, to lie otherwise
    std::vector<Laid> alone;
    for (size_t i = 0; i < numbers.tensors.size(); ++i)
      if (numbers.tensors[i].defined() && numbers.tensors[i].dim() >= fewest) alone.push_back({strides, i});
    ways.insert(ways.end(), alone.begin(), alone.end());
    if (alone.size() > 1) ways.push_back({strides, {}});
  }
  return ways;
}

class RowTest {
 public:
  // `rows`: of this variant, with its family's.
  RowTest(const KernelRow& row, std::vector<KernelRow> rows, const std::vector<Op>& added, at::Device device)
      : row_(row),
        device_(device),
        table_(std::move(rows), {{row.op, GivenOption{row.variant, "the test"}}}, {}, added),
        op_(table_.op(row.op)) {}

  // How often the row said that it can, and was right. `problem`: where it was not.
  int run(std::string& problem) {
    int agreed = 0;
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
      for (const Op::Case& one : op_.cases) {
        const OpInputs numbers = moved(one.inputs(dtype), device_, dtype);
        for (const Pass& pass : passes()) {
          std::optional<Meant> meant;
          for (const Laid& way : pass.in_all_ways ? all_ways(numbers) : std::vector<Laid>{{}}) {
            std::string found;
            if (!agrees(numbers, way, pass, meant, found)) continue;
            if (!found.empty()) {
              problem = "case \"" + one.name + "\", " + c10::toString(dtype) + ", " + device_.str() + way.text() +
                        pass.text + ": " + found;
              return agreed;
            }
            ++agreed;
          }
        }
      }
    return agreed;
  }

  // That it copies what does not lie as a contiguous tensor does: more often than of tensors that do. Empty: it was not
  // seen.
  std::string copies() const {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
      for (const Op::Case& one : op_.cases) {
        const OpInputs numbers = moved(one.inputs(dtype), device_, dtype);
        const auto as_it_is = count_copies(numbers, {});
        for (const Laid& way : all_ways(numbers))
          if (const auto count = count_copies(numbers, way); as_it_is && count && *count > *as_it_is)
            return "case \"" + one.name + "\", " + c10::toString(dtype) + way.text();
      }
    return {};
  }

 private:
  // Calls without gradients, with them, and with one row at all places of the outputs' gradients.
  struct Pass {
    GradOf grad;
    bool in_all_ways;
    std::string text;
  };
  std::vector<Pass> passes() const {
    const bool back = row_.backward && op_.leader.empty();
    std::vector<Pass> list{{{}, !back, ""}};
    if (back) list.push_back({own_grad, true, ""}), list.push_back({expanded_grad, false, ", an expanded gradient"});
    return list;
  }

  // What the op's meaning makes of a case in fp64, and what it leaves its inputs as.
  struct Meant {
    OpInputs inputs;
    Answer answer;
  };

  // False where the row says that it cannot. `meant`: of these numbers, made where it is first asked for.
  bool agrees(const OpInputs& numbers, const Laid& way, const Pass& pass, std::optional<Meant>& meant,
              std::string& problem) {
    const OpInputs inputs = way.of(numbers);
    Answer found;
    try {
      found = answer(computed(), inputs, pass.grad);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::config) throw;
      return false;  // the pinned row cannot compute this
    }
    if (!meant) {
      meant = Meant{moved(numbers, at::kCPU, at::kDouble), {}};
      meant->answer = answer(reference(), meant->inputs, pass.grad);
    }
    const auto& [wide, expected] = *meant;
    const double tolerance = op_.tolerance(numbers.tensors.at(0).scalar_type());
    for (size_t i = 0; problem.empty() && i < inputs.tensors.size(); ++i)  // as they are now
      if (is_real(inputs.tensors[i]))
        if (auto updated = difference(inputs.tensors[i].detach(), wide.tensors[i].detach(), tolerance);
            !updated.empty())
          problem = "input " + std::to_string(i) + " afterwards " + updated;
    for (size_t i = 0; problem.empty() && i < expected.outputs.size(); ++i)
      if (auto found_out = difference(found.outputs.at(i), expected.outputs[i], tolerance); !found_out.empty())
        problem = (expected.outputs.size() > 1 ? "output " + std::to_string(i) + " " : "") + found_out;
    for (size_t i = 0; problem.empty() && i < expected.grads.size(); ++i)
      if (auto found_grad = difference(found.grads[i], expected.grads[i], tolerance); !found_grad.empty())
        problem = "the gradient of input " + std::to_string(i) + " " + found_grad;
    if (problem.empty() && row_.backward_onto && pass.grad)
      problem = difference_onto(inputs, pass, expected, tolerance);
    if (problem.empty() && row_.again) problem = difference_again(row_, inputs);
    return true;
  }

  // A backward behind another: what gradients are added up to.
  std::string difference_onto(const OpInputs& inputs, const Pass& pass, const Answer& expected,
                              double tolerance) const {
    const auto sums = answer(computed(), inputs, pass.grad).grads;
    for (size_t i = 0; i < expected.grads.size(); ++i) {
      const auto& once = expected.grads[i];
      if (auto found = difference(sums[i], once.defined() ? once * 2 : once, tolerance); !found.empty())
        return "the gradient of input " + std::to_string(i) + ", added to itself, " + found;
    }
    return {};
  }

  // None where it cannot.
  std::optional<int> count_copies(const OpInputs& numbers, const Laid& way) const {
    const OpInputs inputs = way.of(numbers);
    try {
      const Copies copies;
      (void)answer(computed(), inputs, {});
      return Copies::count();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::config) throw;
      return {};
    }
  }

  // The row's results; of a family, what its ops are used for.
  Compute computed() const {
    if (op_.leader.empty()) return [this](const OpInputs& in) { return table_.run(op_.name, in); };
    return [this](const OpInputs& in) { return use(table_.variant(op_.name, in), in); };
  }
  Compute reference() const {
    if (op_.leader.empty()) return op_.reference;
    return [this](const OpInputs& in) { return use("reference", in); };
  }
  Tensors use(const std::string& variant, const OpInputs& in) const {
    return op_.use(in,
                   [&](const std::string& op, const OpInputs& inputs) { return table_.run_as(variant, op, inputs); });
  }

  const KernelRow& row_;
  at::Device device_;
  OpTable table_;
  const Op& op_;
};

// The bits of a row on an op's cases, each with its gradients where it has them: undefined where it cannot compute one.
std::vector<Tensors> bits_of(const KernelRow& row, const std::vector<Op>& added) {
  const OpTable table({row}, {{row.op, GivenOption{row.variant, "the test"}}}, {}, added);
  const Op& op = table.op(row.op);
  std::vector<Tensors> all;
  for (const Op::Case& one : op.cases)
    for (const bool with_gradient : {false, true}) {
      auto& bits = all.emplace_back();
      if (with_gradient && !row.backward) continue;
      const OpInputs inputs = moved(one.inputs(at::kFloat), at::kCPU, at::kFloat);
      try {
        const auto found = answer([&](const OpInputs& in) { return table.run(op.name, in); }, inputs,
                                  with_gradient ? own_grad : GradOf());
        bits = found.outputs;
        bits.insert(bits.end(), found.grads.begin(), found.grads.end());
        bits.insert(bits.end(), inputs.tensors.begin(), inputs.tensors.end());  // what is updated in place
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::config) throw;
      }
    }
  return all;
}

// Where two rows of an op that both say they are exact differ.
std::string difference_of_exact(const KernelRow& a, const KernelRow& b, const std::vector<Op>& added, const Op& op) {
  const auto bits_a = bits_of(a, added), bits_b = bits_of(b, added);
  for (size_t i = 0; i < bits_a.size(); ++i) {
    if (bits_a[i].empty() || bits_b[i].empty()) continue;  // one of them lacks it
    for (size_t k = 0; k < bits_a[i].size(); ++k)
      if (!same_bits(bits_a[i][k], bits_b[i].at(k)))
        return "case \"" + op.cases.at(i / 2).name + "\": tensor " + std::to_string(k) +
               " of results and gradients has "
               "other bits than by " +
               b.variant;
  }
  return {};
}

// An added op: its reference by itself.
std::string check_op(const Op& op, const OpTable& table) {
  if (op.cases.empty()) return "there is no case";
  if (!op.tolerance) return "there is no tolerance";
  if (!op.leader.empty()) return op.leader == op.name && !op.use ? "a leader says how its family is used" : "";
  for (const Op::Case& one : op.cases) {
    const OpInputs inputs = moved(one.inputs(at::kDouble), at::kCPU, at::kDouble);
    const bool grad = std::any_of(inputs.tensors.begin(), inputs.tensors.end(),
                                  [](const Tensor& x) { return x.defined() && x.requires_grad(); });
    const auto results = table.run(op.name, inputs);  // throws where a gradient is asked for that is not there
    if (static_cast<int64_t>(results.size()) != op.outputs)
      return "case \"" + one.name + "\": the reference gives " + std::to_string(results.size()) + " outputs, not " +
             std::to_string(op.outputs);
    const auto meant = op.reference(moved(one.inputs(at::kDouble), at::kCPU, at::kDouble));
    for (const Strides strides : kOtherStrides) {
      const auto others = op.reference(laid(moved(one.inputs(at::kDouble), at::kCPU, at::kDouble), strides));
      for (size_t i = 0; i < meant.size(); ++i)
        if (const auto found = difference(others.at(i).detach(), meant[i].detach(), 1e-9); !found.empty())
          return "case \"" + one.name + "\", all inputs " + to_text(strides) + ": " + found;
    }
    if (!grad) continue;
    const auto found = answer(op.reference, moved(inputs, at::kCPU, at::kDouble), own_grad);
    for (size_t i = 0; i < inputs.tensors.size(); ++i)
      if (inputs.tensors[i].defined() && inputs.tensors[i].requires_grad() && !found.grads[i].defined())
        return "case \"" + one.name + "\": input " + std::to_string(i) + " wants a gradient and gets none";
  }
  return {};
}

struct Tried {
  KernelRow row;
  std::vector<KernelRow> family;
  int agreed;
  std::string problem;
};

Tried try_row(const KernelRow& row, const std::vector<KernelRow>& family, const std::vector<Op>& added,
              const std::vector<at::Device>& devices) {
  Tried tried{row, family, 0, {}};
  try {
    for (const at::Device device : devices)
      if (tried.problem.empty()) tried.agreed += RowTest(row, family, added, device).run(tried.problem);
  } catch (const std::exception& error) {
    tried.problem = error.what();
  }
  return tried;
}

}  // namespace

Report check_kernels(const std::string& path, const OptionValues& options) {
  Report report("kernels " + path);
  std::shared_ptr<KernelSet> set;
  report.check("it can be made, and has rows or ops", [&] {
    set = make<KernelSet>(path, options);
    return std::string(set->rows().empty() && set->ops().empty() ? "there are none" : "");
  });
  if (!set) return report;
  std::vector<at::Device> devices{at::kCPU};
  if (torch::cuda::is_available()) devices.emplace_back(at::kCUDA, 0);
  const auto rows = set->rows();
  const auto added = set->ops();
  std::unique_ptr<OpTable> all;
  report.check("its ops and rows fit together, and with the SDK's", [&] {
    all = std::make_unique<OpTable>(rows, std::map<std::string, GivenOption>(), nullptr, added);
    return std::string();
  });
  if (!all) return report;
  for (const Op& op : added)
    report.check("op " + op.name + " has cases, a tolerance, and a gradient where a case asks for one",
                 [&] { return check_op(op, *all); });
  std::vector<Tried> tried;
  for (const KernelRow& row : rows) {
    const auto& leader = all->op(row.op).leader;
    if (!leader.empty() && leader != row.op) continue;  // with its leader
    std::vector<KernelRow> family{row};
    for (const KernelRow& other : rows)
      if (!leader.empty() && other.op != row.op && other.variant == row.variant && all->op(other.op).leader == leader)
        family.push_back(other);
    tried.push_back(try_row(row, family, added, devices));
  }
  const bool is_for_others = devices.size() == 1 && std::all_of(tried.begin(), tried.end(), [](const Tried& one) {
                               return one.agreed == 0 && one.problem.empty();
                             });
  for (const auto& [row, family, agreed, problem] : tried) {
    const auto agrees = row.op + "/" + row.variant + " agrees with the reference wherever it can";
    if (is_for_others) {
      report.skip(agrees, "no row of the set computes a case on the CPU, and this machine has no other device");
      continue;
    }
    report.check(agrees, [&, count = agreed, what = problem] {
      return !what.empty() ? what : count > 0 ? "" : "it can compute no case on the devices of this machine";
    });
    if (!row.copies)
      report.check(row.op + "/" + row.variant + " copies nothing that it does not tell of", [&] {
        for (const at::Device device : devices)
          if (const auto where = RowTest(row, family, added, device).copies(); !where.empty())
            return where + ": it copies, and KernelRow::copies is false";
        return std::string();
      });
    if (!row.exact || !all->op(row.op).leader.empty()) continue;
    report.check(
        row.op + "/" + row.variant + " is exact: by any number of threads, of one sample and of three, of leaves",
        [&] { return broken_exactness(row, added); });
    for (const KernelRow& other : rows)
      if (other.op == row.op && other.exact && other.variant < row.variant)
        report.check(row.op + "/" + row.variant + " has the bits of " + other.variant,
                     [&] { return difference_of_exact(row, other, added, all->op(row.op)); });
  }
  return report;
}

}  // namespace ditto::testing
