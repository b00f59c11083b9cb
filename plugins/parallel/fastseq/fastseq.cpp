// Context parallelism by FastSeq (OpenDiT): an attention sub-layer gathers its input tokens, maps them with the rows of
// its weight that belong to this rank's heads, attends over all tokens, and trades tokens for heads before its last
// map: one all-gather and one all-to-all a layer. While tokens arrive, those that are here are mapped; backward, while
// their gradients leave, the weight's is computed. Under run.numerics = "one" (unit_of_nodes.h) the sums over heads are
// of nodes, and tokens are gathered at once.
//
// Legend: B samples, T tokens, D width, H outputs for this rank's heads.
#include <algorithm>
#include <map>
#include <memory>

#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/parallel/token_cut.h>

#include "unit_of_nodes.h"

namespace ditto {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The other ranks' tokens, under way.
struct Arrival : torch::CustomClassHolder {
  const Group* group;
  std::vector<int64_t> lengths;
  Tensor x_BTD;                    // this rank's
  std::function<Tensor()> others;  // -> [B, T of the others, D], in the order of ranks

  int64_t here() const { return lengths[static_cast<size_t>(group->rank())]; }
  std::vector<int64_t> of_others() const {
    auto list = lengths;
    list[static_cast<size_t>(group->rank())] = 0;
    return list;
  }

  // A gather has parts of one length: the longest.
  void begin(const Tensor& x) {
    if (x.size(1) != here())
      throw Error(ErrorKind::shape, "attention unit",
                  "of " + std::to_string(x.size(1)) + " tokens, where the cut leaves " + std::to_string(here()),
                  "an attention unit takes the tokens of the stream, all of them and no others");
    x_BTD = x;
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    const auto padded = torch::constant_pad_nd(x.detach(), {0, 0, 0, longest - here()}).contiguous();
    auto arrival = group->begin_all_gather(padded.view(-1));
    others = [arrival, lengths = of_others(), shape = padded.sizes().vec()] {
      const auto all = arrival().view({-1, shape[0], shape[1], shape[2]});
      Tensors parts;
      for (size_t i = 0; i < lengths.size(); ++i)
        parts.push_back(all[static_cast<int64_t>(i)].narrow(1, 0, lengths[i]));
      return torch::cat(parts, 1);
    };
  }
};

// The others' tokens times this rank's rows of the weight; the gather's transpose is the sum of what the ranks made of
// a rank's tokens.
struct MapOthers : torch::autograd::Function<MapOthers> {
  static Tensor forward(AutogradContext* ctx, const Tensor&, const Tensor& weight_HD, const Tensor& bias_H,
                        const c10::intrusive_ptr<Arrival>& arrival) {
    const auto x_BTD = arrival->others();
    ctx->saved_data["arrival"] = c10::IValue::make_capsule(arrival);
    ctx->save_for_backward({x_BTD, weight_HD});
    return torch::linear(x_BTD, weight_HD, bias_H);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grad) {
    const auto arrival = c10::static_intrusive_pointer_cast<Arrival>(ctx->saved_data["arrival"].toCapsule());
    const auto saved = ctx->get_saved_variables();
    const auto shares = begin_return(*arrival, torch::matmul(grad[0], saved[1]));
    const auto grad_RH = grad[0].flatten(0, 1);
    const auto of_weight = torch::matmul(grad_RH.t(), saved[0].flatten(0, 1)), of_bias = grad_RH.sum(0);
    const auto parts = shares();
    auto sum = parts[0].clone();
    for (int64_t i = 1; i < parts.size(0); ++i) sum.add_(parts[i]);
    return {sum, of_weight, of_bias, Tensor()};
  }

  // Sends each rank the gradient of its tokens; what comes is [other ranks, B, T here, D].
  static std::function<Tensor()> begin_return(const Arrival& arrival, const Tensor& grad_BTD) {
    const auto lengths = arrival.of_others();
    const int64_t B = grad_BTD.size(0), D = grad_BTD.size(2);
    std::vector<int64_t> send, receive(lengths.size(), B * arrival.here() * D);
    receive[static_cast<size_t>(arrival.group->rank())] = 0;
    Tensors parts;
    for (const auto& part : grad_BTD.split_with_sizes(lengths, 1)) {
      parts.push_back(part.reshape(-1));
      send.push_back(part.numel());
    }
    auto pending = arrival.group->begin_exchange(torch::cat(parts), send, receive, "reduce_scatter");
    return [pending, shape = std::vector<int64_t>{-1, B, arrival.here(), D}] { return pending().view(shape); };
  }
};

// The sub-layer's two maps as they are while one unit runs.
class Borrowed {
 public:
  explicit Borrowed(const AttentionUnitPart& part)
      : heads_(*part.heads),
        rows_(part.rows),
        weight_(heads_.weight),
        bias_(heads_.bias),
        term_(heads_.term),
        before_(heads_.before),
        after_(heads_.after) {
    if (rows_) rows_before_ = rows_->before;
  }
  ~Borrowed() {
    heads_.weight = weight_, heads_.bias = bias_, heads_.term = term_;
    heads_.before = before_, heads_.after = after_;
    if (rows_) rows_->before = rows_before_;
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

 private:
  LinearModule& heads_;
  Linear rows_;  // none: nobody reads what the part attended to
  Parameter weight_, bias_;
  std::shared_ptr<const LinearModule::Term> term_;
  LinearModule::Exchange before_, after_, rows_before_;
};

class FastSeq final : public ParallelStrategy {
 public:
  using Options = NoOptions;
  FastSeq(const Options&, const Needs& needs)
      : mesh_(*needs.mesh), cut_(needs), parameters_(std::make_shared<OpTable>(), Random(0)) {
    parameters_.compute = needs.compute;
  }

