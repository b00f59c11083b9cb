// The ops and rows of a run, the choice among them, and autograd around the chosen one.
#include <algorithm>

#include <ATen/record_function.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/kernels.h>

#include "ops/added_gradients.h"

namespace ditto {

using torch::Tensor;

namespace {

constexpr const char* kReference = "reference";
constexpr size_t kMostChoices = 4096;  // that are remembered; then they are made again

// For who looks on: an op is a call like LibTorch's own, "ditto::attention/cpu_simd" or "ditto::attention
// backward/cpu_simd", with the variant that computes it; no row: the reference. Of shapes alone nothing is computed.
class Recorded {
 public:
  Recorded(const std::string& op, const char* pass, const KernelRow* row, const OpInputs& inputs) {
    const Tensor& first = inputs.tensors.at(0);  // undefined: it will be made again
    if (scope_.isActive() && (!first.defined() || !first.is_meta()))
      scope_.before("ditto::" + op + pass + "/" + (row ? row->variant : kReference));
  }

 private:
  at::RecordFunction scope_{at::RecordScope::FUNCTION};
};

Tensors results_of(const KernelRow& row, const OpInputs& inputs) {
  return inputs.tensors.at(0).is_meta() ? row.shapes(inputs) : row.forward(inputs);
}

// A row's forward and backward as one differentiable call. Autograd takes no undefined tensors: only the others are
// handed to it, with their places.
struct RowFunction : torch::autograd::Function<RowFunction> {
  struct Call : torch::CustomClassHolder {
    const KernelRow* row;
    std::map<std::string, Attribute> attributes;
    size_t inputs, outputs;
    // Of each input that is made again: where the call that made it keeps what it is made of. The graph has it for as
    // long as it has this call, and lets go of what it keeps after this call's backward.
    std::vector<const torch::autograd::AutogradContext*> makers;
  };
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx, at::TensorList,
                                                const c10::intrusive_ptr<Call>& call, const OpInputs* inputs) {
    Tensors results = results_of(*call->row, *inputs);
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    Tensors saved = inputs->tensors;
    for (Tensor& tensor : saved) {
      call->makers.push_back(maker_of(tensor));
      if (call->makers.back()) tensor = Tensor();
    }
    saved.insert(saved.end(), results.begin(), results.end());
    if (call->row->again || !call->row->reads_output) saved[call->inputs] = Tensor();
    ctx->save_for_backward(saved);
    return {results.begin(), results.begin() + static_cast<int64_t>(call->outputs)};
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads_of_outputs) {
    auto kept = kept_by(*ctx);
    const auto& [call, inputs, results] = kept;
    const Recorded recorded(call->row->op, " backward", call->row, inputs);
    for (size_t i = 0; i < inputs.tensors.size(); ++i) kept.make_input_again(i);
    for (auto& grad : grads_of_outputs)
      if (grad.defined() && !call->row->any_gradient) grad = grad.contiguous();
    const auto all = gradients(*call->row, grads_of_outputs, inputs, results);
    torch::autograd::variable_list grads;
    for (size_t i = 0; i < inputs.tensors.size(); ++i)
      if (inputs.tensors[i].defined()) grads.push_back(i < all.size() ? all[i] : Tensor());
    grads.resize(grads.size() + 2);  // none for the call and its inputs
    return grads;
  }

