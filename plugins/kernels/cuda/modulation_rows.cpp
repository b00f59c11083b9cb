// Norms along the last dim, gates, added rows and rows of tables.
#include "rows.h"

namespace ditto_cuda {

namespace {

Index rows_of(const Tensor& x) { return x.numel() / x.size(-1); }
GroupsOf groups_of(const Tensor& x, const Tensor& rows_SD, const Tensor& sample) {
  return sample.defined() ? GroupsOf(rows_SD.size(0), sample) : GroupsOf(rows_SD.size(0), rows_of(x));
}

bool is_walked(const OpCall& call) {
  const Tensor& x = call.inputs.tensor(0);
  const auto storage = call.dtype == torch::kFloat ? Storage::fp32 : Storage::bf16;
  return fits(call) && x.dim() >= 2 && x.numel() > 0 && takes_rows(x.size(-1), storage);
}
// x [B, T, D] under rows [S, D]: of each sample one, or as a pack says.
bool is_modulated(const OpCall& call) {
  const Tensor &x = call.inputs.tensor(0), &rows = call.inputs.tensor(1), &sample = call.inputs.tensor(3);
  return fits(call) && x.dim() == 3 && x.numel() > 0 && rows.dim() == 2 && rows.size(1) == x.size(2) &&
         (sample.defined() ? x.size(0) == 1 && sample.numel() == x.size(1) && sample.scalar_type() == torch::kLong
                           : rows.size(0) == x.size(0));
}

// A norm and its backward. `plus` is added to the weight; the result may be stored otherwise than x.
struct NormOf {
  bool centred;
  float plus;
  at::ScalarType result;

  Tensors forward(const OpInputs& in, const Tensor& weight, const Tensor& bias, GroupsOf groups) const {
    const Tensor x = laid(in.tensor(0));
    const Under under(weight, bias);
    const Index rows = rows_of(x);
    const Tensor y = room(x.sizes(), x, result), mean = centred ? room({rows, 2}, x) : Tensor(), rstd = room({rows}, x);
    launched(norm({numbers(x), numbers(under.rows), numbers(under.more), place(y), floats(mean), floats(rstd),
                   x.size(-1), static_cast<float>(in.number("eps")), plus, groups.under(under.apart).for_rows(),
                   storage_of(x), storage_of(y)},
                  stream_of(x)),
             "norm");
    return centred ? Tensors{y, rstd, mean} : Tensors{y, rstd};
  }

  struct Gradients {
    Tensor x, weight, bias;  // undefined where they are not asked for
  };
  struct Asked {
    bool x, weight, bias;
  };
  Gradients backward(const Tensor& grad, const OpInputs& in, const Tensor& weight, const Tensors& results,
                     GroupsOf groups, const Asked& asked) const {
    const Tensor x = laid(in.tensor(0)), g = laid(grad);
    const Under under(weight);
    const Index width = x.size(-1);
    const Tensor dx = asked.x ? torch::empty_like(x) : Tensor(),
                 of_bias = asked.bias ? groups.chunks(width, x) : Tensor(),
                 of_weight = asked.weight ? groups.chunks(width, x) : Tensor();
    launched(norm_back({numbers(x), numbers(under.rows), numbers(g), centred ? floats(results[2]) : nullptr,
                        floats(results[1]), place(dx), floats(of_bias), floats(of_weight), width, plus,
                        groups.under(under.apart).for_sums(), storage_of(x), storage_of(g)},
                       stream_of(x)),
             "norm_back");
    return {dx, asked.weight ? groups.sum(of_weight, x.scalar_type()) : Tensor(),
            asked.bias ? groups.sum(of_bias, x.scalar_type()) : Tensor()};
  }

