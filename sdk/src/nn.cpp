// Layers.
#include <ditto/nn.h>

#include <cmath>
#include <numeric>
#include <utility>

#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/context.h>
#include <ditto/error.h>
#include <ditto/prepared.h>

#include "picture_grid.h"

namespace ditto {

using torch::Tensor;

Init Init::xavier(int64_t in, int64_t out) { return uniform(std::sqrt(6.0 / static_cast<double>(in + out))); }

Split Split::heads(std::vector<int64_t> counts, int64_t head_width) {
  for (int64_t& count : counts) count *= head_width;
  Split split = columns(std::move(counts)).in_units(head_width);
  split.are_heads = true;
  return split;
}

Split Split::gathered() const {
  Split copy = of_condition();
  copy.gather = true;
  return copy;
}

Split Split::of_condition() const {
  Split copy = *this;
  copy.condition = true;
  return copy;
}

Split Split::in_parts(std::vector<int64_t> widths) const {
  Split copy = *this;
  copy.parts = std::move(widths);
  return copy;
}

Split Split::in_units(int64_t width) const {
  Split copy = *this;
  copy.unit = width;
  return copy;
}

Split Split::of(const std::string& name) const {
  Split copy = *this;
  copy.sequence = name;
  return copy;
}

Module::Module() = default;
Module::~Module() = default;

namespace {

thread_local int shapes_alone = 0;

}  // namespace

ShapesAlone::ShapesAlone() { ++shapes_alone; }
ShapesAlone::~ShapesAlone() { --shapes_alone; }

Parameter Module::parameter(const std::string& name, std::vector<int64_t> shape, Init init) {
  const auto options = torch::TensorOptions(torch::kFloat).device(shapes_alone > 0 ? torch::kMeta : torch::kCPU);
  return made_.emplace_back(register_parameter(name, torch::empty(shape, options)), init);
}

Layer::Layer() = default;
Layer::~Layer() = default;

namespace {

// The compute copy of a leaf: forward hands out the copy, backward hands the gradient to the leaf in the leaf's dtype.
struct UseCopy : torch::autograd::Function<UseCopy> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& leaf, const Tensor& copy) {
    ctx->saved_data["dtype"] = leaf.scalar_type();
    return copy.view_as(copy);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grad) {
    return {grad[0].to(ctx->saved_data["dtype"].toScalarType()), Tensor()};
  }
};

// Rows of the numbers a leaf stands for, in another dtype than its own.
struct UseRows : torch::autograd::Function<UseRows> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& leaf, const Tensor& numbers,
                        const Tensor& index) {
    ctx->saved_data["dtype"] = leaf.scalar_type();
    ctx->saved_data["shape"] = leaf.sizes().vec();
    ctx->save_for_backward({index});
    return numbers.index_select(0, index);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grad) {
    const auto dtype = ctx->saved_data["dtype"].toScalarType();
    auto sum = torch::zeros(ctx->saved_data["shape"].toIntVector(), grad[0].options().dtype(dtype));
    sum.index_add_(0, ctx->get_saved_variables()[0], grad[0].to(dtype));
    return {sum, Tensor(), Tensor()};
  }
};

}  // namespace

struct Parameter::State {
  Tensor leaf;
  Init init;
  Tensor provided;
  // A copy in the compute dtype, and what it was made of.
  Tensor copy;
  const void* of = nullptr;
  uint32_t version = 0;
  // Under run.numerics = "one": the uses that a backward pass has met, -1 before the first.
  int uses = -1;

  // `use`: what forward hands out. A gradient is a tree over samples; of two uses autograd would add two trees, each of
  // a micro-batch's samples, and other micro-batches would give other bits.
  static Tensor once(const std::shared_ptr<State>& state, Tensor use);
};

Parameter::Parameter(Tensor leaf, Init init) : state_(std::make_shared<State>()) {
  state_->leaf = std::move(leaf);
  state_->init = init;
}

const Tensor& Parameter::leaf() const { return state_->leaf; }
const Init& Parameter::init() const { return state_->init; }

void Parameter::provide(Tensor values) const {
  state_->provided = std::move(values);
  state_->copy = Tensor();
  state_->of = nullptr;
}

