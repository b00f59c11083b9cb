// The promises of a noise schedule.
#include <algorithm>
#include <cmath>

#include <ditto/testing/checks.h>

#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

class SchedulerTest {
 public:
  SchedulerTest(const std::string& path, const OptionValues& options) : path_(path), options_(options) {}

  void run(Report& report) {
    report.check("it can be made", [&] { return made_ = make<Scheduler>(path_, options_), std::string(); });
    if (!made_) return;
    t_ = made_->times(torch::linspace(0.05, 0.95, kSamples, at::kDouble));
    report.check("times, alpha, sigma, weight and the c's are finite doubles [B]", [&] { return shapes(); });
    report.check("more noise never comes with more data", [&] { return monotone(); });
    report.check("corrupt is alpha clean + sigma noise", [&] { return corrupt(); });
    report.check("to_clean and to_noise undo corrupt, given the target", [&] { return inverse(); });
    report.check("a sample's target and losses are its own", [&] { return slices(); });
    report.check("losses are finite, [B], and have a gradient", [&] { return losses(); });
    report.check("the time grid goes from noise to data in as many steps as asked", [&] { return grid(); });
    report.check("start_scale is positive", [&] { return start(); });
    if (it().slope(t_[kSamples / 2].item<double>())) {
      report.check("slopes are those of alpha and sigma", [&] { return slopes(); });
      report.check("time_at gives the time of a noise level", [&] { return levels(); });
    } else {
      report.skip("slopes are those of alpha and sigma", "there are none between the grid's times");
    }
    report.check("samples of other sizes change times alone", [&] { return sizes(); });
    if (made_->has_posterior())
      report.check("step_back gives a finite mean and log-variance", [&] { return posterior(); });
    else
      report.skip("step_back gives a finite mean and log-variance", "has_posterior() is false");
  }

 private:
  static constexpr int64_t kSamples = 7;
  const Scheduler& it() const { return *made_; }
  static Tensor picture(const std::string& name) { return normal(name, {kSamples, 2, 3, 3}); }

  // What a perfect model predicts: the target, and zeros for what else it has channels for.
  Tensor perfect() const {
    const Tensor target = it().target(picture("clean"), picture("noise"), t_);
    const int64_t more = it().out_channels(2) - target.size(1);
    return more > 0 ? torch::cat({target, torch::zeros_like(target.slice(1, 0, more))}, 1) : target;
  }

  std::string shapes() const {
    const std::vector<std::pair<const char*, Tensor>> all{{"times", t_},
                                                          {"alpha", it().alpha(t_)},
                                                          {"sigma", it().sigma(t_)},
                                                          {"weight", it().weight(t_)},
                                                          {"c_noise", it().c_noise(t_)},
                                                          {"c_in", it().c_in(t_)},
                                                          {"c_out", it().c_out(t_)},
                                                          {"c_skip", it().c_skip(t_)}};
    for (const auto& [name, tensor] : all) {
      if (tensor.sizes() != t_.sizes()) return std::string(name) + " has shape " + shape_text(tensor.sizes());
      if (const auto problem = not_finite(tensor); !problem.empty()) return std::string(name) + " " + problem;
    }
    for (const auto& [name, tensor] : {all[0], all[1], all[2]})
      if (tensor.scalar_type() != at::kDouble) return std::string(name) + " is no double";
    if (it().out_channels(2) < 2) return "out_channels(2) is " + std::to_string(it().out_channels(2));
    return {};
  }

  std::string monotone() const {
    const auto order = it().sigma(t_).argsort();
    const Tensor ratio = (it().sigma(t_) / it().alpha(t_)).index_select(0, order);
    if ((it().sigma(t_) < 0).any().item<bool>()) return "sigma is negative";
    return (ratio.diff() < -1e-12).any().item<bool>() ? "sigma / alpha falls where sigma rises" : "";
  }

  std::string corrupt() const {
    const Tensor clean = picture("clean"), noise = picture("noise");
    const Tensor expected = spread(it().alpha(t_), clean) * clean + spread(it().sigma(t_), clean) * noise;
    if (const auto problem = difference(it().corrupt(clean, noise, t_), expected, 1e-12); !problem.empty())
      return problem;
    const auto dtype = it().corrupt(clean.to(at::kFloat), noise.to(at::kFloat), t_).scalar_type();
    return dtype == at::kFloat ? "" : std::string("of float pictures it is ") + c10::toString(dtype);
  }

  std::string inverse() const {
    const Tensor clean = picture("clean"), noise = picture("noise"), x = it().corrupt(clean, noise, t_);
    const auto problem = difference(it().to_clean(perfect(), x, t_), clean, 1e-6);
    if (!problem.empty()) return "to_clean " + problem;
    const auto other = difference(it().to_noise(perfect(), x, t_), noise, 1e-6);
    return other.empty() ? "" : "to_noise " + other;
  }

  std::string slices() const {
    const Tensor clean = picture("clean"), noise = picture("noise"), guess = perfect() + 0.1;
    const Tensor whole = it().target(clean, noise, t_);
    const auto losses = it().losses(guess, clean, noise, t_);
    for (int64_t i = 0; i < kSamples; ++i) {
      const auto one = [i](const Tensor& all) { return all.slice(0, i, i + 1); };
      if (!it().target(one(clean), one(noise), one(t_)).equal(one(whole)))
        return "the target of sample " + std::to_string(i);
      for (const auto& [name, loss] : it().losses(one(guess), one(clean), one(noise), one(t_)))
        if (const auto problem = difference(loss, one(losses.at(name)), 1e-12); !problem.empty())
          return "loss \"" + name + "\" of sample " + std::to_string(i) + " " + problem;
    }
    return {};
  }

