#include "core/assembly/one_number_guard.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/record_function.h>

#include <ditto/exact/exact_calls.h>

#include "core/config/numerics.h"

namespace ditto {

// LibTorch's callbacks are plain functions. They find the guard of their thread as LibTorch's own profiler is found,
// which autograd hands to the threads of a backward together with the callback.
struct OneNumberGuard::State : c10::DebugInfoBase, std::enable_shared_from_this<State> {
  // No profiler and no communication of LibTorch's goes by this name.
  static constexpr auto kKind = c10::DebugInfoKind::TEST_INFO;

  static std::shared_ptr<State> here() {
    auto* info = c10::ThreadLocalDebugInfo::get(kKind);
    return info ? static_cast<State*>(info)->shared_from_this() : nullptr;
  }

  std::atomic<int> pauses{0};
  std::mutex mutex;
  std::string found;  // the first one
  // Units ("block 3 of model 'dit'") and functions of backward that are under way: of a backward's threads, on a CPU,
  // one computes and the others wait.
  std::vector<std::string> places;
};

namespace {

struct Place : at::ObserverContext {
  std::shared_ptr<OneNumberGuard::State> of;
};

// Autograd sums the gradient of what was broadcast after the function itself has ended: its evaluation is the place.
std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
  constexpr std::string_view kBackward = "autograd::engine::evaluate_function: ";
  const std::string_view name = call.name();
  auto state = OneNumberGuard::State::here();
  if (!state) return nullptr;
  const bool is_unit = call.scope() == at::RecordScope::USER_SCOPE, is_backward = name.starts_with(kBackward);
  if (is_unit || is_backward) {
    const std::lock_guard lock(state->mutex);
    state->places.push_back(is_unit ? std::string(name)
                                    : "backward (" + std::string(name.substr(kBackward.size())) + ")");
    auto place = std::make_unique<Place>();
    place->of = std::move(state);
    return place;
  }
  if (state->pauses > 0 || !is_inexact(call)) return nullptr;
  const std::lock_guard lock(state->mutex);
  if (state->found.empty())
    state->found = std::string(name) + (state->places.empty() ? "" : " in " + state->places.back());
  return nullptr;
}

void end(const at::RecordFunction&, at::ObserverContext* context) {
  if (!context) return;
  auto& state = *static_cast<Place*>(context)->of;
  const std::lock_guard lock(state.mutex);
  state.places.pop_back();
}

}  // namespace

OneNumberGuard::OneNumberGuard()
    : state_(std::make_shared<State>()),
      reached_(State::kKind, state_),
      callback_(at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                               .needsInputs(true)
                                               .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}))) {}

OneNumberGuard::~OneNumberGuard() { at::removeCallback(callback_); }

void OneNumberGuard::check() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->found.empty()) return;
  refuse_numerics("\"one\" cannot hold with a call of " + state_->found +
                      ", whose results depend on threads, sizes or instructions",
                  "compute it by an op of ctx.ops, or set run.numerics = \"fast\"");
}

OneNumberGuard::Pause::Pause() : state_(State::here()) {
  if (state_) ++state_->pauses;
}
OneNumberGuard::Pause::~Pause() {
  if (state_) --state_->pauses;
}

}  // namespace ditto
