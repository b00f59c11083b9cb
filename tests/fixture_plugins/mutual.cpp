// Nothing is wrong with it: two networks that learn from the data and from one another (Y. Zhang et al., 2018,
// arXiv:1706.00384, of a regression), both in one graph.
#include <ditto/diffusion/denoising.h>
#include <ditto/plugin.h>

#include <torch/types.h>

namespace {

using ditto::Batch;
using torch::Tensor;

struct MutualOptions : ditto::DenoisingOptions {
  std::string network = "peer";
  double distance = 0.5;
  int64_t runs = 1;
  bool through = false;
  void read(ditto::OptionReader& option) {
    DenoisingOptions::read(option);
    option("network", network, "the other one, [network.NAME]");
    option("distance", distance, "weight of the distance between the two predictions");
    option("runs", runs, "of the other one with gradients, a micro-batch");
    option("through", through, "the other one may be frozen, and sees this one's prediction with its gradient");
  }
};

struct Mutual final : ditto::Denoising {
  using Options = MutualOptions;
  Mutual(const Options& o, const Needs& needs)
      : Denoising("mutual", o, needs), options(o), peer(needs.network(o.network)) {
    if (!options.through) peer.require_trains();
  }

  std::map<std::string, Tensor> losses(const ditto::Outputs& outputs, const Batch& batch,
                                       ditto::Context& ctx) const override {
    auto all = Denoising::losses(outputs, batch, ctx);
    const auto add = [&](const std::string& name, const Tensor& loss) {
      auto& sum = all[name];
      sum = sum.defined() ? sum + loss : loss;
    };
    for (int64_t run = 0; run < options.runs; ++run) {
      const auto& seen = options.through ? outputs.at("prediction") : batch.at("x_t");
      const auto prediction = peer.predict(batch, seen, batch.at("time"));
      for (const auto& [name, loss] : Denoising::losses({{"prediction", prediction}}, batch, ctx))
        add("peer." + name, loss);
      add("distance", options.distance * (outputs.at("prediction") - prediction).square().flatten(1).mean(1));
    }
    return all;
  }

  Options options;
  ditto::Network& peer;
};

}  // namespace

DITTO_PLUGIN(Objective, Mutual, "mutual", "1.0.0", "Apache-2.0", "two networks learn from one another")
