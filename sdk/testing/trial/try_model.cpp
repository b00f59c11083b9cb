// A model on many layouts of ranks, against one rank.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include <ditto/error.h>
#include <ditto/testing/checks.h>

#include "model/mistakes.h"
#include "model/model_run.h"
#include "model/pack_probe.h"
#include "numbers.h"
#include "parallel/local_mesh.h"
#include "parallel/parallel_run.h"
#include "trial/trial_parts.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

constexpr double kRounding = 1e-12;  // in fp64, of the largest number: only the order of sums may differ
constexpr int64_t kSamples = 2, kMicroBatches = 2, kTraced = 7;
constexpr const char* kAlone = "by itself";

struct LayoutTried {
  std::string name;
  AxisDegrees degrees;
  std::vector<std::pair<std::string, OptionValues>> strategies;  // in the order of sharding
  std::set<Touches> touches;
  bool is_packed = false;  // a micro-batch's samples are one row of tokens
};

std::vector<LayoutTried> layouts() {
  using enum Touches;
  const OptionValues sequence{{"sequence", true}}, none;
  const auto context = [](const std::string& id, int degree, std::set<Touches> touches = {tokens}) -> LayoutTried {
    return {id + " " + std::to_string(degree), {{Axis::context, degree}}, {{id, {}}}, std::move(touches)};
  };
  const auto shard = [](const std::string& id) -> LayoutTried {
    return {id + " 2", {{Axis::shard, 2}}, {{id, {}}}, {units}};
  };
  return {{"ddp 2", {{Axis::replicate, 2}}, {{"ddp", none}}, {}},
          shard("zero1"),
          shard("zero2"),
          shard("fsdp"),
          {"recompute", {}, {{"recompute", none}}, {again}},
          {"offload", {}, {{"offload", none}}, {units}},
          {"pipeline 2", {{Axis::pipeline, 2}}, {{"pipeline", none}}, {stages, units}},
          {"expert 2", {{Axis::expert, 2}}, {{"expert", none}}, {}},
          {"tensor 2", {{Axis::tensor, 2}}, {{"tensor", none}}, {layers}},
          {"tensor 4", {{Axis::tensor, 4}}, {{"tensor", none}}, {layers}},
          {"tensor 2, sequence", {{Axis::tensor, 2}}, {{"tensor", sequence}}, {layers, tokens}},
          context("ring", 2),
          context("ring", 4),
          context("ulysses", 2),
          context("fastseq", 2, {tokens, layers}),
          context("spatiotemporal", 2),
          {"tensor 2 x ring 2",
           {{Axis::tensor, 2}, {Axis::context, 2}},
           {{"tensor", none}, {"ring", none}},
           {layers, tokens}},
          {"pack", {}, {}, {packs}, true},
          {"pack, ring 2", {{Axis::context, 2}}, {{"ring", none}}, {packs, tokens}, true}};
}

// What a run is compared by.
struct Numbers {
  std::vector<ParallelRun::Seen> before, after;  // a step
  std::map<int64_t, double> losses;
  std::map<std::string, Tensor> gradients;
};

Numbers train(ParallelRun& run) {
  Numbers numbers;
  numbers.before = run.trace(kTraced);
  run.step(1, kMicroBatches);
  numbers.losses = run.losses;
  for (const auto& entry : run.layout.entries) numbers.gradients[entry.name] = entry.tensor.grad();
  run.descend();
  numbers.after = run.trace(kTraced);
  return numbers;
}

std::string of_largest(double error) { return " by " + text(error) + " of its largest number"; }

// The first field that is another one.
std::string compare_streams(const std::vector<ParallelRun::Seen>& found,
                            const std::vector<ParallelRun::Seen>& expected) {
  for (const auto& one : found) {
    const auto other = std::find_if(expected.begin(), expected.end(), [&](const ParallelRun::Seen& seen) {
      return seen.unit == one.unit && seen.field == one.field;
    });
    if (other == expected.end()) continue;  // a strategy's own
    const bool is_prediction = one.unit == "head";
    const auto where = is_prediction ? "the prediction" : "after " + one.unit + " the stream's \"" + one.field + "\"";
    if (one.value.sizes() != other->value.sizes()) {
      if (one.field.starts_with("extra.")) continue;  // a map may be cut by channels from block to block
      return where + " is " + shape_text(one.value.sizes()) + ", expected " + shape_text(other->value.sizes());
    }
    const double error = error_of(one.value.to(at::kDouble), other->value.to(at::kDouble));
    if (!(error <= kRounding)) return where + " differs" + of_largest(error);
  }
  return {};
}

