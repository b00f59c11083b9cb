// The promises of a parallel strategy: on several ranks it trains what one rank trains.
#include <algorithm>
#include <mutex>

#include <ditto/testing/checks.h>

#include "numbers.h"
#include "parallel/local_mesh.h"
#include "parallel/parallel_model.h"
#include "parallel/parallel_run.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

constexpr double kRounding = 1e-10;  // in fp64, where only the order of sums may differ

class ParallelTest {
 public:
  ParallelTest(const std::string& path, const OptionValues& options, const ParallelChecks& extra)
      : path_(path), options_(options), extra_(extra) {}

  void run(Report& report) {
    report.check("it can be made, and names its axis", [&] { return axis(); });
    if (!is_made_) return;
    if (!axis_) report.check("one rank trains as without it", [&] { return on({}, &ParallelTest::gradients); });
    for (const int degree : extra_.degrees) {
      const AxisDegrees degrees{{axis_.value_or(Axis::replicate), degree}};
      const auto check = [&](const std::string& promise, auto member) {
        report.check(promise + " (" + std::to_string(degree) + " ranks)", [&] { return on(degrees, member); });
      };
      report.check("every number of every parameter is with some rank (" + std::to_string(degree) + " ranks)",
                   [&] { return coverage(degrees); });
      check("the prediction is one rank's, on every rank", &ParallelTest::prediction);
      check("gradients are one rank's, for any number of micro-batches", &ParallelTest::gradients);
      check("so they are where sums are in any order", &ParallelTest::unordered_gradients);
      check("layers compute with what an update has left", &ParallelTest::updates);
      check("two runs give the same bits", &ParallelTest::repetition);
    }
  }

 private:
  using Body = std::string (ParallelTest::*)(const Mesh&) const;
  std::string on(const AxisDegrees& degrees, Body body) const {
    return on_ranks(degrees, [&](const Mesh& mesh) { return (this->*body)(mesh); });
  }
  MakeStrategy maker() const {
    return [this](const ParallelStrategy::Needs& needs) { return make<ParallelStrategy>(path_, options_, needs); };
  }

  std::string axis() {
    return on_ranks({}, [&](const Mesh& mesh) {
      axis_ = maker()({&mesh, true, true, at::kDouble, parallel_model()->depth()})->axis();
      is_made_ = true;
      return std::string();
    });
  }

  std::string coverage(const AxisDegrees& degrees) const {
    std::map<std::string, Tensor> seen;  // 1 where some rank has the number
    for (const auto& item : parallel_model()->named_parameters())
      seen[item.key()] = torch::zeros(item.value().sizes(), at::kDouble);
    std::mutex mutex;
    const auto problem = on_ranks(degrees, [&](const Mesh& mesh) -> std::string {
      const ParallelRun run(parallel_trainee(), mesh, true, {maker()});
      mesh.world().barrier();
      const std::lock_guard lock(mutex);
      for (const auto& entry : run.layout.entries) {
        if (entry.tensor.sizes() != at::IntArrayRef(local_shape(entry)))
          return entry.name + " has the shape " + shape_text(entry.tensor.sizes()) + ", and by its cuts " +
                 shape_text(local_shape(entry));
        for (const Rectangle& r : entry.slices()) {
          Tensor part = seen.at(entry.name);
          for (size_t d = 0; d < r.size.size(); ++d)
            part = part.narrow(static_cast<int64_t>(d), r.global_start[d], r.size[d]);
          part.fill_(1);
        }
      }
      return {};
    });
    if (!problem.empty()) return problem;
    for (const auto& [name, where] : seen)
      if (!where.eq(1).all().item<bool>()) return "of " + name + " some numbers are with no rank";
    return {};
  }

  // Of a run on one rank without strategies; every rank makes it for itself.
  struct Alone {
    explicit Alone(bool deterministic) : run(parallel_trainee(), mesh, deterministic) {}
    LocalMesh mesh{0, {}, nullptr};
    ParallelRun run;
  };

