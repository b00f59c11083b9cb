// Layers for models. A layer states what it computes on one device and how it may be cut; strategies do the rest.
//
// Legend: B samples, T tokens, D width, C channels, H W picture sides, P patch side.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include <ditto/batch.h>
#include <ditto/stream.h>

namespace ditto {

class Context;

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

// How a Linear may be cut along an axis of ranks. One word, said by the model; no model does anything else for it.
struct DITTO_API Split {
  enum class Kind { none, columns, rows } kind = Kind::none;
  std::vector<int64_t> parts;  // columns: the outputs' parts one after another, each cut by itself
  int64_t head_width = 0;      // > 0: parts are heads of this width, and cut by whole heads
  bool gather = false;         // columns: outputs are put together again at once

  static Split none() { return {}; }
  static Split columns(std::vector<int64_t> widths) { return {Kind::columns, std::move(widths), 0, false}; }
  // Feeds attention: counts of query, key and value heads (grouped-query too).
  static Split heads(std::vector<int64_t> counts, int64_t head_width);
  static Split rows() { return {Kind::rows, {}, 0, false}; }
  // For small outputs of a large weight (adaLN modulation): cut, at the price of gathering the outputs.
  Split gathered() const;
};

// Base of every module with parameters. Parameters are made uninitialised; the host fills them by name (Init).
class DITTO_API Module : public torch::nn::Module {
 public:
  Module();
  ~Module() override;

  struct Parameter {
    torch::Tensor tensor;
    Init init;
  };
  // Own parameters (not children's) with their recipes, in the order of registration.
  const std::vector<Parameter>& parameters_with_init() const { return made_; }

 protected:
  // fp32 leaf of the given shape.
  torch::Tensor parameter(const std::string& name, std::vector<int64_t> shape, Init init);

 private:
  std::vector<Parameter> made_;
};

// y = x W^T + b, with W [out, in]. In bf16 or fp16 it multiplies with a compute copy of W, made again only when W has
// changed; the backward hands fp32 to the fp32 leaf.
class DITTO_API LinearModule : public Module {
 public:
  struct Shape {
    int64_t in, out;
    Init weight;
    Init bias;
  };
  LinearModule(Shape shape, Split split);
  ~LinearModule() override;

  torch::Tensor forward(const torch::Tensor& x, Context& ctx);
  // The weights as forward multiplies with them, in the context's dtype. For composite ops.
  torch::Tensor compute_weight(Context& ctx) { return compute_copy(weight, weight_copy_, ctx); }
  torch::Tensor compute_bias(Context& ctx) { return compute_copy(bias, bias_copy_, ctx); }

  torch::Tensor weight;  // [out, in]; a strategy may have cut it
  torch::Tensor bias;    // [out]
  const Split split;

  // Set by strategies. `before` maps the input, `after` the output; a `rows` layer adds its bias after `after`.
  using Exchange = std::function<torch::Tensor(const torch::Tensor&)>;
  Exchange before, after;

 private:
  struct Copy {
    torch::Tensor tensor;
    const void* of = nullptr;
    uint32_t version = 0;
  };
  torch::Tensor compute_copy(const torch::Tensor& leaf, Copy& copy, Context& ctx);
  Copy weight_copy_, bias_copy_;
};

// A handle on a LinearModule, to be held by value and called.
class Linear {
 public:
  Linear() = default;
  explicit Linear(std::shared_ptr<LinearModule> module) : module_(std::move(module)) {}
  torch::Tensor operator()(const torch::Tensor& x, Context& ctx) const { return module_->forward(x, ctx); }
  LinearModule* operator->() const { return module_.get(); }
  LinearModule& operator*() const { return *module_; }

 private:
  std::shared_ptr<LinearModule> module_;
};

// Base for blocks and other parts of a model: makes named layers.
class DITTO_API Layer : public Module {
 public:
  Layer();
  ~Layer() override;

 protected:
  Linear linear(const std::string& name, int64_t in, int64_t out, Split split = {});       // xavier, bias zero
  Linear zero_linear(const std::string& name, int64_t in, int64_t out, Split split = {});  // weight and bias zero
  Linear linear(const std::string& name, int64_t in, int64_t out, Split split, Init weight, Init bias = Init::zeros());
};

// Patches of P x P pixels to tokens by one linear map, and back. x [B, C, H, W]; H and W must be multiples of P.
class DITTO_API PatchEmbed : public Layer {
 public:
  PatchEmbed(int64_t channels, int64_t patch, int64_t width);
  ~PatchEmbed() override;
  torch::Tensor forward(const torch::Tensor& x_BCHW, Context& ctx);  // -> [B, T, D], rows first
  Grid grid(const torch::Tensor& x_BCHW) const;
  // [B, T, P*P*C'] with the channel fastest -> [B, C', H, W].
  torch::Tensor unpatchify(const torch::Tensor& y, const Grid& grid) const;

 private:
  int64_t patch_;
  Linear map_;  // weight [D, C*P*P]
};

// A scalar time to a conditioning vector: sinusoidal features, then an MLP with SiLU. [B] -> [B, D].
class DITTO_API TimeEmbed : public Layer {
 public:
  // `divisor` of the features' frequencies: see timestep_features. 256 features.
  TimeEmbed(int64_t width, double divisor);
  ~TimeEmbed() override;
  torch::Tensor forward(const torch::Tensor& t_B, Context& ctx);

 private:
  double divisor_;
  Linear in_, out_;
};

// A table of classes and one null class, the last row. int64 [B] -> [B, D].
class DITTO_API LabelEmbed : public Layer {
 public:
  LabelEmbed(int64_t classes, int64_t width);
  ~LabelEmbed() override;
  torch::Tensor forward(const torch::Tensor& label_B, Context& ctx);  // throws Error(data) for a label out of range
  int64_t null_label() const { return classes_; }

  torch::Tensor table;  // [classes + 1, D]

 private:
  int64_t classes_;
};

// Sinusoidal features of a scalar, [B] -> [B, 2 * half]: cos first, then sin; frequency i is 10000^(-i / divisor).
// Computed and returned in fp32.
DITTO_API torch::Tensor timestep_features(const torch::Tensor& t_B, int64_t half, double divisor);

// Fixed sine-cosine positions of a grid, [T, D]: the first D/2 numbers tell the column, the rest the row, each as sin
// and then cos of place * 10000^(-i / (D/4)). double.
DITTO_API torch::Tensor sincos_positions(const Grid& grid, int64_t width);

}  // namespace ditto