  std::optional<Axis> axis() const override { return Axis::context; }
  bool exact() const override { return true; }

  void shard(Layout& layout) override {
    check_places(layout, cut_.group(), "parallel.context");
    check_heads(layout, mesh_, DealtHeads::all);
    refuse_side_by_side(layout, "context_plugin = \"fastseq\"", "use context_plugin = \"ulysses\" or \"ring\"");
  }

  // Micro-batches of different lengths may be under way at once, and run again in backward.
  UnitRun wrap_unit(UnitRun run) override {
    return cut_.wrap([this, run = std::move(run)](const Unit& unit, UnitCall& call) {
      if (unit.kind == Unit::Kind::block) {
        here_ = &call.ctx.ops.leaves();
        lengths_ = {{"", cut_.lengths(call.stream)}};
        for (const auto& [name, field] : call.stream.extra)
          if (field.own) lengths_[name] = cut_.lengths(*field.own);
      }
      run(unit, call);
    });
  }

  AxisSet sums(const LayoutEntry&, const StepPlan&) const override { return cut_.sums(); }

  Context::UnitRunner wrap_attention_unit(Context::UnitRunner run_unit) override {
    return [this, run_unit](std::vector<AttentionUnitPart>& parts, const Context::RunUnit& run) {
      std::vector<std::unique_ptr<Borrowed>> borrowed;
      std::vector<std::unique_ptr<UnitOfNodes>> of_nodes;
      for (const auto& part : parts) {
        if (cut_.in_leaves()) {
          of_nodes.push_back(std::make_unique<UnitOfNodes>(part, mesh_, *here_, parameters_));
          continue;
        }
        borrowed.push_back(std::make_unique<Borrowed>(part));
        const auto& lengths = lengths_of(*part.heads);
        gather_before(*part.heads, lengths);
        if (part.rows) trade_before(*part.rows, lengths);
      }
      const auto outside = std::exchange(unit_heads_, heads_of(*parts.at(0).heads));
      auto results = run_unit(parts, run);
      unit_heads_ = outside;
      return results;
    };
  }

  // Inside of a unit all tokens are here, with this rank's heads of them.
  AttentionOp wrap_attention(AttentionOp op) override {
    op.run = [this, inner = op.run](const AttentionCall& call) {
      if (call.pattern == Pattern::cross) return inner(with_own_keys(call));
      for (const auto& part : call.parts)
        if (part.q.size(1) == cut_.lengths(part.tokens)[static_cast<size_t>(cut_.group().rank())])
          throw Error(ErrorKind::config, "parallel.context_plugin",
                      "\"fastseq\" exchanges tokens around whole attention units, and this model's attention is in "
                      "none",
                      "use \"ring\" or \"ulysses\"");
      auto own = call;
      if (call.bias.defined() && call.bias.size(1) > 1) own.bias = own_heads(call.bias, 1);
      return inner(own);
    };
    return op;
  }

  TokenGather wrap_token_gather(TokenGather gather) override {
    return [this, gather](const Tensor& x, const Stream& stream) { return cut_.gather(gather(x, stream), stream); };
  }
  void split(Stream& stream) override { cut_.split(stream, TokenCut::Constants::whole); }
  void join(Stream& stream) override { cut_.join(stream); }