// Without autograd, in the context's dtype.
Tensor Parameter::values(Context& ctx) const {
  auto& s = *state_;
  const bool provided = s.provided.defined();
  if (is_freed(provided ? s.provided : s.leaf))
    throw Error(ErrorKind::plugin, "a parameter of shape " + c10::str(s.leaf.sizes()),
                "is used while its numbers are with other ranks",
                "use a parameter only inside of the unit it was added to");
  const Tensor& from = provided ? s.provided : s.leaf;
  if (from.scalar_type() == ctx.compute) return from;
  const void* numbers = from.is_meta() ? from.unsafeGetTensorImpl() : from.data_ptr();
  if (s.of != numbers || s.version != from._version() || s.copy.scalar_type() != ctx.compute) {
    s.copy = from.detach().to(ctx.compute);
    keep_prepared(s.copy);
    s.of = numbers;
    s.version = static_cast<uint32_t>(from._version());
  }
  return s.copy;
}

Tensor Parameter::copy() const {
  const auto& s = *state_;
  return !s.provided.defined() && !is_freed(s.leaf) && !s.leaf.is_meta() && s.of == s.leaf.data_ptr() ? s.copy
                                                                                                      : Tensor();
}

void Parameter::copied() const {
  state_->version = static_cast<uint32_t>(state_->leaf._version());
  if (state_->copy.defined()) keep_prepared(state_->copy);
}

std::vector<Tensor> Parameter::held() const {
  std::vector<Tensor> all;
  for (const auto& tensor : {state_->leaf, state_->provided, state_->copy})
    if (tensor.defined()) all.push_back(tensor);
  return all;
}

Tensor Parameter::State::once(const std::shared_ptr<State>& state, Tensor use) {
  // Weak: the leaf, which keeps its hook, is the state's.
  const std::weak_ptr<State> weak = state;
  if (state->uses < 0) {
    state->uses = 0;
    state->leaf.register_hook([weak](const Tensor& sum) {
      const auto mine = weak.lock();
      const int uses = mine ? std::exchange(mine->uses, 0) : 1;
      if (uses > 1)
        throw Error(ErrorKind::plugin, "a parameter of shape " + c10::str(mine->leaf.sizes()),
                    "is used " + std::to_string(uses) +
                        " times in one forward, and run.numerics = \"one\" has no order for a sum "
                        "over uses",
                    "use it once, for all rows together, or set run.numerics = \"fast\"");
      return sum;
    });
  }
  use.register_hook([weak](const Tensor& grad) {
    if (const auto mine = weak.lock()) ++mine->uses;
    return grad;
  });
  return use;
}

Tensor Parameter::operator()(Context& ctx) const {
  const Tensor numbers = values(ctx);
  const Tensor& leaf = state_->leaf;
  if (!leaf.requires_grad()) return numbers;
  const bool is_leaf = numbers.is_same(leaf);
  if (torch::GradMode::is_enabled() && !(is_leaf && ctx.token_leaf == 0)) {
    if (numbers.is_same(state_->copy)) keep_prepared(numbers);  // what learns changes soon, and its memory is wanted
    const Tensor used = is_leaf ? leaf.view_as(leaf) : UseCopy::apply(leaf, numbers);
    // A kernel that has summed its gradient in a wider dtype hands it over unrounded.
    if (!is_leaf) used.grad_fn()->mutable_input_metadata(0).set_grad_dtype(std::nullopt);
    return ctx.token_leaf > 0 ? State::once(state_, used) : used;
  }
  if (is_leaf) return numbers;
  // ATen's matmul asks whether a weight learns before it chooses how to multiply, without autograd too: one that was
  // provided says what the leaf would.
  return numbers.scalar_type() == leaf.scalar_type() ? numbers.detach().requires_grad_() : numbers;
}

Tensor Parameter::rows(const Tensor& index, Context& ctx) const {
  const Tensor numbers = values(ctx);
  const Tensor& leaf = state_->leaf;
  if (numbers.scalar_type() == leaf.scalar_type()) return ctx.ops.embedding_rows((*this)(ctx), index);
  if (!torch::GradMode::is_enabled() || !leaf.requires_grad()) return numbers.index_select(0, index);
  return UseRows::apply(leaf, numbers.detach(), index);
}

