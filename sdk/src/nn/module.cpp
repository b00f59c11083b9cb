#include <ditto/nn/module.h>

#include <cmath>
#include <utility>

#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/context.h>
#include <ditto/error.h>
#include <ditto/math/prepared.h>

#include "ops/added_gradients.h"

namespace ditto {

using torch::Tensor;

Init Init::xavier(int64_t in, int64_t out) { return uniform(std::sqrt(6.0 / static_cast<double>(in + out))); }

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

namespace {

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

}  // namespace ditto
