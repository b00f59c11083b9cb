// Representation alignment: the tokens after a block, through a trained projector, are drawn towards a frozen network's
// features of the clean sample (S. Yu et al., 2024, arXiv:2410.06940, eq. 8).
//
// Legend: B samples, T tokens, D the model's width, E that of the frozen network's features.
#include <ditto/diffusion/denoising.h>
#include <ditto/math/sizes.h>
#include <ditto/plugin.h>

#include <torch/types.h>

namespace {

using ditto::Batch;
using ditto::Unit;
using torch::Tensor;

struct RepaOptions : ditto::DenoisingOptions {
  std::string network = "features";
  int64_t block = 7, network_block = -1, hidden = 2048;
  double weight = 0.5, network_time = 0;

  void read(ditto::OptionReader& option) {
    DenoisingOptions::read(option);
    option("network", network, "whose features are approached, [network.NAME]");
    option("block", block, "of the model, whose tokens are drawn towards them; from 0 on").at_least(0);
    option("network_block", network_block, "of that network, whose tokens they are; -1: its last").at_least(-1);
    option("hidden", hidden, "width of the projector's two hidden layers").between(1, ditto::most::kWidth);
    option("weight", weight, "lambda, of the alignment beside the schedule's own loss").at_least(0.0);
    option("network_time", network_time, "\"t\" that the network gets with the clean sample, if it takes one");
  }
};

struct Repa final : ditto::Denoising {
  using Options = RepaOptions;
  Repa(const Options& o, const Needs& needs)
      : Denoising("repa", o, needs), options(o), network(needs.network(o.network)) {
    network.require_frozen();
    if (options.network_block < 0) options.network_block = network.depth() - 1;
    const auto ours = features_of(needs.model->makes(), "the model"),
               theirs = features_of(network.makes(), "network \"" + o.network + "\"");
    if (options.network_block >= network.depth())
      throw refusal("network_block",
                    "network \"" + o.network + "\" has " + std::to_string(network.depth()) + " blocks");
    if (ours[0] != theirs[0])
      throw refusal("network",
                    "it has " + std::to_string(theirs[0]) + " tokens a sample, the model " + std::to_string(ours[0]));
    in = linear(Unit::objective, "in", ours[1], o.hidden);
    middle = linear(Unit::objective, "middle", o.hidden, o.hidden);
    out = linear(Unit::objective, "out", o.hidden, theirs[1]);
  }

  std::vector<int64_t> features() const override { return {options.block}; }

  std::map<std::string, Tensor> losses(const ditto::Outputs& outputs, const Batch& batch,
                                       ditto::Context& ctx) const override {
    ctx.refuse_under_one("the objective \"repa\", whose cosines are sums");
    auto all = Denoising::losses(outputs, batch, ctx);
    const auto& h_BTD = outputs.at("features." + std::to_string(options.block));
    const auto projected_BTE = out(ctx.ops.silu(middle(ctx.ops.silu(in(h_BTD, ctx)), ctx)), ctx);
    const auto wide = projected_BTE.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
    const auto similarity_BT = torch::cosine_similarity(projected_BTE.to(wide), target(batch).to(wide), -1);
    all["repa"] = -options.weight * similarity_BT.mean(1);
    return all;
  }

 private:
  Tensor target(const Batch& batch) const {
    Batch seen;
    seen.ids = batch.ids;
    seen.weights = batch.weights;
    for (const auto& input : network.takes())
      if (batch.has(input.name)) seen[input.name] = batch.at(input.name);
    const auto& clean = batch.at("clean");
    seen["x"] = clean;
    seen["t"] =
        torch::full({batch.size()}, options.network_time,
                    clean.is_meta() ? clean.options().dtype(torch::kFloat) : torch::TensorOptions(torch::kFloat));
    return network.run(seen, {options.network_block}).at("features." + std::to_string(options.network_block));
  }

  static std::vector<int64_t> features_of(const ditto::TensorSpecs& made, const std::string& who) {
    if (const auto* features = ditto::find(made, "features")) return features->shape;
    throw refusal("network", who + " hands out no \"features\"");
  }
  static ditto::Error refusal(const std::string& option, const std::string& what) {
    return {ditto::ErrorKind::config, "objective." + option, what, "choose another block, or another network"};
  }

  Options options;
  ditto::Network& network;
  ditto::Linear in, middle, out;
};

}  // namespace

DITTO_PLUGIN(Objective, Repa, "repa", "1.0.0", "Apache-2.0",
             "denoising, with a block's tokens drawn to frozen features")
