// Functions of each number, for losses: computed in double by IEEE operations alone and rounded once, so that every
// instruction set has the same code.
#include <cmath>

#include "row_calls.h"

namespace ditto_exact {

namespace {

double tanh_of(double x) {
  if (std::abs(x) < 0.01) return x * (1 - x * x * (1.0 / 3 - x * x * (2.0 / 15)));
  return 1 - 2 / (1 + ditto::elementary::exp(2 * x));
}

double sin_of(double x) { return ditto::elementary::cos_sin(x).sin; }
double cos_of(double x) { return ditto::elementary::cos_sin(x).cos; }

// y = `of`(x), and `slope` of x and y.
KernelRow of_each(const Kernels& k, const char* op, double (*of)(double x), float (*slope)(float x, float y)) {
  KernelRow row{op, k.variant};
  row.score = [&k](const OpCall& call) { return fits(call) ? k.score : 0; };
  row.forward = [of](const OpInputs& in) -> Tensors {
    const auto x = in.tensor(0).contiguous();
    auto y = torch::empty_like(x);
    in_parts(x.numel(), 1, [&](Index begin, Index end) {
      for (Index i = begin; i < end; ++i) place(y)[i] = static_cast<float>(of(numbers(x)[i]));
    });
    return {y};
  };
  row.backward = [slope](const Tensors& grads, const OpInputs& in, const Tensors& results) -> Tensors {
    const Tensor x = in.tensor(0).contiguous(), g = grads[0].contiguous();
    auto dx = torch::empty_like(x);
    in_parts(x.numel(), 1, [&](Index begin, Index end) {
      for (Index i = begin; i < end; ++i) place(dx)[i] = numbers(g)[i] * slope(numbers(x)[i], numbers(results[0])[i]);
    });
    return {dx};
  };
  row.shapes = [](const OpInputs& in) -> Tensors {
    return {torch::empty(in.tensor(0).sizes(), in.tensor(0).options().requires_grad(false))};
  };
  return row;
}

}  // namespace

KernelRow exp(const Kernels& k) {
  return of_each(
      k, "exp", [](double x) { return ditto::elementary::exp(x); }, [](float, float y) { return y; });
}
KernelRow log(const Kernels& k) {
  return of_each(
      k, "log", [](double x) { return ditto::elementary::log(x); }, [](float x, float) { return 1 / x; });
}
KernelRow tanh(const Kernels& k) {
  return of_each(k, "tanh", tanh_of, [](float, float y) { return 1 - y * y; });
}
KernelRow sin(const Kernels& k) {
  return of_each(k, "sin", sin_of, [](float x, float) { return static_cast<float>(cos_of(x)); });
}
KernelRow cos(const Kernels& k) {
  return of_each(k, "cos", cos_of, [](float x, float) { return static_cast<float>(-sin_of(x)); });
}

}  // namespace ditto_exact