bool is_freed(const Tensor& tensor) { return tensor.numel() > 0 && tensor.storage().nbytes() == 0; }

void free_storage(const Tensor& tensor) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
  storage->set_nbytes(0);
}

void fill_storage(const Tensor& tensor) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->nbytes() > 0) return;
  const auto bytes = static_cast<size_t>(tensor.storage_offset() + tensor.numel()) * tensor.element_size();
  storage->set_data_ptr_noswap(c10::GetAllocator(tensor.device().type())->allocate(bytes));
  storage->set_nbytes(bytes);
}

Linear Layer::linear(const std::string& name, int64_t in, int64_t out, Split split, Init weight,
                     std::optional<Init> bias) {
  return Linear(make<LinearModule>(name, LinearModule::Shape{in, out, weight, bias}, std::move(split)));
}

Linear Layer::linear(const std::string& name, int64_t in, int64_t out, Split split) {
  return linear(name, in, out, std::move(split), Init::xavier(in, out));
}

Linear Layer::zero_linear(const std::string& name, int64_t in, int64_t out, Split split) {
  return linear(name, in, out, std::move(split), Init::zeros());
}

PatchEmbed::PatchEmbed(int64_t channels, int64_t patch, int64_t width)
    : patch_(patch), map_(linear("map", channels * patch * patch, width)) {}
PatchEmbed::~PatchEmbed() = default;

Grid picture_grid(const Tensor& x, int64_t patch) {
  const int64_t h = x.size(-2), w = x.size(-1);
  if (h % patch != 0 || w % patch != 0)
    throw Error(ErrorKind::shape, "patch embedding",
                "a picture of " + std::to_string(h) + " x " + std::to_string(w) + " is not made of patches of " +
                    std::to_string(patch),
                "choose a patch that divides both sides");
  return {1, h / patch, w / patch};
}

Grid PatchEmbed::grid(const Tensor& x_BCHW) const { return picture_grid(x_BCHW, patch_); }

Tensor PatchEmbed::forward(const Tensor& x_BCHW, Context& ctx) {
  const Grid g = grid(x_BCHW);
  const auto patches =
      x_BCHW.unflatten(-1, {g.columns, patch_}).unflatten(-3, {g.rows, patch_});  // B C rows P columns P
  return map_(patches.permute({0, 2, 4, 1, 3, 5}).flatten(3).flatten(1, 2), ctx);
}

Tensor PatchEmbed::unpatchify(const Tensor& y, const Grid& grid) const {
  const auto pixels =
      y.unflatten(-1, {patch_, patch_, -1}).unflatten(1, {grid.rows, grid.columns});  // B rows columns P P C
  return pixels.permute({0, 5, 1, 3, 2, 4}).flatten(4).flatten(2, 3);
}

TimeEmbed::TimeEmbed(int64_t width, const TimeFeatures& features)
    : features_(features),
      in_(linear("in", features.count, width, {}, Init::normal(0.02))),
      out_(linear("out", width, width, {}, Init::normal(0.02))) {}
TimeEmbed::~TimeEmbed() = default;

Tensor TimeEmbed::forward(const Tensor& t_B, Context& ctx) {
  auto features = timestep_features(t_B, features_.count / 2, features_.divisor);
  if (features_.sine_first) {
    const auto halves = features.chunk(2, -1);
    features = torch::cat({halves[1], halves[0]}, -1);
  }
  return out_(ctx.ops.silu(in_(features, ctx)), ctx);
}

Embedding::Embedding(int64_t rows, int64_t width, Split split, Init init)
    : table(parameter("table", {rows, width}, init)) {
  if (split.kind == Split::Kind::none) return;
  const std::string layer = "embedding";
  if (split.kind != Split::Kind::columns)
    throw Error(ErrorKind::plugin, layer, "has a Split that is not by columns", "a table is cut by its width");
  LayerCut cut{{{"table", 1, split.parts, split.unit}}, "outputs"};
  cut.output = LayerCut::Values::cut;
  cut.gathered = split.gather;
  cut.condition = true;  // an index of any shape: what it is of is not cut
  declare(Axis::tensor, std::move(cut), layer);
}
Embedding::~Embedding() = default;

