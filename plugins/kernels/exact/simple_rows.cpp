// Rows that work number by number, and small sums.
#include <cmath>

#include "row_calls.h"

namespace ditto_exact {

namespace {

using Map = void (*)(const float* x, float* y, Index n);
using MapBack = void (*)(const float* x, const float* grad, float* dx, Index n);

Tensors one_like(const OpInputs& in) {
  return {torch::empty(in.tensor(0).sizes(), in.tensor(0).options().requires_grad(false))};
}

void make_again_by_forward(KernelRow& row) {
  row.again = [forward = row.forward](const OpInputs& in, const Tensors&) { return forward(in)[0]; };
  row.again_of = {0};
}

// A function of each number.
KernelRow of_numbers(const Kernels& k, const char* op, Map map, MapBack map_back) {
  KernelRow row{op, k.variant};
  row.score = [&k](const OpCall& call) { return fits(call) ? k.score : 0; };
  row.forward = [map](const OpInputs& in) -> Tensors {
    const auto x = in.tensor(0).contiguous();
    auto y = torch::empty_like(x);
    in_parts(x.numel(), 1, [&](Index begin, Index end) { map(numbers(x) + begin, place(y) + begin, end - begin); });
    return {y};
  };
  row.backward = [map_back](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
    const Tensor x = in.tensor(0).contiguous(), g = grads[0].contiguous();
    auto dx = torch::empty_like(x);
    in_parts(x.numel(), 1, [&](Index begin, Index end) {
      map_back(numbers(x) + begin, numbers(g) + begin, place(dx) + begin, end - begin);
    });
    return {dx};
  };
  row.shapes = one_like;
  make_again_by_forward(row);
  return row;
}

// The node of the tree over n samples that has those of `list`, which give to one row of the table; the others give +0,
// which changes nothing. The sum is left at the first one's gradient.
void add_samples(const Kernels& k, float* grads, Index width, const Index* list, Index count, int level) {
  if (count < 2) return;
  Index left = 0;
  while (left < count && (list[left] >> (level - 1) & 1) == 0) ++left;
  add_samples(k, grads, width, list, left, level - 1);
  add_samples(k, grads, width, list + left, count - left, level - 1);
  if (left > 0 && left < count)
    k.add(grads + list[0] * width, grads + list[left] * width, grads + list[0] * width, width);
}

Tensor table_grad(const Kernels& k, const Tensor& table, const Tensor& index, const Tensor& grad) {
  const Index width = table.size(1), n = index.numel();
  auto sums = grad.contiguous().clone();
  std::map<Index, std::vector<Index>> samples;
  for (Index i = 0; i < n; ++i) samples[index.const_data_ptr<int64_t>()[i]].push_back(i);
  int levels = 0;
  while (Index{1} << levels < n) ++levels;
  auto back = torch::zeros(table.sizes(), torch::kFloat);
  for (const auto& [row, list] : samples) {
    add_samples(k, place(sums), width, list.data(), static_cast<Index>(list.size()), levels);
    const float* const sum = numbers(sums) + list[0] * width;
    k.add(place(back) + row * width, sum, place(back) + row * width, width);  // to +0
  }
  return back;
}

}  // namespace

KernelRow silu(const Kernels& k) { return of_numbers(k, "silu", k.silu, k.silu_back); }

KernelRow gelu(const Kernels& k) {
  auto row = of_numbers(k, "gelu", k.gelu_erf, k.gelu_erf_back);
  const auto tanh = of_numbers(k, "gelu", k.gelu, k.gelu_back);
  row.forward = [erf = row.forward, tanh = tanh.forward](const OpInputs& in) {
    return in.flag("tanh") ? tanh(in) : erf(in);
  };
  row.backward = [erf = row.backward, tanh = tanh.backward](const Tensors& grads, const OpInputs& in,
                                                            const Tensors& results) {
    return in.flag("tanh") ? tanh(grads, in, results) : erf(grads, in, results);
  };
  make_again_by_forward(row);
  row.knows = {"tanh"};
  return row;
}

KernelRow embedding_rows(const Kernels& k) {
  KernelRow row{"embedding_rows", k.variant};
  row.score = [&k](const OpCall& call) {
    const auto& in = call.inputs;
    return fits(call) && in.tensor(0).dim() == 2 && in.tensor(1).dim() == 1 &&
                   in.tensor(1).scalar_type() == torch::kLong
               ? k.score
               : 0;
  };
  row.forward = [](const OpInputs& in) -> Tensors { return {in.tensor(0).index_select(0, in.tensor(1))}; };
  row.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
    return {table_grad(k, in.tensor(0), in.tensor(1).contiguous(), grads[0]), {}};
  };
  row.shapes = [](const OpInputs& in) -> Tensors {
    const auto options = in.tensor(0).options().requires_grad(false);
    return {torch::empty({in.tensor(1).numel(), in.tensor(0).size(1)}, options)};
  };
  return row;
}