std::string compare_losses(const std::map<int64_t, double>& found, const std::map<int64_t, double>& expected) {
  for (const auto& [id, loss] : found) {
    const double other = expected.at(id), error = std::abs(loss - other) / std::max(std::abs(other), 1e-300);
    if (!(error <= kRounding)) return "the loss of sample " + std::to_string(id) + " differs by " + text(error);
  }
  return {};
}

// Parameters, the worst first. Some gradients are zero but for rounding (a key's bias).
std::string compare_gradients(const Layout& layout, const Numbers& found, const Numbers& expected) {
  double largest = 0;
  for (const auto& [name, gradient] : expected.gradients)
    if (gradient.defined() && gradient.numel() > 0) largest = std::max(largest, gradient.abs().max().item<double>());
  std::vector<std::pair<double, std::string>> wrong;
  for (const auto& entry : layout.entries) {
    const Tensor &whole = expected.gradients.at(entry.name), &gradient = found.gradients.at(entry.name);
    if (!whole.defined() || !gradient.defined()) {
      if (whole.defined() != gradient.defined()) wrong.emplace_back(INFINITY, entry.name);
      continue;
    }
    const Tensor own = piece_of(whole, entry);
    if (own.sizes() != gradient.sizes())
      return "the gradient of " + entry.name + " is " + shape_text(gradient.sizes()) + ", expected " +
             shape_text(own.sizes());
    if (own.numel() == 0) continue;
    const double most = std::max(whole.abs().max().item<double>(), 1e-3 * largest);
    const double error = (own - gradient).abs().max().item<double>() / most;
    if (!(error <= kRounding)) wrong.emplace_back(std::isfinite(error) ? error : INFINITY, entry.name);
  }
  if (wrong.empty()) return {};
  std::stable_sort(wrong.begin(), wrong.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string names = wrong[0].second;
  for (size_t i = 1; i < std::min<size_t>(wrong.size(), 3); ++i) names += ", " + wrong[i].second;
  if (wrong.size() > 3) names += " and " + std::to_string(wrong.size() - 3) + " more";
  return (wrong.size() > 1 ? "the gradients of " + names + " differ, the first"
                           : "the gradient of " + names + " differs") +
         of_largest(wrong[0].first);
}

std::string compare(const Layout& layout, const Numbers& found, const Numbers& expected) {
  if (auto what = compare_streams(found.before, expected.before); !what.empty()) return what;
  if (auto what = compare_losses(found.losses, expected.losses); !what.empty()) return what;
  if (auto what = compare_gradients(layout, found, expected); !what.empty()) return what;
  const auto what = compare_streams(found.after, expected.after);
  return what.empty() ? what : "after an update: " + what;
}

class ModelTrial {
 public:
  explicit ModelTrial(const TrialParts& parts) : parts_(parts) {
    if (!parts_.strategy) parts_.strategy = strategy_beside_the_sdk;
    if (!parts_.around) parts_.around = [](const std::string&, const std::function<void()>& body) { body(); };
    trainee_ = {parts_.model, [this](int64_t number) { return batch(number); }, parts_.table};
  }

  std::vector<Trial> run() {
    trials_ = {{kAlone}};
    std::string what;
    parts_.around(kAlone, [&] { what = reference(); });
    if (!what.empty()) {
      trials_[0].outcome = Trial::Outcome::wrong;
      trials_[0].what = what;
      return trials_;
    }
    parts_.around(kAlone, [&] {
      mistakes_ = find_mistakes(
          parts_.model, [this] { return make_context(); }, batch(0));
    });
    for (const auto& mistake : mistakes_)
      if (mistake.shows.count(Touches::nothing)) say(trials_[0], mistake);
    for (const auto& layout : layouts()) trials_.push_back(tried(layout));
    for (const auto& mistake : mistakes_)
      if (mistake.is_certain && !said_.count(mistake.what)) say(trials_[0], mistake);
    return trials_;
  }

 private:
  Context make_context() const {
    Context ctx(parts_.table ? parts_.table : std::make_shared<OpTable>(), Random(1));
    ctx.compute = at::kDouble;
    return ctx;
  }

  // The last sample has the null condition, whose parameters have a part in the loss then.
  Batch batch(int64_t number) const {
    Batch made = make_batch(*prototype_, kSamples, at::kDouble, number);
    if (parts_.adjust) parts_.adjust(made);
    made = prototype_->without_condition(std::move(made), torch::arange(kSamples).eq(kSamples - 1));
    if (!prediction_.empty()) made["target"] = normal("target " + std::to_string(number), prediction_);
    return made;
  }

  // One rank's numbers; or what is wrong with them.
  std::string reference() {
    try {
      prototype_ = parts_.model();
      fill(*prototype_, at::kDouble);
      auto ctx = make_context();
      {
        torch::NoGradGuard no_grad;
        prediction_ = predict(*prototype_, batch(0), ctx).sizes().vec();
      }
      const LocalMesh mesh(0, {}, nullptr);
      ParallelRun run(trainee_, mesh, true);
      expected_ = train(run);
      for (const auto& [id, loss] : expected_.losses)
        if (!std::isfinite(loss)) return "the loss of sample " + std::to_string(id) + " is not finite";
      return {};
    } catch (const std::exception& error) {
      return "one rank threw: " + first_line(error);
    }
  }

  Trial tried(const LayoutTried& layout) {
    TrialFindings findings;
    on_ranks(layout.degrees, [&](const Mesh& mesh) {
      parts_.around(layout.name, [&] { rank(layout, mesh, findings); });
      return std::string();
    });
    Trial trial{layout.name};
    const auto& wrong = findings.wrong.empty() && findings.refused.empty() ? findings.lost : findings.wrong;
    if (!wrong.empty()) {
      trial.what = wrong;
      explain(trial, layout);
    } else if (!findings.refused.empty()) {
      trial.outcome = Trial::Outcome::refused;
      trial.what = findings.refused;
    }
    return trial;
  }

  void rank(const LayoutTried& layout, const Mesh& mesh, TrialFindings& findings) const {
    std::vector<MakeStrategy> make;
    for (const auto& [id, options] : layout.strategies)
      make.push_back([this, id = id, options = options](const ParallelStrategy::Needs& needs) {
        return parts_.strategy(id, options, needs);
      });
    auto trainee = trainee_;
    if (layout.is_packed) trainee.batch = [this](int64_t number) { return packed(batch(number)); };
    std::optional<ParallelRun> run;
    bool is_made = false;
    const auto running = [&] { return run ? run->running : std::string(); };
    findings.note(mesh, is_made, running, [&] {
      run.emplace(trainee, mesh, true, make);
      is_made = true;
      return compare(run->layout, train(*run), expected_);
    });
  }

  // In full where a mistake shows first.
  void say(Trial& trial, const Mistake& mistake) {
    trial.outcome = Trial::Outcome::wrong;
    const auto [it, is_first] = said_.emplace(mistake.what, trial.layout);
    trial.what += trial.what.empty() ? "it has " : "; it looks like ";
    trial.what += is_first ? mistake.what : mistake.name() + " (see \"" + it->second + "\")";
  }

  void explain(Trial& trial, const LayoutTried& layout) {
    trial.outcome = Trial::Outcome::wrong;
    const auto shows = [&](const Mistake& mistake) {
      return std::any_of(layout.touches.begin(), layout.touches.end(),
                         [&](Touches touch) { return mistake.shows.count(touch) > 0; }) ||
             mistake.shows.count(Touches::nothing) > 0;
    };
    bool is_explained = false;
    for (const auto& mistake : mistakes_)
      if (shows(mistake)) say(trial, mistake), is_explained = true;
    if (is_explained) return;
    for (const auto& mistake : mistakes_) say(trial, mistake);
    if (mistakes_.empty()) trial.what += "; it looks like none of the mistakes that are known here";
  }

  TrialParts parts_;
  Trainee trainee_;
  std::shared_ptr<Model> prototype_;
  std::vector<int64_t> prediction_;  // its shape
  Numbers expected_;
  std::vector<Mistake> mistakes_;
  std::map<std::string, std::string> said_;  // mistake -> the layout where it was said in full
  std::vector<Trial> trials_;
};

}  // namespace

