// A model of ours filled as a reference model was, through its own name map, and gradients under their names:
// tests/golden/models/reference.py has the same formula.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/ditto.h>
#include <support/golden.h>

namespace ditto::test {

using Shape = std::vector<int64_t>;

// A weight of theirs; float, as a file would hold it.
inline torch::Tensor reference_weight(const std::string& name, const Shape& shape) {
  if (shape.size() < 2) {
    const auto leaf = name.substr(name.rfind('.') + 1);
    const double about = leaf == "weight" || leaf == "scale" ? 1 : 0;
    return (uniform(name, c10::multiply_integers(shape)) * 0.25 + about).to(torch::kFloat).view(shape);
  }
  const auto inputs = static_cast<double>(c10::multiply_integers(shape.begin() + 1, shape.end()));
  return values(name, shape, name.ends_with("embedding_table.weight") ? 1 : std::sqrt(3.0 / inputs));
}

inline Shape reference_shape(const ForeignTensor& map, const torch::Tensor& ours) {
  Shape shape = map.shape.empty() ? ours.sizes().vec() : map.shape;
  if (map.shape.empty() && !shape.empty()) shape[0] /= static_cast<int64_t>(map.theirs.size());
  return shape;
}

// Fills every parameter; fails where the map names one of them twice or never.
inline void fill_as_reference(Units& model, const ForeignFormat& format) {
  const torch::NoGradGuard no_grad;
  auto parameters = model.named_parameters();
  std::map<std::string, int> filled;
  for (const auto& map : format.tensors) {
    REQUIRE_MESSAGE(parameters.contains(map.ours), map.ours);
    REQUIRE_MESSAGE(++filled[map.ours] == 1, map.ours);
    auto& ours = parameters[map.ours];
    const Shape shape = reference_shape(map, ours);
    std::vector<torch::Tensor> parts;
    for (const auto& name : map.theirs) parts.push_back(reference_weight(name, shape).flatten());
    auto all = torch::cat(parts);
    if (!map.rows.empty())
      all = all.view({-1, ours.numel() / ours.size(0)}).index_select(0, torch::tensor(map.rows, torch::kLong));
    REQUIRE_MESSAGE(all.numel() == ours.numel(), map.ours);
    ours.copy_(all.view(ours.sizes()));
  }
  for (const auto& item : parameters) REQUIRE_MESSAGE(filled.count(item.key()), item.key());
}

// By their names and in their shapes; fails where rows of theirs are of none of ours, or of two.
inline std::map<std::string, torch::Tensor> reference_gradients(const Model& model, const ForeignFormat& format) {
  std::map<std::string, torch::Tensor> found, taken;
  const auto parameters = model.named_parameters();
  for (const auto& map : format.tensors) {
    const auto& ours = parameters[map.ours];
    REQUIRE_MESSAGE(ours.grad().defined(), map.ours);
    const Shape shape = reference_shape(map, ours);
    const auto parts = static_cast<int64_t>(map.theirs.size());
    const int64_t row = ours.dim() == 0 ? 1 : ours.numel() / ours.size(0);
    auto all = torch::zeros({parts * c10::multiply_integers(shape) / row, row}, ours.grad().options()),
         used = all.clone();
    const auto rows = map.rows.empty() ? torch::arange(all.size(0)) : torch::tensor(map.rows, torch::kLong);
    all.index_add_(0, rows, ours.grad().reshape({-1, row}));
    used.index_add_(0, rows, torch::ones({rows.size(0), row}, all.options()));
    const auto grads = all.view(-1).chunk(parts), uses = used.view(-1).chunk(parts);
    for (size_t i = 0; i < map.theirs.size(); ++i) {
      auto& sum = found[map.theirs[i]];
      auto& count = taken[map.theirs[i]];
      sum = sum.defined() ? sum + grads[i].view(shape) : grads[i].view(shape);
      count = count.defined() ? count + uses[i].view(shape) : uses[i].view(shape);
    }
  }
  for (const auto& [name, count] : taken) REQUIRE_MESSAGE(count.eq(1).all().item<bool>(), name);
  return found;
}

}  // namespace ditto::test
