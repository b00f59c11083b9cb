// Golden values kept as JSON.
#pragma once

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <ditto/options.h>

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

// As recipes and configurations hold it: plain ones, and lists of one kind of them.
inline OptionValue option_of(const nlohmann::json& value) {
  using nlohmann::json;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) return value.get<double>();
  if (!value.is_array()) throw std::runtime_error(value.dump() + " is no option");
  const auto all = [&](auto is) { return std::all_of(value.begin(), value.end(), is); };
  if (!value.empty() && all([](const json& one) { return one.is_string(); }))
    return value.get<std::vector<std::string>>();
  if (all([](const json& one) { return one.is_number_integer(); })) return value.get<std::vector<int64_t>>();
  return value.get<std::vector<double>>();
}

}  // namespace ditto::test
