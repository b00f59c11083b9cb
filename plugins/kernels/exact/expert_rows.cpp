// Experts: linear, GELU, linear, each by its own weights on rows of its own.
#include <algorithm>

#include "row_calls.h"

namespace ditto_exact {

namespace {

// A tree of which `at` are the leaves that have something, in order; the others give +0, which changes nothing. So many
// open left halves are added after each.
void add_merges(const std::vector<Index>& at, size_t begin, size_t end, int level, std::vector<int>& merges) {
  if (end - begin < 2) return;
  size_t middle = begin;
  while (middle < end && (at[middle] >> (level - 1) & 1) == 0) ++middle;
  add_merges(at, begin, middle, level - 1, merges);
  add_merges(at, middle, end, level - 1, merges);
  if (begin < middle && middle < end) ++merges[end - 1];
}
std::vector<int> merges_of(const std::vector<Index>& at) {
  std::vector<int> merges(at.size());
  int levels = 0;
  while (!at.empty() && at.back() >> levels != 0) ++levels;
  add_merges(at, 0, at.size(), levels, merges);
  return merges;
}

// The leaves of a sum over an expert's rows: a tree over samples, of each a tree over the leaves of its tokens, of each
// the chain over those that the expert takes.
std::vector<Leaf> leaves_of_rows(const int64_t* token, Index rows, Index tokens, Index length) {
  std::vector<Leaf> list;
  std::vector<Index> samples, ends, places;  // ends: of a sample in `list`
  const auto end_sample = [&] {
    const auto merges = merges_of(places);
    for (size_t i = 0; i < merges.size(); ++i) list[list.size() - merges.size() + i].merges = merges[i];
    if (!list.empty()) ends.push_back(static_cast<Index>(list.size()));
    places.clear();
  };
  for (Index r = 0; r < rows; ++r) {
    if (r > 0 && token[r] < token[r - 1])
      throw ditto::Error(ditto::ErrorKind::plugin, "op \"experts\"",
                         "has rows of an expert that are not in the order "
                         "of their tokens",
                         "sort them by expert, then by token");
    const Index sample = token[r] / tokens, leaf = token[r] % tokens / length;
    if (samples.empty() || samples.back() != sample) {
      end_sample();
      samples.push_back(sample);
    }
    if (places.empty() || places.back() != leaf) places.push_back(leaf), list.push_back({r, 0});
    list.back().end = r + 1;
  }
  end_sample();
  const auto merges = merges_of(samples);
  for (size_t s = 0; s < merges.size(); ++s) list[static_cast<size_t>(ends[s]) - 1].merges += merges[s];
  return list;
}

// `task` gets each expert that has rows, its first one and how many.
template <class F>
void by_expert(const Tensor& count, F task) {
  Index first = 0;
  for (Index e = 0; e < count.numel(); ++e) {
    const Index rows = count.const_data_ptr<int64_t>()[e];
    if (rows > 0) task(e, first, rows);
    first += rows;
  }
}

// Sizes: [R, D] rows, H hidden numbers.
struct Experts {
  explicit Experts(const OpInputs& in)
      : x(in.tensor(0).contiguous()),
        up(in.tensor(1).contiguous()),
        up_bias(in.tensor(2).contiguous()),
        down(in.tensor(3).contiguous()),
        down_bias(in.tensor(4).defined() ? in.tensor(4).contiguous() : Tensor()),
        count(in.tensor(5).contiguous()),
        E(up.size(0)),
        R(x.size(0)),
        D(x.size(1)),
        H(up.size(1)),
        hidden(in, "hidden_leaves", H),
        width(D),
        bf16(in.flag("bf16")) {}

  template <class F>
  void each(F task) const {
    by_expert(count, task);
  }

