// The promises of an objective.
#include <torch/autograd.h>

#include <ditto/testing/checks.h>

#include "model/model_run.h"
#include "numbers.h"
#include "schedules.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

constexpr int64_t kSamples = 4, kClasses = 10;
std::vector<int64_t> picture_shape() { return {kSamples, 2, 4, 4}; }

const std::vector<int64_t> kMoments{4, 2, 2};
constexpr int64_t kDepth = 8, kTokens = 4, kWidth = 6, kOtherWidth = 5;

std::string feature(int64_t block) { return "features." + std::to_string(block); }

// All that an objective asks of a model: its null condition, and what it hands out.
class Conditioned final : public Model {
 public:
  Conditioning condition(const Batch&, Context&) override { return {}; }
  Stream tokens(const Batch&, Context&) override { return {}; }
  int64_t depth() const override { return kDepth; }
  Stream run_block(int64_t, Stream stream, Context&) override { return stream; }
  Tensor head(const Stream&, Context&) override { return {}; }
  TensorSpecs takes() const override { return {{"x", at::kFloat, {2, 4, 4}}}; }
  TensorSpecs makes() const override {
    return {{"features", at::kFloat, {kTokens, kWidth}}, {"moments", at::kFloat, kMoments}};
  }
  Batch without_condition(Batch batch, const Tensor& which_B) const override {
    batch["label"] = torch::where(which_B, torch::full_like(batch.at("label"), kClasses), batch.at("label"));
    return batch;
  }
};

// Another network, whatever its name: a sample's outputs are a function of its own numbers.
class Other final : public Network {
 public:
  const TensorSpecs& takes() const override { return takes_; }
  TensorSpecs makes() const override { return {{"features", at::kFloat, {kTokens, kOtherWidth}}}; }
  int64_t depth() const override { return kDepth; }
  bool trains() const override { return false; }
  void require_trains() const override {}
  void require_frozen() const override {}
  Outputs run(const Batch& batch, const std::vector<int64_t>& features) override {
    torch::NoGradGuard no_grad;
    const Tensor& x = batch.at("x");
    Outputs outputs{{"prediction", torch::tanh(x)}};
    for (const int64_t block : features) {
      const auto map = normal(feature(block), {x[0].numel(), kTokens * kOtherWidth}, x.scalar_type());
      outputs[feature(block)] = torch::tanh(x.flatten(1)).matmul(map).view({-1, kTokens, kOtherWidth});
    }
    return outputs;
  }
  void require_same_schedule() const override {}
  Tensor predict(Batch, const Tensor& x_t, const Tensor& time_B) override {
    torch::NoGradGuard no_grad;
    return torch::tanh(x_t) * (1 + spread(time_B, x_t));
  }

 private:
  const TensorSpecs takes_{{"x", at::kFloat, {2, 4, 4}}, {"t", at::kFloat, {}}};
};

class ObjectiveTest {
 public:
  ObjectiveTest(const std::string& path, const OptionValues& options, const ObjectiveChecks& extra)
      : path_(path), options_(options), extra_(extra) {}

  void run(Report& report) {
    if (extra_.scheduled) {
      schedules_.emplace_back("a straight schedule", straight_schedule());
      schedules_.emplace_back("a circular schedule", circular_schedule());
      schedules_.emplace_back("a preconditioned schedule", preconditioned_schedule());
    } else {
      schedules_.emplace_back("no schedule", nullptr);
    }
    bool is_made = false;
    report.check("it can be made", [&] { return make_all(), is_made = true, std::string(); });
    if (!is_made) return;
    check(report, "its parameters are of Unit::objective, and each has a gradient that is not zero",
          &ObjectiveTest::parameters);
    check(report, "prepare adds x_t and its time, or x, and what makes() names, and keeps what is there",
          &ObjectiveTest::prepared);
    check(report, "two preparations give the same bits", &ObjectiveTest::repeated);
    check(report, "what is drawn for a sample depends on its id alone", &ObjectiveTest::by_id);
    constexpr const char* kEvaluated = "evaluation takes its times from time_u, and drops nothing";
    if (extra_.scheduled)
      check(report, kEvaluated, &ObjectiveTest::evaluated);
    else
      report.skip(kEvaluated, "scheduled is false");
    check(report, "losses are finite, [B], and have a gradient", &ObjectiveTest::losses);
    check(report, "what it measures is finite, [B], and a sample's own", &ObjectiveTest::measures);
    check(report, "a sample's losses are its own", &ObjectiveTest::own_losses);
    if (extra_.least_at_target)
      check(report, "losses are least at the schedule's target", &ObjectiveTest::least);
    else
      report.skip("losses are least at the schedule's target", "least_at_target is false");
  }

