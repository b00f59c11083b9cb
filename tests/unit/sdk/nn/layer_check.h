// A layer against a formula of torch's functions, in double precision with every gradient.
#pragma once

#include <functional>
#include <map>
#include <string>

#include <doctest/doctest.h>

#include "tests/unit/small_model.h"

namespace ditto::layer_check {

using torch::Tensor;
using Values = std::map<std::string, Tensor>;

// Of every parameter, by name, with gradients of its own.
inline Values values_of(torch::nn::Module& layer) {
  Values values;
  for (const auto& item : layer.named_parameters()) values[item.key()] = item.value().detach().clone().requires_grad_();
  return values;
}

// No parameter is zero.
inline void fill(torch::nn::Module& layer) {
  torch::NoGradGuard no_grad;
  layer.to(torch::kDouble);
  int64_t seed = 100;
  for (auto& item : layer.named_parameters())
    item.value().copy_(testing::numbers(item.value().sizes(), ++seed, torch::kDouble).tanh());
}

// The layer's output, input gradient and parameters' gradients against those of `expected`.
template <class T>
void check(T& layer, const Tensor& in, const std::function<Tensor(const Tensor& x, Values& p)>& expected) {
  fill(layer);
  const auto ctx = testing::small_context(torch::kDouble);
  const bool learns = in.is_floating_point();
  auto p = values_of(layer);
  const Tensor x = in.clone().requires_grad_(learns), x2 = in.clone().requires_grad_(learns);
  const Tensor y = layer.forward(x, *ctx), y2 = expected(x2, p);
  REQUIRE((y.sizes() == y2.sizes()));
  const auto close = [](const Tensor& a, const Tensor& b) {
    return (a - b).abs().max().template item<double>() <= 1e-12 * b.abs().max().template item<double>();
  };
  CHECK(close(y, y2));
  const auto weights = testing::numbers(y.sizes(), 7, torch::kDouble).tanh();
  (y * weights).sum().backward();
  (y2 * weights).sum().backward();
  if (learns) CHECK(close(x.grad(), x2.grad()));
  for (const auto& item : layer.named_parameters()) {
    CAPTURE(item.key());
    CHECK(p.at(item.key()).grad().abs().max().template item<double>() > 0);
    CHECK(close(item.value().grad(), p.at(item.key()).grad()));
  }
}

inline Tensor input(at::IntArrayRef shape) { return testing::numbers(shape, 3, torch::kDouble).tanh(); }

}  // namespace ditto::layer_check
