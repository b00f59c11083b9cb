// What a model's modules and their parameters are.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <ditto/visibility.h>

namespace ditto {

class Context;
class CutLayer;

// How a parameter starts. Its values depend on the run's seed, its full name and its global shape, and on nothing else.
struct DITTO_API Init {
  enum class Kind { zeros, ones, normal, uniform } kind = Kind::zeros;
  double scale = 0;  // normal: standard deviation; uniform: in [-scale, scale]

  static Init zeros() { return {Kind::zeros, 0}; }
  static Init ones() { return {Kind::ones, 1}; }
  static Init normal(double deviation) { return {Kind::normal, deviation}; }
  static Init uniform(double bound) { return {Kind::uniform, bound}; }
  // Glorot and Bengio, 2010: uniform with bound sqrt(6 / (in + out)).
  static Init xavier(int64_t in, int64_t out);
};

// A learned tensor as layers use it; copies are handles on the same one. Its leaf is what gradients are for. A strategy
// may free the leaf's numbers and provide others to compute with.
class DITTO_API Parameter {
 public:
  Parameter() = default;
  Parameter(torch::Tensor leaf, Init init);
  bool defined() const { return state_ != nullptr; }

  // To compute with: in the context's dtype (of a copy that is made again only when the leaf has changed); its gradient
  // goes to the leaf, in the leaf's dtype. Throws Error(plugin) if a strategy has freed the numbers.
  torch::Tensor operator()(Context& ctx) const;
  // The same of rows [index] of dim 0, whose gradients are summed in the leaf's dtype.
  torch::Tensor rows(const torch::Tensor& index, Context& ctx) const;

  const torch::Tensor& leaf() const;
  const Init& init() const;
  // For strategies: numbers of the leaf's shape, in the dtype layers multiply in, to be used instead of the leaf's;
  // undefined: the leaf's again. They may be freed and filled again between uses, as long as their storage stays.
  void provide(torch::Tensor values) const;
  // For an update that writes the copy to compute with along with the leaf: that copy, where there is one, and it is of
  // the leaf; then `copied` says that it holds the leaf's numbers again.
  torch::Tensor copy() const;
  void copied() const;
  // All that it keeps: the leaf, what was provided, and the copy in the dtype layers multiply in. For counts of memory.
  std::vector<torch::Tensor> held() const;

 private:
  torch::Tensor values(Context& ctx) const;
  struct State;
  std::shared_ptr<State> state_;
};

// Frees a tensor's numbers, or makes room for them again (unfilled), in its storage: views and graphs stay valid.
DITTO_API void free_storage(const torch::Tensor& tensor);
DITTO_API void fill_storage(const torch::Tensor& tensor);
DITTO_API bool is_freed(const torch::Tensor& tensor);

// While one lives, this thread makes parameters that have a shape and no numbers, on the meta device: a model of any
// size then takes no memory, and computes shapes.
class DITTO_API ShapesAlone {
 public:
  ShapesAlone();
  ~ShapesAlone();
  ShapesAlone(const ShapesAlone&) = delete;
  ShapesAlone& operator=(const ShapesAlone&) = delete;
};

// Base of every module with parameters. Parameters are made uninitialised; the host fills them by name (Init).
class DITTO_API Module : public torch::nn::Module {
 public:
  Module();
  ~Module() override;

  // Own parameters (not children's), in the order of registration.
  const std::vector<Parameter>& own_parameters() const { return made_; }
  // Itself, where it may be cut (CutLayer).
  virtual CutLayer* cut_layer() { return nullptr; }

 protected:
  // fp32 leaf of the given shape.
  Parameter parameter(const std::string& name, std::vector<int64_t> shape, Init init);

 private:
  std::vector<Parameter> made_;
};

}  // namespace ditto
