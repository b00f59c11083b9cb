// The promises of a kernel plugin: every row agrees with its op's meaning, wherever it says that it can compute it.
#include <ditto/testing/checks.h>

#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

bool is_real(const Tensor& x) { return x.defined() && x.is_floating_point(); }

// Leaves in another dtype and place.
OpInputs moved(const OpInputs& inputs, at::Device device, at::ScalarType dtype) {
  OpInputs out{{}, inputs.numbers};
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
  Tensor out;
  std::vector<Tensor> grads;  // undefined where the input has none
};

Answer answer(const std::function<Tensor(const OpInputs&)>& compute, const OpInputs& inputs, bool with_gradient) {
  Answer found;
  torch::AutoGradMode mode(with_gradient);
  found.out = compute(inputs);
  if (!with_gradient) return found;
  const Tensor weights = normal("grad", found.out.sizes().vec()).to(found.out.options().requires_grad(false));
  found.out.backward(weights);
  for (const Tensor& x : inputs.tensors) found.grads.push_back(x.defined() ? x.grad() : Tensor());
  return found;
}

class RowTest {
 public:
  RowTest(const KernelRow& row, const Op& op, at::Device device)
      : row_(row), op_(op), device_(device), table_({row}, {{row.op, GivenOption{row.variant, "the test"}}}) {}

  // How often the row said that it can, and was right. `problem`: where it was not.
  int run(std::string& problem) {
    int agreed = 0;
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
      for (const Op::Case& one : op_.cases)
        for (const bool with_gradient : {false, true}) {
          if (with_gradient && !row_.backward) continue;
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
    Answer found;
    try {
      found = answer([&](const OpInputs& in) { return table_.run(op_.name, in); }, inputs, with_gradient);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::config) throw;
      return false;  // the pinned row cannot compute this
    }
    const Answer expected = answer(op_.reference, moved(inputs, at::kCPU, at::kDouble), with_gradient);
    const double tolerance = op_.tolerance(dtype);
    problem = difference(found.out, expected.out, tolerance);
    for (size_t i = 0; problem.empty() && i < expected.grads.size(); ++i)
      if (auto found_grad = difference(found.grads[i], expected.grads[i], tolerance); !found_grad.empty())
        problem = "the gradient of input " + std::to_string(i) + " " + found_grad;
    return true;
  }

  const KernelRow& row_;
  const Op& op_;
  at::Device device_;
  OpTable table_;
};

}  // namespace

Report check_kernels(const std::string& path, const OptionValues& options) {
  Report report("kernels " + path);
  std::shared_ptr<KernelSet> set;
  report.check("it can be made, and has rows", [&] {
    set = make<KernelSet>(path, options);
    return std::string(set->rows().empty() ? "there are none" : "");
  });
  if (!set) return report;
  std::vector<at::Device> devices{at::kCPU};
  if (torch::cuda::is_available()) devices.emplace_back(at::kCUDA, 0);
  for (const KernelRow& row : set->rows())
    report.check(row.op + "/" + row.variant + " agrees with the reference wherever it can", [&] {
      std::string problem;
      int agreed = 0;
      for (const at::Device device : devices) {
        agreed += RowTest(row, op(row.op), device).run(problem);
        if (!problem.empty()) return problem;
      }
      return std::string(agreed > 0 ? "" : "it can compute no case on the devices of this machine");
    });
  return report;
}

}  // namespace ditto::testing
