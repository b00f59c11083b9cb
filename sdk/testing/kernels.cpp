// The promises of a kernel plugin: every row agrees with its op's meaning, wherever it says that it can compute it.
#include <algorithm>
#include <utility>

#include <torch/autograd.h>
#include <torch/cuda.h>

#include <ditto/testing/checks.h>

#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

bool is_real(const Tensor& x) { return x.defined() && x.is_floating_point(); }

// Leaves in another dtype and place.
OpInputs moved(const OpInputs& inputs, at::Device device, at::ScalarType dtype) {
  OpInputs out{{}, inputs.attributes};
  for (const Tensor& x : inputs.tensors) {
    if (!x.defined()) {
      out.tensors.emplace_back();
      continue;
    }
    Tensor copy = x.detach().to(device, is_real(x) ? dtype : x.scalar_type(), false, true);
    out.tensors.push_back(copy.requires_grad_(x.requires_grad()));
  }
  return out;
}

struct Answer {
  Tensors outputs;
  Tensors grads;  // undefined where the input has none
};

Answer answer(const std::function<Tensors(const OpInputs&)>& compute, const OpInputs& inputs, bool with_gradient) {
  Answer found;
  torch::AutoGradMode mode(with_gradient);
  found.outputs = compute(inputs);
  if (!with_gradient) return found;
  Tensors roots, weights;
  for (const Tensor& out : found.outputs) {
    if (!out.requires_grad()) continue;
    roots.push_back(out);
    weights.push_back(normal("grad", out.sizes().vec()).to(out.options().requires_grad(false)));
  }
  torch::autograd::backward(roots, weights);
  for (const Tensor& x : inputs.tensors) found.grads.push_back(x.defined() ? x.grad() : Tensor());
  return found;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  const auto bytes = [](const Tensor& x) { return x.detach().contiguous().reshape({-1}).view(torch::kByte); };
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && bytes(a).equal(bytes(b));
}

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
      for (const Op::Case& one : op_.cases)
        for (const bool with_gradient : {false, true}) {
          if (with_gradient && (!row_.backward || !op_.leader.empty())) continue;
          std::string found;
          if (!agrees(one, dtype, with_gradient, found)) continue;
          if (!found.empty()) {
            problem = "case \"" + one.name + "\", " + c10::toString(dtype) + ", " + device_.str() + ": " + found;
            return agreed;
          }
          ++agreed;
        }
    return agreed;
  }

 private:
  // False where the row says that it cannot.
  bool agrees(const Op::Case& one, at::ScalarType dtype, bool with_gradient, std::string& problem) const {
    const OpInputs inputs = moved(one.inputs(dtype), device_, dtype);
    const OpInputs wide = moved(inputs, at::kCPU, at::kDouble);  // before the row updates some in place
    Answer found;
    try {
      found = answer(computed(), inputs, with_gradient);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::config) throw;
      return false;  // the pinned row cannot compute this
    }
    const Answer expected = answer(meant(), wide, with_gradient);
    const double tolerance = op_.tolerance(dtype);
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
    if (problem.empty() && row_.again) problem = difference_again(row_, inputs);
    return true;
  }

  // The row's results; of a family, what its ops are used for.
  std::function<Tensors(const OpInputs&)> computed() const {
    if (op_.leader.empty()) return [this](const OpInputs& in) { return table_.run(op_.name, in); };
    return [this](const OpInputs& in) { return use(table_.variant(op_.name, in), in); };
  }
  std::function<Tensors(const OpInputs&)> meant() const {
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
        const auto found = answer([&](const OpInputs& in) { return table.run(op.name, in); }, inputs, with_gradient);
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
    if (!grad) continue;
    const auto found = answer(op.reference, moved(inputs, at::kCPU, at::kDouble), true);
    for (size_t i = 0; i < inputs.tensors.size(); ++i)
      if (inputs.tensors[i].defined() && inputs.tensors[i].requires_grad() && !found.grads[i].defined())
        return "case \"" + one.name + "\": input " + std::to_string(i) + " wants a gradient and gets none";
  }
  return {};
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
  for (const KernelRow& row : rows) {
    const auto& leader = all->op(row.op).leader;
    if (!leader.empty() && leader != row.op) continue;  // with its leader
    std::vector<KernelRow> family{row};
    for (const KernelRow& other : rows)
      if (!leader.empty() && other.op != row.op && other.variant == row.variant && all->op(other.op).leader == leader)
        family.push_back(other);
    report.check(row.op + "/" + row.variant + " agrees with the reference wherever it can", [&] {
      std::string problem;
      int agreed = 0;
      for (const at::Device device : devices) {
        agreed += RowTest(row, family, added, device).run(problem);
        if (!problem.empty()) return problem;
      }
      return std::string(agreed > 0 ? "" : "it can compute no case on the devices of this machine");
    });
    if (!row.exact || !leader.empty()) continue;
    for (const KernelRow& other : rows)
      if (other.op == row.op && other.exact && other.variant < row.variant)
        report.check(row.op + "/" + row.variant + " has the bits of " + other.variant,
                     [&] { return difference_of_exact(row, other, added, all->op(row.op)); });
  }
  return report;
}

}  // namespace ditto::testing
