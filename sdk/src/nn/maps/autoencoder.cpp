#include <ditto/nn/autoencoder.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <ditto/batch.h>
#include <ditto/context.h>
#include <ditto/error.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/maps.h>

namespace ditto {

using torch::Tensor;

namespace {

constexpr double kEps = 1e-6;  // of every norm
const AfterNorm kSilu{.silu = true};
constexpr double kLeastLogVariance = -30, kMostLogVariance = 20;

// Its middle is cut by channels.
class Residual : public Layer {
 public:
  Residual(int64_t groups, int64_t in, int64_t out)
      : norm1_(make<GroupNorm>("norm1", groups, in, Split::none(), kEps)),
        conv1_(make<Conv2d>("conv1", ConvShape{in, out}, Split::columns({out}).in_units(out / groups))),
        norm2_(make<GroupNorm>("norm2", groups, out, Split::along({out}), kEps)),
        conv2_(make<Conv2d>("conv2", ConvShape{out, out}, Split::rows().in_units(out / groups))) {
    if (in != out) past_ = make<Conv2d>("past", ConvShape{in, out, {1}});
  }

  Tensor forward(const Tensor& x, Context& ctx) {
    auto h = conv1_->forward(norm1_->forward(x, ctx, kSilu), ctx);
    h = conv2_->forward(norm2_->forward(h, ctx, kSilu), ctx);
    return (past_ ? past_->forward(x, ctx) : x) + h;
  }

 private:
  std::shared_ptr<GroupNorm> norm1_;
  std::shared_ptr<Conv2d> conv1_;
  std::shared_ptr<GroupNorm> norm2_;
  std::shared_ptr<Conv2d> conv2_, past_;
};

// Every place of a map attends to all of them, with one head, which no cut divides.
class MapAttention : public Layer {
 public:
  MapAttention(int64_t groups, int64_t channels)
      : norm_(make<GroupNorm>("norm", groups, channels, Split::none(), kEps)),
        qkv_(linear("qkv", channels, 3 * channels)),
        proj_(linear("proj", channels, channels)) {}

  Tensor forward(const Tensor& x, Context& ctx) {
    const int64_t rows = x.size(2), columns = x.size(3);
    const Sequence places{{1, rows, columns}, nullptr};
    const auto in = norm_->forward(x, ctx).flatten(2).transpose(1, 2);
    const auto qkv = qkv_(in, ctx).unflatten(-1, {3, 1, -1}).unbind(-3);
    const auto out = ctx.attention({.parts = {{qkv[0], qkv[1], qkv[2], places, {}}}}).at(0);
    return x + proj_(out.flatten(-2), ctx).transpose(1, 2).unflatten(2, {rows, columns});
  }

