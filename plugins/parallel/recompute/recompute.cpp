// Activations computed again in backward instead of being kept (T. Chen et al., 2016, arXiv:1604.06174): of whole
// blocks, or of attention alone. The same bits: draws are counted, not drawn from a state, kernels are chosen as they
// are without, and gradients meet in the same order.
#include <algorithm>

#include <torch/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/parallel/strategy.h>

namespace ditto {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Tensors without repetition, and which of them each of the given ones is. Where one tensor has several readers, their
// gradients must meet in one place, as they do without recomputation.
struct Distinct {
  Tensors tensors;
  std::vector<size_t> places;
  void add(const Tensor& tensor) {
    const auto at = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.is_same(tensor); });
    places.push_back(static_cast<size_t>(at - tensors.begin()));
    if (at == tensors.end()) tensors.push_back(tensor);
  }
};

// What is run twice. Its differentiable outputs come in the same order each time.
struct Work : torch::CustomClassHolder {
  std::function<Tensors(const Tensors&)> run;
  Traffic* traffic = nullptr;
};

Tensors differentiable(const Tensors& tensors) {
  Tensors list;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(list),
               [](const Tensor& t) { return t.requires_grad(); });
  return list;
}

// The inputs as leaves of a graph of their own.
Tensors cut_off(at::TensorList inputs) {
  Tensors leaves;
  for (const Tensor& input : inputs) leaves.push_back(input.requires_grad() ? input.detach().requires_grad_() : input);
  return leaves;
}

// Catches the gradient that comes to a leaf. The leaf itself would bring it into a layout of its own, in which the
// library sums in another order.
struct Catch : torch::autograd::Function<Catch> {
  static Tensor forward(AutogradContext* ctx, const Tensor& leaf, Tensor* gradient) {
    ctx->saved_data["gradient"] = static_cast<int64_t>(reinterpret_cast<intptr_t>(gradient));
    return leaf;
  }
  static variable_list backward(AutogradContext* ctx, variable_list gradient) {
    *reinterpret_cast<Tensor*>(static_cast<intptr_t>(ctx->saved_data["gradient"].toInt())) = gradient[0];
    return {Tensor(), Tensor()};
  }
};

struct RunTwice : torch::autograd::Function<RunTwice> {
  static variable_list forward(AutogradContext* ctx, at::TensorList inputs, const c10::intrusive_ptr<Work>& work) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["work"] = c10::IValue::make_capsule(work);
    ctx->save_for_backward(inputs.vec());
    // With a graph, which is dropped at once: kernels may be chosen by whether there is one.
    const torch::AutoGradMode with_grad(true);
    const Tensors leaves = cut_off(inputs);
    variable_list outputs;
    for (const Tensor& output : differentiable(work->run(leaves))) {
      const auto at = std::find_if(leaves.begin(), leaves.end(), [&](const Tensor& t) { return t.is_same(output); });
      outputs.push_back(at == leaves.end() ? output.detach() : inputs[static_cast<size_t>(at - leaves.begin())]);
    }
    return outputs;
  }

  // What was handed through has its later readers' gradients among `gradients`: they come first into the sum, as
  // without recomputation.
  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const auto work = c10::static_intrusive_pointer_cast<Work>(ctx->saved_data["work"].toCapsule());
    const torch::AutoGradMode with_grad(true);
    Tensors inputs = cut_off(ctx->get_saved_variables());
    variable_list result(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].requires_grad()) inputs[i] = Catch::apply(inputs[i], &result[i]);
    Tensors outputs;
    {
      const Traffic::Scope pass(*work->traffic, Traffic::Pass::recompute);
      outputs = differentiable(work->run(inputs));
    }
    torch::autograd::edge_list roots;  // the outputs themselves nobody needs
    Tensors of_roots;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined()) continue;
      roots.push_back(torch::autograd::impl::gradient_edge(outputs[i]));
      of_roots.push_back(gradients[i]);
    }
    outputs.clear();
    torch::autograd::Engine::get_default_engine().execute(roots, of_roots, false, false, true);
    result.emplace_back();  // none for the work
    return result;
  }
};

// The differentiable outputs of `run`, which is run again in backward.
Tensors run_twice(const Tensors& inputs, std::function<Tensors(const Tensors&)> run, Traffic& traffic) {
  auto work = c10::make_intrusive<Work>();
  work->run = std::move(run);
  work->traffic = &traffic;
  Tensors all = inputs;
  all.push_back(torch::empty({0}).requires_grad_());  // parameters inside may learn where no input does
  return RunTwice::apply(at::TensorList(all), work);
}

Distinct fields_of(Stream& stream) {
  Distinct distinct;
  for (const auto& field : stream.fields()) distinct.add(*field.tensor);
  return distinct;
}