 private:
  using Schedules = std::vector<std::pair<std::string, std::unique_ptr<Scheduler>>>;
  using Promise = std::string (ObjectiveTest::*)(const Objective&, const Scheduler*) const;

  void make_all() {
    for (const auto& [name, schedule] : schedules_) {
      objectives_.push_back(make<Objective>(
          path_, options_, {&model_, schedule.get(), [this](const std::string&) -> Network& { return other_; }}));
      fill(*objectives_.back(), at::kDouble);
    }
  }
  void check(Report& report, const std::string& promise, Promise holds) {
    report.check(promise, [&]() -> std::string {
      for (size_t i = 0; i < schedules_.size(); ++i) {
        const auto problem = (this->*holds)(*objectives_[i], schedules_[i].second.get());
        if (!problem.empty()) return "with " + schedules_[i].first + " " + problem;
      }
      return {};
    });
  }

  Batch batch(int64_t first_id = 0) const {
    Batch made;
    made["clean"] = normal("clean", picture_shape());
    made["label"] = torch::arange(kSamples, at::kLong);
    for (int64_t i = 0; i < kSamples; ++i) made.ids.push_back(first_id + i), made.weights.push_back(1);
    if (extra_.adjust) extra_.adjust(made);
    return made;
  }
  static Context in(Phase phase) {
    Context ctx = context(at::kDouble);
    ctx.phase = phase;
    return ctx;
  }
  static Batch prepare(const Objective& objective, const Batch& batch, Phase phase = Phase::train) {
    Context ctx = in(phase);
    return objective.prepare(batch, ctx);
  }

  static std::string noised(const Batch& before, const Batch& after) {
    for (const char* name : {"x", "t"})
      if (after.has(name)) return "it makes \"" + std::string(name) + "\", which the host makes of x_t and time";
    if (!after.has("x_t") || after.at("x_t").sizes() != before.at("clean").sizes()) return "there is no x_t as clean";
    if (!after.has("time") || after.at("time").sizes() != at::IntArrayRef{kSamples} ||
        after.at("time").scalar_type() != at::kDouble)
      return "there is no time [B] in double";
    return {};
  }

  std::string prepared(const Objective& objective, const Scheduler* schedule) const {
    const Batch before = batch(), after = prepare(objective, before);
    if (after.ids != before.ids || after.weights != before.weights) return "ids or weights have changed";
    for (const auto& [name, tensor] : before.tensors)
      if (!after.has(name)) return "\"" + name + "\" is gone";
    const auto problem = schedule ? noised(before, after) : after.has("x") ? "" : "there is no x";
    if (!problem.empty()) return problem;
    for (const TensorSpec& made : objective.makes())
      if (!after.has(made.name)) return "it does not make \"" + made.name + "\", as makes() says";
    for (const auto& [name, tensor] : after.tensors) {
      if (tensor.dim() == 0 || tensor.size(0) != kSamples) return "\"" + name + "\" has not the samples along dim 0";
      if (const auto problem = not_finite(tensor); !problem.empty()) return "\"" + name + "\" " + problem;
    }
    Batch half = before;
    half["clean"] = half.at("clean").to(at::kFloat);
    const std::string seen = schedule ? "x_t" : "x";
    const auto dtype = prepare(objective, half).at(seen).scalar_type();
    return dtype == at::kFloat ? "" : "of float pictures " + seen + " is " + c10::toString(dtype);
  }

