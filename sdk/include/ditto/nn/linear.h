// Linear maps.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <torch/types.h>

#include <ditto/nn/cut_layer.h>

namespace ditto {

inline constexpr std::nullopt_t kNoBias = std::nullopt;

// y = x W^T + b, with W [out, in]; or x W^T.
class DITTO_API LinearModule : public CutLayer {
 public:
  struct Shape {
    int64_t in, out;
    Init weight;
    std::optional<Init> bias;  // kNoBias: it has none
  };
  LinearModule(Shape shape, Split split);
  ~LinearModule() override;

  torch::Tensor forward(const torch::Tensor& x, Context& ctx);
  bool adapt(const LowRank& term) override;
  void merge() override;
  std::optional<int64_t> leaves_to_cut() const override;
  // The weight with the term in it, to compute with.
  torch::Tensor whole_weight(Context& ctx) const;

  Parameter weight;  // [out, in]; a strategy may have cut it
  Parameter bias;    // [out], or undefined; added after `after` where that sums
  const Split split;
  const SumLeaves leaves;
  struct Term {
    Parameter a, b;
    double scale;
    SumLeaves leaves;  // of the layer: its inputs are A's, its outputs B's
    bool of_condition;
    std::string sequence = {};  // of the layer's Split
    torch::Tensor operator()(const torch::Tensor& in, Context& ctx) const;
  };
  std::shared_ptr<const Term> term;  // null: it has none

 private:
  torch::Tensor by_rows(const torch::Tensor& x, Context& ctx);
  torch::Tensor by_columns(const torch::Tensor& x, Context& ctx);
  torch::Tensor bias_of(Context& ctx) const;  // undefined: it has none
};

// A handle on a LinearModule, to be held by value and called.
class Linear {
 public:
  Linear() = default;
  explicit Linear(std::shared_ptr<LinearModule> module) : module_(std::move(module)) {}
  torch::Tensor operator()(const torch::Tensor& x, Context& ctx) const { return module_->forward(x, ctx); }
  LinearModule* operator->() const { return module_.get(); }
  LinearModule& operator*() const { return *module_; }
  explicit operator bool() const { return module_ != nullptr; }

 private:
  std::shared_ptr<LinearModule> module_;
};

}  // namespace ditto
