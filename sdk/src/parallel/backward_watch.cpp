#include <ditto/parallel/backward_watch.h>

#include <algorithm>

#include <torch/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/types.h>

namespace ditto {

using torch::Tensor;

namespace {

Tensors made_by(UnitCall& call) {
  Tensors list;
  for (const auto& [name, output] : call.outputs) list.push_back(output);
  for (const auto& field : call.stream.fields()) list.push_back(*field.tensor);
  for (const auto& [name, loss] : call.stream.auxiliary_losses) list.push_back(loss);
  return list;
}

// Tensors by identity. Weak, so that none lives longer for it, and no new one can take the address of one that died.
class Known {
 public:
  explicit Known(const Tensors& tensors) {
    for (const auto& tensor : tensors)
      if (tensor.defined()) known_.emplace_back(tensor.getIntrusivePtr());
  }
  bool has(const Tensor& tensor) const {
    return std::any_of(known_.begin(), known_.end(),
                       [&](const auto& known) { return known._unsafe_get_target() == tensor.unsafeGetTensorImpl(); });
  }

 private:
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> known_;
};

}  // namespace

BackwardWatch::BackwardWatch(Event reached, Event left) : reached_(std::move(reached)), left_(std::move(left)) {}
BackwardWatch::~BackwardWatch() = default;

UnitRun BackwardWatch::wrap(UnitRun run) {
  return [this, run = std::move(run)](const Unit& unit, UnitCall& call) {
    if (!torch::GradMode::is_enabled()) return run(unit, call);
    const Known before(made_by(call));
    run(unit, call);
    // A tensor that only passes through belongs to a unit that ran earlier.
    for (const auto& tensor : made_by(call))
      if (tensor.defined() && tensor.grad_fn() && !before.has(tensor))
        tensor.register_hook([this, unit](const Tensor&) { reach(unit); });
  };
}

// Autograd runs what was made last first, so a unit's nodes all run before those of the units before it.
void BackwardWatch::reach(const Unit& unit) {
  if (open_.count(unit)) return;
  if (open_.empty())
    torch::autograd::Engine::get_default_engine().queue_callback([this] {
      while (!open_.empty()) leave_last();
    });
  while (!open_.empty() && unit < *open_.rbegin()) leave_last();
  open_.insert(unit);
  reached_(unit);
}

void BackwardWatch::leave_last() {
  const Unit unit = *open_.rbegin();
  open_.erase(unit);
  left_(unit);
}

}  // namespace ditto
