// Kernels for gated_residual (x + gate * y) and for norm_modulate that are wrong in one way, as the option says.
#include <torch/types.h>

#include <ditto/kernels.h>
#include <ditto/plugin.h>

namespace {

using ditto::OpInputs;
using torch::Tensor;

struct Options {
  std::string fault = "none";
  int64_t which = 0;
  void read(ditto::OptionReader& option) {
    option("fault", fault, "the promise to break");
    option("which", which, "of \"takes for contiguous\": the input");
  }
};

Tensor spread(const Tensor& rows, const Tensor& sample) {
  return sample.defined() ? rows.index_select(0, sample).unsqueeze(0) : rows.unsqueeze(1);
}
// The sum over a sample's tokens of x [B, T, D].
Tensor gathered(const Tensor& x, const Tensor& rows, const Tensor& sample) {
  return sample.defined() ? torch::zeros_like(rows).index_add(0, sample, x.squeeze(0)) : x.sum(1);
}

class Faulty final : public ditto::KernelSet {
 public:
  using Options = ::Options;
  Faulty(const Options& options, const Needs&) : options_(options) {}

  std::vector<ditto::KernelRow> rows() const override {
    auto row = gated();
    if (options_.fault != "other bits") return {row, normed()};
    // Two that say they are exact, and round in other ways.
    row.exact = true;
    auto other = row;
    row.variant = "exact_a", other.variant = "exact_b";
    other.forward = [](const OpInputs& in) -> ditto::Tensors {
      const auto& t = in.tensors;
      return {t[0] + spread(t[1], t[3]) * (t[2] / 3) * 3};
    };
    return {row, other};
  }

 private:
  // An input, or its numbers as they would follow one another.
  Tensor input(const OpInputs& in, size_t i, bool backward) const {
    const Tensor& x = in.tensor(i);
    const bool is_mistaken = options_.fault == (backward ? "takes for contiguous, backward" : "takes for contiguous");
    if (!is_mistaken || static_cast<size_t>(options_.which) != i || !x.defined()) return x;
    return torch::from_blob(x.data_ptr(), x.sizes(), x.options().requires_grad(false)).clone();
  }

  ditto::KernelRow gated() const {
    ditto::KernelRow row{"gated_residual", "faulty", {}, {}, {}};
    row.score = [*this](const ditto::OpCall& call) {
      return options_.fault == "never"                                                    ? 0
             : options_.fault == "contiguous x" && !call.inputs.tensor(0).is_contiguous() ? 0
                                                                                          : 5;
    };
    row.forward = [*this](const OpInputs& in) -> ditto::Tensors {
      const Tensor x = input(in, 0, false), y = input(in, 2, false),
                   sample = options_.fault == "ignores packs" ? Tensor() : in.tensor(3);
      auto gate = input(in, 1, false);
      if (options_.fault == "copies") gate = gate.contiguous();
      if (options_.fault == "contiguous x")
        gate = torch::from_blob(gate.data_ptr(), gate.sizes(), gate.options().requires_grad(false)).clone();
      return {x + spread(gate, sample) * y * (options_.fault == "forward" ? 1.5 : 1.0)};
    };
    row.copies = options_.fault != "copies";  // rows of a pack, where they lie otherwise
    row.backward = [*this](const ditto::Tensors& grads, const OpInputs& in, const ditto::Tensors&) -> ditto::Tensors {
      const Tensor gate = input(in, 1, true), y = input(in, 2, true);
      const Tensor& grad = grads[0];
      return {grad, gathered(grad * y, in.tensor(1), in.tensor(3)),
              grad * spread(gate, in.tensor(3)) * (options_.fault == "backward" ? 0.5 : 1.0)};
    };
    return row;
  }

  // Forward alone, of no packs: it copies nothing.
  ditto::KernelRow normed() const {
    ditto::KernelRow row{"norm_modulate", "faulty", {}, {}, {}};
    row.score = [](const ditto::OpCall& call) {
      const bool is_pack = call.inputs.tensor(3).defined();
      return !is_pack && (call.dtype == torch::kFloat || call.dtype == torch::kDouble) ? 5 : 0;
    };
    row.forward = [*this](const OpInputs& in) -> ditto::Tensors {
      const Tensor x = input(in, 0, false), shift = input(in, 1, false), scale = input(in, 2, false);
      const auto centred = x - x.mean(-1, true);
      const auto normal = centred * torch::rsqrt(centred.square().mean(-1, true) + in.number("eps"));
      return {normal * (1 + spread(scale, in.tensor(3))) + spread(shift, in.tensor(3))};
    };
    return row;
  }

  Options options_;
};

}  // namespace

DITTO_PLUGIN(KernelSet, Faulty, "faulty_kernels", "1.0.0", "Apache-2.0", "is wrong in one way")