 private:
  static Tensors gradients(const KernelRow& row, const Tensors& grads, const OpInputs& inputs, const Tensors& results) {
    Tensors sums;
    if (row.backward_onto)
      for (const Tensor& input : inputs.tensors) sums.push_back(sum_of_gradients(input));
    if (std::none_of(sums.begin(), sums.end(), [](const Tensor& sum) { return sum.defined(); }))
      return row.backward(grads, inputs, results);
    auto all = row.backward_onto(grads, inputs, results, sums);
    all.resize(sums.size());
    for (size_t i = 0; i < sums.size(); ++i)
      if (sums[i].defined() && !all[i].defined()) was_added(inputs.tensors[i]);
    return all;
  }
  struct Kept {
    c10::intrusive_ptr<Call> call;
    OpInputs inputs;
    Tensors results;
    void make_input_again(size_t i) {
      if (const auto* maker = call->makers[i]) inputs.tensors[i] = made_again(*maker);
    }
  };
  static c10::intrusive_ptr<Call> call_of(const torch::autograd::AutogradContext& ctx) {
    return c10::static_intrusive_pointer_cast<Call>(ctx.saved_data.at("call").toCapsule());
  }
  static Kept kept_by(const torch::autograd::AutogradContext& ctx) {
    const auto call = call_of(ctx);
    const auto saved = ctx.get_saved_variables();
    const auto end = saved.begin() + static_cast<int64_t>(call->inputs);
    return {call, {{saved.begin(), end}, call->attributes}, {end, saved.end()}};
  }
  static Tensor made_again(const torch::autograd::AutogradContext& maker) {
    auto kept = kept_by(maker);
    for (const size_t i : kept.call->row->again_of) kept.make_input_again(i);
    const Recorded recorded(kept.call->row->op, " again", kept.call->row, kept.inputs);
    return kept.call->row->again(kept.inputs, kept.results).set_requires_grad(true);
  }
  // Null: the tensor is kept. That of a view, or of what a strategy has put between, is no row's.
  static const torch::autograd::AutogradContext* maker_of(const Tensor& tensor) {
    if (!tensor.defined() || tensor.output_nr() != 0) return nullptr;
    const auto* node = dynamic_cast<torch::autograd::CppNode<RowFunction>*>(tensor.grad_fn().get());
    return node && call_of(node->ctx_)->row->again ? &node->ctx_ : nullptr;
  }
};

Tensors run_row(const KernelRow& row, const Op& op, const OpCall& call) {
  const OpInputs& inputs = call.inputs;
  const auto outputs = static_cast<size_t>(op.outputs);
  if (!call.grad) {
    auto results = results_of(row, inputs);
    if (op.leader.empty()) results.resize(outputs);  // opaque ones may be more
    return results;
  }
  Tensors defined;
  for (const Tensor& tensor : inputs.tensors)
    if (tensor.defined()) defined.push_back(tensor);
  auto kept = c10::make_intrusive<RowFunction::Call>();
  kept->row = &row, kept->attributes = inputs.attributes;
  kept->inputs = inputs.tensors.size(), kept->outputs = outputs;
  return RowFunction::apply(at::TensorList(defined), kept, &inputs);
}

void refuse_without_gradient(const Op& op, const OpCall& call, const Tensors& results) {
  if (!call.grad || !results.at(0).is_floating_point() || results[0].requires_grad()) return;
  throw Error(ErrorKind::plugin, "op \"" + op.name + "\"",
              "is asked for a gradient (" + call.text() +
                  "), but its reference is not differentiable and no variant that "
                  "can compute this has a backward",
              "give the op's reference, or a row of it, a gradient; or call it without");
}

// All that a score may see: every size, stride, dtype and attribute.
std::string key_of(const OpCall& call) {
  std::string key;
  key.reserve(256);
  key.append(call.op).append(call.grad ? "+" : "-");
  const auto put = [&](int64_t number) { key.append(reinterpret_cast<const char*>(&number), sizeof number); };
  put(static_cast<int64_t>(call.device));
  for (const Tensor& tensor : call.inputs.tensors) {
    put(tensor.defined() ? static_cast<int64_t>(tensor.scalar_type()) : -1);
    if (!tensor.defined()) continue;
    put(tensor.dim());
    for (int64_t d = 0; d < tensor.dim(); ++d) put(tensor.size(d)), put(tensor.stride(d));
  }
  for (const auto& [name, value] : call.inputs.attributes) {
    key += name;
    put(static_cast<int64_t>(value.index()));
    if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) {
      put(static_cast<int64_t>(list->size()));
      for (const int64_t number : *list) put(number);
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      put(static_cast<int64_t>(text->size()));
      key += *text;
    } else if (const auto* number = std::get_if<double>(&value)) {
      key.append(reinterpret_cast<const char*>(number), sizeof *number);
    } else if (const auto* whole = std::get_if<int64_t>(&value)) {
      put(*whole);
    } else {
      put(std::get<bool>(value));
    }
  }
  return key;
}