  Tensor x, up, up_bias, down, down_bias, count;
  Index E, R, D, H;
  Terms hidden, width;
  bool bf16;
};

Tensor mapped(const Tensor& x, void (*map)(const float*, float*, Index)) {
  auto y = torch::empty_like(x);
  in_parts(x.numel(), 1, [&](Index begin, Index end) { map(numbers(x) + begin, place(y) + begin, end - begin); });
  return y;
}

// The rows' outputs, and what stands before the GELU.
Tensors forward(const Kernels& k, const OpInputs& in) {
  const Experts of(in);
  const Index D = of.D, H = of.H;
  auto h = torch::empty({of.R, H}, torch::kFloat), y = torch::empty({of.R, D}, torch::kFloat);
  of.each([&](Index e, Index first, Index rows) {
    k.product({rows,
               H,
               D,
               {numbers(of.x) + first * D, D, 1},
               {numbers(of.up) + e * H * D, 1, D},
               place(h) + first * H,
               H,
               numbers(of.up_bias) + e * H,
               of.width.order(),
               of.bf16},
              workers());
  });
  const auto a = mapped(h, k.gelu);
  of.each([&](Index e, Index first, Index rows) {
    k.product({rows,
               D,
               H,
               {numbers(a) + first * H, H, 1},
               {numbers(of.down) + e * D * H, 1, H},
               place(y) + first * D,
               D,
               of.down_bias.defined() ? numbers(of.down_bias) + e * D : nullptr,
               of.hidden.order(),
               of.bf16},
              workers());
  });
  return {y, h};
}

// A weight's gradient [N, K] and its bias's [N], of one expert: sums over its rows.
struct SumsOverRows {
  const Kernels& k;
  const float* zeros;
  bool bf16;
  void operator()(const std::vector<Leaf>& leaves, const float* grad, Index N, const float* x, Index K, float* weight,
                  float* bias) const {
    const Index rows = leaves.back().end;
    const Terms terms(leaves);
    if (weight) k.product({N, K, rows, {grad, 1, N}, {x, K, 1}, weight, K, zeros, terms.order(), bf16}, workers());
    const RowSum sum{grad, nullptr, nullptr, nullptr, bias, N, leaves.data(), static_cast<Index>(leaves.size())};
    if (bias) k.row_sum(sum, 0, N);
  }
};

Tensors backward(const Kernels& k, const Tensor& grad, const OpInputs& in, const Tensor& h) {
  const Experts of(in);
  const Index D = of.D, H = of.H, tokens = in.whole("tokens"), leaf = token_leaf(in);
  const Tensor g = grad.contiguous(), zeros = torch::zeros({most(D, H)}, torch::kFloat);
  Tensors back(7);
  for (size_t i = 0; i < 5; ++i)
    if (wanted(in, i)) back[i] = torch::zeros(in.tensor(i).sizes(), torch::kFloat);
  const auto of_expert = [&](size_t i, Index numbers_each, Index e) {
    return back[i].defined() ? place(back[i]) + e * numbers_each : nullptr;
  };
  auto da = torch::empty({of.R, H}, torch::kFloat), dh = torch::empty_like(da);
  of.each([&](Index e, Index first, Index rows) {
    k.product({rows,
               H,
               D,
               {numbers(g) + first * D, D, 1},
               {numbers(of.down) + e * D * H, H, 1},
               place(da) + first * H,
               H,
               numbers(zeros),
               of.width.order(),
               of.bf16},
              workers());
  });
  in_parts(h.numel(), 1, [&](Index begin, Index end) {
    k.gelu_back(numbers(h) + begin, numbers(da) + begin, place(dh) + begin, end - begin);
  });
  const auto a = mapped(h, k.gelu);
  const auto* const token = in.tensor(6).const_data_ptr<int64_t>();
  const SumsOverRows sums{k, numbers(zeros), of.bf16};
  of.each([&](Index e, Index first, Index rows) {
    if (back[0].defined())
      k.product({rows,
                 D,
                 H,
                 {numbers(dh) + first * H, H, 1},
                 {numbers(of.up) + e * H * D, D, 1},
                 place(back[0]) + first * D,
                 D,
                 numbers(zeros),
                 of.hidden.order(),
                 of.bf16},
                workers());
    const auto leaves = leaves_of_rows(token + first, rows, tokens, leaf);
    sums(leaves, numbers(dh) + first * H, H, numbers(of.x) + first * D, D, of_expert(1, H * D, e), of_expert(2, H, e));
    sums(leaves, numbers(g) + first * D, D, numbers(a) + first * H, H, of_expert(3, D * H, e), of_expert(4, D, e));
  });
  return back;
}

}  // namespace

// Backward: an expert's row is the sum over its rows of x.
KernelRow add_expert_rows(const Kernels& k) {
  KernelRow row{"add_expert_rows", k.variant};
  row.score = [&k](const OpCall& call) {
    const auto& in = call.inputs;
    const Tensor& token = in.tensor(3);
    const bool summed = !call.grad || (token.defined() && token.is_contiguous());
    return fits_with_leaf(call) && in.tensor(0).dim() == 2 && in.tensor(1).dim() == 2 && summed ? k.score : 0;
  };
  row.forward = [&k](const OpInputs& in) -> Tensors {
    const Tensor x = in.tensor(0).contiguous(), rows = in.tensor(1).contiguous();
    const Index width = x.size(1);
    auto y = torch::empty(x.sizes(), torch::kFloat);
    by_expert(in.tensor(2).contiguous(), [&](Index e, Index first, Index of_expert) {
      in_parts(of_expert, width, [&](Index begin, Index end) {
        for (Index r = first + begin; r < first + end; ++r)
          k.add(numbers(x) + r * width, numbers(rows) + e * width, place(y) + r * width, width);
      });
    });
    return {y};
  };
  row.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
    const auto g = grads[0].contiguous();
    const Index width = g.size(1), tokens = in.whole("tokens"), leaf = token_leaf(in);
    auto sums = torch::zeros(in.tensor(1).sizes(), torch::kFloat);
    const auto* const token = in.tensor(3).const_data_ptr<int64_t>();
    by_expert(in.tensor(2).contiguous(), [&](Index e, Index first, Index of_expert) {
      const auto leaves = leaves_of_rows(token + first, of_expert, tokens, leaf);
      const auto* const of = numbers(g) + first * width;
      k.row_sum({of, nullptr, nullptr, nullptr, place(sums) + e * width, width, leaves.data(),
                 static_cast<Index>(leaves.size())},
                0, width);
    });
    return {g, sums, {}, {}};
  };
  row.shapes = [](const OpInputs& in) -> Tensors {
    return {torch::empty(in.tensor(0).sizes(), in.tensor(0).options().requires_grad(false))};
  };
  row.knows = {"token_leaf"};
  return row;
}

KernelRow experts(const Kernels& k) {
  KernelRow row{"experts", k.variant};
  row.score = [&k](const OpCall& call) {
    const auto& in = call.inputs;
    const Tensor& token = in.tensor(6);
    const bool summed = !call.grad || (token.defined() && token.is_contiguous());
    return fits_with_leaf(call) && in.tensor(0).dim() == 2 && in.tensor(1).dim() == 3 && summed ? k.score : 0;
  };
  row.forward = [&k](const OpInputs& in) { return forward(k, in); };
  row.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors& results) {
    return backward(k, grads[0], in, results[1]);
  };
  row.shapes = [](const OpInputs& in) -> Tensors {
    const auto options = in.tensor(0).options().requires_grad(false);
    return {torch::empty(in.tensor(0).sizes(), options),
            torch::empty({in.tensor(0).size(0), in.tensor(1).size(1)}, options)};
  };
  row.knows = {"token_leaf", "hidden_leaves", "bf16"};
  return row;
}

}  // namespace ditto_exact
