// Golden tensors: numbers made by a formula from a tensor's name, as tests/golden/dit/make.py has it, and the
// comparison with what a file keeps of a tensor.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <ditto/ditto.h>
#include <ditto/parallel/program.h>

namespace ditto::test {

inline uint64_t fnv1a(const std::string& text) {
  uint64_t hashed = 0xCBF29CE484222325u;
  for (const char byte : text) hashed = (hashed ^ static_cast<unsigned char>(byte)) * 0x100000001B3u;
  return hashed;
}

inline uint64_t mixed(uint64_t hashed, int64_t place) {
  uint64_t z = hashed + static_cast<uint64_t>(place + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// In (-1, 1), none of them zero; double.
inline torch::Tensor uniform(const std::string& name, int64_t count) {
  const auto result = torch::empty({count}, torch::kDouble);
  const uint64_t hashed = fnv1a(name);
  auto* to = result.data_ptr<double>();
  for (int64_t i = 0; i < count; ++i) to[i] = (static_cast<double>(mixed(hashed, i) >> 40) + 0.5) / 8388608.0 - 1;
  return result;
}

// The tensor of this name, in (-bound, bound); float.
inline torch::Tensor values(const std::string& name, const std::vector<int64_t>& shape, double bound) {
  return (uniform(name, c10::multiply_integers(shape)) * bound).to(torch::kFloat).view(shape);
}

// The model on one device, from batch to prediction.
struct Prediction {
  torch::Tensor prediction;
  Stream stream;  // after the last block
};
inline Prediction predict(Model& model, const Batch& in, at::ScalarType dtype,
                          decltype(Context::observe) observe = nullptr) {
  Context ctx(std::make_shared<OpTable>(), Random(1));
  ctx.compute = dtype;
  ctx.phase = Phase::evaluate;  // references drop nothing
  ctx.observe = std::move(observe);
  ModelProgram program(model, ctx);
  auto stream = program.begin(in);
  program.blocks(0, model.depth(), stream);
  auto prediction = program.head(stream, in).at("prediction");
  return {std::move(prediction), std::move(stream)};
}

// The largest difference of what the file keeps, relative to the tensor's largest entry. Sums over n entries are
// compared relative to sqrt(n) times that, as independent roundings add.
inline double distance(const std::string& name, const nlohmann::json& golden, const torch::Tensor& ours_) {
  REQUIRE(ours_.sizes().vec() == golden.at("shape").get<std::vector<int64_t>>());
  const auto ours = ours_.detach().to(torch::kDouble).flatten();
  const int64_t n = ours.numel();
  const auto largest = golden.at("largest").get<double>();
  const auto entries = golden.at("entries").get<std::vector<double>>();
  std::vector<double> wrong{ours.abs().max().item<double>() - largest};
  const auto* at = ours.data_ptr<double>();
  const uint64_t hashed = fnv1a("places/" + name);
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto place = static_cast<int64_t>(i);
    const bool all = n == static_cast<int64_t>(entries.size());
    wrong.push_back(at[all ? place : static_cast<int64_t>(mixed(hashed, place) % static_cast<uint64_t>(n))] -
                    entries[i]);
  }
  const double root = std::sqrt(static_cast<double>(n));
  wrong.push_back((ours.sum().item<double>() - golden.at("sum").get<double>()) / root);
  wrong.push_back((ours.dot(uniform("product/" + name, n)).item<double>() - golden.at("product").get<double>()) / root);
  double most = 0;
  for (const double w : wrong) most = std::isfinite(w) ? std::max(most, std::abs(w)) : INFINITY;
  return most / largest;
}

}  // namespace ditto::test