 private:
  const std::vector<int64_t>& lengths_of(const LinearModule& heads) const {
    const auto it = lengths_.find(heads.split.sequence);
    if (it != lengths_.end()) return it->second;
    throw Error(ErrorKind::plugin, "attention unit",
                "maps tokens of the sequence \"" + heads.split.sequence + "\", which the stream does not have",
                "name an extra of the stream that has tokens of its own (Split::of)");
  }
  // Of queries, as the ranks of this axis share them.
  int64_t heads_of(const LinearModule& heads) const {
    return heads.split.parts.at(0) / heads.split.unit / mesh_.size(Axis::tensor);
  }
  Tensor own_heads(const Tensor& x, int64_t dim) const {
    if (cut_.in_leaves()) return own_share(x, {x.size(dim)}, dim, cut_.group());
    const int64_t share = x.size(dim) / cut_.group().size();
    return x.narrow(dim, cut_.group().rank() * share, share);
  }

  // Keys of text come with all heads; a unit's queries have their share.
  AttentionCall with_own_keys(AttentionCall call) const {
    auto& part = call.parts.at(0);
    const int64_t ranks = cut_.group().size();
    if (unit_heads_ == 0 || part.q.size(2) != unit_heads_ / ranks) return call;
    if (part.k.size(2) % ranks != 0)
      throw Error(ErrorKind::config, "parallel.context",
                  std::to_string(ranks) + " does not divide the " + std::to_string(part.k.size(2)) +
                      " heads of keys that an attention unit's queries attend to",
                  "use a degree that divides them, or context_plugin = \"ring\", which cuts no heads");
    part.k = own_heads(part.k, 2), part.v = own_heads(part.v, 2);
    if (call.bias.defined() && call.bias.size(1) > 1) call.bias = own_heads(call.bias, 1);
    return call;
  }

  // For as long as a Borrowed lives, the layer maps all tokens to this rank's heads.
  void gather_before(LinearModule& heads, const std::vector<int64_t>& lengths) {
    const auto own = own_rows(heads);
    const auto weight_HD = heads.whole_weight(parameters_).index_select(0, own);
    const auto bias_H = heads.bias.defined() ? heads.bias(parameters_).index_select(0, own)
                                             : torch::zeros({own.size(0)}, weight_HD.options());
    const auto arrival = c10::make_intrusive<Arrival>();
    arrival->group = &cut_.group();
    arrival->lengths = lengths;
    heads.weight = Parameter(weight_HD, heads.weight.init());
    if (heads.bias.defined()) heads.bias = Parameter(bias_H, heads.bias.init());
    heads.term.reset();  // it is in the weight
    heads.before = [arrival, inner = heads.before, dtype = parameters_.compute](const Tensor& x) {
      arrival->begin((inner ? inner(x) : x).to(dtype));
      return arrival->x_BTD;
    };
    heads.after = [arrival, weight_HD, bias_H](const Tensor& own_BTH) {
      const auto others_BTH = MapOthers::apply(std::exchange(arrival->x_BTD, {}), weight_HD, bias_H, arrival);
      int64_t before = 0;
      for (int i = 0; i < arrival->group->rank(); ++i) before += arrival->lengths[static_cast<size_t>(i)];
      const auto parts = others_BTH.split_with_sizes({before, others_BTH.size(1) - before}, 1);
      return torch::cat({parts[0], own_BTH, parts[1]}, 1);
    };
  }

  // The rows of a weight that make this rank's heads: its share of each of the parts a tensor cut has left.
  Tensor own_rows(const LinearModule& heads) const {
    const auto& group = cut_.group();
    const auto places = torch::TensorOptions(torch::kLong).device(heads.weight.leaf().device());
    Tensors rows;
    int64_t start = 0;
    for (const int64_t part : heads.split.parts) {
      const int64_t here = part / mesh_.size(Axis::tensor), share = here / group.size();
      rows.push_back(torch::arange(start + group.rank() * share, start + (group.rank() + 1) * share, places));
      start += here;
    }
    return torch::cat(rows);
  }

  // All tokens of this rank's heads for this rank's tokens of all heads.
  void trade_before(LinearModule& rows, const std::vector<int64_t>& lengths) const {
    rows.before = [group = &cut_.group(), lengths, inner = rows.before](const Tensor& y_BTH) {
      const std::vector<int64_t> widths(lengths.size(), y_BTH.size(2));
      const auto y = transposed::all_to_all(y_BTH, *group, 1, lengths, 2, widths);
      return inner ? inner(y) : y;
    };
  }

  const Mesh& mesh_;
  TokenCut cut_;
  Context parameters_;                                   // what weights are asked for with
  std::map<std::string, std::vector<int64_t>> lengths_;  // of the ranks' slices, by sequence, in the block that runs
  int64_t unit_heads_ = 0;                               // of the attention unit that runs
  LeavesHere* here_ = nullptr;                           // of the block that runs
};

}  // namespace
}  // namespace ditto

DITTO_PLUGIN(ParallelStrategy, ditto::FastSeq, "fastseq", "1.0.0", "Apache-2.0",
             "tokens cut; gathered around attention units, each rank with its heads")
