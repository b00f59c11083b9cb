// Gradients of parameters that a row adds to their sums itself, and where it may not.
#include <doctest/doctest.h>

#include <ATen/Context.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include "tests/unit/small_model.h"

namespace ditto {
namespace {

using torch::Tensor;

// A linear map that adds its weight's gradient where it is let, and how often it was.
struct Adding {
  Adding() {
    KernelRow row{"linear", "adding", [](const OpCall&) { return 5; },
                  [](const OpInputs& in) -> Tensors { return {in.tensor(0).matmul(in.tensor(1).t())}; },
                  [](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
                    return {grads[0].matmul(in.tensor(1)), of_weight(grads[0], in)};
                  }};
    row.backward_onto = [this](const Tensors& grads, const OpInputs& in, const Tensors&, const Tensors& sums) {
      REQUIRE(sums.size() == in.tensors.size());
      Tensors all{grads[0].matmul(in.tensor(1)), of_weight(grads[0], in)};
      if (sums[1].defined()) sums[1].add_(all[1]), all[1] = Tensor(), ++added;
      return all;
    };
    table.emplace(std::vector<KernelRow>{row});
  }
  static Tensor of_weight(const Tensor& grad, const OpInputs& in) {
    return grad.to(torch::kFloat).t().matmul(in.tensor(0).detach().to(torch::kFloat));
  }
  Tensor operator()(const Tensor& x, const Tensor& weight) const { return table->run("linear", {{x, weight, {}}})[0]; }

  std::optional<OpTable> table;
  int added = 0;
};

struct Weights {
  Parameter parameter{torch::arange(6, torch::kFloat).view({2, 3}).requires_grad_(), Init()};
  const Tensor& leaf = parameter.leaf();
  Tensor x = torch::arange(12, torch::kFloat).view({4, 3});
};

TEST_CASE("a second gradient of a parameter, or of its copy in another dtype, is added by the row that has it") {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    Adding linear;
    Weights w;
    const auto ctx = testing::small_context(dtype);
    const auto x = w.x.to(dtype);
    const auto backward = [&] { linear(x, w.parameter(*ctx)).sum().backward(); };
    backward();
    CHECK(linear.added == 0);  // there is no sum yet
    const auto once = w.leaf.grad().clone();
    CHECK((once.scalar_type() == torch::kFloat));
    const auto* const place = w.leaf.grad().data_ptr();
    backward();
    CHECK(linear.added == 1);
    CHECK(w.leaf.grad().data_ptr() == place);
    CHECK(w.leaf.grad().equal(once * 2));
    // Used twice in one forward, and by an op that adds nothing.
    const auto used = w.parameter(*ctx);
    (linear(x, used).sum() + linear(x, used).sum() + linear.table->run("silu", {{used}})[0].sum() * 0).backward();
    CHECK(linear.added == 3);
    CHECK(w.leaf.grad().equal(once * 4));
  }
}

TEST_CASE("autograd adds a gradient that anything looks at, that alone is asked for, or whose bits are promised") {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    Adding linear;
    Weights w;
    const auto ctx = testing::small_context(dtype);
    const auto x = w.x.to(dtype);
    const auto backward = [&] { linear(x, w.parameter(*ctx)).sum().backward(); };
    backward();
    const auto once = w.leaf.grad().clone();

    int seen = 0;
    const auto hook = w.leaf.register_hook([&](const Tensor& grad) {
      seen += grad.defined();
      return grad;
    });
    backward();
    w.leaf.remove_hook(hook);
    CHECK(seen == 1);
    CHECK(w.leaf.grad().equal(once * 2));

    const auto accumulator = torch::autograd::impl::grad_accumulator(w.leaf);
    struct Sees : torch::autograd::FunctionPostHook {
      explicit Sees(int& of) : seen(of) {}
      torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                                const torch::autograd::variable_list& inputs) override {
        seen += inputs.at(0).defined();
        return outputs;
      }
      int& seen;
    };
    const auto key = accumulator->add_post_hook(std::make_unique<Sees>(seen));
    backward();
    accumulator->del_post_hook(key);
    CHECK(seen == 2);
    CHECK(w.leaf.grad().equal(once * 3));

    const auto alone = torch::autograd::grad({linear(x, w.parameter(*ctx)).sum()}, {w.leaf});
    CHECK(alone.at(0).to(torch::kFloat).equal(once));
    const auto input = x.detach().requires_grad_();
    CHECK(torch::autograd::grad({linear(input, w.parameter(*ctx)).sum()}, {input}).at(0).defined());
    CHECK(w.leaf.grad().equal(once * 3));

    at::globalContext().setDeterministicAlgorithms(true, false);
    backward();
    at::globalContext().setDeterministicAlgorithms(false, false);
    CHECK(w.leaf.grad().equal(once * 4));
    CHECK(linear.added == 0);

    const auto doubled = w.parameter(*ctx) * 1;  // something stands between
    linear(x, doubled).sum().backward();
    CHECK(linear.added == 0);
    CHECK(w.leaf.grad().equal(once * 5));
  }
}

}  // namespace
}  // namespace ditto