std::string maker_of(const Op& op) { return op.added_by.empty() ? "the SDK" : "kernels '" + op.added_by + "'"; }

std::string nearest_op(const std::string& name, const std::map<std::string, const Op*>& ops) {
  std::vector<std::string> names;
  for (const auto& [known, op] : ops) names.push_back(known);
  const auto near = nearest(name, names);
  return near.empty() ? "" : "did you mean \"" + near + "\"?";
}

}  // namespace

OpTable::OpTable(std::vector<KernelRow> rows, std::map<std::string, GivenOption> pins,
                 std::function<void(const std::string&)> log, std::vector<Op> added, bool exact)
    : rows_(std::move(rows)), pins_(std::move(pins)), log_(std::move(log)), exact_(exact) {
  for (const Op& op : ditto::ops()) ops_[op.name] = &op;
  add_ops(std::move(added));
  check_rows();
  check_pins();
}

OpTable::~OpTable() = default;

void OpTable::add_ops(std::vector<Op> added) {
  for (auto& op : added) {
    if (const auto it = ops_.find(op.name); it != ops_.end())
      throw Error(ErrorKind::plugin, "op \"" + op.name + "\"",
                  "is added by " + maker_of(op) + ", and " + maker_of(*it->second) + " has one of this name",
                  "leave out one of the two in plugins.kernels, or give the op another name");
    if (!op.reference || op.outputs < 1)
      throw Error(ErrorKind::plugin, "op \"" + op.name + "\" of " + maker_of(op), "has no reference, or no outputs",
                  "an op's meaning is its reference on ATen");
    added_.push_back(std::make_unique<const Op>(std::move(op)));
    ops_[added_.back()->name] = added_.back().get();
  }
}

// Of a family a variant has all ops.
void OpTable::check_rows() const {
  for (const auto& row : rows_) {
    const Op& of = op(row.op);
    if (of.leader.empty()) continue;
    for (const auto& [name, other] : ops_)
      if (other->leader == of.leader && !row_of(name, row.variant))
        throw Error(ErrorKind::plugin, "kernel " + row.op + "/" + row.variant,
                    "has no row of this variant for \"" + name + "\", whose results belong together",
                    "offer rows for all ops that follow \"" + of.leader + "\"");
  }
}

void OpTable::check_pins() const {
  for (const auto& [name, pin] : pins_) {
    const auto it = ops_.find(name);
    if (it == ops_.end()) {
      const auto near = nearest_op(name, ops_);
      throw Error(ErrorKind::config, pin.where, "kernels." + name + ": there is no op of this name",
                  near.empty() ? "see `ditto plugins show kernels/cpu`" : near);
    }
    const auto& leader = it->second->leader;
    if (!leader.empty() && leader != name)
      throw Error(ErrorKind::config, pin.where, "kernels." + name + " goes with \"" + leader + "\"",
                  "pin kernels." + leader);
    const auto variants = variants_of(name);
    const auto* wanted = std::get_if<std::string>(&pin.value);
    if (!wanted || std::find(variants.begin(), variants.end(), *wanted) == variants.end())
      throw Error(
          ErrorKind::config, pin.where,
          "kernels." + name + " = " + to_text(pin.value) + " names no " + (exact_ ? "exact " : "") +
              "variant of this op" + (exact_ ? ", and run.numerics is \"one\"" : ""),
          variants.empty() ? "remove it: the op has none" : "expected one of " + to_text(OptionValue(variants)));
  }
}

const Op& OpTable::op(const std::string& name) const {
  const auto it = ops_.find(name);
  if (it != ops_.end()) return *it->second;
  const auto near = nearest_op(name, ops_);
  throw Error(ErrorKind::config, "op \"" + name + "\"", "is neither the SDK's nor added by a kernel plugin of this run",
              near.empty() ? "add the plugin that has it to plugins.kernels" : near);
}

std::vector<std::string> OpTable::variants_of(const std::string& name) const {
  std::vector<std::string> variants;
  if (!exact_) variants.emplace_back(kReference);
  for (const auto& row : rows_)
    if (row.op == name && (row.exact || !exact_)) variants.push_back(row.variant);
  return variants;
}

