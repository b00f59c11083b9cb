// One rank of a run of any model under strategies, put together as the host does.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ditto/error.h>
#include <ditto/parallel/program.h>

#include "core/mesh/gradient_sum.h"
#include "core/plugin/registry.h"
#include "tests/support/files.h"
#include "tests/unit/small_model.h"

namespace ditto::testing {

struct Named {
  std::string id;
  std::map<std::string, OptionValue> options = {};
};

class StrategyRun {
 public:
  // A micro-batch with a "target" as the prediction, and weights.
  using MakeBatch = std::function<Batch(int64_t seed)>;
  // Of a filled model; strategies in the order they are given, the first wraps innermost.
  StrategyRun(const Mesh& mesh, std::shared_ptr<Model> model, MakeBatch batch, at::ScalarType compute,
              const std::vector<Named>& strategies)
      : mesh_(mesh),
        batch_(std::move(batch)),
        model_(std::move(model)),
        ctx_(small_context(compute)),
        units_(*model_, *ctx_) {
    layout = Layout::of(*model_);
    for (const auto& named : strategies) strategies_.push_back(made(named));
    for (auto& strategy : strategies_) strategy->claim(layout);
    for (auto& strategy : strategies_) strategy->shard(layout);
    for (auto& strategy : strategies_) units_.wrap(*strategy);
    parameters_changed();
    sum_ = std::make_unique<GradientSum>(layout, mesh, true);
  }
  StrategyRun(const StrategyRun&) = delete;
  StrategyRun& operator=(const StrategyRun&) = delete;

  // Its gradients, in the layout's tensors. A data rank that has no micro-batch left runs one that counts nothing.
  void step(int64_t micro_batches, int64_t step) {
    const int64_t n = mesh_.data_ranks(), r = mesh_.data_rank();
    const StepPlan plan{step, micro_batches, (micro_batches + n - 1) / n, (micro_batches - r + n - 1) / n,
                        Phase::train};
    for (auto& entry : layout.entries) {
      entry.tensor.mutable_grad().reset();
      entry.parameter.leaf().mutable_grad().reset();
    }
    sum_->begin_step(strategies_, plan);
    for (auto& strategy : strategies_) strategy->begin_step(plan);
    std::vector<Batch> batches;
    for (int64_t i = 0; i < plan.accumulations; ++i) {
      batches.push_back(batch_(100 * step + i * n + r));
      for (double& weight : batches.back().weights) weight = plan.runs(i) ? 1 : 0;
    }
    run(batches, plan);
    for (auto& strategy : strategies_) strategy->sync_gradients();
    sum_->finish(plan);
  }

  void route(const TokenRoute& route) { units_.route(route); }

  // The prediction, whole on every rank.
  torch::Tensor predict(int64_t seed) {
    torch::NoGradGuard no_grad;
    const auto batch = batch_(seed);
    auto program = units_.program(mesh_.traffic());
    for (auto& strategy : strategies_)
      if (auto prediction = strategy->predict(batch, program)) return *prediction;
    Stream stream;
    return forward(batch, stream);
  }

  void parameters_changed() {
    torch::NoGradGuard no_grad;
    for (auto& strategy : strategies_) strategy->parameters_changed();
  }

  std::map<std::string, torch::Tensor> gradients() const {
    std::map<std::string, torch::Tensor> list;
    for (const auto& entry : layout.entries) list[entry.name] = entry.tensor.grad();
    return list;
  }

  Layout layout;

 protected:
  torch::Tensor forward(const Batch& batch, Stream& stream) {
    const Traffic::Scope pass(mesh_.traffic(), Traffic::Pass::forward);
    stream = units_.begin(batch);
    units_.blocks(0, model_->depth(), stream);
    return units_.head(stream, batch).at("prediction");
  }

  const Mesh& mesh_;
  const MakeBatch batch_;

 private:
  void run(const std::vector<Batch>& batches, const StepPlan& plan) {
    auto program = units_.program(mesh_.traffic());
    program.prepare = [](Batch batch) { return batch; };
    program.loss = [this](const Stream& stream, const Outputs& outputs, const Batch& batch) {
      return loss(stream, outputs.at("prediction"), batch);
    };
    program.accumulation_done = [&](int64_t accumulation) {
      for (auto& strategy : strategies_) strategy->end_accumulation(accumulation, plan);
      sum_->after_micro_batch(accumulation, plan);
    };
    for (auto& strategy : strategies_)
      if (strategy->train_step(batches, program, plan)) return;
    for (size_t i = 0; i < batches.size(); ++i) {
      micro_batch(batches[i]);
      program.accumulation_done(static_cast<int64_t>(i));
    }
  }

  // Its graph goes with it.
  void micro_batch(const Batch& batch) {
    Stream stream;
    const auto prediction = forward(batch, stream);
    const auto share = loss(stream, prediction, batch);
    const Traffic::Scope pass(mesh_.traffic(), Traffic::Pass::backward);
    share.backward();
  }

  // Ranks along tensor and context compute the same one.
  torch::Tensor loss(const Stream& stream, const torch::Tensor& prediction, const Batch& batch) const {
    auto sum = (prediction - batch.at("target")).square().sum();
    for (const auto& [name, auxiliary] : stream.auxiliary_losses) sum = sum + auxiliary.sum();
    return sum * (batch.weights.front() / (mesh_.size(Axis::tensor) * mesh_.size(Axis::context)));
  }

  std::shared_ptr<ParallelStrategy> made(const Named& named) const {
    Registry registry(
        std::vector<SearchFolder>{{test::plugin_folder(), "the test"},
                                  {test::build_folder() / "tests/fixture_plugins/faulty_parallel.so", "the test"}});
    OptionMap map{"parallel", "the test", {}};
    for (const auto& [name, value] : named.options) map.given[name] = {value, "the test"};
    OptionReader reader(map);
    return registry.factory<ParallelStrategy>(named.id, "the test")
        .make(reader, {&mesh_, true, model_->token_local(), ctx_->compute, model_->depth()});
  }

  std::shared_ptr<Model> model_;
  std::shared_ptr<Context> ctx_;
  ModelProgram units_;
  std::vector<std::shared_ptr<ParallelStrategy>> strategies_;
  std::unique_ptr<GradientSum> sum_;
};

// One rank by itself, in whatever world.
inline GlooMesh mesh_of_one() { return GlooMesh(RankInfo{}, {}, std::chrono::seconds(60)); }

inline torch::Tensor rectangle(torch::Tensor of, const std::vector<int64_t>& start, const std::vector<int64_t>& size) {
  for (size_t dim = 0; dim < start.size(); ++dim) of = of.narrow(static_cast<int64_t>(dim), start[dim], size[dim]);
  return of;
}

// Of a message that a test expects.
inline bool has(const std::string& text, const std::string& part) {
  CAPTURE(text);
  const bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

}  // namespace ditto::testing