  Tensors shapes(const OpInputs& in) const {
    const Tensor& x = in.tensor(0);
    const auto of = [&](at::IntArrayRef sizes, at::ScalarType dtype) { return room(sizes, x, dtype); };
    Tensors made{of(x.sizes(), result), of({rows_of(x)}, torch::kFloat)};
    if (centred) made.push_back(of({rows_of(x), 2}, torch::kFloat));
    return made;
  }
};

NormOf norm_of(const OpInputs& in, float plus) { return {true, plus, in.tensor(0).scalar_type()}; }
constexpr NormOf kRootMeanSquare{false, 0, torch::kFloat};

GroupsOf groups_of_weight(const Tensor& x, const Tensor& weight) {
  return GroupsOf(weight.dim() == 2 ? weight.size(0) : 1, rows_of(x));
}

Tensors gated(const OpInputs& in) {
  const Tensor x = laid(in.tensor(0)), y = laid(in.tensor(2)), out = torch::empty_like(x);
  const Under by(in.tensor(1));
  auto groups = groups_of(x, by.rows, in.tensor(3));
  launched(gate({numbers(x), numbers(by.rows), numbers(y), place(out), x.size(-1), groups.under(by.apart).for_rows(),
                 storage_of(x)},
                stream_of(x)),
           "gate");
  return {out};
}

Tensors gated_back(const Tensors& grads, const OpInputs& in, const Tensors&) {
  const Tensor g = laid(grads[0]), y = laid(in.tensor(2));
  const Under by(in.tensor(1));
  auto groups = groups_of(g, by.rows, in.tensor(3));
  const Tensor dy = wanted(in, 2) ? torch::empty_like(g) : Tensor(),
               chunks = wanted(in, 1) ? groups.chunks(g.size(-1), g) : Tensor();
  launched(gate_back({numbers(by.rows), numbers(y), numbers(g), place(dy), floats(chunks), g.size(-1),
                      groups.under(by.apart).for_sums(), storage_of(g)},
                     stream_of(g)),
           "gate_back");
  return {g, chunks.defined() ? groups.sum(chunks, by.rows.scalar_type()) : Tensor(), dy, Tensor()};
}

Tensors row_added(const OpInputs& in) {
  const Tensor x = laid(in.tensor(0)), row = laid(in.tensor(1)), out = torch::empty_like(x);
  const Groups groups{1, x.numel() / row.numel()};
  launched(gate({numbers(x), numbers(row), nullptr, place(out), row.numel(), groups, storage_of(x)}, stream_of(x)),
           "gate");
  return {out};
}

Tensors rows_of_table(const OpInputs& in) {
  const Tensor table = laid(in.tensor(0)),
               out = room({in.tensor(1).numel(), table.size(1)}, table, table.scalar_type());
  const GroupsOf groups(table.size(0), in.tensor(1));
  launched(gate({nullptr, numbers(table), nullptr, place(out), table.size(1), groups.for_rows(), storage_of(table)},
                stream_of(table)),
           "gate");
  return {out};
}

KernelRow row(const char* op, std::function<bool(const OpCall&)> can) {
  KernelRow row{op, "cuda", [can = std::move(can)](const OpCall& call) { return can(call) ? kScore : 0; }};
  row.reads_output = false;
  return row;
}

}  // namespace

KernelRow norm_modulate() {
  auto made = row("norm_modulate", [](const OpCall& call) { return is_walked(call) && is_modulated(call); });
  made.forward = [](const OpInputs& in) {
    return norm_of(in, 1).forward(in, in.tensor(2), in.tensor(1), groups_of(in.tensor(0), in.tensor(2), in.tensor(3)));
  };
  made.backward = [](const Tensors& grads, const OpInputs& in, const Tensors& results) -> Tensors {
    const auto back = norm_of(in, 1).backward(grads[0], in, in.tensor(2), results,
                                              groups_of(in.tensor(0), in.tensor(2), in.tensor(3)),
                                              {wanted(in, 0), wanted(in, 2), wanted(in, 1)});
    return {back.x, back.bias, back.weight, Tensor()};
  };
  made.shapes = [](const OpInputs& in) { return norm_of(in, 1).shapes(in); };
  made.again = [forward = made.forward](const OpInputs& in, const Tensors&) { return forward(in)[0]; };
  made.again_of = {0, 1, 2, 3};
  return made;
}

KernelRow layer_norm() {
  auto made = row("layer_norm", [](const OpCall& call) {
    return is_walked(call) && call.inputs.tensor(1).defined() && call.inputs.tensor(1).dim() == 1;
  });
  made.forward = [](const OpInputs& in) {
    return norm_of(in, 0).forward(in, in.tensor(1), in.tensor(2), groups_of_weight(in.tensor(0), in.tensor(1)));
  };
  made.backward = [](const Tensors& grads, const OpInputs& in, const Tensors& results) -> Tensors {
    const auto back =
        norm_of(in, 0).backward(grads[0], in, in.tensor(1), results, groups_of_weight(in.tensor(0), in.tensor(1)),
                                {wanted(in, 0), wanted(in, 1), wanted(in, 2)});
    const auto one = [](const Tensor& x) { return x.defined() ? x.squeeze(0) : x; };
    return {back.x, one(back.weight), one(back.bias)};
  };
  made.shapes = [](const OpInputs& in) { return norm_of(in, 0).shapes(in); };
  return made;
}

KernelRow rms_norm() {
  auto made = row("rms_norm", [](const OpCall& call) {
    const Tensor &x = call.inputs.tensor(0), &weight = call.inputs.tensor(1);
    return is_walked(call) && (weight.dim() == 1 || (weight.dim() == 2 && weight.size(0) == x.size(0)));
  });
  made.forward = [](const OpInputs& in) {
    return kRootMeanSquare.forward(in, in.tensor(1), {}, groups_of_weight(in.tensor(0), in.tensor(1)));
  };
  made.backward = [](const Tensors& grads, const OpInputs& in, const Tensors& results) -> Tensors {
    const Tensor& weight = in.tensor(1);
    const auto back = kRootMeanSquare.backward(grads[0], in, weight, results, groups_of_weight(in.tensor(0), weight),
                                               {wanted(in, 0), wanted(in, 1), false});
    return {back.x, back.weight.defined() ? back.weight.view(weight.sizes()) : Tensor()};
  };
  made.shapes = [](const OpInputs& in) { return kRootMeanSquare.shapes(in); };
  return made;
}

KernelRow gated_residual() {
  auto made = row("gated_residual", is_modulated);
  made.forward = gated;
  made.backward = gated_back;
  made.shapes = [](const OpInputs& in) -> Tensors {
    return {room(in.tensor(0).sizes(), in.tensor(0), in.tensor(0).scalar_type())};
  };
  return made;
}

KernelRow add_row() {
  auto made = row("add_row", [](const OpCall& call) {
    const Tensor &x = call.inputs.tensor(0), &row = call.inputs.tensor(1);
    return fits(call) && x.numel() > 0 && row.dim() > 0 && row.dim() <= x.dim() &&
           x.sizes().slice(static_cast<size_t>(x.dim() - row.dim())) == row.sizes();
  });
  made.forward = row_added;
  made.backward = [](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
    const Tensor g = laid(grads[0]), &row = in.tensor(1);
    if (!wanted(in, 1)) return {g, Tensor()};
    return {g, sum_of_rows(g, row.numel(), GroupsOf(1, g.numel() / row.numel()), g.scalar_type()).view(row.sizes())};
  };
  return made;
}

KernelRow embedding_rows() {
  auto made = row("embedding_rows", [](const OpCall& call) {
    const auto& in = call.inputs;
    return fits(call) && in.tensor(0).dim() == 2 && in.tensor(0).numel() > 0 && in.tensor(1).dim() == 1 &&
           in.tensor(1).scalar_type() == torch::kLong && in.tensor(1).numel() > 0;
  });
  made.forward = rows_of_table;
  made.backward = [](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
    const Tensor g = laid(grads[0]);
    return {sum_of_rows(g, g.size(1), GroupsOf(in.tensor(0).size(0), in.tensor(1)), g.scalar_type()), Tensor()};
  };
  return made;
}

}  // namespace ditto_cuda
