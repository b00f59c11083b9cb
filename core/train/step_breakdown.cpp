#include "core/train/step_breakdown.h"

#include <string_view>

#include <ATen/record_function.h>

namespace ditto {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// "autograd::engine::evaluate_function: MmBackward0" is a function with the sums of its gradients.
std::string_view without_engine(std::string_view name) {
  constexpr std::string_view kEngine = "autograd::engine::evaluate_function: ";
  return name.starts_with(kEngine) ? name.substr(kEngine.size()) : name;
}

struct Call : at::ObserverContext {};

}  // namespace

struct StepBreakdown::State {
  std::string phase;
  Clock::time_point since;
  Phases phases;
  Ops ops;
  // The call that no other is around, what it counts as, and how many are open.
  Clock::time_point began;
  std::string name;
  bool is_of_table = false;
  int open = 0;
  at::CallbackHandle handle{};

  static thread_local State* current;

  // The transport's threads inherit the callback, and not what it counts for: they are not the step's.
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    if (!current) return nullptr;
    auto& s = *current;
    const auto name = without_engine(call.name());
    constexpr std::string_view kOp = "ditto::";
    if (s.open++ == 0) s.began = Clock::now(), s.name = name, s.is_of_table = false;
    if (name.starts_with(kOp) && !s.is_of_table) s.name = name.substr(kOp.size()), s.is_of_table = true;
    return std::make_unique<Call>();
  }
  static void end(const at::RecordFunction&, at::ObserverContext* context) {
    if (!context) return;
    auto& s = *current;
    if (--s.open > 0) return;
    auto& of = s.ops[{s.phase, s.name}];
    ++of.calls, of.seconds += seconds_between(s.began, Clock::now());
  }
};

thread_local StepBreakdown::State* StepBreakdown::State::current = nullptr;

StepBreakdown::StepBreakdown() : state_(std::make_unique<State>()) {
  State::current = state_.get();
  begin();
  state_->handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(State::begin, State::end).scopes({at::RecordScope::FUNCTION}));
}

StepBreakdown::~StepBreakdown() {
  at::removeCallback(state_->handle);
  State::current = nullptr;
}

void StepBreakdown::begin() {
  state_->phases.clear(), state_->ops.clear();
  state_->phase = "load", state_->since = Clock::now();
}

std::pair<StepBreakdown::Phases, StepBreakdown::Ops> StepBreakdown::take() {
  enter("load");
  return {state_->phases, state_->ops};
}

void StepBreakdown::enter(const std::string& phase) {
  const auto now = Clock::now();
  state_->phases[state_->phase] += seconds_between(state_->since, now);
  state_->phase = phase, state_->since = now;
}

void StepBreakdown::begins(int64_t, Program& program) {
  enter("other");
  const auto in = [this](const char* phase, auto& part) {
    part = [this, phase, inner = std::move(part)](auto&&... of) {
      enter(phase);
      struct Ends {
        StepBreakdown& breakdown;
        ~Ends() { breakdown.enter("norm"); }
      } ends{*this};
      return inner(std::forward<decltype(of)>(of)...);
    };
  };
  in("forward", program.prepare), in("forward", program.begin), in("forward", program.blocks);
  in("forward", program.head), in("forward", program.loss), in("backward", program.backward);
}

}  // namespace ditto
