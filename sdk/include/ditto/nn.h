// Layers for models. A layer states what it computes on one device and how it may be cut; strategies do the rest.
//
// Legend: B samples, T tokens, D width, C channels, H W picture sides, P patch side.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <ditto/axis.h>
#include <ditto/batch.h>
#include <ditto/error.h>
#include <ditto/stream.h>

namespace ditto {

class Context;
class CutLayer;
class Ops;

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

// How a layer of this library may be cut along the tensor axis. One word, said by the model; no model does anything
// else for it. Outputs and inputs are a linear map's numbers, or a convolution's channels.
struct DITTO_API Split {
  enum class Kind { none, columns, rows, along } kind = Kind::none;
  std::vector<int64_t> parts = {};  // of what is cut, one after another, each cut by itself; none: all of it is one
  int64_t unit = 1;                 // numbers of a part that stay together: a head's width, a group's channels
  bool are_heads = false;           // columns: the units are attention heads
  bool gather = false;              // columns: outputs are put together again at once
  bool condition = false;           // the input is conditioning: it has no tokens that could be cut
  std::string sequence = {};  // whose tokens the input is: the name of the stream's extra; empty: the stream's own

  static Split none() { return {}; }
  // Each rank makes a share of the outputs.
  static Split columns(std::vector<int64_t> widths) { return {Kind::columns, std::move(widths)}; }
  // Feeds attention: counts of query, key and value heads (grouped-query too).
  static Split heads(std::vector<int64_t> counts, int64_t head_width);
  // Each rank has a share of the inputs: what `columns`, and what is between, have left here. The outputs are summed.
  static Split rows() { return {Kind::rows}; }
  // Inputs and outputs are cut alike: a norm over groups of channels.
  static Split along(std::vector<int64_t> widths) { return {Kind::along, std::move(widths)}; }
  // For small outputs of a large weight (adaLN modulation): cut, at the price of gathering the outputs. Of
  // conditioning.
  Split gathered() const;
  // Keys and values of text.
  Split of_condition() const;
  // Of tokens of a second sequence, Stream::extra[name].
  Split of(const std::string& name) const;
  // Of several sequences' tokens, one after another in one tensor, which have the same weights. Strategies that cut
  // each sequence's tokens between layers refuse it.
  Split side_by_side() const { return of(kSideBySide); }
  static constexpr const char* kSideBySide = "*";
  // The same with several parts: `rows` after maps that were put side by side.
  Split in_parts(std::vector<int64_t> widths) const;
  // The same, cut between runs of `unit` numbers only.
  Split in_units(int64_t unit) const;
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

// How one of a layer's parameters may be cut along an axis of ranks: `dim` consists of parts one after another, each
// cut by itself, between its units only.
struct DITTO_API ParameterCut {
  std::string parameter;  // its own name: "weight"
  int64_t dim = 0;
  std::vector<int64_t> parts = {};  // numbers of each; none: all of dim is one part
  int64_t unit = 1;                 // numbers that stay together, wherever they are
};

// What a layer declares about an axis. From this alone strategies cut its parameters and set its exchanges.
struct DITTO_API LayerCut {
  enum class Values {
    whole,    // every rank has all of them
    cut,      // every rank has its units, as its parameters have
    partial,  // outputs: every rank has a term of their sum
    dealt,    // every rank has rows of its own, which `dispatch` takes to the units they are for, and back
  };
  std::vector<ParameterCut> parameters;                  // those that are not here are copies
  std::string units;                                     // what the units are, in plural: "attention heads of width 6"
  Values input = Values::whole, output = Values::whole;  // of the computation, where its parameters are cut
  bool gathered = false;      // cut outputs are to be put together again at once, by the parts of the first parameter
  int64_t channels = -1;      // the dim of inputs and outputs that is cut
  bool condition = false;     // inputs are conditioning: they have no tokens that could be cut
  std::string sequence = {};  // whose tokens the inputs are: the name of the stream's extra; empty: the stream's own
  bool are_heads = false;     // the units are attention heads, and the outputs feed attention
};

// A term of low rank beside a map, learned while the map itself is frozen (E. Hu et al., 2021, arXiv:2106.09685):
// y = W x + b + alpha / rank * B (A x).
struct LowRank {
  int64_t rank = 0;
  double alpha = 0;
};

// Base of a layer that may be cut. In its constructor it makes parameters and declares; in its forward it computes with
// what is here of them, between `enter` and `leave`:
//
//   y = leave(f(enter(x)));   and what is added once to a sum of terms: after `leave`, or before it if `adds_bias`.
class DITTO_API CutLayer : public Module {
 public:
  CutLayer();
  ~CutLayer() override;
  // What it declares about the axis; null: along it all of its parameters are copies.
  const LayerCut* cut(Axis axis) const;
  // False: what it makes of one place depends on others (a map's neighbours, a norm over all of them). Strategies that
  // cut a sample by places refuse a block with such a layer, and name it.
  virtual bool token_local() const { return true; }
  CutLayer* cut_layer() override { return this; }

