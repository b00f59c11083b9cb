// Functions of each number, softmax, means of samples and norms of maps.
#include "rows.h"

namespace ditto_cuda {

namespace {

Tensors one_like(const OpInputs& in) { return {room(in.tensor(0).sizes(), in.tensor(0), in.tensor(0).scalar_type())}; }

KernelRow of_numbers(const char* op, Function (*function)(const OpInputs&)) {
  KernelRow row{op, "cuda"};
  row.score = [](const OpCall& call) { return fits(call) && call.inputs.tensor(0).numel() > 0 ? kScore : 0; };
  row.forward = [function](const OpInputs& in) -> Tensors {
    const Tensor x = laid(in.tensor(0)), y = torch::empty_like(x);
    launched(apply(function(in), numbers(x), place(y), x.numel(), storage_of(x), stream_of(x)), "apply");
    return {y};
  };
  row.backward = [function](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
    const Tensor x = laid(in.tensor(0)), g = laid(grads[0]), dx = torch::empty_like(x);
    launched(apply_back(function(in), numbers(x), numbers(g), place(dx), x.numel(), storage_of(x), stream_of(x)),
             "apply_back");
    return {dx};
  };
  row.shapes = one_like;
  row.reads_output = false;
  row.again = [forward = row.forward](const OpInputs& in, const Tensors&) { return forward(in)[0]; };
  row.again_of = {0};
  return row;
}

// A call's map: places of a sample's channels, or with channels last channels of its places.
struct Map {
  explicit Map(const OpInputs& in) : last(lies_channels_last(in.tensor(0))), x(lay(in.tensor(0))) {}
  static bool lies_channels_last(const Tensor& x) { return !x.is_contiguous() && x.movedim(1, -1).is_contiguous(); }
  Tensor lay(const Tensor& like_x) const { return last ? laid(like_x.movedim(1, -1)) : laid(like_x); }
  Tensor as_given(const Tensor& one) const { return last ? one.movedim(-1, 1) : one; }
  bool last;
  Tensor x;  // [B, C, ...] or [B, ..., C]
};

struct NormOfMap {
  NormOfMap(const OpInputs& in, const Map& map, const Tensor& mean, const Tensor& rstd)
      : weight(laid(in.tensor(1))), bias(laid(in.tensor(2))), shift(laid(in.tensor(3))), scale(laid(in.tensor(4))) {
    const Tensor& x = in.tensor(0);
    p = {numbers(map.x),     numbers(weight),
         numbers(bias),      numbers(shift),
         numbers(scale),     floats(mean),
         floats(rstd),       x.size(0),
         x.size(1),          x.numel() / (x.size(0) * x.size(1)),
         in.whole("groups"), map.last,
         in.flag("silu"),    static_cast<float>(in.number("eps")),
         storage_of(x)};
  }
  Tensor weight, bias, shift, scale;
  GroupNorm p;
};

Tensors statistics(const OpInputs& in) {
  const Tensor& x = in.tensor(0);
  const Index groups = in.whole("groups");
  return {room({x.size(0), groups, 2}, x), room({x.size(0), groups}, x)};
}

Tensors normed(const OpInputs& in) {
  const Map map(in);
  const auto made = statistics(in);
  const NormOfMap norm(in, map, made[0], made[1]);
  const Tensor y = torch::empty_like(map.x), scratch = room({group_norm_room(norm.p)}, map.x);
  launched(group_norm(norm.p, place(y), floats(scratch), stream_of(map.x)), "group_norm");
  return {map.as_given(y), made[0], made[1]};
}

Tensors normed_back(const Tensors& grads, const OpInputs& in, const Tensors& results) {
  const Map map(in);
  const NormOfMap norm(in, map, results[1], results[2]);
  const bool modulated = norm.scale.defined();
  const Tensor g = map.lay(grads[0]), dx = torch::empty_like(map.x), scratch = room({group_norm_room(norm.p)}, map.x),
               dweight = room(norm.weight.sizes(), map.x), dbias = torch::empty_like(dweight),
               dshift = modulated ? torch::empty_like(norm.shift) : Tensor(),
               dscale = modulated ? torch::empty_like(norm.scale) : Tensor();
  launched(
      group_norm_back(norm.p, {numbers(g), place(dx), floats(dweight), floats(dbias), place(dshift), place(dscale)},
                      floats(scratch), stream_of(map.x)),
      "group_norm_back");
  return {map.as_given(dx), dweight, dbias, dshift, dscale};
}

}  // namespace

KernelRow silu() {
  return of_numbers("silu", [](const OpInputs&) { return Function::silu; });
}
KernelRow gelu() {
  return of_numbers("gelu",
                    [](const OpInputs& in) { return in.flag("tanh") ? Function::gelu_tanh : Function::gelu_erf; });
}

KernelRow softmax() {
  KernelRow row{"softmax", "cuda"};
  row.score = [](const OpCall& call) {
    const Tensor& x = call.inputs.tensor(0);
    const auto storage = call.dtype == torch::kFloat ? Storage::fp32 : Storage::bf16;
    return fits(call) && x.dim() > 0 && x.numel() > 0 && takes_rows(x.size(-1), storage) ? kScore : 0;
  };
  row.forward = [](const OpInputs& in) -> Tensors {
    const Tensor x = laid(in.tensor(0)), y = torch::empty_like(x);
    launched(softmax(numbers(x), place(y), x.numel() / x.size(-1), x.size(-1), storage_of(x), stream_of(x)), "softmax");
    return {y};
  };
  row.backward = [](const Tensors& grads, const OpInputs&, const Tensors& results) -> Tensors {
    const Tensor y = laid(results[0]), g = laid(grads[0]), dx = torch::empty_like(y);
    launched(softmax_back(numbers(y), numbers(g), place(dx), y.numel() / y.size(-1), y.size(-1), storage_of(y),
                          stream_of(y)),
             "softmax_back");
    return {dx};
  };
  row.shapes = one_like;
  return row;
}

KernelRow sample_mean() {
  KernelRow row{"sample_mean", "cuda"};
  row.score = [](const OpCall& call) { return fits(call) && call.inputs.tensor(0).numel() > 0 ? kScore : 0; };
  row.forward = [](const OpInputs& in) -> Tensors {
    const Tensor x = laid(in.tensor(0)), mean = room({x.size(0)}, x, x.scalar_type());
    const Index n = x.numel() / x.size(0);
    const Tensor sums = room({sample_room(x.size(0), n)}, x, torch::kDouble);
    launched(sample_mean(numbers(x), place(mean), sums.data_ptr<double>(), x.size(0), n, storage_of(x), stream_of(x)),
             "sample_mean");
    return {mean};
  };
  row.backward = [](const Tensors& grads, const OpInputs& in, const Tensors&) -> Tensors {
    const Tensor g = laid(grads[0]), &x = in.tensor(0), dx = room(x.sizes(), x, x.scalar_type());
    launched(sample_mean_back(numbers(g), place(dx), x.size(0), x.numel() / x.size(0), storage_of(x), stream_of(g)),
             "sample_mean_back");
    return {dx};
  };
  row.shapes = [](const OpInputs& in) -> Tensors {
    return {room({in.tensor(0).size(0)}, in.tensor(0), in.tensor(0).scalar_type())};
  };
  row.reads_output = false;
  return row;
}

KernelRow group_norm() {
  KernelRow row{"group_norm", "cuda"};
  row.score = [](const OpCall& call) {
    const auto& in = call.inputs;
    const bool known = in.tensor(1).defined() && in.tensor(2).defined() && in.tensor(0).numel() > 0;
    return fits(call) && known ? kScore : 0;
  };
  row.forward = normed;
  row.backward = normed_back;
  row.shapes = [](const OpInputs& in) -> Tensors {
    const auto made = statistics(in);
    return {torch::empty_like(in.tensor(0)).detach(), made[0], made[1]};
  };
  row.reads_output = false;
  row.any_gradient = true;
  return row;
}

}  // namespace ditto_cuda