const KernelRow* OpTable::row_of(const std::string& name, const std::string& variant) const {
  const auto it = std::find_if(rows_.begin(), rows_.end(),
                               [&](const KernelRow& row) { return row.op == name && row.variant == variant; });
  return it == rows_.end() ? nullptr : &*it;
}

OpCall OpTable::call_of(const std::string& name, const OpInputs& inputs) const {
  const Tensor& first = inputs.tensors.at(0);
  OpCall call{name, inputs, first.scalar_type(), first.is_meta() ? meta_stands_for : first.device().type(), false};
  if (torch::GradMode::is_enabled())
    for (const Tensor& tensor : inputs.tensors) call.grad = call.grad || (tensor.defined() && tensor.requires_grad());
  return call;
}

bool OpTable::offers(const KernelRow& row, const OpCall& call) const {
  if (row.op != call.op || (call.grad && !row.backward)) return false;
  const auto& optional = op(call.op).optional;
  // Whose gradients are to be the same on all layouts says in what leaves they are summed over tokens.
  if (exact_ && call.grad && optional.count("token_leaf") != 0 && !call.inputs.has("token_leaf")) return false;
  return std::all_of(call.inputs.attributes.begin(), call.inputs.attributes.end(), [&](const auto& attribute) {
    return optional.count(attribute.first) == 0 || row.knows.count(attribute.first) != 0;
  });
}

const KernelRow* OpTable::best_of(const OpCall& call, const std::string& pinned) const {
  const KernelRow* best = nullptr;
  int best_score = exact_ ? 0 : 1;  // the reference's
  for (const auto& row : rows_) {
    if ((exact_ && !row.exact) || (!pinned.empty() && row.variant != pinned) || !offers(row, call)) continue;
    const int score = row.score(call);
    if (score > 0 && (score > best_score || !pinned.empty())) best = &row, best_score = score;
  }
  return best;
}

const KernelRow* OpTable::choose(const Op& op, const OpCall& call) const {
  const std::string key = key_of(call);
  const std::lock_guard lock(mutex_);
  if (const auto it = choices_.find(key); it != choices_.end()) return it->second;
  const auto pin = pins_.find(op.name);
  const std::string pinned = pin == pins_.end() ? "" : std::get<std::string>(pin->second.value);
  const KernelRow* best = best_of(call, pinned);
  const auto text = call.text();
  if (!pinned.empty() && pinned != kReference && !best)
    throw Error(ErrorKind::config, pin->second.where,
                "kernels." + op.name + " = \"" + pinned + "\" cannot compute " + text,
                "remove the pin, or choose another variant");
  // Shapes alone of which nobody has said what device they stand for are of no run.
  if (exact_ && !best && call.device != at::kMeta) refuse(op, call);
  if (choices_.size() >= kMostChoices) choices_.clear();
  choices_[key] = best;
  const std::string variant = best ? best->variant : kReference;
  if (variants_by_call_[text].insert(variant).second && log_) log_("kernel " + text + ": " + variant);
  return best;
}

Tensors OpTable::run(const std::string& name, const OpInputs& inputs) const {
  const Op& of = op(name);
  if (!of.leader.empty())
    throw Error(ErrorKind::plugin, "op \"" + name + "\"", "gives opaque results, and is called by OpTable::run_as",
                "take the variant of \"" + of.leader + "\"");
  const auto call = call_of(name, inputs);
  const KernelRow* row = choose(of, call);
  if (row && inputs.tensors.at(0).is_meta() && !row->shapes) row = nullptr;
  const Recorded recorded(name, "", row, inputs);
  auto results = row ? run_row(*row, of, call) : of.reference(inputs);
  refuse_without_gradient(of, call, results);
  if (watch_) watch_(name, inputs, results);
  return results;
}

bool OpTable::serves(const std::string& composite, const OpInputs& inputs) const {
  const Op& of = op(composite);
  if (const auto pin = pins_.find(composite); pin != pins_.end())
    return std::get<std::string>(pin->second.value) != kReference;
  const bool part_is_pinned = std::any_of(of.contains.begin(), of.contains.end(),
                                          [&](const std::string& part) { return pins_.count(part) != 0; });
  return !part_is_pinned && best_of(call_of(composite, inputs), "") != nullptr;
}

