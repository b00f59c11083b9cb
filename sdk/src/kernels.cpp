#include <ditto/kernels.h>

#include <bit>

#include <torch/torch.h>

#include <ditto/error.h>

namespace ditto {

using torch::Tensor;

namespace {

const char* short_name(at::ScalarType dtype) {
  switch (dtype) {
    case torch::kFloat: return "fp32";
    case torch::kDouble: return "fp64";
    case torch::kBFloat16: return "bf16";
    case torch::kHalf: return "fp16";
    default: return c10::toString(dtype);
  }
}

OpQuery query_of(const std::string& op, const OpInputs& inputs, at::DeviceType meta_stands_for = at::kMeta) {
  const Tensor& first = inputs.tensors.at(0);
  OpQuery query{op, first.scalar_type(), first.is_meta() ? meta_stands_for : first.device().type(), {}, false};
  const int64_t last = first.dim() ? first.size(-1) : 1;
  query.shape = {static_cast<int64_t>(std::bit_ceil(static_cast<std::uint64_t>(last ? first.numel() / last : 0))),
                 last};
  if (torch::GradMode::is_enabled())
    for (const Tensor& tensor : inputs.tensors) query.grad = query.grad || (tensor.defined() && tensor.requires_grad());
  return query;
}

Tensors results_of(const KernelRow& row, const OpInputs& inputs) {
  return inputs.tensors.at(0).is_meta() ? row.shapes(inputs) : row.forward(inputs);
}

// A row's forward and backward as one differentiable call. Autograd takes no undefined tensors: only the others are
// handed to it, with their places.
struct RowFunction : torch::autograd::Function<RowFunction> {
  struct Call {
    const KernelRow* row;
    const OpInputs* inputs;
  };
  static Tensor forward(torch::autograd::AutogradContext* ctx, at::TensorList, Call call) {
    Tensors results = results_of(*call.row, *call.inputs);
    ctx->saved_data["row"] = reinterpret_cast<int64_t>(call.row);
    ctx->saved_data["numbers"] = call.inputs->numbers;
    ctx->saved_data["inputs"] = static_cast<int64_t>(call.inputs->tensors.size());
    Tensors saved = call.inputs->tensors;
    saved.insert(saved.end(), results.begin(), results.end());
    ctx->save_for_backward(saved);
    return results[0];
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grad) {
    const auto* row = reinterpret_cast<const KernelRow*>(ctx->saved_data["row"].toInt());
    const int64_t count = ctx->saved_data["inputs"].toInt();
    auto saved = ctx->get_saved_variables();
    const OpInputs inputs{{saved.begin(), saved.begin() + count}, ctx->saved_data["numbers"].toDoubleVector()};
    const Tensors results(saved.begin() + count, saved.end());
    const auto all = row->backward(grad[0].contiguous(), inputs, results);
    torch::autograd::variable_list grads;
    for (size_t i = 0; i < inputs.tensors.size(); ++i)
      if (inputs.tensors[i].defined()) grads.push_back(i < all.size() ? all[i] : Tensor());
    grads.emplace_back();  // none for the call itself
    return grads;
  }
};

}  // namespace

std::string OpQuery::text() const {
  std::string text = op + " " + short_name(dtype) + " " + c10::DeviceTypeName(device, true) + " [";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]" + (grad ? " grad" : "");
}

OpTable::OpTable(std::vector<KernelRow> rows, std::map<std::string, GivenOption> pins,
                 std::function<void(const std::string&)> log)
    : rows_(std::move(rows)), pins_(std::move(pins)), log_(std::move(log)) {
  for (const auto& row : rows_) op(row.op);  // throws if there is no such op
  for (const auto& [name, pin] : pins_) {
    std::vector<std::string> names, variants{"reference"};
    for (const auto& known : ops()) names.push_back(known.name);
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      const auto near = nearest(name, names);
      throw Error(ErrorKind::config, pin.where, "kernels." + name + ": there is no op of this name",
                  near.empty() ? "see `ditto plugins show kernels/cpu`" : "did you mean \"" + near + "\"?");
    }
    for (const auto& row : rows_of(name)) variants.push_back(row.variant);
    const auto* wanted = std::get_if<std::string>(&pin.value);
    if (!wanted || std::find(variants.begin(), variants.end(), *wanted) == variants.end())
      throw Error(ErrorKind::config, pin.where,
                  "kernels." + name + " = " + to_text(pin.value) + " names no variant of this op",
                  "expected one of " + to_text(OptionValue(variants)));
  }
}

OpTable::~OpTable() = default;

std::vector<KernelRow> OpTable::rows_of(const std::string& name) const {
  std::vector<KernelRow> found;
  for (const auto& row : rows_)
    if (row.op == name) found.push_back(row);
  return found;
}

const KernelRow* OpTable::choose(const OpQuery& query) const {
  const std::string text = query.text();
  const std::lock_guard lock(mutex_);
  if (const auto it = chosen_.find(text); it != chosen_.end()) return it->second;
  const auto pin = pins_.find(query.op);
  const std::string pinned = pin == pins_.end() ? "" : std::get<std::string>(pin->second.value);
  const KernelRow* best = nullptr;
  int best_score = 1;  // the reference's
  for (const auto& row : rows_) {
    if (row.op != query.op || (query.grad && !row.backward) || (!pinned.empty() && row.variant != pinned)) continue;
    const int score = row.score(query);
    if (score > 0 && (score > best_score || !pinned.empty())) best = &row, best_score = score;
  }
  if (!pinned.empty() && pinned != "reference" && !best)
    throw Error(ErrorKind::config, pin->second.where,
                "kernels." + query.op + " = \"" + pinned + "\" cannot compute " + text,
                "remove the pin, or choose another variant");
  chosen_[text] = best;
  if (log_) log_("kernel " + text + ": " + (best ? best->variant : "reference"));
  return best;
}

Tensor OpTable::run(const std::string& name, const OpInputs& inputs) const {
  const KernelRow* row = choose(query_of(name, inputs, meta_stands_for));
  if (row && inputs.tensors.at(0).is_meta() && !row->shapes) row = nullptr;
  return row ? run_row(*row, inputs) : op(name).reference(inputs);
}

Tensor OpTable::run_row(const KernelRow& row, const OpInputs& inputs) {
  if (!query_of(row.op, inputs).grad) return results_of(row, inputs).at(0);
  Tensors defined;
  for (const Tensor& tensor : inputs.tensors)
    if (tensor.defined()) defined.push_back(tensor);
  return RowFunction::apply(at::TensorList(defined), RowFunction::Call{&row, &inputs});
}

std::map<std::string, std::string> OpTable::chosen() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::string> result;
  for (const auto& [text, row] : chosen_) result[text] = row ? row->variant : "reference";
  return result;
}

}  // namespace ditto