  static std::string same(const Batch& found, const Batch& expected, double tolerance = 0) {
    for (const auto& [name, tensor] : expected.tensors) {
      if (!found.has(name)) return "\"" + name + "\" is not there";
      const auto problem = difference(found.at(name), tensor, tolerance);
      if (!problem.empty()) return "\"" + name + "\" " + problem;
    }
    return {};
  }

  std::string repeated(const Objective& objective, const Scheduler*) const {
    return same(prepare(objective, batch()), prepare(objective, batch()));
  }

  std::string by_id(const Objective& objective, const Scheduler* schedule) const {
    const Batch whole = prepare(objective, batch());
    for (int64_t i = 0; i < kSamples; ++i) {
      const auto problem = same(prepare(objective, batch().slice(i, i + 1)), whole.slice(i, i + 1), 1e-12);
      if (!problem.empty()) return "sample " + std::to_string(i) + " alone: " + problem;
    }
    if (!schedule) return {};
    const Batch others = prepare(objective, batch(/*first_id=*/100));
    return others.at("x_t").equal(whole.at("x_t")) ? "other ids have the same x_t" : "";
  }

  std::string evaluated(const Objective& objective, const Scheduler*) const {
    const auto at_times = [&](double shift, int64_t first_id) {
      Batch made = batch(first_id);
      made["time_u"] = torch::linspace(0.1, 0.7, kSamples, at::kDouble) + shift;
      return made;
    };
    const Batch given = at_times(0, 0), found = prepare(objective, given, Phase::evaluate);
    if (const auto problem = same(found, given); !problem.empty()) return problem + " from what was given";
    if (!prepare(objective, at_times(0, 100), Phase::evaluate).at("time").equal(found.at("time")))
      return "times depend on ids";
    return prepare(objective, at_times(0.2, 0), Phase::evaluate).at("time").equal(found.at("time"))
               ? "other time_u give the same times"
               : "";
  }

  // What a perfect model predicts; `off` away from it.
  static Tensor prediction(const Scheduler* schedule, const Batch& in, double off) {
    const auto target = schedule ? schedule->target(in.at("clean"), in.at("noise"), in.at("time")) : in.at("x");
    return (target + off * normal("off", target.sizes().vec())).requires_grad_();
  }
  Batch with_noise(const Objective& objective) const {
    Batch made = prepare(objective, batch());
    if (!made.has("noise")) made["noise"] = normal("noise", picture_shape());
    return made;
  }
  static std::map<std::string, Tensor> losses_of(const Objective& objective, const Tensor& prediction,
                                                 const Batch& batch) {
    Context ctx = in(Phase::train);
    return objective.losses(outputs_of(objective, prediction, batch), batch, ctx);
  }
  static Outputs outputs_of(const Objective& objective, const Tensor& prediction, const Batch& batch) {
    const auto of_samples = [&](const std::string& name, std::vector<int64_t> shape) {
      shape.insert(shape.begin(), kSamples);
      return normal(name, shape).index_select(0, torch::tensor(batch.ids, at::kLong));
    };
    Outputs outputs{{"prediction", prediction}, {"moments", of_samples("moments", kMoments)}};
    for (const int64_t block : objective.features())
      outputs[feature(block)] = of_samples(feature(block), {kTokens, kWidth});
    return outputs;
  }
  static Tensor sum_of_losses(const Objective& objective, const Tensor& prediction, const Batch& batch) {
    Tensor sum = torch::zeros({}, at::kDouble);
    for (const auto& [name, loss] : losses_of(objective, prediction, batch)) sum = sum + loss.sum();
    return sum;
  }
  static Tensor gradient(const Objective& objective, const Tensor& prediction, const Batch& batch) {
    return torch::autograd::grad({sum_of_losses(objective, prediction, batch)}, {prediction})[0];
  }

