// The promises of a guidance: on predictions that are a function of a sample's own numbers and condition.
#include <cmath>
#include <set>

#include <ditto/testing/checks.h>

#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

constexpr int64_t kSamples = 3;

class GuidanceTest {
 public:
  GuidanceTest(const std::string& path, const OptionValues& options) : path_(path), options_(options) {}

  void run(Report& report) {
    report.check("it can be made", [&] { return made_ = create(), std::string(); });
    if (!made_) return;
    report.check("the result is finite, and shaped as an evaluation", [&] { return shape(); });
    report.check("a sample's numbers depend on its own row alone", [&] { return rows(); });
    report.check("two calls give the same bits", [&] { return repeat(); });
    report.check("what it is given is kept", [&] { return kept(); });
    report.check("a network that it evaluates was asked for when it was made", [&] { return networks(); });
    report.check("uses_negative says whether it evaluates without conditions", [&] { return negative(); });
  }

 private:
  std::shared_ptr<Guidance> create() {
    return make<Guidance>(path_, options_, {[this](const std::string& name) { required_.insert(name); }});
  }

  // Samples of some shape, with a condition, at a level of noise.
  struct Place {
    std::vector<int64_t> shape;  // of x_t
    int64_t out_channels;
    Level level;
  };
  static std::vector<Place> places() {
    std::vector<Place> all;
    for (const auto& [shape, channels] : {std::pair(std::vector<int64_t>{kSamples, 4, 6, 6}, 4),
                                          {{kSamples, 4, 6, 6}, 8},  // with a learned variance
                                          {{kSamples, 1, 3, 4, 4}, 1}})
      for (int power = -3; power <= 3; ++power) {  // sigma / alpha is 0.001 … 1000
        const double ratio = std::pow(10, power), alpha = 1 / std::sqrt(1 + ratio * ratio);
        all.push_back({shape, channels, {alpha, ratio * alpha}});
      }
    return all;
  }
  static Batch conditions() {
    Batch batch;
    batch["label"] = torch::arange(kSamples, at::kLong);
    for (int64_t i = 0; i < kSamples; ++i) batch.ids.push_back(i), batch.weights.push_back(1);
    return batch;
  }
  static Tensor noisy(const Place& place) { return normal("x_t", place.shape, at::kFloat); }

  // What is evaluated, as the host gives it: parts of one tensor, where they are of one network.
  Tensors evaluate(const Place& place, const Tensor& x_t, const Batch& conditions,
                   const std::vector<Evaluation>& wanted) {
    Tensors made;
    for (const auto& one : wanted) {
      asked_.push_back(one);
      const auto label = one.with_conditions ? conditions.at("label").to(at::kFloat) + 1
                                             : torch::zeros({conditions.size()}, at::kFloat);
      const double other = one.network.empty() ? 1.0 : 0.7;
      const auto guess = torch::tanh(other * x_t) + 0.3 * spread(label, x_t);
      made.push_back(place.out_channels == x_t.size(1) ? guess : torch::cat({guess, torch::cos(guess)}, 1));
    }
    if (made.empty()) throw Error(ErrorKind::plugin, "guidance", "evaluates an empty list");
    const auto all = torch::cat(made);
    return all.split(x_t.size(0));
  }
  Tensor predict(const Place& place, const Tensor& x_t, const Batch& conditions) {
    return made_->predict({x_t, 0.5, place.level, conditions, [&](const std::vector<Evaluation>& wanted) {
                             return evaluate(place, x_t, conditions, wanted);
                           }});
  }
  Tensor predict(const Place& place) { return predict(place, noisy(place), conditions()); }

  static std::string at(const Place& place, const std::string& problem) {
    if (problem.empty()) return {};
    return "at sigma / alpha = " + text(place.level.sigma / place.level.alpha) + ", x_t " + shape_text(place.shape) +
           ", " + std::to_string(place.out_channels) + " channels predicted: " + problem;
  }
  template <class Check>
  static std::string everywhere(const Check& check) {
    for (const auto& place : places())
      if (const auto problem = at(place, check(place)); !problem.empty()) return problem;
    return {};
  }

  std::string shape() {
    return everywhere([&](const Place& place) -> std::string {
      const auto found = predict(place);
      auto expected = place.shape;
      expected[1] = place.out_channels;
      if (found.sizes() != at::IntArrayRef(expected)) return "it is " + shape_text(found.sizes());
      if (found.scalar_type() != at::kFloat) return std::string("it is ") + c10::toString(found.scalar_type());
      return not_finite(found);
    });
  }

  std::string rows() {
    return everywhere([&](const Place& place) -> std::string {
      const auto whole = predict(place);
      auto others = noisy(place).clone();
      others[0].mul_(-2).add_(1);
      auto batch = conditions();
      batch["label"][0] = 7;
      const auto problem = difference(predict(place, others, batch).slice(0, 1), whole.slice(0, 1), 0);
      if (!problem.empty()) return "where its neighbour is another sample it " + problem;
      const auto alone = predict(place, noisy(place).slice(0, 1, 2), conditions().slice(1, 2));
      const auto difference_alone = difference(alone, whole.slice(0, 1, 2), 1e-6);
      return difference_alone.empty() ? "" : "alone it " + difference_alone;
    });
  }

  std::string repeat() {
    return everywhere([&](const Place& place) { return difference(predict(place), predict(place), 0); });
  }

  std::string kept() {
    return everywhere([&](const Place& place) -> std::string {
      const auto x_t = noisy(place);
      const auto batch = conditions();
      predict(place, x_t, batch);
      if (!x_t.equal(noisy(place))) return "x_t was written to";
      return batch.at("label").equal(conditions().at("label")) ? "" : "the conditions were written to";
    });
  }

  std::string networks() {
    return everywhere([&](const Place& place) -> std::string {
      asked_.clear();
      predict(place);
      for (const auto& one : asked_)
        if (!one.network.empty() && required_.count(one.network) == 0)
          return "it evaluates \"" + one.network + "\", which Needs::require_network was not told of";
      return {};
    });
  }

  std::string negative() {
    asked_.clear();
    for (const auto& place : places()) predict(place);
    bool evaluates = false;
    for (const auto& one : asked_) evaluates = evaluates || !one.with_conditions;
    if (evaluates == made_->uses_negative()) return {};
    return evaluates ? "it does, and uses_negative() is false" : "it never does, and uses_negative() is true";
  }

  std::string path_;
  OptionValues options_;
  std::set<std::string> required_;
  std::vector<Evaluation> asked_;
  std::shared_ptr<Guidance> made_;
};

}  // namespace

Report check_guidance(const std::string& path, const OptionValues& options) {
  Report report("guidance " + path);
  report.guard([&] { GuidanceTest(path, options).run(report); });
  return report;
}

}  // namespace ditto::testing
