#include "core/verify/watch.h"

#include <torch/types.h>

#include "core/network/looking_on.h"

namespace ditto {

using torch::Tensor;

namespace {

constexpr int64_t kTurn = 2'000'000;  // of a step's order: backward goes the way back from here

void add_backward(Prints& into, const Unit& unit, const std::string& name, const HashSum& hash) {
  into.add(2 * kTurn - looking_on::order_of(unit), "the backward of " + to_text(unit) + ": " + name, hash);
}

HashSum hash_of(const std::string& name, const Tensor& x) {
  TensorHash hash;
  hash.add(HashKey(name), x);
  return hash.sum();
}

}  // namespace

// Outermost around a network's units: what recomputation runs again inside of them is not seen twice.
class AuditWatch::Around final : public ParallelStrategy {
 public:
  Around(AuditWatch& watch, std::string prefix) : watch_(watch), prefix_(std::move(prefix)) {}
  std::optional<Axis> axis() const override { return std::nullopt; }
  UnitRun wrap_unit(UnitRun run) override {
    return [this, run = std::move(run)](const Unit& unit, UnitCall& call) {
      auto* into = watch_.of(unit.kind == Unit::Kind::block ? call.stream.ids : call.batch.ids);
      if (!into) return run(unit, call);
      const auto before = looking_on::tensors_of(call.stream);
      run(unit, call);
      for (const auto& field : call.stream.fields())
        if (!looking_on::is_one_of(*field.tensor, before)) watch_.see(*into, unit, prefix_ + field.name, *field.tensor);
      for (const auto& [name, x] : call.outputs) watch_.see(*into, unit, prefix_ + name, x);
    };
  }

 private:
  AuditWatch& watch_;
  const std::string prefix_;
};

AuditWatch::AuditWatch(Networks& networks) {
  for (auto* model : networks.training()) {
    around_.push_back(std::make_unique<Around>(*this, model->setting.prefix));
    model->wrap(*around_.back());
    for (const auto& entry : model->layout.entries) {
      const Tensor leaf = entry.parameter.leaf();
      if (!leaf.requires_grad()) continue;
      const auto take = [this, unit = entry.unit, name = entry.name](const Tensor& gradient) {
        if (in_backward_ && gradient.defined()) add_backward(*in_backward_, unit, name, hash_of(name, gradient));
      };
      watched_.emplace_back(leaf, leaf.register_hook(take));
    }
  }
}

AuditWatch::~AuditWatch() {
  for (const auto& [leaf, hook] : watched_) leaf.remove_hook(hook);
}

void AuditWatch::take(const std::vector<int64_t>& places, Prints& into) {
  for (const int64_t place : places) by_place_[place] = &into;
}

void AuditWatch::clear() {
  by_place_.clear();
  in_backward_ = nullptr;
}

void AuditWatch::look_at(Program& program) {
  program.prepare = [this, inner = std::move(program.prepare)](Batch batch) {
    auto made = inner(std::move(batch));
    if (auto* into = of(made.ids))
      for (const auto& part : made)
        for (const auto& [name, x] : part.tensors)
          into->add(looking_on::kBatch, "the batch: " + name, hash_of(name, x));
    return made;
  };
  program.backward = [this, inner = std::move(program.backward)](const Tensors& roots, const Tensors& gradients) {
    in_backward_ = nullptr;
    inner(roots, gradients);
    in_backward_ = nullptr;
  };
}

Prints* AuditWatch::of(const std::vector<int64_t>& ids) const {
  const auto at = ids.empty() ? by_place_.end() : by_place_.find(ids.front());
  return at == by_place_.end() ? nullptr : at->second;
}

// Of one micro-batch alone is a graph, so whatever backward comes to first says whose it is.
void AuditWatch::see(Prints& into, const Unit& unit, const std::string& name, const Tensor& x) {
  if (!x.defined() || x.is_meta()) return;
  into.add(looking_on::order_of(unit), "the forward of " + to_text(unit) + ": " + name, hash_of(name, x));
  if (!torch::GradMode::is_enabled() || !x.requires_grad() || x.is_leaf()) return;
  x.register_hook([this, &into, unit, name](const Tensor& gradient) {
    in_backward_ = &into;
    if (gradient.defined()) add_backward(into, unit, "gradient of " + name, hash_of(name, gradient));
  });
}

}  // namespace ditto