  std::string prediction(const Mesh& mesh) const {
    Alone alone(true);
    ParallelRun run(parallel_trainee(), mesh, true, {maker()});
    for (const int64_t number : {0, 1}) {
      const auto problem = difference(run.predict(number), alone.run.predict(number), kRounding);
      if (!problem.empty()) return "it " + problem;
    }
    return {};
  }

  // The first gradient that is not one rank's.
  static std::string compare(const Layout& found, const Layout& expected) {
    double largest = 0;  // of all: some gradients are zero but for rounding (a key's bias)
    for (const auto& entry : expected.entries)
      largest = std::max(largest, entry.tensor.grad().abs().max().item<double>());
    for (const auto& entry : found.entries) {
      const Tensor whole = expected.at(entry.name).tensor.grad();
      if (!entry.tensor.grad().defined()) return "there is no gradient of " + entry.name;
      const Tensor own = piece_of(whole, entry);
      if (own.sizes() != entry.tensor.grad().sizes())
        return "the gradient of " + entry.name + " has the shape " + shape_text(entry.tensor.grad().sizes()) +
               ", expected " + shape_text(own.sizes());
      if (own.numel() == 0) continue;
      const double most = std::max(whole.abs().max().item<double>(), 1e-3 * largest);
      const double error = (own - entry.tensor.grad()).abs().max().item<double>();
      if (!(error <= kRounding * most))
        return "the gradient of " + entry.name + " differs by " + text(error / most) + " of its largest number";
    }
    return {};
  }

  std::string steps(const Mesh& mesh, bool deterministic) const {
    Alone alone(deterministic);
    ParallelRun run(parallel_trainee(), mesh, deterministic, {maker()});
    const int64_t n = mesh.data_ranks();
    int64_t step = 0;
    for (const int64_t micro_batches : {n, 2 * n + 1, int64_t{1}}) {
      run.step(++step, micro_batches);
      alone.run.step(step, micro_batches);
      const auto problem = compare(run.layout, alone.run.layout);
      if (!problem.empty()) return "with " + std::to_string(micro_batches) + " micro-batches " + problem;
    }
    return {};
  }
  std::string gradients(const Mesh& mesh) const { return steps(mesh, true); }
  std::string unordered_gradients(const Mesh& mesh) const { return steps(mesh, false); }

  std::string updates(const Mesh& mesh) const {
    Alone alone(true);
    ParallelRun run(parallel_trainee(), mesh, true, {maker()});
    for (int64_t step = 0; step < 2; ++step) {
      run.step(step, mesh.data_ranks());
      alone.run.step(step, mesh.data_ranks());
      run.descend();
      alone.run.descend();
      const auto problem = difference(run.predict(7), alone.run.predict(7), kRounding);
      if (!problem.empty()) return "after " + std::to_string(step + 1) + " steps the prediction " + problem;
    }
    return {};
  }

  std::string repetition(const Mesh& mesh) const {
    ParallelRun first(parallel_trainee(), mesh, true, {maker()});
    first.step(1, 2 * mesh.data_ranks());
    ParallelRun second(parallel_trainee(), mesh, true, {maker()});
    second.step(1, 2 * mesh.data_ranks());
    for (const auto& entry : first.layout.entries)
      if (!entry.tensor.grad().equal(second.layout.at(entry.name).tensor.grad()))
        return "the gradient of " + entry.name + " differs";
    return {};
  }

  std::string path_;
  OptionValues options_;
  ParallelChecks extra_;
  std::optional<Axis> axis_;
  bool is_made_ = false;
};

}  // namespace

Report check_parallel(const std::string& path, const OptionValues& options, const ParallelChecks& extra) {
  Report report("parallel " + path);
  report.guard([&] { ParallelTest(path, options, extra).run(report); });
  return report;
}

}  // namespace ditto::testing
