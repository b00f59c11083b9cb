// What decides which expert takes which token, takes rows of tokens, and puts experts' rows together again.
#include <algorithm>

#include "row_calls.h"

namespace ditto_exact {

namespace {

Tensor like(const Tensor& x) { return torch::empty(x.sizes(), x.options().requires_grad(false)); }

Tensors one_like(const OpInputs& in) { return {like(in.tensor(0))}; }

// By rows of x's last dim: `task` takes a row's first number.
template <class F>
void by_rows(const Tensor& x, F task) {
  const Index width = x.size(-1), rows = width > 0 ? x.numel() / width : 0;
  in_parts(rows, width, [&](Index begin, Index end) {
    for (Index r = begin; r < end; ++r) task(r * width);
  });
}

KernelRow of_rows(const Kernels& k, const char* op) {
  KernelRow row{op, k.variant};
  row.score = [&k](const OpCall& call) { return fits(call) && call.inputs.tensor(0).dim() >= 1 ? k.score : 0; };
  row.shapes = one_like;
  return row;
}

Tensor totals(const Kernels& k, const Tensor& x) {
  auto y = like(x);
  const Index width = x.size(-1);
  by_rows(x, [&](Index at) { k.fill(place(y) + at, k.total(numbers(x) + at, width), width); });
  return y;
}

// Means over a sample's tokens, [S, width].
Tensor means_of_samples(const Kernels& k, const Tensor& x, Index leaf) {
  const Tokens tokens(x);
  auto means = sums_of_samples(k, {numbers(x)}, tokens, leaf);
  for (Index i = 0; i < means.numel(); ++i) place(means)[i] /= static_cast<float>(tokens.tokens);
  return means;
}

// The rows that each of `tokens` tokens has, in their order.
struct ByToken {
  ByToken(const Tensor& places, Index tokens) : first(static_cast<size_t>(tokens) + 1), rows(places.numel()) {
    const auto* at = places.const_data_ptr<int64_t>();
    const auto count = static_cast<Index>(rows.size());
    for (Index r = 0; r < count; ++r) ++first.at(static_cast<size_t>(at[r]) + 1);
    for (size_t n = 1; n < first.size(); ++n) first[n] += first[n - 1];
    auto next = first;
    for (Index r = 0; r < count; ++r) rows[static_cast<size_t>(next[static_cast<size_t>(at[r])]++)] = r;
  }
  template <class F>
  void each(Index token, F task) const {
    for (Index i = first[static_cast<size_t>(token)]; i < first[static_cast<size_t>(token) + 1]; ++i)
      task(rows[static_cast<size_t>(i)]);
  }
  std::vector<Index> first, rows;
};

bool is_index(const Tensor& x) { return x.defined() && x.dim() == 1 && x.scalar_type() == torch::kLong; }

}  // namespace

KernelRow softmax(const Kernels& k) {
  auto row = of_rows(k, "softmax");
  row.forward = [&k](const OpInputs& in) -> Tensors {
    const auto x = in.tensor(0).contiguous();
    auto y = like(x);
    by_rows(x, [&](Index at) { k.softmax(numbers(x) + at, place(y) + at, x.size(-1)); });
    return {y};
  };
  row.backward = [&k](const Tensors& grads, const OpInputs&, const Tensors& results) -> Tensors {
    const auto g = grads[0].contiguous();
    auto dx = like(g);
    by_rows(g,
            [&](Index at) { k.softmax_back(numbers(results[0]) + at, numbers(g) + at, place(dx) + at, g.size(-1)); });
    return {dx};
  };
  return row;
}

KernelRow row_total(const Kernels& k) {
  auto row = of_rows(k, "row_total");
  row.forward = [&k](const OpInputs& in) -> Tensors { return {totals(k, in.tensor(0).contiguous())}; };
  row.backward = [&k](const Tensors& grads, const OpInputs&, const Tensors&) -> Tensors {
    return {totals(k, grads[0].contiguous())};
  };
  return row;
}

KernelRow expert_balance(const Kernels& k) {
  KernelRow row{"expert_balance", k.variant};
  row.score = [&k](const OpCall& call) {
    const Tensor& x = call.inputs.tensor(0);
    return fits_with_leaf(call) && x.dim() == 3 && x.size(1) > 0 && x.size(2) % 2 == 0 ? k.score : 0;
  };
  row.forward = [&k](const OpInputs& in) -> Tensors {
    const auto means = means_of_samples(k, in.tensor(0).contiguous(), token_leaf(in));
    const Index samples = means.size(0), experts = means.size(1) / 2;
    auto sums = torch::empty({samples}, torch::kFloat);
    for (Index s = 0; s < samples; ++s) {
      const float* const of = numbers(means) + s * 2 * experts;
      place(sums)[s] = k.dot(of, of + experts, experts);
    }
    return {sums, means};
  };
  row.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors& results) -> Tensors {
    const Tensor& means = results[1];
    const Tokens x(in.tensor(0));
    const Index experts = x.width / 2;
    auto dx = like(in.tensor(0));
    for (Index s = 0; s < x.samples; ++s) {
      const float share = numbers(grads[0])[s] / static_cast<float>(x.tokens), *const of = numbers(means) + s * x.width;
      float* const first = place(dx) + s * x.tokens * x.width;
      for (Index e = 0; e < x.width; ++e) first[e] = share * of[e < experts ? e + experts : e - experts];
      for (Index t = 1; t < x.tokens; ++t) std::copy_n(first, x.width, first + t * x.width);
    }
    return {dx};
  };
  row.shapes = [](const OpInputs& in) -> Tensors {
    const auto options = in.tensor(0).options().requires_grad(false);
    return {torch::empty({in.tensor(0).size(0)}, options),
            torch::empty({in.tensor(0).size(0), in.tensor(0).size(2)}, options)};
  };
  row.knows = {"token_leaf"};
  return row;
}

