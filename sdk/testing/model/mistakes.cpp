#include "model/mistakes.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <ATen/record_function.h>
#include <torch/types.h>

#include "model/layer_flow.h"
#include "model/model_run.h"
#include "model/pack_probe.h"
#include "model/splits.h"
#include "model/token_probes.h"
#include "model/unit_checks.h"

namespace ditto::testing {

namespace {

std::set<Touches> everything() {
  using enum Touches;
  return {nothing, layers, tokens, units, stages, again, packs};
}

// Sees LibTorch's draws on this thread while it lives, by whatever generator.
class Draws {
 public:
  Draws() : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&seen).scopes({at::RecordScope::FUNCTION}))) {
    found().clear();
  }
  ~Draws() { at::removeCallback(handle_); }
  Draws(const Draws&) = delete;
  Draws& operator=(const Draws&) = delete;
  static std::string& found() {
    static thread_local std::string name;  // the callback is a plain function
    return name;
  }

 private:
  static std::unique_ptr<at::ObserverContext> seen(const at::RecordFunction& call) {
    constexpr std::array<std::string_view, 17> kDraws{
        "aten::bernoulli", "aten::bernoulli_",    "aten::cauchy_", "aten::exponential_", "aten::geometric_",
        "aten::poisson",   "aten::multinomial",   "aten::normal",  "aten::normal_",      "aten::rand",
        "aten::rand_like", "aten::randint",       "aten::randn",   "aten::randn_like",   "aten::random_",
        "aten::uniform_",  "aten::native_dropout"};
    const std::string_view name = call.name();
    if (found().empty() && std::find(kDraws.begin(), kDraws.end(), name) != kDraws.end()) found() = name;
    return nullptr;
  }
  at::CallbackHandle handle_;
};

std::string drawn_by_generator(Model& model, const Batch& in, Context& ctx) {
  torch::NoGradGuard no_grad;
  const Draws draws;
  return through_units(model, in, ctx, [](const Unit& unit, const auto& run) -> std::string {
    run();
    if (Draws::found().empty()) return {};
    return "unit " + to_text(unit) + " calls " + Draws::found() +
           ", which draws other numbers on every rank and in every run: draw by ctx.dropout, or by ctx.random and the "
           "samples' ids";
  });
}

}  // namespace

std::vector<Mistake> find_mistakes(const std::function<std::shared_ptr<Model>()>& make,
                                   const std::function<Context()>& context, const Batch& in) {
  std::vector<Mistake> found;
  // What throws on one rank throws there in the trial too, which says so.
  const auto look = [&](const std::string& name, std::set<Touches> shows, bool is_certain, auto&& probe) {
    const auto model = make();
    fill(*model, at::kDouble);
    auto ctx = context();
    std::string what;
    try {
      what = probe(*model, in, ctx);
    } catch (const std::exception&) {
    }
    if (what.empty()) return false;
    found.push_back({name.empty() ? what : name + ": " + what, std::move(shows), is_certain});
    return true;
  };
  if (look("noise by generator", everything(), true, drawn_by_generator)) return found;  // all numbers differ
  look("a parameter in the wrong unit", {Touches::units, Touches::stages}, true, other_units_parameter);
  look("constants made in tokens", {Touches::stages}, true, misplaced_constant);
  look("samples that see one another", everything(), true, neighbours_seen);
  look("a block that is no pure function", {Touches::again, Touches::units, Touches::stages}, true, impure_block);
  const bool has_wrong_split =
      look("a missing or wrong Split", {Touches::layers}, true,
           [](Model& model, const Batch& batch, Context& ctx) { return wrong_split(layer_flow(model, batch, ctx)); });
  if (!has_wrong_split)
    look("", {Touches::layers}, false, [](Model& model, const Batch& batch, Context& ctx) {
      return written_number(model, batch, ctx, layer_flow(model, batch, ctx));
    });
  if (!make()->token_local()) return found;
  look("", {Touches::packs}, false, mistaken_pack);
  // Each of these is seen by the next too.
  const std::set<Touches> tokens{Touches::tokens};
  look("", tokens, false, mixed_tokens) || look("", tokens, false, own_positions) ||
      look("", tokens, false, carried_count);
  return found;
}

}  // namespace ditto::testing
