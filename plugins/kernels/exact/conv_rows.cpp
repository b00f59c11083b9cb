// Convolutions and transposed convolutions: each is the linear map of its unfolded places, forward or back, and either
// one's input gradient is the other with roles exchanged.
//
// Legend: S samples, I channels of the map that the window moves over, O those of its outputs, T taps of the kernel.
#include <algorithm>

#include "row_calls.h"
#include "window.h"

namespace ditto_exact {

namespace {

constexpr Index kPlaces = 4096;  // of one product of a weight's gradient: beyond, panels do not stay in a second cache

using Shape = std::vector<int64_t>;

void put_sides(at::IntArrayRef of, Index other, Index* sides) {  // of 1 to 3 the last ones
  const size_t first = 3 - of.size();
  for (size_t side = 0; side < 3; ++side) sides[side] = side < first ? other : of[side - first];
}

// Leaves of channels as leaves of their taps.
Terms of_taps(Terms terms, Index taps) {
  for (auto& run : terms.runs) run.start *= taps, run.length *= taps;
  for (auto& leaf : terms.cut) leaf.end *= taps;
  return terms;
}

// The shapes of a map [S, I, …] and of its window's outputs [S, O, …].
struct Setting {
  Setting(const OpInputs& in, Shape map_, Shape outputs_, const char* padding)
      : map(std::move(map_)), outputs(std::move(outputs_)) {
    put_sides(at::IntArrayRef(map).slice(2), 1, window.size);
    put_sides(at::IntArrayRef(outputs).slice(2), 1, window.outputs);
    put_sides(in.tensor(1).sizes().slice(2), 1, window.kernel);
    put_sides(in.list("stride"), 1, window.stride), put_sides(in.list(padding), 0, window.before);
  }
  Shape map, outputs;
  Window window{};
};

// `of_side`: the places that come out of a side.
template <class F>
Shape with_sides(const OpInputs& in, int64_t channels, F of_side) {
  Shape shape{in.tensor(0).size(0), channels};
  for (size_t side = 0; side < in.list("stride").size(); ++side)
    shape.push_back(of_side(in.tensor(0).sizes()[side + 2], in.tensor(1).sizes()[side + 2], side));
  return shape;
}
Setting of_conv(const OpInputs& in) {
  auto y = with_sides(in, in.tensor(1).size(0), [&](int64_t places, int64_t kernel, size_t side) {
    const int64_t room = places + in.list("before")[side] + in.list("after")[side] - kernel;
    return room < 0 ? 0 : room / in.list("stride")[side] + 1;
  });
  return {in, in.tensor(0).sizes().vec(), std::move(y), "before"};
}
Setting of_transposed(const OpInputs& in) {
  auto y = with_sides(in, in.tensor(1).size(1), [&](int64_t places, int64_t kernel, size_t side) {
    return most(0, (places - 1) * in.list("stride")[side] + kernel - 2 * in.list("padding")[side]);
  });
  return {in, std::move(y), in.tensor(0).sizes().vec(), "padding"};
}

// The three products of a window with a weight [O, I, T].
class Windowed {
 public:
  Windowed(const Kernels& k, const OpInputs& in, Setting setting)
      : k_(k),
        in_(in),
        at_(std::move(setting)),
        weight_(in.tensor(1).detach().contiguous()),
        zeros_(torch::zeros({std::max(at_.map[1], at_.outputs[1])}, torch::kFloat)) {}

  // The outputs, of the map. What is added is a bias, or none, or of a gradient +0.
  Tensor gathered(const Tensor& map, const char* leaves, const Tensor& added) const {
    auto y = torch::empty(at_.outputs, torch::kFloat);
    const auto terms = of_taps(Terms(in_, leaves, at_.map[1]), at_.window.taps());
    MapProduct p{unfolded(at_.window, numbers(map), at_.map[0], at_.map[1]),
                 at_.outputs[1],
                 numbers(weight_),
                 added.defined() ? numbers(added) : nullptr,
                 place(y),
                 {},
                 {0, 0, 0},
                 {1, 1, 1},
                 terms.order(),
                 in_.flag("bf16")};
    for (int side = 0; side < 3; ++side) p.y_size[side] = at_.window.outputs[side];
    k_.map_product(p, workers());
    return y;
  }

  // The map, of what its places get from the outputs.
  Tensor scattered(const Tensor& outputs, const char* leaves, const Tensor& added) const {
    auto map = torch::empty(at_.map, torch::kFloat);
    const Index O = at_.outputs[1], I = at_.map[1], taps = at_.window.taps();
    const Terms terms(in_, leaves, O);
    const Tensor weight = weight_.view({O, I, taps}).transpose(0, 1);
    for (const Phase& phase : phases(at_.window, numbers(outputs), at_.outputs[0], O)) {
      const auto here = static_cast<Index>(phase.taps.size());
      const Tensor own =
          (here == taps ? weight : weight.index_select(2, torch::tensor(phase.taps, torch::kLong))).contiguous();
      const auto own_terms = of_taps(terms, here);
      MapProduct p{phase.of,
                   I,
                   numbers(own),
                   added.defined() ? numbers(added) : nullptr,
                   place(map),
                   {},
                   {},
                   {},
                   own_terms.order(),
                   in_.flag("bf16")};
      for (int side = 0; side < 3; ++side)
        p.y_size[side] = at_.window.size[side], p.y_first[side] = phase.first[side], p.y_step[side] = phase.step[side];
      k_.map_product(p, workers());
    }
    return map;
  }

