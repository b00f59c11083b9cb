// Ops that plugins add, the choice among rows by the whole call, composites, and families of opaque results.
#include <algorithm>
#include <set>

#include <doctest/doctest.h>

#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/nn.h>

#include "tests/unit/small_model.h"

namespace ditto {
namespace {

using torch::Tensor;

// Twice x, and its square.
Op both() {
  Op op{"both", "x -> 2 x, x^2",
        {},     [](const OpInputs& in) -> Tensors {
          return {in.tensor(0) * 2, in.tensor(0).square()}; },
        {},     [](at::ScalarType) { return 1e-12; }};
  op.outputs = 2;
  op.added_by = "mine";
  return op;
}

// What no case has no kernel is held to.
TEST_CASE("of attention's cases those have a bias or a mask that are named for it") {
  std::set<std::string> biased, masked;
  for (const Op& op : ops())
    for (const auto& one : op.name == "attention" ? op.cases : std::vector<Op::Case>{}) {
      const auto in = one.inputs(torch::kDouble);
      if (in.tensors.at(3).defined()) masked.insert(one.name);
      if (in.tensors.size() > 4 && in.tensors[4].defined()) biased.insert(one.name);
    }
  CHECK(biased == std::set<std::string>{"biased", "biased, in leaves"});
  CHECK(masked == std::set<std::string>{"cross, masked", "cross, masked, in leaves", "grouped", "grouped, in leaves",
                                        "packed", "packed, in leaves"});
}

TEST_CASE("an op that a plugin adds gives all its outputs, by its reference and by a row alike, with gradients") {
  KernelRow row{"both", "fast", [](const OpCall&) { return 5; },
                [](const OpInputs& in) -> Tensors {
                  return {in.tensor(0) + in.tensor(0), in.tensor(0) * in.tensor(0), in.tensor(0).clone()};
                },
                [](const Tensors& grads, const OpInputs&, const Tensors& results) -> Tensors {
                  return {grads[0] * 2 + grads[1] * 2 * results.at(2)};
                }};
  for (const bool fast : {false, true}) {
    const OpTable table(fast ? std::vector<KernelRow>{row} : std::vector<KernelRow>(), {}, {}, {both()});
    const auto x = torch::tensor({1.0, 3.0}, torch::kDouble).requires_grad_();
    const auto y = table.run("both", {{x}});
    REQUIRE(y.size() == 2);
    (y[0] + 10 * y[1]).sum().backward();
    CHECK(y[1].detach().equal(torch::tensor({1.0, 9.0}, torch::kDouble)));
    CHECK(x.grad().equal(torch::tensor({22.0, 62.0}, torch::kDouble)));
    CHECK(table.chosen().begin()->second == (fast ? "fast" : "reference"));
    torch::NoGradGuard no_grad;
    CHECK(table.run("both", {{x.detach()}}).size() == 2);  // without what backward needs
  }
}

TEST_CASE(
    "an output that its row makes again is kept by nobody for backward, and what takes it has the same gradient") {
  int made = 0;
  const auto twice = [](const OpInputs& in) -> Tensors { return {in.tensor(0) * 2}; };
  const Op op{"twice", "x -> 2 x", {}, twice, {}, [](at::ScalarType) { return 1e-12; }};
  KernelRow first{"twice", "fast", [](const OpCall&) { return 5; }, twice,
                  [](const Tensors& grads, const OpInputs&, const Tensors& results) -> Tensors {
                    CHECK(!results.at(0).defined());
                    return {grads[0] * 2};
                  }};
  first.again = [&](const OpInputs& in, const Tensors& results) {
    CHECK(!results.at(0).defined());
    return ++made, twice(in)[0];
  };
  first.again_of = {0};
  const KernelRow second{"both", "fast", [](const OpCall&) { return 5; }, both().reference,
                         [](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
                           CHECK(in.tensor(0).requires_grad());
                           return {grads[0] * 2 + grads[1] * 2 * in.tensor(0)};
                         }};
  const OpTable table({first, second}, {}, {}, {both(), op});
  const auto x = torch::tensor({1.0, 3.0}, torch::kDouble).requires_grad_();
  const auto take = [&](const auto& between) {
    x.mutable_grad().reset(), made = 0;
    auto y = between(table.run("twice", {{x}})[0]);
    const auto numbers = y.storage().getWeakStorageImpl();
    const auto z = table.run("both", {{y}});
    y = Tensor();
    const bool kept = !numbers.expired();
    (z[0] + z[1]).sum().backward();
    return kept;
  };
  CHECK(!take([](const Tensor& y) { return y; }));
  CHECK(made == 1);
  CHECK(x.grad().equal(torch::tensor({12.0, 28.0}, torch::kDouble)));
  CHECK(!take([&](const Tensor& y) { return table.run("twice", {{y}})[0]; }));  // that needs its input made again
  CHECK(made == 3);                                                             // once for itself, too
  CHECK(x.grad().equal(torch::tensor({40.0, 104.0}, torch::kDouble)));
  // Something stands between the two.
  CHECK(take([](const Tensor& y) { return y.view({2}); }));
  CHECK(made == 0);
  CHECK(x.grad().equal(torch::tensor({12.0, 28.0}, torch::kDouble)));
}

TEST_CASE("a row's backward is given contiguous gradients, or as they lie where it says that it takes any") {
  for (const bool any : {false, true}) {
    bool contiguous = false;
    KernelRow row{"both", "fast", [](const OpCall&) { return 5; }, both().reference,
                  [&](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
                    contiguous = grads[0].is_contiguous();
                    return {grads[0] * 2 + grads[1] * 2 * in.tensor(0)};
                  }};
    row.any_gradient = any;
    const OpTable table({row}, {}, {}, {both()});
    const auto x = torch::ones({2, 3}, torch::kDouble).requires_grad_();
    const auto y = table.run("both", {{x}});
    const auto one = torch::ones({1, 1}, torch::kDouble).expand({2, 3});
    torch::autograd::backward({y[0], y[1]}, {one, one});
    CHECK(contiguous == !any);
    CHECK(x.grad().equal(torch::full({2, 3}, 4, torch::kDouble)));
  }
}

TEST_CASE("an op that is added twice, or as one of the SDK's, is refused with both makers") {
  auto other = both();
  other.added_by = "yours";
  CHECK_THROWS_WITH_AS(OpTable({}, {}, {}, {both(), other}), doctest::Contains("kernels 'yours', and kernels 'mine'"),
                       Error);
  other.name = "attention";
  CHECK_THROWS_WITH_AS(OpTable({}, {}, {}, {other}), doctest::Contains("kernels 'yours', and the SDK"), Error);
}

TEST_CASE("an op that no plugin of the run has is refused by name, when a model asks for it") {
  const auto ctx = testing::small_context(torch::kFloat);
  CHECK_THROWS_WITH_AS(ctx->ops.run("my_op", {{torch::ones({2})}}),
                       doctest::Contains("op \"my_op\": is neither the SDK's nor added"), Error);
}

TEST_CASE("an op without a gradient is refused where one is asked for, and computes where none is") {
  auto op = both();
  op.reference = [](const OpInputs& in) -> Tensors { return {in.tensor(0).detach() * 2, in.tensor(0).detach()}; };
  const OpTable table({}, {}, {}, {op});
  const auto x = torch::ones({2}).requires_grad_();
  CHECK_THROWS_WITH_AS(table.run("both", {{x}}), doctest::Contains("op \"both\": is asked for a gradient"), Error);
  CHECK(table.run("both", {{x.detach()}}).size() == 2);
}

TEST_CASE("a score sees the whole call, and a row is not offered attributes that it does not know") {
  const auto reference = [](const char* name) {
    for (const Op& op : ops())
      if (op.name == name) return op.reference;
    return std::function<Tensors(const OpInputs&)>();
  };
  KernelRow row{"attention",
                "short",
                [](const OpCall& call) { return call.inputs.tensor(1).size(1) < 5 ? 5 : 0; },
                reference("attention"),
                {}};
  const auto x = [](int64_t tokens) { return torch::ones({1, tokens, 2, 4}); };
  const auto variants = [&](const KernelRow& with, const OpInputs& in) {
    const OpTable table({with});
    table.run("attention", in);
    return table.chosen().begin()->second;
  };
  CHECK(variants(row, {{x(6), x(4), x(4), {}}}) == "short");  // the second tensor's size decides
  CHECK(variants(row, {{x(6), x(6), x(6), {}}}) == "reference");
  const OpInputs pack{{x(4), x(4), x(4), {}}, {{"lengths", std::vector<int64_t>{1, 3}}}};
  CHECK(variants(row, pack) == "reference");
  row.knows = {"lengths"};
  CHECK(variants(row, pack) == "short");
  const OpTable table({row});
  table.run("attention", {{x(6), x(4), x(4), {}}});
  table.run("attention", {{x(6), x(6), x(6), {}}});
  CHECK(table.chosen().begin()->second == "reference, short");  // one text, two choices
}

TEST_CASE("of a family one variant has all ops, and none is run or pinned by itself") {
  const OpInputs in{{torch::ones({1, 2, 1, 4}), torch::ones({1, 2, 1, 4}), torch::ones({1, 2, 1, 4})}};
  const KernelRow row{"attention_merge", "half", [](const OpCall&) { return 5; }, {}, {}};
  CHECK_THROWS_WITH_AS(OpTable({row}), doctest::Contains("has no row of this variant for \"attention_"), Error);
  const OpTable table;
  CHECK_THROWS_WITH_AS(table.run("attention_partial", in), doctest::Contains("opaque"), Error);
  CHECK(table.variant("attention_partial", in) == "reference");
  CHECK_THROWS_WITH_AS(OpTable({}, {{"attention_merge", {std::string("reference"), "the test"}}}),
                       doctest::Contains("pin kernels.attention_partial"), Error);
}

TEST_CASE("an attribute that is missing or of another type is named") {
  const OpInputs in{{}, {{"eps", int64_t{1}}}};
  CHECK_THROWS_WITH_AS(in.number("eps"), doctest::Contains("\"eps\": is not a number"), Error);
  CHECK_THROWS_WITH_AS(in.list("lengths"), doctest::Contains("\"lengths\": is not given"), Error);
}

struct Maps : Layer {
  Maps() : up(linear("up", 16, 24)), down(linear("down", 24, 8)) {}
  Linear up, down;
};

TEST_CASE("a perceptron is one op where nothing stands between its maps, no pin is of a part, and a row is there") {
  const torch::NoGradGuard no_grad;
  const ShapesAlone no_numbers;
  const auto first = [](const OpInputs& in) -> Tensors { return {in.tensor(0).new_empty({2, 5, 8})}; };
  KernelRow row{
      "mlp_gelu_tanh", "whole", [](const OpCall& call) { return call.device == torch::kCUDA ? 5 : 0; }, first, {}};
  row.shapes = first;
  using Pins = std::map<std::string, GivenOption>;
  std::map<std::string, double> operations;
  const auto is_one = [&](const std::function<void(Maps&, Context&)>& change, const Pins& pins = {},
                          at::DeviceType device = torch::kCUDA) {
    const auto table = std::make_shared<OpTable>(std::vector<KernelRow>{row}, pins);
    table->meta_stands_for = device;
    std::vector<std::string> ops;
    table->watch([&](const std::string& op, const OpInputs&, const Tensors&) { ops.push_back(op); });
    Context ctx(table, Random(1));
    Maps maps;
    operations.clear(), ctx.flops = &operations;
    change(maps, ctx);
    const auto y = ctx.ops.mlp_gelu_tanh(torch::empty({2, 5, 16}, torch::kMeta), maps.up, maps.down, ctx);
    CHECK(y.sizes() == torch::IntArrayRef{2, 5, 8});
    const bool one = ops == std::vector<std::string>{"mlp_gelu_tanh"};
    CHECK((one || std::count(ops.begin(), ops.end(), "mlp_gelu_tanh") == 0));
    return one;
  };
  const auto none = [](Maps&, Context&) {};
  const auto same = [](const Tensor& x) { return x; };
  CHECK(is_one(none));
  const auto of_one = operations;
  CHECK(!is_one(none, {}, torch::kCPU));
  CHECK(operations == of_one);
  CHECK(!is_one([&](Maps& maps, Context&) { maps.up->before = same; }));
  CHECK(!is_one([&](Maps& maps, Context&) { maps.up->after = same; }));
  CHECK(!is_one([&](Maps& maps, Context&) { maps.down->before = same; }));
  CHECK(!is_one([&](Maps& maps, Context&) { maps.down->after = same; }));
  CHECK(!is_one([](Maps& maps, Context&) { maps.up->adapt({2, 1}); }));
  CHECK(!is_one([](Maps& maps, Context&) { maps.down->adapt({2, 1}); }));
  CHECK(!is_one([](Maps&, Context& ctx) { ctx.token_leaf = 4; }));
  const auto pinned = [](const char* op, const char* variant) {
    return Pins{{op, {std::string(variant), "the test"}}};
  };
  CHECK(is_one(none, pinned("mlp_gelu_tanh", "whole")));
  CHECK(is_one(none, pinned("silu", "reference")));
  const auto whole = pinned("mlp_gelu_tanh", "whole");
  CHECK_THROWS_WITH_AS(is_one(none, whole, torch::kCPU), doctest::Contains("cannot compute it on a processor"), Error);
  CHECK_THROWS_WITH_AS(is_one(
                           [](Maps& maps, Context&) {
                             maps.up->adapt({2, 1});
                           },
                           whole),
                       doctest::Contains("the test: kernels.mlp_gelu_tanh = \"whole\" cannot compute it of maps that"),
                       Error);
  for (const char* op : {"mlp_gelu_tanh", "linear_gelu_tanh", "linear"}) CHECK(!is_one(none, pinned(op, "reference")));
  row.score = [](const OpCall&) { return 0; };
  CHECK(!is_one(none));
}

}  // namespace
}  // namespace ditto