// Backward: a token's gradient is the chain of those of its rows, in their order.
KernelRow token_rows(const Kernels& k) {
  KernelRow row{"token_rows", k.variant};
  row.score = [&k](const OpCall& call) {
    return fits(call) && call.inputs.tensor(0).dim() == 2 && is_index(call.inputs.tensor(1)) ? k.score : 0;
  };
  row.forward = [](const OpInputs& in) -> Tensors { return {in.tensor(0).index_select(0, in.tensor(1))}; };
  row.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
    const auto g = grads[0].contiguous();
    const Index width = g.size(1), tokens = in.tensor(0).size(0);
    const ByToken of(in.tensor(1).contiguous(), tokens);
    auto dx = like(in.tensor(0));
    in_parts(tokens, width, [&](Index begin, Index end) {
      for (Index n = begin; n < end; ++n) {
        float* const sum = place(dx) + n * width;
        k.fill(sum, 0, width);
        of.each(n, [&](Index r) { k.add(sum, numbers(g) + r * width, sum, width); });
      }
    });
    return {dx, {}};
  };
  row.shapes = [](const OpInputs& in) -> Tensors {
    return {torch::empty({in.tensor(1).numel(), in.tensor(0).size(1)}, in.tensor(0).options().requires_grad(false))};
  };
  return row;
}

// A token's sum is the chain of its weighted rows, in their order.
KernelRow combine_rows(const Kernels& k) {
  KernelRow row{"combine_rows", k.variant};
  row.score = [&k](const OpCall& call) {
    const auto& in = call.inputs;
    return fits(call) && in.tensor(0).dim() == 2 && in.tensor(1).dim() == 1 && is_index(in.tensor(2)) &&
                   is_index(in.tensor(3))
               ? k.score
               : 0;
  };
  row.forward = [&k](const OpInputs& in) -> Tensors {
    const Tensor rows = in.tensor(0).contiguous(), weight = in.tensor(1).contiguous(),
                 order = in.tensor(2).contiguous();
    const Index width = rows.size(1), tokens = in.whole("tokens");
    const ByToken of(in.tensor(3).contiguous(), tokens);
    auto out = torch::empty({tokens, width}, torch::kFloat);
    in_parts(tokens, width, [&](Index begin, Index end) {
      for (Index n = begin; n < end; ++n) {
        float* const sum = place(out) + n * width;
        k.fill(sum, 0, width);
        of.each(n, [&](Index r) {
          k.add_scaled(numbers(weight)[order.const_data_ptr<int64_t>()[r]], numbers(rows) + r * width, sum, width);
        });
      }
    });
    return {out};
  };
  row.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
    const Tensor g = grads[0].contiguous(), rows = in.tensor(0).contiguous(), weight = in.tensor(1).contiguous(),
                 order = in.tensor(2).contiguous(), at = in.tensor(3).contiguous();
    const Index width = rows.size(1);
    Tensors back{torch::zeros(rows.sizes(), torch::kFloat), torch::zeros(weight.sizes(), torch::kFloat), {}, {}};
    in_parts(rows.size(0), width, [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r) {
        const Index from = order.const_data_ptr<int64_t>()[r];
        const float* const of = numbers(g) + at.const_data_ptr<int64_t>()[r] * width;
        k.add_scaled(numbers(weight)[from], of, place(back[0]) + r * width, width);
        place(back[1])[from] = k.dot(of, numbers(rows) + r * width, width);
      }
    });
    return back;
  };
  row.shapes = [](const OpInputs& in) -> Tensors {
    return {torch::empty({in.whole("tokens"), in.tensor(0).size(1)}, in.tensor(0).options().requires_grad(false))};
  };
  return row;
}

}  // namespace ditto_exact