  // [O, I, …]: a tree over samples of trees over leaves of a sample's outputs, row by row. It is made in pieces that
  // are nodes of it: of so many samples, or of one's leaves.
  Tensor weight_grad(const Tensor& map, const Tensor& outputs) const {
    const Index S = at_.map[0], O = at_.outputs[1], leaf = token_leaf(in_);
    const Index P = at_.window.outputs[0] * at_.window.outputs[1] * at_.window.outputs[2], all = S * P;
    if (all == 0) return torch::zeros(weight_.sizes(), torch::kFloat);
    const bool whole = P <= kPlaces;
    Index run = whole ? 1 : leaf;
    while (2 * run * (whole ? P : 1) <= kPlaces) run *= 2;
    const Index length = whole ? run * P : run, within = whole ? all : P;
    const auto tree = whole ? ditto::exact::leaves(S, run) : nested(S, P, run);
    Tensors open;
    size_t piece = 0;
    for (Index base = 0; base < all; base += within)
      for (Index begin = base; begin < base + within; begin += length, ++piece) {
        const Index end = least(begin + length, base + within);
        open.push_back(torch::empty(weight_.sizes(), torch::kFloat));
        Terms terms(whole ? nested((end - begin) / P, P, leaf) : ditto::exact::leaves(end - begin, leaf));
        terms.runs.clear();
        for (Index from = begin; from < end; from += P)
          terms.runs.push_back({from / P * O * P + from % P, least(P, end - from)});
        k_.map_grad({unfolded(at_.window, numbers(map), S, at_.map[1]), O, begin, end, numbers(outputs),
                     numbers(zeros_), place(open.back()), terms.order(), in_.flag("bf16")},
                    workers());
        for (int merges = tree[piece].merges; merges > 0; --merges) merge(open);
      }
    return open[0];
  }

  const Tensor& zeros() const { return zeros_; }

 private:
  void merge(Tensors& open) const {
    const Tensor right = open.back();
    open.pop_back();
    const Tensor& left = open.back();
    in_parts(left.numel(), 1, [&](Index begin, Index end) {
      k_.add(numbers(left) + begin, numbers(right) + begin, place(left) + begin, end - begin);
    });
  }

  const Kernels& k_;
  const OpInputs& in_;
  const Setting at_;
  const Tensor weight_, zeros_;
};

int score_of(const Kernels& k, const OpCall& call, size_t channels_of_weight, const char* padding) {
  const Tensor &x = call.inputs.tensor(0), &weight = call.inputs.tensor(1);
  const auto sides = static_cast<size_t>(x.dim()) - 2;
  return fits_with_leaf(call) && x.dim() >= 3 && x.dim() <= 5 && weight.dim() == x.dim() &&
                 weight.size(static_cast<int64_t>(channels_of_weight)) == x.size(1) &&
                 call.inputs.list("stride").size() == sides && call.inputs.list(padding).size() == sides
             ? map_score(k, call)
             : 0;
}

KernelRow row(const Kernels& k, const char* op) {
  KernelRow row{op, k.variant};
  row.knows = {"token_leaf", "in_leaves", "out_leaves", "bf16"};
  row.reads_output = false;
  return row;
}

}  // namespace

KernelRow conv(const Kernels& k) {
  auto made = row(k, "conv");
  made.score = [&k](const OpCall& call) { return score_of(k, call, 1, "before"); };
  made.forward = [&k](const OpInputs& in) -> Tensors {
    const Tensor bias = in.tensor(2).defined() ? in.tensor(2).contiguous() : Tensor();
    return {Windowed(k, in, of_conv(in)).gathered(in.tensor(0).contiguous(), "in_leaves", bias)};
  };
  made.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
    const Windowed by(k, in, of_conv(in));
    const auto g = grads[0].contiguous();
    Tensors back(3);
    if (wanted(in, 0)) back[0] = by.scattered(g, "out_leaves", by.zeros());
    if (wanted(in, 1)) back[1] = by.weight_grad(in.tensor(0).contiguous(), g);
    if (wanted(in, 2)) back[2] = sum_of_samples(k, sums_of_channels(k, g, token_leaf(in)), in);
    return back;
  };
  made.shapes = [](const OpInputs& in) -> Tensors {
    return {torch::empty(of_conv(in).outputs, in.tensor(0).options().requires_grad(false))};
  };
  return made;
}

KernelRow conv_transposed(const Kernels& k) {
  auto made = row(k, "conv_transposed");
  made.score = [&k](const OpCall& call) { return score_of(k, call, 0, "padding"); };
  made.forward = [&k](const OpInputs& in) -> Tensors {
    const Tensor bias = in.tensor(2).defined() ? in.tensor(2).contiguous() : Tensor();
    return {Windowed(k, in, of_transposed(in)).scattered(in.tensor(0).contiguous(), "in_leaves", bias)};
  };
  made.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
    const Windowed by(k, in, of_transposed(in));
    const auto g = grads[0].contiguous();
    Tensors back(3);
    if (wanted(in, 0)) back[0] = by.gathered(g, "out_leaves", by.zeros());
    if (wanted(in, 1)) back[1] = by.weight_grad(g, in.tensor(0).contiguous());
    if (wanted(in, 2)) back[2] = sum_of_samples(k, sums_of_channels(k, g, token_leaf(in)), in);
    return back;
  };
  made.shapes = [](const OpInputs& in) -> Tensors {
    return {torch::empty(of_transposed(in).map, in.tensor(0).options().requires_grad(false))};
  };
  return made;
}

}  // namespace ditto_exact