  // Gives it a term of low rank, cut as it is itself: "lora_A.weight" [rank, in], which is drawn, and "lora_B.weight"
  // [out, rank], zeros. False: it has no place for one.
  virtual bool adapt(const LowRank& term);
  // Of a layer that is here whole: makes the term a part of the weight, if there is one, and takes it away.
  virtual void merge() {}

  // Set by strategies. `before` maps the input, `after` the output.
  using Exchange = std::function<torch::Tensor(const torch::Tensor&)>;
  Exchange before, after;
  // Of ranks whose terms are summed, one adds what is to be added once.
  bool adds_bias = true;

  // Under run.numerics = "one" sums that a cut goes through are made of leaves. How many such leaves there are, of
  // which every rank gets as many; 0: a cut goes through no sum; none: it cannot compute by nodes, and is not cut.
  virtual std::optional<int64_t> leaves_to_cut() const { return std::nullopt; }
  // Set by strategies then, in the place of `before`, and of an `after` that sums: the layer computes with one node of
  // the leaves that are here at a time. One that has whole inputs and makes terms has `before` and `after` besides,
  // where ranks share the tokens between layers: they make tokens whole, and take the own ones.
  struct Nodes {
    std::vector<int64_t> leaves;                                                // of each node
    std::function<std::vector<torch::Tensor>(const torch::Tensor& x)> copies;   // of whole inputs: for each node
    std::function<torch::Tensor(const std::vector<torch::Tensor>& terms)> sum;  // of terms: one of each node
    // Of what has no tokens, one for each node of outputs.
    std::function<std::vector<torch::Tensor>(const torch::Tensor& rows)> copies_of_rows;
    // Of terms without tokens, one of each node: their sum, on every rank.
    std::function<torch::Tensor(const std::vector<torch::Tensor>& terms)> sum_of_rows;
  };
  std::shared_ptr<const Nodes> nodes;
  // Takes rows sorted by unit, counts[i] of them for unit i, to where the units are, has `run` compute them there, and
  // brings the results back; by default all units are here.
  using Rows = std::function<torch::Tensor(const torch::Tensor& x_RD, const std::vector<int64_t>& counts)>;
  std::function<torch::Tensor(const torch::Tensor& x_RD, const std::vector<int64_t>& counts, const Rows& run)> dispatch;
  // Set with it. Takes one whole number for each of such rows to where the units are, in the order in which `run` gets
  // the rows; the i-th rank adds i * stride to its own.
  std::function<torch::Tensor(const torch::Tensor& number_R, const std::vector<int64_t>& counts, int64_t stride)>
      dispatch_numbers;

 protected:
  // `layer`: what messages call it. Throws Error(plugin) for what the parameters' shapes do not allow.
  void declare(Axis axis, LayerCut cut, const std::string& layer);
  // What a Split says of a "weight" [out, in, …] and, where there is one, a "bias" [out], about the tensor axis.
  struct Words {
    std::string layer, inputs, outputs;  // for messages: "linear layer", "inputs", "outputs"
    int64_t channels = -1;
  };
  void declare(const Split& split, const Words& words);
  torch::Tensor enter(const torch::Tensor& x) const { return before ? before(x) : x; }
  torch::Tensor leave(const torch::Tensor& y) const { return after ? after(y) : y; }

