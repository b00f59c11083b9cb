#include <ditto/nn/video.h>

#include <algorithm>

#include <torch/types.h>

#include <ditto/math/sizes.h>

namespace ditto {

using torch::Tensor;

VideoTransformer::VideoTransformer(const Form& form, const Needs& needs)
    : x_(needs.shape("x")), out_channels_(needs.out_channels), form_(form) {
  if (x_.size() != 4)
    throw Error(ErrorKind::config, "model \"" + form.name + "\"",
                "takes video [C, F, H, W], the data has " + std::to_string(x_.size()) + " dims",
                "choose a model for pictures, or data with frames (one is enough)");
  check_patches("model.patch_frames", form.patch_frames, "the frames,", {x_[1]});
  check_patches("model.patch", form.patch, "frames of", {x_[2], x_[3]});
  patches_ = add<VideoPatchEmbed>(Unit::tokens, "patches", x_[0], form.patch, form.patch_frames, form.width,
                                  form.channel_fastest);
}
VideoTransformer::~VideoTransformer() = default;

Stream VideoTransformer::patched(const Batch& in, Context& ctx) const {
  Stream s;
  s.grid = patches_->grid(in.at("x"));
  s.x_BTD = patches_->forward(in.at("x"), ctx);
  return s;
}

TensorSpecs VideoTransformer::takes() const {
  return {{"x", torch::kFloat, x_, "noisy video"}, {"t", torch::kFloat, {}, "time, in the scheduler's units"}};
}

TensorSpecs VideoTransformer::makes() const {
  const int64_t tokens = count_patches({x_[1], x_[2], x_[3]}, {form_.patch_frames, form_.patch, form_.patch});
  return {{"features", torch::kFloat, {tokens, form_.width}}};
}

FrameRateEmbed::FrameRateEmbed(int64_t width, const TimeFeatures& features, double rate, const TensorSpecs& offered)
    : TimeEmbed(width, features), rate_(rate), is_offered_(find(offered, "fps") != nullptr) {}
FrameRateEmbed::~FrameRateEmbed() = default;

Tensor FrameRateEmbed::forward(const Batch& batch, Context& ctx) {
  const auto& t = batch.at("t");
  const auto rate_B = is_offered_ ? batch.at("fps") : torch::full({t.size(0)}, rate_, t.options());
  return TimeEmbed::forward(rate_B, ctx);
}

TensorSpecs FrameRateEmbed::takes() const {
  if (!is_offered_) return {};
  return {{"fps", torch::kFloat, {}, "frames a second"}};
}

TimeAndRate::TimeAndRate(int64_t width, double rate, const TensorSpecs& offered)
    : width_(width),
      time_(make<TimeEmbed>("time", width, TimeFeatures{width, static_cast<double>(width) / 2, true})),
      rate_(make<FrameRateEmbed>("rate", kRateWidth, TimeFeatures{kRateWidth, 127, true}, rate, offered)),
      norm_(make<RmsNorm>("norm", width)) {}
TimeAndRate::~TimeAndRate() = default;

Tensor TimeAndRate::forward(const Batch& batch, Context& ctx) {
  const auto& t = batch.at("t");
  const auto time = time_->forward(t.flatten(), ctx).unflatten(0, t.sizes());
  auto rate_BD = torch::constant_pad_nd(rate_->forward(batch, ctx), {0, width_ - kRateWidth});
  if (t.dim() == 2) rate_BD = rate_BD.unsqueeze(1);
  return norm_->forward(time + rate_BD, ctx);
}

void VideoPlaces::read(OptionReader& option) {
  option("max_frames", max_frames, "places of the tables of positions: frames").between(1, most::kSide);
  option("max_side", max_side, "and pixels of rows and of columns").between(1, most::kSide);
  option("fps", fps, "frames a second, where the data does not say \"fps\"").between(0.0, 1e6);
}

void VideoPlaces::check(const std::string& model, const std::vector<int64_t>& x) const {
  if (x[1] <= max_frames && std::max(x[2], x[3]) <= max_side) return;
  throw Error(ErrorKind::config, "model \"" + model + "\"",
              "has positions of " + std::to_string(max_frames) + " frames of side " + std::to_string(max_side) +
                  ", the data has larger videos",
              "raise max_frames or max_side");
}

FactorisedPositions::FactorisedPositions(const Grid& most, int64_t width)
    : most_(most),
      frames_(make<Embedding>("frames", most.frames, width)),
      rows_(make<Embedding>("rows", most.rows, width)),
      columns_(make<Embedding>("columns", most.columns, width)) {}
FactorisedPositions::~FactorisedPositions() = default;

Tensor FactorisedPositions::forward(const Grid& g, int64_t samples, Context& ctx) {
  if (g.frames > most_.frames || g.rows > most_.rows || g.columns > most_.columns) {
    const auto text = [](const Grid& of) {
      return std::to_string(of.frames) + " x " + std::to_string(of.rows) + " x " + std::to_string(of.columns);
    };
    throw Error(ErrorKind::shape, "learned positions", "are of " + text(most_) + " places, the video has " + text(g),
                "raise model.max_frames or model.max_side, or learn from smaller videos");
  }
  if (ctx.token_leaf > 0) {
    // Of one number a row's gradient is a sum over a sample's tokens first, and then over samples.
    const auto rows_of = [&](const Embedding& table, int64_t rows, int64_t tokens) {  // [B, rows, tokens of each, D]
      const auto rows_SD =
          ctx.ops.spread(table.table(ctx).narrow(0, 0, rows).flatten(), samples, 1, 1).reshape({samples * rows, -1});
      return ctx.ops.spread(rows_SD, samples * rows, tokens, ctx.token_leaf).unflatten(0, {samples, rows});
    };
    return rows_of(*frames_, g.frames, g.rows * g.columns).flatten(1, 2) +
           rows_of(*rows_, g.rows, g.frames * g.columns)
               .unflatten(2, {g.frames, g.columns})
               .transpose(1, 2)
               .flatten(1, 3) +
           rows_of(*columns_, g.columns, g.frames * g.rows).transpose(1, 2).flatten(1, 2);
  }
  const auto places = torch::TensorOptions(torch::kLong).device(ctx.device);
  const auto frame_T = torch::arange(g.frames, places).repeat_interleave(g.rows * g.columns),
             row_T = torch::arange(g.rows, places).repeat_interleave(g.columns).repeat({g.frames}),
             column_T = torch::arange(g.columns, places).repeat({g.frames * g.rows});
  const auto sum_TD = frames_->forward(frame_T, ctx) + rows_->forward(row_T, ctx) + columns_->forward(column_T, ctx);
  const auto zeros = sum_TD.options().requires_grad(false);
  return ctx.ops.add_row(torch::zeros({samples, sum_TD.size(0), sum_TD.size(1)}, zeros), sum_TD);
}

void set_plain_text(const Batch& batch, Conditioning& condition, Context& ctx) {
  const auto& mask_BS = batch.at("text_mask");
  const auto is_null_B1 = mask_BS.any(1, /*keepdim=*/true).bitwise_not();
  const auto text_BSE = batch.at("text").to(ctx.compute);
  condition.text_BSE = torch::where(is_null_B1.unsqueeze(-1), torch::zeros({1}, text_BSE.options()), text_BSE);
  // Attention to nothing is undefined. Zeros are the same in any number of places; in leaves they have one, since how
  // many there are, another sample of the micro-batch says.
  condition.text_mask_BS =
      ctx.token_leaf > 0
          ? torch::cat({mask_BS.narrow(1, 0, 1).bitwise_or(is_null_B1), mask_BS.narrow(1, 1, mask_BS.size(1) - 1)}, 1)
          : mask_BS.bitwise_or(is_null_B1);
  if (const auto known = batch.lengths.find("text"); known != batch.lengths.end()) {
    condition.text_lengths = known->second;
    for (auto& length : condition.text_lengths) length = std::clamp<int64_t>(length, 1, text_BSE.size(1));
  }
}

TensorSpecs plain_text(int64_t text_width) {
  return {{"text", torch::kFloat, {-1, text_width}, "embeddings of a text's tokens"},
          {"text_mask", torch::kBool, {-1}, "true where there is text; nowhere: the null condition"}};
}

}  // namespace ditto
