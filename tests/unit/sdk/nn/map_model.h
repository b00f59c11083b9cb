// A small UNet over maps, with every layer that is cut by channels, a layer class of a third party among them; and a
// run of it under strategies.
#pragma once

#include <ditto/nn/maps.h>
#include <ditto/nn/transformer.h>

#include "tests/unit/strategy_run.h"

namespace ditto::testing {

// What somebody else might write: a perceptron of channels, cut along its hidden numbers in runs of 2.
class Mixer : public CutLayer {
 public:
  Mixer(int64_t channels, int64_t hidden)
      : up_(parameter("up", {hidden, channels}, Init::xavier(channels, hidden))),
        shift_(parameter("shift", {hidden}, Init::normal(0.1))),
        down_(parameter("down", {channels, hidden}, Init::xavier(hidden, channels))),
        once_(parameter("once", {channels}, Init::normal(0.1))) {
    LayerCut cut{{{"up", 0, {}, 2}, {"shift", 0, {}, 2}, {"down", 1, {}, 2}}, "runs of 2 hidden numbers"};
    cut.output = LayerCut::Values::partial;
    declare(Axis::tensor, cut, "mixer");
  }
  torch::Tensor forward(const torch::Tensor& x_BCHW, Context& ctx) {
    const auto x = enter(x_BCHW).movedim(1, -1);
    auto y = torch::linear(torch::gelu(torch::linear(x, up_(ctx), shift_(ctx))), down_(ctx));
    if (adds_bias) y = y + once_(ctx);
    return leave(y.movedim(-1, 1));
  }

 private:
  Parameter up_, shift_, down_, once_;
};

constexpr int64_t kMapWidth = 12;  // of conditioning

struct MapOptions {
  int64_t channels = 12, groups = 6;
  bool norms_whole = false;  // the planted fault: a norm that does not know that its channels are cut
  bool is_token_local = false;
};

class MapBlock : public Layer {
 public:
  MapBlock(const MapOptions& o, int64_t in, int64_t out) {
    const int64_t of_group = out / o.groups;
    norm1_ = make<GroupNorm>("norm1", o.groups, in);
    conv1_ = make<Conv2d>("conv1", ConvShape{in, out}, Split::columns({out}));
    time_ = linear("time", kMapWidth, out, Split::columns({out}).of_condition());
    norm2_ = make<GroupNorm>("norm2", o.groups, out, o.norms_whole ? Split::none() : Split::along({out}));
    conv2_ = make<Conv2d>("conv2", ConvShape{out, out}, Split::rows().in_units(of_group));
    if (in != out) skip_ = make<Conv2d>("skip", ConvShape{in, out, {1}});
  }
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cond_BD, Context& ctx) {
    auto h = conv1_->forward(torch::silu(norm1_->forward(x, ctx)), ctx);
    h = add_channels(h, time_(torch::silu(cond_BD), ctx), ctx);
    h = conv2_->forward(torch::silu(norm2_->forward(h, ctx)), ctx);
    return (skip_ ? skip_->forward(x, ctx) : x) + h;
  }

 private:
  std::shared_ptr<GroupNorm> norm1_, norm2_;
  std::shared_ptr<Conv2d> conv1_, conv2_, skip_;
  Linear time_;
};

// Two cut maps side by side, normalised and mapped back; videos of one frame; a map of twice the sides and back;
// gathered outputs; the mixer.
class MapMiddle : public Layer {
 public:
  explicit MapMiddle(const MapOptions& o) {
    const int64_t c = o.channels, half = c / 2;
    left_ = make<Conv2d>("left", ConvShape{c, c, {1}}, Split::columns({c}));
    right_ = make<Conv2d>("right", ConvShape{c, half}, Split::columns({half}));
    norm_ = make<GroupNorm>("norm", c + half, c + half, Split::along({c, half}));
    both_ = make<Conv2d>("both", ConvShape{c + half, c}, Split::rows().in_parts({c, half}));
    video_in_ = make<Conv3d>("video_in", ConvShape{c, 2 * c, {1, 3, 3}}, Split::columns({c, c}));
    video_out_ = make<Conv3d>("video_out", ConvShape{c, c, {1}}, Split::rows());
    twice_ = make<ConvTransposed2d>("twice", ConvShape{c, 2 * c, {4}, {2}, {1}}, Split::columns({c, c}));
    back_ = make<ConvTransposed2d>("back", ConvShape{2 * c, c}, Split::rows().in_parts({c, c}));
    gathered_ = make<Conv2d>("gathered", ConvShape{c, 2 * c, {1}}, Split::columns({c, c}).gathered());
    mixer_ = make<Mixer>("mixer", c, 2 * c);
  }
  torch::Tensor forward(const torch::Tensor& x, Context& ctx) {
    const auto sides = torch::cat({left_->forward(x, ctx), right_->forward(x, ctx)}, 1);
    auto y = x + both_->forward(torch::silu(norm_->forward(torch::tanh(sides), ctx)), ctx);
    const auto parts = video_in_->forward(y.unsqueeze(2), ctx).chunk(2, 1);
    y = y + video_out_->forward(torch::silu(parts[0]) * parts[1], ctx).squeeze(2);
    y = y + downsampled(back_->forward(torch::tanh(twice_->forward(y, ctx)), ctx), ctx);
    const auto whole = gathered_->forward(y, ctx).chunk(2, 1);
    y = y + torch::tanh(whole[0]) * whole[1].flip({1});
    return y + mixer_->forward(y, ctx);
  }

