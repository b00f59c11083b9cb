#include "core/profile/shown_step.h"

#include <memory>
#include <utility>

namespace ditto {

namespace {

struct Named : at::ObserverContext {
  explicit Named(const at::RecordFunction& of) : range(of.name()) {}
  ShownRange range;
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& of) { return std::make_unique<Named>(of); }

}  // namespace

ShownStep::ShownStep()
    : named_(at::addGlobalCallback(at::RecordFunctionCallback(&begin).scopes({at::RecordScope::USER_SCOPE}))) {}
ShownStep::~ShownStep() { at::removeCallback(named_); }

void ShownStep::begins(int64_t, Program& program) {
  const auto in = [this](const char* phase, auto& part) {
    part = [this, phase, inner = std::move(part)](auto&&... of) {
      phase_.emplace(phase);
      return inner(std::forward<decltype(of)>(of)...);
    };
  };
  in("draws", program.prepare);
  in("forward", program.begin), in("forward", program.blocks), in("forward", program.head);
  in("losses", program.loss), in("backward", program.backward);
}

}  // namespace ditto