  std::string losses() const {
    Tensor guess = (perfect() + 0.1).requires_grad_();
    Tensor sum = torch::zeros({}, at::kDouble);
    const auto all = it().losses(guess, picture("clean"), picture("noise"), t_);
    if (all.empty()) return "there are none";
    for (const auto& [name, loss] : all) {
      if (loss.sizes() != at::IntArrayRef{kSamples}) return "\"" + name + "\" has shape " + shape_text(loss.sizes());
      if (const auto problem = not_finite(loss); !problem.empty()) return "\"" + name + "\" " + problem;
      sum = sum + loss.sum();
    }
    sum.backward();
    if (const auto problem = not_finite(guess.grad()); !problem.empty()) return "the gradient " + problem;
    return guess.grad().abs().max().item<double>() > 0 ? "" : "the gradient is zero";
  }

  std::string grid() const {
    int possible = 0;
    for (const int64_t steps : {1, 2, 10, 50}) {
      std::vector<double> grid;
      try {
        grid = it().time_grid(steps);
      } catch (const Error& error) {  // a schedule may be unable to make so many steps, and says so
        if (error.kind() != ErrorKind::config) throw;
        continue;
      }
      ++possible;
      if (const auto problem = falls(grid, steps); !problem.empty())
        return "with " + std::to_string(steps) + " steps " + problem;
    }
    return possible > 0 ? "" : "it cannot make 1, 2, 10 or 50 steps";
  }

  std::string falls(const std::vector<double>& grid, int64_t steps) const {
    if (static_cast<int64_t>(grid.size()) != steps + 1) return "it has " + std::to_string(grid.size()) + " times";
    const Tensor times = torch::tensor(grid, at::kDouble);
    const Tensor sigma = it().sigma(times), alpha = it().alpha(times);
    if (!not_finite(times).empty() || !not_finite(sigma).empty()) return "it has numbers that are not finite";
    if (!(sigma.diff() < 0).all().item<bool>() || !(alpha.diff() >= 0).all().item<bool>())
      return "a time has no less noise than the one before";
    return {};
  }

  std::string start() const {
    const double scale = it().start_scale(it().time_grid(10).front());
    return scale > 0 && std::isfinite(scale) ? "" : "it is " + text(scale);
  }

  std::string slopes() const {
    for (int64_t i = 0; i < kSamples; ++i) {
      const double t = t_[i].item<double>(), h = 1e-5 * std::max(1e-2, std::min(std::abs(t), 1.0));
      const auto slope = it().slope(t);
      if (!slope) return "none at time " + text(t);
      const auto rate = [&](const Tensor& of) { return ((of[1] - of[0]) / (2 * h)).item<double>(); };
      const Tensor around = torch::tensor({t - h, t + h}, at::kDouble);
      const double alpha = rate(it().alpha(around)), sigma = rate(it().sigma(around));
      const double most = 1e-5 * (1 + std::abs(alpha) + std::abs(sigma));
      if (!(std::abs(slope->alpha - alpha) < most && std::abs(slope->sigma - sigma) < most))
        return "at time " + text(t) + " " + text(slope->alpha) + " and " + text(slope->sigma) + ", by differences " +
               text(alpha) + " and " + text(sigma);
    }
    return {};
  }

  std::string levels() const {
    const double wanted = 0.7;
    const auto time = it().time_at(wanted);
    if (!time) return "none of " + text(wanted);
    const Tensor t = torch::full({1}, *time, at::kDouble);
    const double found = (it().sigma(t) / it().alpha(t)).item<double>();
    return std::abs(found - wanted) < 1e-12 ? "" : "at its time of " + text(wanted) + " it is " + text(found);
  }

  std::string sizes() const {
    for (const auto& size : std::vector<std::vector<int64_t>>{{4, 16, 16}, {4, 5, 64, 96}}) {
      const auto sized = it().for_size(size);
      if (!sized) continue;
      if (!sized->alpha(t_).equal(it().alpha(t_)) || !sized->sigma(t_).equal(it().sigma(t_)))
        return "alpha or sigma is another";
      if (!sized->c_noise(t_).equal(it().c_noise(t_))) return "c_noise is another";
      if (const auto problem = falls(sized->time_grid(10), 10); !problem.empty()) return problem;
    }
    return {};
  }

  std::string posterior() const {
    const auto grid = it().time_grid(10);
    for (int64_t step = 0; step + 1 < static_cast<int64_t>(grid.size()); ++step) {
      const auto [mean, log_variance] = it().step_back(perfect(), picture("x"), grid, step);
      if (mean.sizes() != picture("x").sizes()) return "the mean has shape " + shape_text(mean.sizes());
      const auto problem = not_finite(mean) + not_finite(log_variance);
      if (!problem.empty()) return "step " + std::to_string(step) + " " + problem;
    }
    return {};
  }

  std::string path_;
  OptionValues options_;
  std::shared_ptr<Scheduler> made_;
  Tensor t_;
};

}  // namespace

Report check_scheduler(const std::string& path, const OptionValues& options) {
  Report report("scheduler " + path);
  report.guard([&] { SchedulerTest(path, options).run(report); });
  return report;
}

}  // namespace ditto::testing