KernelRow add_row(const Kernels& k) {
  KernelRow row{"add_row", k.variant};
  row.score = [&k](const OpCall& call) {
    const Tensor &x = call.inputs.tensor(0), &row = call.inputs.tensor(1);
    const bool last = row.dim() < x.dim() && x.sizes().slice(static_cast<size_t>(x.dim() - row.dim())) == row.sizes();
    return fits_with_leaf(call) && last ? k.score : 0;
  };
  row.forward = [&k](const OpInputs& in) -> Tensors {
    const Tensor x = in.tensor(0).contiguous(), row = in.tensor(1).contiguous();
    const Tokens rows(x, row.dim());
    auto sum = torch::empty_like(x);
    in_parts(rows.rows(), rows.width, [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r)
        k.add(numbers(x) + r * rows.width, numbers(row), place(sum) + r * rows.width, rows.width);
    });
    return {sum};
  };
  row.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
    const auto g = grads[0].contiguous();
    Tensors back(2);
    if (wanted(in, 0)) back[0] = g;
    if (wanted(in, 1)) {
      const Tokens rows(g, in.tensor(1).dim());
      back[1] =
          sum_of_rows(k, {numbers(g)}, rows, row_leaves(in, rows.samples, rows.tokens)).view(in.tensor(1).sizes());
    }
    return back;
  };
  row.shapes = one_like;
  row.knows = {"token_leaf"};
  row.reads_output = false;
  return row;
}

KernelRow sample_mean(const Kernels& k) {
  KernelRow row{"sample_mean", k.variant};
  row.score = [&k](const OpCall& call) { return fits(call) && call.inputs.tensor(0).dim() >= 1 ? k.score : 0; };
  row.forward = [&k](const OpInputs& in) -> Tensors {
    const auto x = in.tensor(0).contiguous();
    const Tokens all(x, x.dim() - 1);
    auto mean = torch::empty({all.samples}, torch::kFloat);
    in_parts(all.samples, all.width, [&](Index begin, Index end) {
      for (Index s = begin; s < end; ++s)
        place(mean)[s] = k.total(numbers(x) + s * all.width, all.width) / static_cast<float>(all.width);
    });
    return {mean};
  };
  row.backward = [&k](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
    const auto g = grads[0].contiguous();
    auto dx = torch::empty(in.tensor(0).sizes(), torch::kFloat);
    const Tokens all(dx, dx.dim() - 1);
    in_parts(all.samples, all.width, [&](Index begin, Index end) {
      for (Index s = begin; s < end; ++s)
        k.fill(place(dx) + s * all.width, numbers(g)[s] / static_cast<float>(all.width), all.width);
    });
    return {dx};
  };
  row.shapes = [](const OpInputs& in) -> Tensors {
    return {torch::empty({in.tensor(0).size(0)}, in.tensor(0).options().requires_grad(false))};
  };
  return row;
}

KernelRow adamw(const Kernels& k) {
  KernelRow row{"adamw", k.variant};
  row.score = [&k](const OpCall& call) { return fits(call) ? k.score : 0; };
  row.forward = [&k](const OpInputs& in) -> Tensors {
    Tensors at;  // w, g, m, v
    for (size_t i = 0; i < 4; ++i) at.push_back(in.tensor(i).detach().contiguous());
    const double beta1 = in.number("beta1"), beta2 = in.number("beta2"), lr = in.number("lr");
    const auto step = static_cast<int64_t>(in.number("step"));
    const AdamW update{place(at[0]),
                       place(at[2]),
                       place(at[3]),
                       numbers(at[1]),
                       static_cast<float>(1 - lr * in.number("weight_decay")),
                       static_cast<float>(beta1),
                       static_cast<float>(1 - beta1),
                       static_cast<float>(beta2),
                       static_cast<float>(1 - beta2),
                       static_cast<float>(std::sqrt(1 - ditto::elementary::power(beta2, step))),
                       static_cast<float>(in.number("eps")),
                       static_cast<float>(lr / (1 - ditto::elementary::power(beta1, step)))};
    in_parts(at[0].numel(), 1, [&](Index begin, Index end) { k.adamw(update, begin, end); });
    const torch::NoGradGuard no_grad;
    for (const size_t i : {0, 2, 3}) {
      if (at[i].data_ptr() != in.tensor(i).data_ptr()) in.tensor(i).copy_(at[i]);
      in.tensor(i).unsafeGetTensorImpl()->bump_version();
    }
    return {in.tensor(0)};
  };
  row.shapes = [](const OpInputs& in) -> Tensors { return {in.tensor(0)}; };
  return row;
}

}  // namespace ditto_exact
