// For those that look on while a step's units run: where units stand among one another, and what of a stream is new.
#pragma once

#include <algorithm>

#include <torch/types.h>

#include <ditto/stream.h>
#include <ditto/units.h>

namespace ditto::looking_on {

inline constexpr int64_t kBatch = 0, kCondition = 1, kTokens = 2, kBlocks = 3, kHead = 1'000'000,
                         kObjective = kHead + 1, kLosses = kHead + 2;

inline int64_t order_of(const Unit& unit) {
  switch (unit.kind) {
    case Unit::condition: return kCondition;
    case Unit::tokens: return kTokens;
    case Unit::Kind::block: return kBlocks + unit.block;
    case Unit::head: return kHead;
    case Unit::objective: return kObjective;
  }
  return kLosses;
}

// Before a unit runs. Which fields are none of these afterwards, it has made.
inline std::vector<torch::Tensor> tensors_of(Stream& stream) {
  std::vector<torch::Tensor> list;
  for (const auto& field : stream.fields()) list.push_back(*field.tensor);
  return list;
}
inline bool is_one_of(const torch::Tensor& x, const std::vector<torch::Tensor>& list) {
  return std::any_of(list.begin(), list.end(), [&](const torch::Tensor& other) { return other.is_same(x); });
}

}  // namespace ditto::looking_on