 private:
  std::map<Axis, LayerCut> cuts_;
};

// How the sums of a layer that may be cut are put together under run.numerics = "one": lists {U, w0, w1, …} of the op
// "linear". The dim consists of parts of these widths, each of U equal runs; leaf u is run u of every part.
struct DITTO_API SumLeaves {
  std::vector<int64_t> in;   // over inputs, in forward; empty: one leaf
  std::vector<int64_t> out;  // over outputs, in the gradient of the inputs; empty: one leaf
  // By what a Split lets be cut: of units the most runs that all parts have whole; of single numbers 12 runs, or so
  // many times 12 that none has more than 32 numbers, so that 2, 3, 4, 6 and 12 ranks can share them; where the parts
  // do not divide so, runs of 32, or of the next length that divides every part.
  static SumLeaves of(const Split& split, int64_t in, int64_t out);
};

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

// Base for blocks and other parts of a model: makes named layers.
class DITTO_API Layer : public Module {
 public:
  Layer();
  ~Layer() override;

 protected:
  // Any layer; its parameters are NAME.….
  template <class T, class... Args>
  std::shared_ptr<T> make(const std::string& name, Args&&... args) {
    return register_module(
        name, named("layer \"" + name + "\"", [&] { return std::make_shared<T>(std::forward<Args>(args)...); }));
  }
  // An error of what `make` makes says its name.
  template <class Make>
  static auto named(const std::string& name, const Make& make) {
    try {
      return make();
    } catch (const Error& error) {
      throw error.within(name);
    }
  }
  Linear linear(const std::string& name, int64_t in, int64_t out, Split split = {});       // xavier, bias zero
  Linear zero_linear(const std::string& name, int64_t in, int64_t out, Split split = {});  // weight and bias zero
  Linear linear(const std::string& name, int64_t in, int64_t out, Split split, Init weight,
                std::optional<Init> bias = Init::zeros());
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

// Sinusoidal features of a scalar, as timestep_features makes them: cosines first, or sines.
struct TimeFeatures {
  int64_t count = 256;
  double divisor = 128;
  bool sine_first = false;
};

// A scalar time to a conditioning vector: sinusoidal features, then an MLP with SiLU. [B] -> [B, D].
class DITTO_API TimeEmbed : public Layer {
 public:
  TimeEmbed(int64_t width, const TimeFeatures& features);
  // `divisor` of the features' frequencies: see timestep_features. 256 features.
  TimeEmbed(int64_t width, double divisor) : TimeEmbed(width, TimeFeatures{256, divisor, false}) {}
  ~TimeEmbed() override;
  torch::Tensor forward(const torch::Tensor& t_B, Context& ctx);

 private:
  TimeFeatures features_;
  Linear in_, out_;
};

// Rows of a table: int64 [...] -> [..., D]. It may be cut by its width (Split::columns), so that every rank looks all
// rows up and no sum is made: gathered, its numbers are the table's to the bit.
class DITTO_API Embedding : public CutLayer {
 public:
  Embedding(int64_t rows, int64_t width, Split split = {}, Init init = Init::normal(0.02));
  ~Embedding() override;
  torch::Tensor forward(const torch::Tensor& index, Context& ctx);
  std::optional<int64_t> leaves_to_cut() const override { return 0; }

  Parameter table;  // [rows, D]; a strategy may have cut it
};

// A table of classes and one null class, the last row. int64 [B] -> [B, D].
class DITTO_API LabelEmbed : public Embedding {
 public:
  LabelEmbed(int64_t classes, int64_t width);
  ~LabelEmbed() override;
  torch::Tensor forward(const torch::Tensor& label_B, Context& ctx);  // throws Error(data) for a label out of range
  int64_t null_label() const { return classes_; }

 private:
  int64_t classes_;
};

// Root mean square over the last dim, as queries and keys are normalised with (arXiv:1910.07467), computed in fp32:
// x / sqrt(mean(x^2) + eps) * weight. x [..., K].
class DITTO_API RmsNorm : public Layer {
 public:
  explicit RmsNorm(int64_t width, double eps = 1e-6);
  ~RmsNorm() override;
  torch::Tensor forward(const torch::Tensor& x, Context& ctx);
  // Of heads [B, T, N, K] of queries or keys that `map` has made, as many as are here; `of_tokens`: ctx.ops as the map
  // sees them.
  torch::Tensor of_heads(const torch::Tensor& x_BTNK, const LinearModule& map, Context& ctx, const Ops& of_tokens);

 private:
  Parameter weight_;  // [K], ones
  double eps_;
};

// LayerNorm over the last dim, with weight and bias [K]: what tokens are normalised with where no modulation does it.
// Every rank has all of K.
class DITTO_API LayerNorm : public Layer {
 public:
  explicit LayerNorm(int64_t width, double eps = 1e-5);
  ~LayerNorm() override;
  torch::Tensor forward(const torch::Tensor& x, Context& ctx);

