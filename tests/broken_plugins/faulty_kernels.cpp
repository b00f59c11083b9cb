// A kernel for gated_residual (x + gate * y) that is wrong in one way, as its option says.
#include <torch/types.h>

#include <ditto/kernels.h>
#include <ditto/plugin.h>

namespace {

using ditto::OpInputs;
using torch::Tensor;

struct Options {
  std::string fault = "none";
  void read(ditto::OptionReader& option) { option("fault", fault, "the promise to break"); }
};

class Faulty final : public ditto::KernelSet {
 public:
  using Options = ::Options;
  Faulty(const Options& options, const Needs&) : fault_(options.fault) {}

  std::vector<ditto::KernelRow> rows() const override {
    const std::string fault = fault_;
    const auto spread = [](const Tensor& rows, const Tensor& sample) {
      return sample.defined() ? rows.index_select(0, sample).unsqueeze(0) : rows.unsqueeze(1);
    };
    ditto::KernelRow row{"gated_residual", "faulty", {}, {}, {}};
    row.score = [fault](const ditto::OpCall&) { return fault == "never" ? 0 : 5; };
    row.forward = [fault, spread](const OpInputs& in) -> ditto::Tensors {
      const auto& t = in.tensors;
      return {t[0] +
              spread(t[1], fault == "ignores packs" ? Tensor() : t[3]) * t[2] * (fault == "forward" ? 1.5 : 1.0)};
    };
    row.backward = [fault, spread](const ditto::Tensors& grads, const OpInputs& in,
                                   const ditto::Tensors&) -> ditto::Tensors {
      const auto& t = in.tensors;
      const Tensor& grad = grads[0];
      const Tensor product = grad * t[2];
      const Tensor gate =
          t[3].defined() ? torch::zeros_like(t[1]).index_add(0, t[3], product.squeeze(0)) : product.sum(1);
      return {grad, gate, grad * spread(t[1], t[3]) * (fault == "backward" ? 0.5 : 1.0)};
    };
    if (fault != "other bits") return {row};
    // Two that say they are exact, and round in other ways.
    row.exact = true;
    auto other = row;
    row.variant = "exact_a", other.variant = "exact_b";
    other.forward = [spread](const OpInputs& in) -> ditto::Tensors {
      const auto& t = in.tensors;
      return {t[0] + spread(t[1], t[3]) * (t[2] / 3) * 3};
    };
    return {row, other};
  }

 private:
  std::string fault_;
};

}  // namespace

DITTO_PLUGIN(KernelSet, Faulty, "faulty_kernels", "1.0.0", "Apache-2.0", "is wrong in one way")
