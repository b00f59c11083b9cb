#include "core/profile/step_breakdown.h"

#include <optional>
#include <string_view>

#include <ATen/record_function.h>

namespace ditto {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

constexpr std::string_view kOfTable = "ditto::";

// "autograd::engine::evaluate_function: MmBackward0" is a function with the sums of its gradients.
std::string_view without_engine(std::string_view name) {
  constexpr std::string_view kEngine = "autograd::engine::evaluate_function: ";
  return name.starts_with(kEngine) ? name.substr(kEngine.size()) : name;
}

struct OpenCall : at::ObserverContext {};

// "ditto::attention backward/cpu_simd", as the table says it; anything else is LibTorch's, without a variant.
std::pair<std::string, std::string> op_and_variant(std::string_view name) {
  const auto slash = name.rfind('/');
  return {std::string(name.substr(kOfTable.size(), slash - kOfTable.size())), std::string(name.substr(slash + 1))};
}

}  // namespace

struct StepBreakdown::State {
  std::string phase;
  Clock::time_point since;
  std::optional<at::RecordFunction> scope;  // the phase, for who profiles
  Found found;
  // The call that no other is around, what it counts as, and how many are open.
  Clock::time_point began;
  Call call;
  int open = 0;
  at::CallbackHandle handle{};

  static thread_local State* current;

  // The transport's threads inherit the callback, and not what it counts for: they are not the step's.
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& of) {
    if (!current) return nullptr;
    auto& s = *current;
    const auto name = without_engine(of.name());
    if (s.open++ == 0) s.began = Clock::now(), s.call = {s.phase, std::string(name), ""};
    if (name.starts_with(kOfTable)) {
      const auto [op, variant] = op_and_variant(name);
      const Call call{s.phase, op, variant};
      ++s.found.kernels[call];
      if (s.call.variant.empty()) s.call = call;
    }
    return std::make_unique<OpenCall>();
  }
  static void end(const at::RecordFunction&, at::ObserverContext* context) {
    if (!context) return;
    auto& s = *current;
    if (--s.open > 0) return;
    auto& of = s.found.calls[s.call];
    ++of.calls, of.seconds += seconds_between(s.began, Clock::now());
  }

  // From now on, until the next; "": of none.
  void enter(const std::string& next) {
    const auto now = Clock::now();
    if (!phase.empty()) found.phases[phase] += seconds_between(since, now);
    phase = next, since = now;
    scope.reset();
    if (phase.empty() || !scope.emplace(at::RecordScope::USER_SCOPE).isActive()) return;
    scope->before(phase);
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
  state_->enter("");
  state_->found = {};
  state_->enter("load");
}

StepBreakdown::Found StepBreakdown::take() {
  state_->enter("");
  return std::move(state_->found);
}

void StepBreakdown::enter(const std::string& phase) { state_->enter(phase); }

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