Tensor Embedding::forward(const Tensor& index, Context& ctx) {
  if (index.dim() > 1) ctx.refuse_under_one("a table that is looked up token by token");
  return leave(table.rows(enter(index).flatten(), ctx).unflatten(0, index.sizes()));
}

LabelEmbed::LabelEmbed(int64_t classes, int64_t width) : Embedding(classes + 1, width), classes_(classes) {}
LabelEmbed::~LabelEmbed() = default;

Tensor LabelEmbed::forward(const Tensor& label_B, Context& ctx) {
  // Of labels on a device nothing is asked, which would wait for it: they come of the host, which has held its own copy
  // against TensorSpec::values, and the device's lookup ends where one is out of range all the same.
  if (label_B.is_cpu() && label_B.numel() &&
      (label_B.min().item<int64_t>() < 0 || label_B.max().item<int64_t>() > classes_))
    throw Error(ErrorKind::data, "label",
                "labels from " + std::to_string(label_B.min().item<int64_t>()) + " to " +
                    std::to_string(label_B.max().item<int64_t>()) + " came, the model has classes 0 to " +
                    std::to_string(classes_ - 1),
                "set data.classes to the data's number of classes");
  return Embedding::forward(label_B, ctx);
}

LayerNorm::LayerNorm(int64_t width, double eps)
    : weight_(parameter("weight", {width}, Init::ones())),
      bias_(parameter("bias", {width}, Init::zeros())),
      eps_(eps) {}
LayerNorm::~LayerNorm() = default;

Tensor LayerNorm::forward(const Tensor& x, Context& ctx) {
  return ctx.ops.layer_norm(x.to(ctx.compute), weight_(ctx), bias_(ctx), eps_);
}

RmsNorm::RmsNorm(int64_t width, double eps) : weight_(parameter("weight", {width}, Init::ones())), eps_(eps) {}
RmsNorm::~RmsNorm() = default;

Tensor RmsNorm::forward(const Tensor& x, Context& ctx) {
  return ctx.ops.rms_norm(x, weight_(ctx), eps_).to(ctx.compute);
}

// Of one number the weight's gradient is a tree over samples, below it one over heads, and below that one over tokens,
// so that ranks may have heads, tokens, or both: the weight is given to every head of every sample as a row of its own.
Tensor RmsNorm::of_heads(const Tensor& x_BTNK, const LinearModule& map, Context& ctx, const Ops& of_tokens) {
  if (ctx.token_leaf == 0) return forward(x_BTNK, ctx);
  const Ops ops = of_tokens.of(map.split.sequence);
  const int64_t samples = x_BTNK.size(0), heads = x_BTNK.size(2);
  int64_t leaves = map.leaves.out.empty() ? 1 : map.leaves.out[0];  // that are here, of whole heads
  if (map.nodes) leaves = std::accumulate(map.nodes->leaves.begin(), map.nodes->leaves.end(), int64_t{0});
  const int64_t of_leaf = heads / leaves;
  Tensor rows_BNK;
  if (map.nodes) {
    const auto copies = map.nodes->copies_of_rows(ops.spread(weight_(ctx), samples, 1, 1).squeeze(1));
    Tensors nodes;
    for (size_t i = 0; i < copies.size(); ++i)
      nodes.push_back(ops.spread(copies[i], samples, map.nodes->leaves[i] * of_leaf, of_leaf));
    rows_BNK = nodes.size() == 1 ? nodes[0] : torch::cat(nodes, 1);
  } else {
    rows_BNK = ops.spread(weight_(ctx), samples, heads, of_leaf);
  }
  const auto y = ops.rms_norm(x_BTNK.transpose(1, 2).flatten(0, 1), rows_BNK.flatten(0, 1), eps_);
  return y.unflatten(0, {samples, heads}).transpose(1, 2).to(ctx.compute);
}

}  // namespace ditto
