#include <ditto/list_update.h>

#include <algorithm>

#include <torch/types.h>

namespace ditto {

using torch::Tensor;

namespace {

constexpr size_t kOfParameter = 6, kBeyond = 3;

}  // namespace

std::optional<ListUpdate> ListUpdate::of(const Update& update, const std::vector<OptimizedParameter>& parameters,
                                         const std::vector<std::vector<Tensor>>& states) {
  if (parameters.empty() || parameters.front().tensor.is_cpu()) return std::nullopt;
  ListUpdate list;
  const auto device = parameters.front().tensor.device();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& tensor = parameters[i].tensor;
    const auto at = [i](const std::vector<Tensor>& of) { return of.empty() ? Tensor() : of[i].detach(); };
    const auto state = [&](size_t which) { return states.size() > which ? at(states[which]) : Tensor(); };
    if (!tensor.grad().defined() || tensor.device() != device) return std::nullopt;
    const bool has_copy = !update.copies.empty() && update.copies[i].defined();
    list.parameters.push_back({tensor.detach(), tensor.grad().detach(), state(0), state(1), at(update.average),
                               has_copy ? update.copies[i].detach() : Tensor()});
  }
  list.late_clip = update.late_clip, list.skip = update.skip;
  list.lr = update.lr, list.clip = update.clip, list.decay = update.decay;
  return list;
}

OpInputs ListUpdate::inputs(std::map<std::string, Attribute> attributes) const {
  OpInputs in{{}, std::move(attributes)};
  std::vector<int64_t> decayed;
  for (const auto& p : parameters) {
    for (const auto& tensor : {p.weight, p.gradient, p.first, p.second, p.average, p.copy})
      in.tensors.push_back(tensor);
    decayed.push_back(p.decayed ? 1 : 0);
  }
  in.attributes["decayed"] = std::move(decayed);
  in.tensors.push_back(late_clip);
  in.tensors.push_back(skip);
  in.tensors.push_back(torch::tensor({lr, clip, decay, step}, torch::kDouble));  // no attributes: a choice is made once
  return in;
}

ListUpdate ListUpdate::of(const OpInputs& in) {
  ListUpdate list;
  const auto& t = in.tensors;
  const auto& decayed = in.list("decayed");
  if (t.size() != decayed.size() * kOfParameter + kBeyond)
    throw Error(ErrorKind::plugin, "an update of a list",
                "has " + std::to_string(t.size()) + " tensors for " + std::to_string(decayed.size()) + " parameters",
                "make its inputs by ListUpdate::inputs");
  for (size_t i = 0; i < decayed.size(); ++i) {
    const auto* own = &t[i * kOfParameter];
    list.parameters.push_back({own[0], own[1], own[2], own[3], own[4], own[5], decayed[i] != 0});
  }
  list.late_clip = t[t.size() - 3], list.skip = t[t.size() - 2];
  const auto changing = t.back().to(torch::kCPU, torch::kDouble).contiguous();  // as it is, but in tests of all kernels
  const auto* numbers = changing.const_data_ptr<double>();
  list.lr = numbers[0], list.clip = numbers[1], list.decay = numbers[2], list.step = numbers[3];
  return list;
}

bool in_one_call(const std::string& op, const OpTable* ops, const std::optional<ListUpdate>& update,
                 std::map<std::string, Attribute> attributes) {
  if (!ops || ops->exact() || !update) return false;
  const torch::NoGradGuard no_grad;
  const auto in = update->inputs(std::move(attributes));
  if (ops->variant(op, in) == "reference") return false;
  ops->run(op, in);
  return true;
}

}  // namespace ditto
