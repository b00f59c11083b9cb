// Which of LibTorch's functions a model calls beside the op table's.
#include <ATen/record_function.h>

#include <set>

#include <torch/autograd.h>

#include <ditto/exact/exact_calls.h>
#include <ditto/testing/checks.h>

#include "model/model_run.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

thread_local std::set<std::string>* heard = nullptr;

std::unique_ptr<at::ObserverContext> hear(const at::RecordFunction& function) {
  if (heard && is_inexact(function)) heard->insert(function.name());
  return nullptr;
}

class Listening {
 public:
  explicit Listening(std::set<std::string>& names)
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(hear).needsInputs(true).scopes(
            {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}))) {
    heard = &names;
  }
  ~Listening() {
    heard = nullptr;
    at::removeCallback(handle_);
  }
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;

 private:
  at::CallbackHandle handle_;
};

class Silence {
 public:
  Silence() : before_(heard) { heard = nullptr; }
  ~Silence() { heard = before_; }
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  std::set<std::string>* before_;
};

// Any call of an op, by its reference.
KernelRow unheard(const Op& op) {
  const auto reference = op.reference;
  KernelRow row{op.name, "unheard", [](const OpCall&) { return 1; },
                [reference](const OpInputs& in) {
                  const Silence silence;
                  const torch::NoGradGuard no_grad;
                  return reference(in);
                },
                [reference](const Tensors& grads, const OpInputs& in, const Tensors&) {
                  const Silence silence;
                  const torch::AutoGradMode with_gradient(true);
                  OpInputs leaves{{}, in.attributes};
                  Tensors wanted;
                  for (const Tensor& x : in.tensors) {
                    leaves.tensors.push_back(x.defined() ? x.detach() : x);
                    if (x.defined() && x.is_floating_point()) wanted.push_back(leaves.tensors.back().requires_grad_());
                  }
                  const auto found = torch::autograd::grad({reference(leaves).at(0)}, wanted, {grads.at(0)}, {}, false,
                                                           /*allow_unused=*/true);
                  Tensors all;
                  size_t next = 0;
                  for (const Tensor& x : in.tensors)
                    all.push_back(x.defined() && x.is_floating_point() ? found.at(next++) : Tensor());
                  return all;
                }};
  row.knows = op.optional;
  row.exact = true;
  return row;
}

}  // namespace

std::vector<std::string> inexact_calls(Model& model) {
  std::vector<KernelRow> rows;
  for (const Op& op : ops())
    if (op.leader.empty()) rows.push_back(unheard(op));
  Context ctx(
      std::make_shared<OpTable>(std::move(rows), std::map<std::string, GivenOption>(), nullptr, std::vector<Op>(),
                                /*exact=*/true),
      Random(1));
  ctx.token_leaf = 4;
  fill(model, at::kFloat);
  constexpr int64_t kSamples = 3;  // the last of them has the null condition
  const auto batch =
      model.without_condition(make_batch(model, kSamples, at::kFloat), torch::arange(kSamples).eq(kSamples - 1));
  std::set<std::string> names;
  {
    const Listening listening(names);
    const Tensor prediction = predict(model, batch, ctx);
    torch::autograd::backward({prediction}, {torch::ones_like(prediction)});
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> inexact_calls(const std::string& path, const ModelNeeds& needs, const OptionValues& options) {
  return inexact_calls(*make<Model>(path, options, needs));
}

}  // namespace ditto::testing
