// Golden values kept as JSON.
#pragma once

#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/types.h>
#include <nlohmann/json.hpp>

namespace ditto::test {

// `file` from the root of the repository.
inline nlohmann::json read_json(const std::string& file) {
  return nlohmann::json::parse(std::ifstream(std::string(DITTO_SOURCE_DIR) + "/" + file));
}

// Nested lists of numbers; double.
inline torch::Tensor tensor(const nlohmann::json& value) {
  if (!value.is_array()) return torch::scalar_tensor(value.get<double>(), torch::kDouble);
  std::vector<torch::Tensor> rows;
  for (const auto& one : value) rows.push_back(tensor(one));
  return torch::stack(rows);
}

// Largest difference, relative to the largest value.
inline double apart(const torch::Tensor& ours, const torch::Tensor& theirs) {
  if (ours.sizes() != theirs.sizes()) throw std::runtime_error("tensors of other sizes");
  return ((ours - theirs).abs().max() / theirs.abs().max()).item<double>();
}

}  // namespace ditto::test