  std::string parameters(const Objective& objective, const Scheduler* schedule) const {
    for (const auto& [name, unit] : objective.units())
      if (unit != Unit{Unit::objective}) return name + " belongs to unit " + to_text(unit);
    if (objective.parameters().empty()) return {};
    const Batch in = with_noise(objective);
    const auto named = objective.named_parameters();
    const auto gradients = torch::autograd::grad({sum_of_losses(objective, prediction(schedule, in, 0.5), in)},
                                                 named.values(), {}, {}, false, /*allow_unused=*/true);
    for (size_t i = 0; i < gradients.size(); ++i)
      if (!gradients[i].defined() || !(gradients[i].abs().max().item<double>() > 0))
        return named[i].key() + (gradients[i].defined() ? " has a gradient of zero" : " has none");
    return {};
  }

  std::string losses(const Objective& objective, const Scheduler* schedule) const {
    const Batch in = with_noise(objective);
    const auto all = losses_of(objective, prediction(schedule, in, 0.5), in);
    if (all.empty()) return "there are none";
    for (const auto& [name, loss] : all) {
      if (loss.sizes() != at::IntArrayRef{kSamples}) return "\"" + name + "\" has shape " + shape_text(loss.sizes());
      if (const auto problem = not_finite(loss); !problem.empty()) return "\"" + name + "\" " + problem;
    }
    const auto grad = gradient(objective, prediction(schedule, in, 0.5), in);
    if (const auto problem = not_finite(grad); !problem.empty()) return "the gradient " + problem;
    return grad.abs().max().item<double>() > 0 ? "" : "the gradient is zero";
  }

  std::string own_losses(const Objective& objective, const Scheduler* schedule) const {
    const Batch in = with_noise(objective);
    const Tensor guess = prediction(schedule, in, 0.5);
    const auto whole = losses_of(objective, guess, in);
    for (int64_t i = 0; i < kSamples; ++i)
      for (const auto& [name, loss] : losses_of(objective, guess.slice(0, i, i + 1), in.slice(i, i + 1)))
        if (const auto problem = difference(loss, whole.at(name).slice(0, i, i + 1), 1e-12); !problem.empty())
          return "\"" + name + "\" of sample " + std::to_string(i) + " " + problem;
    return {};
  }

  std::string measures(const Objective& objective, const Scheduler* schedule) const {
    const Batch all = with_noise(objective);
    const Tensor guess = prediction(schedule, all, 0.5).detach();
    Context ctx = in(Phase::evaluate);
    const auto of = [&](int64_t begin, int64_t end) {
      const Batch some = all.slice(begin, end);
      return objective.measures(outputs_of(objective, guess.slice(0, begin, end), some), some, ctx);
    };
    const auto whole = of(0, kSamples);
    for (const auto& [name, measure] : whole) {
      if (measure.sizes() != at::IntArrayRef{kSamples})
        return "\"" + name + "\" has shape " + shape_text(measure.sizes());
      if (const auto problem = not_finite(measure); !problem.empty()) return "\"" + name + "\" " + problem;
    }
    for (int64_t i = 0; i < kSamples; ++i)
      for (const auto& [name, measure] : of(i, i + 1))
        if (const auto problem = difference(measure, whole.at(name).slice(0, i, i + 1), 1e-12); !problem.empty())
          return "\"" + name + "\" of sample " + std::to_string(i) + " " + problem;
    return {};
  }

  // One that applies c_skip and c_out, as the host does already, has its least loss elsewhere.
  std::string least(const Objective& objective, const Scheduler* schedule) const {
    const Batch in = with_noise(objective);
    const double at_target = gradient(objective, prediction(schedule, in, 0), in).abs().max().item<double>();
    const double beside = gradient(objective, prediction(schedule, in, 0.5), in).abs().max().item<double>();
    return at_target <= 1e-6 * beside ? ""
                                      : "the gradient there is " + text(at_target) + ", and beside it " + text(beside);
  }

  std::string path_;
  OptionValues options_;
  ObjectiveChecks extra_;
  Conditioned model_;
  Other other_;
  Schedules schedules_;
  std::vector<std::shared_ptr<Objective>> objectives_;  // along the schedules
};

}  // namespace

Report check_objective(const std::string& path, const OptionValues& options, const ObjectiveChecks& extra) {
  Report report("objective " + path);
  report.guard([&] { ObjectiveTest(path, options, extra).run(report); });
  return report;
}

}  // namespace ditto::testing