 private:
  std::shared_ptr<Conv2d> left_, right_, both_, gathered_;
  std::shared_ptr<Conv3d> video_in_, video_out_;
  std::shared_ptr<ConvTransposed2d> twice_, back_;
  std::shared_ptr<GroupNorm> norm_;
  std::shared_ptr<Mixer> mixer_;
};

// x [B, 3, 8, 8] -> [B, 3, 8, 8]. Down, down, middle, up, up, with a skip from each way down to its way up. All maps
// are fields without tokens.
class MapModel : public Model {
 public:
  explicit MapModel(const MapOptions& o) : options_(o) {
    const int64_t c = o.channels;
    in_ = add<Conv2d>(Unit::tokens, "in", ConvShape{3, c});
    time_ = linear(Unit::condition, "time", 1, kMapWidth);
    label_ = add<Embedding>(Unit::condition, "label", 5, kMapWidth, Split::columns({kMapWidth}).gathered());
    norm_ = add<LayerNorm>(Unit::condition, "norm", kMapWidth);
    swiglu_ = add<SwiGlu>(Unit::condition, "swiglu", kMapWidth, 24);
    geglu_ = add<GeGlu>(Unit::condition, "geglu", kMapWidth, 12);
    for (int64_t i = 0; i < 2; ++i) outer_.push_back(add_block<MapBlock>(i, o, c, c));
    middle_ = add_block<MapMiddle>(2, o);
    for (int64_t i = 3; i < 5; ++i) outer_.push_back(add_block<MapBlock>(i, o, 2 * c, c));
    end_ = add<GroupNorm>(Unit::head, "end", o.groups, c);
    out_ = add<Conv2d>(Unit::head, "out", ConvShape{c, 3});
  }
  Conditioning condition(const Batch& batch, Context& ctx) override {
    auto c = time_(batch.at("t").unsqueeze(1), ctx) + label_->forward(batch.at("label"), ctx);
    c = c + swiglu_->forward(norm_->forward(c, ctx), ctx);
    return {c + geglu_->forward(c, ctx), {}, {}};
  }
  Stream tokens(const Batch& batch, Context& ctx) override {
    Stream s;
    s.grid = {1, batch.at("x").size(2), batch.at("x").size(3)};
    s.extra["map"] = {in_->forward(batch.at("x"), ctx)};
    return s;
  }
  int64_t depth() const override { return 5; }
  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    auto& map = s.extra.at("map").tensor;
    if (i == 2) {
      map = middle_->forward(map, ctx);
    } else if (i < 2) {
      map = outer_[static_cast<size_t>(i)]->forward(map, s.condition.cond_BD, ctx);
      s.extra[skip(i)] = {map};
      map = downsampled(map, ctx);
    } else {
      map = upsampled(map, ctx);
      map = torch::cat({map, s.extra.at(skip(4 - i)).tensor}, 1);
      s.extra.erase(skip(4 - i));
      map = outer_[static_cast<size_t>(i - 1)]->forward(map, s.condition.cond_BD, ctx);
    }
    return s;
  }
  torch::Tensor head(const Stream& s, Context& ctx) override {
    return out_->forward(torch::silu(end_->forward(s.extra.at("map").tensor, ctx)), ctx);
  }
  TensorSpecs takes() const override { return {}; }
  bool token_local() const override { return options_.is_token_local; }

 private:
  static std::string skip(int64_t i) { return "skip." + std::to_string(i); }

  MapOptions options_;
  std::shared_ptr<Conv2d> in_, out_;
  Linear time_;
  std::shared_ptr<Embedding> label_;
  std::shared_ptr<LayerNorm> norm_;
  std::shared_ptr<SwiGlu> swiglu_;
  std::shared_ptr<GeGlu> geglu_;
  std::vector<std::shared_ptr<MapBlock>> outer_;
  std::shared_ptr<MapMiddle> middle_;
  std::shared_ptr<GroupNorm> end_;
};

inline std::shared_ptr<MapModel> map_model(const MapOptions& options, at::ScalarType dtype) {
  auto model = std::make_shared<MapModel>(options);
  fill(*model, dtype);
  return model;
}

inline Batch map_batch(int64_t seed, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  Batch batch;
  batch["x"] = torch::randn({2, 3, 8, 8}, generator, torch::kDouble).to(dtype);
  batch["t"] = torch::randn({2}, generator, torch::kDouble).to(dtype);
  batch["target"] = torch::randn({2, 3, 8, 8}, generator, torch::kDouble).to(dtype);
  batch["label"] = torch::tensor({seed % 5, (seed + 1) % 5}, torch::kLong);
  batch.weights = {1, 1};
  return batch;
}

class MapRun : public StrategyRun {
 public:
  MapRun(const Mesh& mesh, const MapOptions& options, at::ScalarType dtype, const std::vector<Named>& strategies)
      : StrategyRun(
            mesh, map_model(options, dtype), [=](int64_t seed) { return map_batch(seed, dtype); }, dtype, strategies) {}

  // Of the sum of squares of the prediction, summed over the tensor ranks' copies of the input.
  torch::Tensor input_gradient(int64_t seed) {
    auto batch = batch_(seed);
    batch["x"].requires_grad_();
    Stream stream;
    (forward(batch, stream).square().sum() / mesh_.size(Axis::tensor)).backward();
    return mesh_.group(Axis::tensor).all_reduce(batch.at("x").grad());
  }
};

}  // namespace ditto::testing