// One block of a micro-batch: its stream without the tensors, and what it takes to run it.
struct Block {
  struct Result {
    Stream stream;
    Distinct fields;
  };
  std::shared_ptr<const UnitRun> inner;
  Unit unit;
  Context* ctx;
  Stream shell;
  std::vector<size_t> places;  // of the shell's fields among the inputs
  Result* result = nullptr;    // where the first run leaves it

  Tensors run(const Tensors& inputs) const {
    Stream stream = shell;
    size_t k = 0;
    for (const auto& field : stream.fields()) *field.tensor = inputs[places[k++]];
    const Batch none;  // blocks read the stream alone
    Outputs none_made;
    UnitCall call{none, stream, none_made, *ctx};
    (*inner)(unit, call);
    auto fields = fields_of(stream);
    if (result) *result = {std::move(stream), fields};
    return fields.tensors;
  }
};

class Recompute final : public ParallelStrategy {
 public:
  struct Options {
    std::string recompute = "blocks";
    int64_t recompute_every = 1;
    void read(OptionReader& option) {
      option("recompute", recompute, "what backward computes again instead of keeping it")
          .one_of({"blocks", "attention"})
          .changes(Effect::speed);
      option("recompute_every", recompute_every, "of every nth block, from the first on")
          .at_least(1)
          .changes(Effect::speed);
    }
  };

  Recompute(const Options& options, const Needs& needs) : options_(options), traffic_(needs.mesh->traffic()) {
    if (options_.recompute_every > needs.depth)
      throw Error(ErrorKind::config, "parallel.recompute_every",
                  "= " + std::to_string(options_.recompute_every) + ", but the model has " +
                      std::to_string(needs.depth) + " blocks",
                  "use at most " + std::to_string(needs.depth));
  }

  std::optional<Axis> axis() const override { return std::nullopt; }
  bool exact() const override { return true; }

  UnitRun wrap_unit(UnitRun run) override {
    const auto inner = std::make_shared<const UnitRun>(std::move(run));
    return [this, inner](const Unit& unit, UnitCall& call) {
      const bool again =
          unit.kind == Unit::Kind::block && unit.block % options_.recompute_every == 0 && torch::GradMode::is_enabled();
      attention_again_ = again && options_.recompute == "attention";
      if (again && options_.recompute == "blocks")
        run_block(inner, unit, call);
      else
        (*inner)(unit, call);
      attention_again_ = false;
    };
  }

  AttentionOp wrap_attention(AttentionOp op) override {
    if (options_.recompute != "attention") return op;
    op.run = [this, inner = op.run](const AttentionCall& call) {
      if (!attention_again_) return inner(call);
      auto shell = std::make_shared<AttentionCall>(call);
      Distinct in;
      for (Tensor* x : tensors_of(*shell)) {
        in.add(*x);
        *x = Tensor();
      }
      const auto run = [inner, shell, at = in.places](const Tensors& x) {
        auto again = *shell;
        size_t k = 0;
        for (Tensor* tensor : tensors_of(again)) *tensor = x[at[k++]];
        return inner(again);
      };
      return run_twice(in.tensors, run, traffic_);
    };
    return op;
  }

 private:
  // Those that gradients go to.
  static std::vector<Tensor*> tensors_of(AttentionCall& call) {
    std::vector<Tensor*> list;
    for (auto& part : call.parts)
      for (Tensor* x : {&part.q, &part.k, &part.v}) list.push_back(x);
    if (call.bias.defined()) list.push_back(&call.bias);
    return list;
  }

  // Every differentiable field goes through, changed or not, so that its gradients are summed in one chain.
  void run_block(const std::shared_ptr<const UnitRun>& inner, const Unit& unit, UnitCall& call) const {
    const auto in = fields_of(call.stream);
    const auto block = std::make_shared<Block>(Block{inner, unit, &call.ctx, call.stream, in.places});
    for (const auto& field : block->shell.fields()) *field.tensor = torch::empty({0});
    Block::Result result;
    block->result = &result;
    const auto outputs = run_twice(
        in.tensors, [block](const Tensors& inputs) { return block->run(inputs); }, traffic_);
    block->result = nullptr;
    hand_out(outputs, result);
    call.stream = std::move(result.stream);
  }

  static void hand_out(const Tensors& outputs, Block::Result& result) {
    size_t next = 0;
    for (Tensor& tensor : result.fields.tensors)
      if (tensor.requires_grad()) tensor = outputs[next++];
    size_t k = 0;
    for (const auto& field : result.stream.fields()) *field.tensor = result.fields.tensors[result.fields.places[k++]];
  }

  const Options options_;
  Traffic& traffic_;
  bool attention_again_ = false;
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(ParallelStrategy, ditto::Recompute, "recompute", "1.0.0", "Apache-2.0",
             "blocks or attention computed again in backward")