void OpTable::refuse_pin(const std::string& composite, const std::string& why) const {
  const auto pin = pins_.find(composite);
  if (pin == pins_.end() || std::get<std::string>(pin->second.value) == kReference) return;
  throw Error(ErrorKind::config, pin->second.where,
              "kernels." + composite + " = " + to_text(pin->second.value) + " cannot compute it " + why +
                  ", where its parts are called one by one",
              "remove the pin, or pin a part: " + to_text(OptionValue(op(composite).contains)));
}

std::string OpTable::variant(const std::string& leader, const OpInputs& inputs) const {
  const torch::NoGradGuard no_grad;
  const Op& of = op(leader);
  const KernelRow* row = choose(of, call_of(leader, inputs));
  return row ? row->variant : kReference;
}

Tensors OpTable::run_as(const std::string& variant, const std::string& name, const OpInputs& inputs) const {
  const torch::NoGradGuard no_grad;
  const Op& of = op(name);
  const KernelRow* row = row_of(name, variant);
  const auto call = call_of(name, inputs);
  if (exact_ && call.device != at::kMeta && !(row && row->exact)) refuse(of, call);
  if (row && inputs.tensors.at(0).is_meta() && !row->shapes) row = nullptr;
  const Recorded recorded(name, "", row, inputs);
  return row ? run_row(*row, of, call) : of.reference(inputs);
}

// As far as exact rows say it: what of the call, if it were not so, one of them could compute.
void OpTable::refuse(const Op& op, const OpCall& call) const {
  const auto place = [](const std::string& found, const std::string& remedy) {
    return Error(ErrorKind::config, "run.numerics", found, remedy);
  };
  const std::string what = "= \"one\" has no exact kernel for " + call.text();
  if (std::none_of(rows_.begin(), rows_.end(), [&](const KernelRow& row) { return row.op == op.name && row.exact; }))
    throw place(what + ": none of the run's kernel plugins has the op \"" + op.name + "\" in an exact form",
                "set run.numerics = \"fast\", or leave out what asks for this op");
  std::vector<std::string> why;
  const auto try_with = [&](const OpInputs& other, bool grad, const std::string& reason) {
    if (computes(other, call, grad)) why.push_back(reason);
  };
  for (const auto& [name, value] : call.inputs.attributes) {
    auto other = call.inputs;
    if (const auto* flag = std::get_if<bool>(&value)) {
      other.attributes[name] = !*flag;
      try_with(other, call.grad, "\"" + name + "\" = " + (*flag ? "true" : "false"));
    } else if (op.optional.count(name)) {
      other.attributes.erase(name);
      try_with(other, call.grad, "\"" + name + "\"");
    }
  }
  for (size_t i = 1; i < call.inputs.tensors.size(); ++i) {
    if (!call.inputs.tensors[i].defined()) continue;
    auto other = call.inputs;
    other.tensors[i] = Tensor();
    try_with(other, call.grad, "tensor " + std::to_string(i + 1));
  }
  if (call.grad) try_with(call.inputs, false, "its gradient");
  std::string reasons;
  for (const auto& reason : why) reasons += (reasons.empty() ? "" : ", ") + reason;
  throw place(what + ": " +
                  (why.empty() ? "the exact kernels of this op take other shapes, dtypes or devices"
                               : "without " + reasons + " there is one") +
                  " (" + op.signature + ")",
              "set run.numerics = \"fast\"" + std::string(why.empty() ? "" : ", or leave that out"));
}

bool OpTable::computes(const OpInputs& inputs, const OpCall& like, bool grad) const {
  try {
    return best_of({like.op, inputs, like.dtype, like.device, grad}, "") != nullptr;
  } catch (const std::exception&) {  // a score may ask what only such calls have that make sense
    return false;
  }
}

std::map<std::string, std::string> OpTable::chosen() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::string> result;
  for (const auto& [text, variants] : variants_by_call_)
    for (const auto& variant : variants) result[text] += (result[text].empty() ? "" : ", ") + variant;
  return result;
}

}  // namespace ditto