std::vector<Trial> try_layouts(const TrialParts& parts) {
  const OneThread one_thread;
  return ModelTrial(parts).run();
}

std::string to_text(const std::vector<Trial>& trials) {
  constexpr std::array kWords{"ok", "refused", "WRONG"};
  std::string lines, sentences;
  for (const auto& trial : trials) {
    const bool is_refused = trial.outcome == Trial::Outcome::refused;
    lines += fmt::format("  {:<8}  {}{}\n", kWords.at(static_cast<size_t>(trial.outcome)), trial.layout,
                         is_refused ? ": " + trial.what : "");
    if (trial.outcome == Trial::Outcome::wrong) sentences += "\n" + trial.layout + ": " + trial.what + ".\n";
  }
  return lines + sentences;
}

Report try_model(const std::string& path, const ModelNeeds& needs, const OptionValues& options,
                 const ModelChecks& extra) {
  Report report("model " + path + ", on layouts of ranks");
  std::vector<Trial> trials;
  report.check("it can be tried", [&] {
    TrialParts parts{[&] { return make<Model>(path, options, needs); }};
    parts.adjust = extra.adjust;
    trials = try_layouts(parts);
    return std::string();
  });
  for (const auto& trial : trials)
    if (trial.outcome == Trial::Outcome::refused)
      report.skip(trial.layout, "refused: " + trial.what);
    else
      report.check(trial.layout, [&] { return trial.what; });
  return report;
}

}  // namespace ditto::testing
