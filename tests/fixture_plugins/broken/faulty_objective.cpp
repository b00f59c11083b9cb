// Denoising without dropout that breaks one promise of the interface, as its option says.
#include <optional>

#include <ditto/ditto.h>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::spread;
using torch::Tensor;

struct FaultyOptions {
  std::string fault = "none";
  void read(ditto::OptionReader& option) { option("fault", fault, "the promise to break"); }
};

struct Faulty final : ditto::Objective {
  using Options = FaultyOptions;
  Faulty(const Options& o, const Needs& needs) : fault(o.fault), model(*needs.model), scheduler(needs.scheduler) {
    if (fault == "unit of the model") linear(ditto::Unit::head, "projector", 2, 2);
    if (fault == "unused parameter") linear(ditto::Unit::objective, "projector", 2, 2);
  }

  Batch prepare(Batch batch, Context& ctx) const override {
    const bool train = ctx.phase == ditto::Phase::train;
    const Tensor& clean = batch.at("clean");
    auto ids = batch.ids;
    if (fault == "draws by row")
      for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
    const auto u_B =
        train || fault == "ignores time_u" ? ctx.random.uniform(ditto::Purpose::time, ids, {}) : batch.at("time_u");
    auto noise = ctx.random.normal(ditto::Purpose::noise, ids, clean.sizes().slice(1), clean.scalar_type());
    if (fault == "random") noise = torch::randn_like(noise);
    const auto time_B = scheduler->times(u_B);
    batch["x_t"] = scheduler->corrupt(clean, noise, time_B);
    if (fault == "makes x") batch["x"] = batch["x_t"];
    if (fault != "forgets the time") batch["time"] = time_B;
    batch["noise"] = noise;
    if (const auto changed = with_other_samples(batch)) return *changed;
    if (train || fault != "drops in evaluation") return batch;
    return model.without_condition(std::move(batch), torch::ones({clean.size(0)}, torch::kBool));
  }

  // Of the faults that host and contract tests name by the samples.
  std::optional<Batch> with_other_samples(Batch batch) const {
    const int64_t n = batch.size();
    if (fault == "fewer samples") return batch.slice(0, n - 1);
    if (fault == "fewer rows") batch["noise"] = batch.at("noise").slice(0, 0, n - 1);
    if (fault == "a whole tensor") batch["noise"] = batch.at("noise").sum();
    if (fault == "fewer weights") batch.weights.pop_back();
    if (fault == "other order") std::swap(batch.ids.front(), batch.ids.back());
    if (fault == "samples twice") {
      for (auto& [name, tensor] : batch.tensors) tensor = torch::cat({tensor, tensor});
      batch.ids.insert(batch.ids.end(), batch.ids.begin(), batch.ids.begin() + n);
      batch.weights.insert(batch.weights.end(), batch.weights.begin(), batch.weights.begin() + n);
    }
    const bool is_one =
        fault.starts_with("fewer") || fault == "a whole tensor" || fault == "other order" || fault == "samples twice";
    return is_one ? std::optional(batch) : std::nullopt;
  }

  ditto::TensorSpecs makes() const override {
    if (fault == "makes less than it says") return {{"guide", torch::kFloat, {}, ""}};
    return {{"noise", torch::kFloat, {-1}, ""}};
  }

  std::map<std::string, Tensor> losses(const ditto::Outputs& outputs, const Batch& batch, Context&) const override {
    const auto& time_B = batch.at("time");
    const auto& prediction = outputs.at("prediction");
    auto full = prediction;
    if (fault == "preconditions itself") full = scheduler->precondition(full, batch.at("x_t"), time_B);
    auto all = scheduler->losses(full, batch.at("clean"), batch.at("noise"), time_B);
    if (fault == "a mean")
      for (auto& [name, loss] : all) loss = loss.mean();
    if (fault == "losses of half")
      for (auto& [name, loss] : all) loss = loss.slice(0, 0, loss.size(0) / 2);
    if (fault == "one loss for all")
      for (auto& [name, loss] : all) loss = loss.mean().expand_as(loss);
    if (fault == "no gradient")
      for (auto& [name, loss] : all) loss = loss.detach() + 0 * prediction.flatten(1).sum(1);
    return all;
  }

  std::map<std::string, Tensor> measures(const ditto::Outputs& outputs, const Batch&, Context&) const override {
    auto size_B = outputs.at("prediction").abs().flatten(1).mean(1);
    if (fault == "measures of half") size_B = size_B.slice(0, 0, size_B.size(0) / 2);
    if (fault == "one measure for all") size_B = size_B.mean().expand_as(size_B);
    return {{"size", size_B}};
  }

  std::string fault;
  const ditto::Model& model;
  const ditto::Scheduler* scheduler;
};

}  // namespace

DITTO_PLUGIN(Objective, Faulty, "faulty_objective", "1.0.0", "Apache-2.0", "breaks one promise")