 private:
  std::shared_ptr<GroupNorm> norm_;
  Linear qkv_, proj_;
};

std::vector<AutoencoderSize> published() {
  AutoencoderSize sd, sd3;
  sd.preset = AutoencoderSize::kSd;
  sd3.preset = AutoencoderSize::kSd3;
  sd3.latent = 16;
  sd3.quant = sd3.post_quant = false;
  auto sdxl = sd, flux = sd3;
  sdxl.preset = AutoencoderSize::kSdxl;
  flux.preset = AutoencoderSize::kFlux;
  return {sd, sdxl, sd3, flux};
}

}  // namespace

void AutoencoderSize::read(OptionReader& option) {
  constexpr size_t kMostStages = 12;
  const auto sizes = published();
  option("preset", preset, "a published autoencoder; the options below override its parts")
      .one_of({"", kSd, kSdxl, kSd3, kFlux});
  for (const auto& size : sizes)
    if (size.preset == preset) *this = size;
  option("channels", channels,
         "of a map in each stage, that of pixels first; each stage but the last halves the sides");
  option("layers", layers, "residual layers of a stage; on the way up one more").between(1, most::kBlocks);
  option("latent", latent, "channels of a latent").between(1, most::kWidth);
  option("groups", groups, "of channels, in every norm; divides those of each stage").between(1, most::kWidth);
  option("middle_attention", middle_attention, "attention of all places in the middle of both halves");
  option("quant", quant, "a map of each place's moments behind the way down");
  option("post_quant", post_quant, "a map of each place's latents before the way up");
  const bool is_sound = !channels.empty() && channels.size() <= kMostStages &&
                        std::all_of(channels.begin(), channels.end(), [&](int64_t count) {
                          return count >= 1 && count <= most::kWidth && count % groups == 0;
                        });
  if (!is_sound)
    option.reject("channels",
                  "is " + to_text(OptionValue(channels)) + ", expected 1 to " + std::to_string(kMostStages) +
                      " multiples of groups = " + std::to_string(groups),
                  "choose multiples, or other groups");
}

std::vector<int64_t> AutoencoderSize::latents(at::IntArrayRef picture, const std::string& who) const {
  if (picture.size() != 3)
    throw Error(ErrorKind::shape, who, "takes pictures [C, H, W], and these are " + c10::str(picture),
                "choose data of pictures, or another plugin");
  std::vector<int64_t> shape{latent};
  for (const int64_t side : picture.slice(1)) {
    if (side != kOwnSide && (side < 1 || side % factor() != 0))
      throw Error(ErrorKind::shape, who,
                  "halves the sides " + std::to_string(stages() - 1) + " times, and pictures are " + c10::str(picture),
                  "choose sides that are multiples of " + std::to_string(factor()));
    shape.push_back(side == kOwnSide ? side : side / factor());
  }
  return shape;
}

template <class T, class... Args>
void AutoencoderBlock::step(const std::string& name, Args&&... args) {
  steps_.emplace_back([layer = make<T>(name, std::forward<Args>(args)...)](const Tensor& x, Context& ctx) {
    return layer->forward(x, ctx);
  });
}

void AutoencoderBlock::middle(const AutoencoderSize& size, int64_t channels) {
  step<Residual>("middle0", size.groups, channels, channels);
  if (size.middle_attention) step<MapAttention>("attention", size.groups, channels);
  step<Residual>("middle1", size.groups, channels, channels);
}

void AutoencoderBlock::leave(const AutoencoderSize& size, int64_t channels, int64_t out) {
  steps_.emplace_back([norm = make<GroupNorm>("norm", size.groups, channels, Split::none(), kEps)](
                          const Tensor& x, Context& ctx) { return norm->forward(x, ctx, kSilu); });
  step<Conv2d>("out", ConvShape{channels, out});
}

AutoencoderBlock::AutoencoderBlock(const AutoencoderSize& size, int64_t pictures, int64_t index) {
  const int64_t stages = size.stages();
  const auto channels = [&](int64_t stage) { return size.channels[static_cast<size_t>(stage)]; };
  const auto stage = [&](const std::string& name, int64_t layers, int64_t in, int64_t out) {
    for (int64_t j = 0; j < layers; ++j) step<Residual>(name + std::to_string(j), size.groups, j == 0 ? in : out, out);
  };
  if (index < stages) {
    if (index == 0) step<Conv2d>("in", ConvShape{pictures, channels(0)});
    stage("down", size.layers, channels(std::max<int64_t>(index - 1, 0)), channels(index));
    // To half the sides: zeros are below and right of the map alone.
    if (index + 1 < stages) step<Conv2d>("half", ConvShape{channels(index), channels(index), {3}, {2}, {0}, {1}});
  } else if (index == size.middle()) {
    middle(size, channels(stages - 1));
    leave(size, channels(stages - 1), 2 * size.latent);
    if (size.quant) step<Conv2d>("quant", ConvShape{2 * size.latent, 2 * size.latent, {1}});
  } else if (index == size.middle() + 1) {
    if (size.post_quant) step<Conv2d>("post_quant", ConvShape{size.latent, size.latent, {1}});
    step<Conv2d>("in", ConvShape{size.latent, channels(stages - 1)});
    middle(size, channels(stages - 1));
  } else {
    const int64_t at = size.blocks() - 1 - index;  // the stage of its sides, on the way down
    stage("up", size.layers + 1, channels(std::min(at + 1, stages - 1)), channels(at));
    if (at > 0) {
      steps_.emplace_back([](const Tensor& x, Context& ctx) { return upsampled(x, ctx); });
      step<Conv2d>("twice", ConvShape{channels(at), channels(at)});
    } else {
      leave(size, channels(0), pictures);
    }
  }
}
AutoencoderBlock::~AutoencoderBlock() = default;

Tensor AutoencoderBlock::forward(Tensor x, Context& ctx) {
  for (const auto& step : steps_) x = step(x, ctx);
  return x;
}

LatentMoments LatentMoments::of(const Tensor& moments) {
  const auto parts = moments.chunk(2, 1);
  return {parts[0], parts[1].clamp(kLeastLogVariance, kMostLogVariance)};
}

Tensor LatentMoments::together() const { return torch::cat({mean, log_variance}, 1); }

Tensor LatentMoments::drawn(const Tensor& noise) const { return mean + (0.5 * log_variance).exp() * noise; }

Tensor LatentMoments::divergence() const {
  return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).flatten(1).sum(1);
}