 private:
  Parameter weight_, bias_;  // ones, zeros
  double eps_;
};

// Which expert takes which token, and with what weight. Any number of rows for a token.
struct Routing {
  torch::Tensor token_R;   // int64: index into the B * T tokens at hand
  torch::Tensor expert_R;  // int64, 0 … E - 1
  torch::Tensor weight_R;  // differentiable
};

// E two-layer perceptrons with GELU (tanh form), of which each token sees those it is routed to:
// y = sum over its rows of weight * expert(x). A token without a row gets zero. Rows of one expert are computed in the
// order of tokens.
class DITTO_API ExpertsModule : public CutLayer {
 public:
  ExpertsModule(int64_t experts, int64_t width, int64_t hidden);
  ~ExpertsModule() override;
  // `route` is called with the tokens as they are here after `before`.
  torch::Tensor forward(const torch::Tensor& x_BTD, const std::function<Routing(const torch::Tensor& x_BTD)>& route,
                        Context& ctx);
  std::optional<int64_t> leaves_to_cut() const override { return hidden_leaves_.empty() ? 1 : hidden_leaves_[0]; }

  Parameter up, up_bias;      // [E, H, D], [E, H]: the hidden width may be cut by tensor, the experts by expert
  Parameter down, down_bias;  // [E, D, H], [E, D]
  const int64_t experts;      // of the whole layer; down_bias is added where `adds_bias`

 private:
  struct Weights {
    torch::Tensor up, up_bias, down, down_bias;
  };
  // Sorted by expert, count[i] of them for the i-th expert whose weights are here.
  struct SortedRows {
    torch::Tensor x_RD;
    std::vector<int64_t> count;
    torch::Tensor token_R;  // which tokens they are, `tokens` of each sample; undefined: nobody asks
    int64_t tokens;
  };
  // `weights`: of each rank that rows come from, or once for all of them.
  torch::Tensor of_tokens(const torch::Tensor& x_BTD, const Routing& routing, const std::vector<Weights>& weights,
                          Context& ctx);
  // As many rows, of whichever rank.
  torch::Tensor by_rank(const SortedRows& rows, const std::vector<Weights>& weights, Context& ctx) const;
  torch::Tensor run_rows(const SortedRows& rows, const Weights& weights, Context& ctx) const;
  torch::Tensor run_op(const SortedRows& rows, const Weights& weights, const std::vector<int64_t>& hidden_leaves,
                       Context& ctx) const;
  const std::vector<int64_t> hidden_leaves_;  // {U, H} of the op "experts"; none: one leaf
};

// Tables and features: the same bits on every machine (elementary.h).

// How many pairs of a head turn with the frame, the row and the column.
struct RotaryPairs {
  int64_t frames, rows, columns;
};
// Rotary positions of a grid (RoFormer, arXiv:2104.09864), [T, K]: the cosines of K / 2 angles, then their sines. Pair
// i of an axis's n turns by place * base^(-i / n), an fp32 number. double.
DITTO_API torch::Tensor rotary_table(const Grid& grid, const RotaryPairs& pairs, double base = 10000);
// K / 2 pairs shared equally among frames (where there are several), rows and columns; the last get what is left.
DITTO_API torch::Tensor rotary_table(const Grid& grid, int64_t head_width, double base = 10000);
// Turns pairs (x[i], x[i + K/2]) of x [B, T, N, K].
DITTO_API torch::Tensor apply_rotary(const torch::Tensor& x_BTNK, const torch::Tensor& table_TK);

// Sinusoidal features of a scalar, [B] -> [B, 2 * half]: cos first, then sin; frequency i is 10000^(-i / divisor).
// Computed and returned in fp32, every exponential, cosine and sine as the nearest number.
DITTO_API torch::Tensor timestep_features(const torch::Tensor& t_B, int64_t half, double divisor);

// Fixed sine-cosine positions 0 … n - 1, [n, D]: sin and then cos of place * 10000^(-i / (D/2)). double.
DITTO_API torch::Tensor sincos_positions(int64_t n, int64_t width);
// Of a grid, [T, D]: the first D/2 numbers tell the column, the rest the row.
DITTO_API torch::Tensor sincos_positions(const Grid& grid, int64_t width);

}  // namespace ditto
