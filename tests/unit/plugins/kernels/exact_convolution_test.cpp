// Claim (one number): A convolution is the linear layer of its unfolded places, bit for bit, forward and back, in every
// variant and on any number of threads; a transposed one is its input gradient with roles exchanged.
#include <doctest/doctest.h>

#include "tests/unit/exact_rows.h"

namespace ditto::exact {
namespace {

using List = std::vector<int64_t>;

struct Call {
  List x, kernel, stride, before, after;
  int64_t out;
  List in_leaves = {}, out_leaves = {};
  bool bias = true, bf16 = false;
  size_t sides() const { return kernel.size(); }
  int64_t taps() const { return c10::multiply_integers(kernel); }
};

std::vector<Call> calls() {
  return {{{3, 5, 6, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 17},
          {{2, 16, 9, 33}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 50, {4, 16}, {5, 20, 30}},
          {{2, 12, 8, 8}, {4, 4}, {2, 2}, {1, 1}, {1, 1}, 24, {3, 12}, {2, 8, 16}, false},
          {{1, 4, 11, 6}, {3, 2}, {2, 3}, {2, 0}, {0, 1}, 3},
          {{2, 3, 5, 5}, {2, 2}, {3, 3}, {0, 0}, {0, 0}, 7},  // places that no kernel reaches
          {{2, 20, 4, 4}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, 31},
          {{2, 3, 2, 2}, {5, 5}, {1, 1}, {4, 4}, {4, 4}, 6},  // windows without a place
          {{4, 7, 29}, {5}, {2}, {1}, {3}, 13},
          {{2, 3, 4, 5, 6}, {3, 1, 3}, {1, 1, 2}, {2, 0, 1}, {0, 0, 1}, 9},
          {{2, 2, 71, 70}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 3},  // a sample of more places than one product takes
          {{7, 3, 36, 36}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 5},  // and samples of which one takes three
          {{3, 8, 6, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 17, {2, 8}, {}, true, true},
          {{3, 8, 6, 7}, {4, 4}, {2, 2}, {1, 1}, {1, 1}, 12, {}, {3, 12}, true, true}};
}

std::string name_of(const Call& call) { return c10::str(call.x, " by ", call.kernel, call.bf16 ? " in bf16" : ""); }

// Zeros at the ends of a map's sides; fewer than none: so many places less.
Tensor padded(const Tensor& x, const List& before, const List& after) {
  List ends;
  for (size_t side = before.size(); side-- > 0;) ends.insert(ends.end(), {before[side], after[side]});
  return torch::constant_pad_nd(x, ends);
}

// [B, places, C, taps] of a map that has its padding.
Tensor unfolded(Tensor x, const List& kernel, const List& stride) {
  const auto sides = static_cast<int64_t>(kernel.size());
  for (int64_t side = 0; side < sides; ++side)
    x = x.unfold(side + 2, kernel[static_cast<size_t>(side)], stride[static_cast<size_t>(side)]);
  List order{0};
  for (int64_t side = 0; side < sides; ++side) order.push_back(side + 2);
  order.push_back(1);
  for (int64_t side = 0; side < sides; ++side) order.push_back(side + 2 + sides);
  const auto places = x.permute(order);  // [B, places…, C, kernel…]
  return places.reshape({x.size(0), -1, x.size(1), c10::multiply_integers(kernel)});
}

// For each place of a map of these sides, what an output gives to it: a map with zeros between its places, unfolded,
// taps in the weight's order.
Tensor scattered(const Tensor& outputs, const Call& call, at::IntArrayRef sides) {
  List shape = outputs.sizes().vec(), before, after;
  for (size_t side = 0; side < call.sides(); ++side) {
    shape[side + 2] = (shape[side + 2] - 1) * call.stride[side] + 1;
    before.push_back(call.kernel[side] - 1 - call.before[side]);
    after.push_back(sides[side] + call.kernel[side] - 1 - before[side] - shape[side + 2]);
  }
  auto apart = torch::zeros(shape), places = apart;
  for (size_t side = 0; side < call.sides(); ++side)
    places = places.slice(static_cast<int64_t>(side) + 2, 0, std::nullopt, call.stride[side]);
  places.copy_(outputs);
  return unfolded(padded(apart, before, after), call.kernel, List(call.sides(), 1)).flip(3);
}

Tensor as_rows(const Tensor& map) { return map.flatten(2).transpose(1, 2).contiguous(); }  // [B, places, C]
Tensor as_map(const Tensor& rows, const List& shape) { return rows.transpose(1, 2).reshape(shape); }

std::map<std::string, Attribute> of_linear(const Call& call, const List& in_leaves, const List& out_leaves = {}) {
  std::map<std::string, Attribute> attributes{{"token_leaf", int64_t{32}}};
  for (const auto& [name, list] : {std::pair{"in_leaves", in_leaves}, {"out_leaves", out_leaves}}) {
    if (list.empty()) continue;
    List of_taps = list;
    for (size_t i = 1; i < of_taps.size(); ++i) of_taps[i] *= call.taps();
    attributes[name] = of_taps;
  }
  if (call.bf16) attributes["bf16"] = true;
  return attributes;
}

// Today's linear: of rows [B, places, channels, taps] with a weight [N, channels, taps].
Tensor linear(const Call& call, const Tensor& rows, const Tensor& weight, const Tensor& bias, const List& leaves) {
  return row_of("linear").forward({{rows.flatten(2), weight.flatten(1), bias}, of_linear(call, leaves)}).at(0);
}
Tensors linear_back(const Call& call, const Tensor& rows, const Tensor& weight, const Tensor& grad) {
  return row_of("linear").backward(
      {grad}, {{rows.flatten(2), weight.flatten(1), numbers({weight.size(0)}, 9)}, of_linear(call, {})}, {});
}

struct Tried {
  std::string op;
  OpInputs in;
  Answer expected;
};

std::map<std::string, Attribute> of_window(const Call& call, bool transposed) {
  auto attributes = std::map<std::string, Attribute>{{"stride", call.stride}, {"token_leaf", int64_t{32}}};
  if (transposed)
    attributes["padding"] = call.before;
  else
    attributes["before"] = call.before, attributes["after"] = call.after;
  if (!call.in_leaves.empty()) attributes["in_leaves"] = call.in_leaves;
  if (!call.out_leaves.empty()) attributes["out_leaves"] = call.out_leaves;
  if (call.bf16) attributes["bf16"] = true;
  return attributes;
}

Tried convolution(const Call& call) {
  const int64_t channels = call.x[1], taps = call.taps();
  List shape{call.out, channels};
  shape.insert(shape.end(), call.kernel.begin(), call.kernel.end());
  const Tensor x = numbers(call.x, 1), weight = numbers(shape, 2), bias = call.bias ? numbers({call.out}, 3) : Tensor();
  const auto rows = unfolded(padded(x, call.before, call.after), call.kernel, call.stride);
  const auto w = weight.reshape({call.out, channels, taps});
  List outputs{call.x[0], call.out};
  for (size_t side = 0; side < call.sides(); ++side)
    outputs.push_back(
        (call.x[side + 2] + call.before[side] + call.after[side] - call.kernel[side]) / call.stride[side] + 1);
  const auto y = as_map(linear(call, rows, w, bias, call.in_leaves), outputs);
  const auto grad = grad_of(y);
  const auto back = linear_back(call, rows, w, as_rows(grad));
  const auto to_places = scattered(grad, call, x.sizes().slice(2));
  const auto dx = linear(call, to_places, w.transpose(0, 1).contiguous(), torch::zeros({channels}), call.out_leaves);
  return {"conv",
          {{x, weight, bias}, of_window(call, false)},
          {y, {as_map(dx, call.x), back[1].view(shape), call.bias ? back[2] : Tensor()}}};
}

// `call.x` is given; the map that comes out is what a convolution of this window would make it of.
Tried transposed(const Call& call) {
  const int64_t channels = call.x[1], taps = call.taps();
  List shape{channels, call.out}, map{call.x[0], call.out};
  shape.insert(shape.end(), call.kernel.begin(), call.kernel.end());
  for (size_t side = 0; side < call.sides(); ++side)
    map.push_back((call.x[side + 2] - 1) * call.stride[side] + call.kernel[side] - 2 * call.before[side]);
  const Tensor x = numbers(call.x, 1), weight = numbers(shape, 2), bias = call.bias ? numbers({call.out}, 3) : Tensor();
  const auto w = weight.reshape({channels, call.out, taps});
  const auto to_places = scattered(x, call, at::IntArrayRef(map).slice(2));
  const auto y = as_map(linear(call, to_places, w.transpose(0, 1).contiguous(), bias, call.in_leaves), map);
  const auto grad = grad_of(y);
  const auto rows = unfolded(padded(grad, call.before, call.before), call.kernel, call.stride);
  const auto dx = linear(call, rows, w, torch::zeros({channels}), call.out_leaves);
  const auto back = linear_back(call, rows, w, as_rows(x));
  const auto dbias = linear_back(call, as_rows(grad).unsqueeze(3), numbers({call.out, call.out, 1}, 4), as_rows(grad));
  return {"conv_transposed",
          {{x, weight, bias}, of_window(call, true)},
          {y, {as_map(dx, call.x), back[1].view(shape), call.bias ? dbias[2] : Tensor()}}};
}

void check(const Tried& tried, const std::string& name) {
  // One more variant is of bf16 alone.
  for (const auto& variant : tried.in.flag("bf16") ? variants_of(tried.op) : variants())
    for (const int threads : {1, 3}) {
      at::set_num_threads(threads);
      const auto found = answer(row_of(tried.op, variant), tried.in);
      CHECK_MESSAGE(same_bits(found.out, tried.expected.out), tried.op, " ", name, ", ", variant);
      for (size_t i = 0; i < 3; ++i)
        CHECK_MESSAGE(same_bits(found.grads.at(i), tried.expected.grads[i]), tried.op, " ", name, ", ", variant,
                      ", gradient ", i);
    }
  at::set_num_threads(1);
}

TEST_CASE("a convolution has the bits of linear over its unfolded places, and its gradients of linear's") {
  REQUIRE(variants_of("conv").size() >= variants().size());
  for (const auto& call : calls()) check(convolution(call), name_of(call));
}

TEST_CASE("a transposed convolution has those of linear over the places of a map with zeros between them") {
  for (const auto& call : calls()) {
    bool has_places = true;
    for (size_t side = 0; side < call.sides(); ++side)
      has_places = has_places && (call.x[side + 2] - 1) * call.stride[side] + call.kernel[side] > 2 * call.before[side];
    if (has_places && call.x[2] < 70) check(transposed(call), name_of(call));
  }
}

TEST_CASE("a convolution's node of channels has the bits of its part of the tree, and two of them those of the whole") {
  const Call call{{2, 12, 5, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 8, {3, 12}, {}, false};
  const auto whole = convolution(call);
  const auto row = row_of("conv", variants()[0]);
  const auto part = [&](int64_t first, int64_t count) {
    auto in = whole.in;
    in.tensors[0] = in.tensors[0].narrow(1, first * 4, count * 4);
    in.tensors[1] = in.tensors[1].narrow(1, first * 4, count * 4);
    in.attributes["in_leaves"] = List{count, count * 4};
    return row.forward(in).at(0);
  };
  CHECK(same_bits(part(0, 2) + part(2, 1), whole.expected.out));
  CHECK(!same_bits(part(0, 1) + part(1, 2), whole.expected.out));
}

TEST_CASE("maps without samples, or without places, have results") {
  for (const auto& variant : variants()) {
    for (const List& shape : {List{0, 4, 5, 5}, List{2, 4, 0, 5}}) {
      const OpInputs in{
          {numbers(shape, 1), numbers({3, 4, 3, 3}, 2), numbers({3}, 3)},
          {{"stride", List{1, 1}}, {"before", List{1, 1}}, {"after", List{1, 1}}, {"token_leaf", int64_t{8}}}};
      const auto found = answer(row_of("conv", variant), in);
      CHECK(found.out.numel() == 0);
      CHECK((found.grads.at(0).sizes() == in.tensors[0].sizes()));
      for (const size_t i : {1, 2}) CHECK(found.grads.at(i).equal(torch::zeros_like(in.tensors[i])));
    }
    const OpInputs norm{{numbers({0, 4, 5, 5}, 1), numbers({4}, 2), numbers({4}, 3), {}, {}},
                        {{"groups", int64_t{2}}, {"eps", 1e-5}, {"silu", true}, {"token_leaf", int64_t{8}}}};
    const auto found = answer(row_of("group_norm", variant), norm);
    CHECK(found.out.numel() == 0);
    for (const size_t i : {1, 2}) CHECK(found.grads.at(i).equal(torch::zeros({4})));
  }
}

TEST_CASE("a group norm's output is made again by the same bits") {
  const auto rows = [](int64_t which) { return numbers({3, 12}, which); };
  const OpInputs in{{numbers({3, 12, 7, 3}, 1), numbers({12}, 2), numbers({12}, 3), rows(4), rows(5)},
                    {{"groups", int64_t{4}}, {"eps", 1e-5}, {"silu", true}, {"token_leaf", int64_t{8}}}};
  for (const auto& variant : variants()) {
    const auto row = row_of("group_norm", variant);
    auto results = row.forward(in);
    const auto y = results[0];
    results[0] = Tensor();
    CHECK(same_bits(row.again(in, results), y));
  }
}

TEST_CASE("a group norm of some of the groups has the bits of all of them") {
  const auto of = [](int64_t first, int64_t count) -> OpInputs {
    const auto channels = [&](const Tensor& x, int64_t dim) { return x.narrow(dim, first * 3, count * 3); };
    return {{channels(numbers({2, 12, 5, 7}, 1), 1), channels(numbers({12}, 2), 0), channels(numbers({12}, 3), 0),
             channels(numbers({2, 12}, 4), 1), channels(numbers({2, 12}, 5), 1)},
            {{"groups", count}, {"eps", 1e-5}, {"silu", true}, {"token_leaf", int64_t{8}}}};
  };
  for (const auto& variant : variants()) {
    const auto row = row_of("group_norm", variant);
    const auto grad = numbers({2, 12, 5, 7}, 11);
    const auto whole = answer(row, of(0, 4), grad);
    for (const int64_t first : {0, 1}) {
      const auto found = answer(row, of(first, 3), grad.narrow(1, first * 3, 9));
      const auto same = [&](const Tensor& part, const Tensor& all, int64_t dim) {
        return same_bits(part, all.narrow(dim, first * 3, 9));
      };
      CHECK(same(found.out, whole.out, 1));
      for (const size_t i : {0, 3, 4}) CHECK(same(found.grads.at(i), whole.grads.at(i), 1));
      for (const size_t i : {1, 2}) CHECK(same(found.grads.at(i), whole.grads.at(i), 0));
    }
  }
}

}  // namespace
}  // namespace ditto::exact