namespace {

int64_t places(double share) { return static_cast<int64_t>(std::llround(share)); }

// Of the latter, in place, the first `extent` rows or columns: from the former's last ones to its own.
void blend_into(const Tensor& former, const Tensor& latter, int64_t dim, int64_t extent) {
  extent = std::min({extent, former.size(dim), latter.size(dim)});
  if (extent == 0) return;
  std::vector<int64_t> shape(static_cast<size_t>(latter.dim()), 1);
  shape[static_cast<size_t>(dim)] = extent;
  const auto share = (torch::arange(extent, torch::kDouble) / extent).to(latter.options()).view(shape);
  const auto begins = latter.narrow(dim, 0, extent);
  begins.copy_(former.narrow(dim, former.size(dim) - extent, extent) * (1 - share) + begins * share);
}

}  // namespace

Tiles Tiles::of_pictures(int64_t side, double overlap, int64_t factor) {
  const int64_t shared = places(static_cast<double>(side) * overlap);
  return {side, side - shared, shared / factor, (side - shared) / factor};
}

Tiles Tiles::of_latents(int64_t side, double overlap, int64_t factor) {
  const int64_t shared = places(static_cast<double>(side) * overlap);
  return {side / factor, (side - shared) / factor, shared, side - shared};
}

std::vector<Tensor> Tiles::tiles(const Tensor& x) const {
  std::vector<Tensor> all;
  for (int64_t row = 0; row < x.size(2); row += stride)
    for (int64_t column = 0; column < x.size(3); column += stride)
      all.push_back(x.slice(2, row, row + side).slice(3, column, column + side));
  return all;
}

// A tile is blended with those above and to the left as these have become.
Tensor Tiles::joined(std::vector<Tensor> made, int64_t rows) const {
  const auto columns = static_cast<int64_t>(made.size()) / rows;
  const auto at = [&](int64_t row, int64_t column) -> Tensor& {
    return made[static_cast<size_t>(row * columns + column)];
  };
  std::vector<Tensor> all;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<Tensor> of_row;
    for (int64_t column = 0; column < columns; ++column) {
      const Tensor& tile = at(row, column);
      if (row > 0) blend_into(at(row - 1, column), tile, 2, blend);
      if (column > 0) blend_into(at(row, column - 1), tile, 3, blend);
      of_row.push_back(tile.slice(2, 0, keep).slice(3, 0, keep));
    }
    all.push_back(torch::cat(of_row, 3));
  }
  return torch::cat(all, 2);
}

}  // namespace ditto
