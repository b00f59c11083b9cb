#include "core/assembly/memory_format.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/nn/maps.h>

#include "core/components/rates.h"
#include "core/config/numerics.h"
#include "core/process/device.h"

namespace ditto {

namespace {

using torch::Tensor;

// A norm and a convolution, forward and backward, with all that a step does to their gradients.
class MapsTrial {
 public:
  MapsTrial(const Recipe& recipe, Registry& registry, const Context& like)
      : recipe_(recipe), components_(recipe_, registry), ctx_(components_.op_table(), Random(0)) {
    ctx_.compute = like.compute;
    ctx_.device = like.device;
    const torch::NoGradGuard no_grad;
    for (torch::nn::Module* layer :
         {static_cast<torch::nn::Module*>(&norm_), static_cast<torch::nn::Module*>(&conv_)}) {
      for (auto& leaf : layer->parameters())
        leaf.copy_(torch::arange(leaf.numel(), torch::kFloat).sin().view(leaf.sizes()) / (3 * std::sqrt(kChannels)));
      layer->to(ctx_.device);
    }
    const Tensor map = torch::arange(kSamples * kChannels * kSide * kSide, torch::kFloat).sin();
    first_ = map.view({kSamples, kChannels, kSide, kSide}).to(ctx_.options());
    last_ = first_.contiguous(at::MemoryFormat::ChannelsLast);
    first_.requires_grad_(), last_.requires_grad_();
  }
  std::array<double, 2> seconds() {
    return fastest(
        {[&] { run(first_, at::MemoryFormat::Contiguous); }, [&] { run(last_, at::MemoryFormat::ChannelsLast); }},
        kMostRounds, ctx_.device);
  }

 private:
  // Of the middle of a small UNet.
  static constexpr int64_t kSamples = 2, kChannels = 256, kGroups = 32, kSide = 16;
  static constexpr int kMostRounds = 12;

  void run(const Tensor& map, at::MemoryFormat format) {
    const torch::AutoGradMode grad(true);
    ctx_.maps = format;
    const Tensor y = conv_.forward(norm_.forward(map, ctx_, {.silu = true}), ctx_);
    torch::autograd::backward({y}, {y.detach()});
  }
  Recipe recipe_;
  Components components_;
  Context ctx_;
  GroupNorm norm_{kGroups, kChannels};
  Conv2d conv_{ConvShape{kChannels, kChannels}};
  Tensor first_, last_;
};

// What of the recipe rates follow from: other kernels have others.
std::string computed_by(const Recipe& recipe, torch::Device device) {
  auto text = fmt::format("maps in {} on {} by {}", recipe.run.precision, device.is_cuda() ? "a GPU" : "the CPU",
                          fmt::join(kernel_sets(recipe), ", "));
  for (const char* op : {"conv", "group_norm"}) {
    const auto& in_fp32 = recipe.run.bf16_in_fp32;
    if (std::find(in_fp32.begin(), in_fp32.end(), op) != in_fp32.end()) text += fmt::format(", {} in fp32", op);
    if (const auto pin = recipe.kernels.find(op); pin != recipe.kernels.end())
      text += fmt::format(", {} = {}", op, to_text(pin->second.value));
  }
  return text;
}

std::string faster(const Recipe& recipe, Registry& registry, const Context& like) {
  const RatesFile file(like.device.is_cuda() ? gpu_name(like.device) : "");
  auto all = file.read();
  auto& rates = all[computed_by(recipe, like.device)];
  if (!rates.contains(kChannelsFirst) || !rates.contains(kChannelsLast)) {
    const auto seconds = MapsTrial(recipe, registry, like).seconds();
    rates = {{kChannelsFirst, 1 / seconds[0]}, {kChannelsLast, 1 / seconds[1]}};
    file.write(all);
  }
  return rates.at(kChannelsLast) > kClearlyFaster * rates.at(kChannelsFirst) ? kChannelsLast : kChannelsFirst;
}

}  // namespace

void check_memory_format(const Recipe& recipe, const RunningModel& main) {
  if (recipe.run.memory_format == kMeasured || main.has_maps()) return;
  throw Error(ErrorKind::config, "run.memory_format",
              fmt::format("= \"{}\" says how maps lie, and model \"{}\" has no convolution in its blocks",
                          recipe.run.memory_format, recipe.model.plugin),
              "leave it out, or choose a UNet");
}

void measure_memory_format(Recipe& recipe, Registry& registry, const RunningModel& main, const Group& world) {
  const bool is_to_be_fast = !is_one_number(recipe) && main.ctx->compute != torch::kDouble;
  if (recipe.run.memory_format != kMeasured || !main.has_maps() || !is_to_be_fast) return;
  const auto found = world.rank() == 0 ? faster(recipe, registry, *main.ctx) : std::string();
  recipe.resolve_memory_format(world.all_gather_text(found).at(0));
}

void keep_memory_format(Recipe& recipe, const std::string& saved_toml) {
  if (recipe.run.memory_format != kMeasured) return;
  const auto saved = formats::parse_toml(saved_toml, "the checkpoint's recipe");
  const auto* noted = saved.find_path("run.memory_format");
  const auto* text = noted ? noted->as<std::string>() : nullptr;
  if (text && *text != kMeasured) recipe.resolve_memory_format(*text);
}

}  // namespace ditto
