// Nothing is wrong with it: an encoder that makes nothing, and appends to a file for each sample that a step learns
// from: its id, and the first two channels' means of "clean" and of "low".
#include <cstdio>
#include <memory>

#include <torch/types.h>

#include <ditto/ditto.h>
#include <ditto/encoder.h>

namespace {

struct SeenOptions {
  std::string file;
  void read(ditto::OptionReader& option) { option("file", file, "that is appended to").place(); }
};

struct PixelsSeen final : ditto::Encoder {
  using Options = SeenOptions;
  PixelsSeen(const Options& o, const Needs&) : options(o) {}
  ditto::TensorSpecs takes() const override { return {}; }
  ditto::TensorSpecs makes() const override { return {}; }
  ditto::Batch precompute(ditto::Batch batch, ditto::Context&) const override { return batch; }
  ditto::Batch encode(ditto::Batch batch, ditto::Context& ctx) const override {
    if (ctx.phase != ditto::Phase::train) return batch;
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> to(std::fopen(options.file.c_str(), "a"), &std::fclose);
    for (size_t b = 0; b < batch.ids.size(); ++b) {
      const auto mean = [&](const char* name, int64_t channel) {
        return batch.at(name)[static_cast<int64_t>(b)][channel].to(at::kDouble).mean().item<double>();
      };
      std::fprintf(to.get(), "%lld %.17g %.17g %.17g %.17g\n", static_cast<long long>(batch.ids[b]), mean("clean", 0),
                   mean("clean", 1), mean("low", 0), mean("low", 1));
    }
    return batch;
  }
  std::string fingerprint() const override { return "pixels_seen"; }

  const Options options;
};

}  // namespace

DITTO_PLUGIN(Encoder, PixelsSeen, "pixels_seen", "1.0.0", "Apache-2.0", "writes down what a step learns from")
