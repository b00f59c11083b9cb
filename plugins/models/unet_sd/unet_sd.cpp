// The UNet of Stable Diffusion 1, 2 and XL: R. Rombach et al., 2021 (arXiv:2112.10752) and D. Podell et al., 2023
// (arXiv:2307.01952), as diffusers' UNet2DConditionModel, on residual blocks of maps and transformers over their
// places. A map that blocks of the way down leave is put beside the one of these sides on the way up.
//
// Legend: B samples, C channels, H rows, W columns, D width of the conditioning, S tokens of text, E their width.
#include <ditto/ditto.h>
#include <ditto/nn/conditions.h>
#include <ditto/nn/map_transformer.h>
#include <ditto/nn/tables.h>
#include <ditto/nn/unet.h>

#include "names.h"

namespace unet_sd {

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Error;
using ditto::ErrorKind;
using ditto::Init;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;

constexpr const char *kWho = "model \"unet_sd\"", *kMap = "map";

std::string skip(int64_t number) { return (number < 10 ? "skip.0" : "skip.") + std::to_string(number); }

ditto::TimeFeatures features(const Options& o, int64_t count) {
  return {count, static_cast<double>(count / 2 - o.freq_shift), !o.flip_sin_to_cos};
}

// Numbers to a conditioning vector, by a perceptron as the time's.
struct VectorEmbed : ditto::Layer {
  VectorEmbed(int64_t numbers, int64_t width)
      : in(linear("in", numbers, width, {}, Init::normal(0.02))),
        out(linear("out", width, width, {}, Init::normal(0.02))) {}
  Tensor forward(const Tensor& x, Context& ctx) { return out(ctx.ops.silu(in(x.to(ctx.compute), ctx)), ctx); }
  ditto::Linear in, out;
};

struct Block : ditto::Layer {
  Block(const Options& o, const Place& where, int64_t index, int64_t text) : place(where) {
    ditto::ResidualShape shape{place.in, place.out, o.time_width(), o.norm_num_groups, o.norm_eps};
    shape.scale_shift = o.resnet_time_scale_shift == Options::kScaleShift;
    shape.dropout = o.dropout;
    shape.name = "residual " + std::to_string(index);
    residual = make<ditto::MapResidual>("residual", shape);
    if (place.heads > 0)
      attention = make<ditto::MapTransformer>(
          "attention", ditto::MapTransformerShape{place.out, place.heads, place.layers, text, o.norm_num_groups,
                                                  place.only_text, o.upcast_attention});
    if (place.halves) half = make<ditto::Conv2d>("half", ditto::ConvShape{place.out, place.out, {3}, {2}, {1}});
    if (place.doubles) twice = make<ditto::Conv2d>("twice", ditto::ConvShape{place.out, place.out});
  }

  Stream forward(Stream s, Context& ctx) {
    Tensor map = s.extra.at(kMap).tensor;
    if (place.takes >= 0) {
      const auto other = s.extra.extract(skip(place.takes));
      map = torch::cat({map, other.mapped().tensor}, 1);
    }
    map = residual->forward(map, s.condition.cond_BD, ctx, s.ids);
    if (attention) map = attention->forward(map, s.condition, ctx);
    if (place.leaves >= 0) s.extra[skip(place.leaves)] = {map};
    if (half) {
      map = half->forward(map, ctx);
      s.extra[skip(place.leaves + 1)] = {map};
    }
    if (twice) map = twice->forward(ditto::upsampled(map, ctx), ctx);
    s.extra.at(kMap).tensor = map;
    return s;
  }

  Place place;
  std::shared_ptr<ditto::MapResidual> residual;
  std::shared_ptr<ditto::MapTransformer> attention;
  std::shared_ptr<ditto::Conv2d> half, twice;
};

struct UnetSd final : ditto::Model {
  using Options = unet_sd::Options;

  UnetSd(const Options& o, const Needs& given) : options(o), needs(given), x(given.shape("x")) {
    check_picture(x);
    o.text.check(needs, "unet_sd");
    const int64_t D = o.time_width(), first = o.channels(0);
    time = add<ditto::TimeEmbed>(Unit::condition, "time", D, features(o, first));
    if (o.has_classes()) add_classes(D);
    if (o.has_text_time()) added = add<VectorEmbed>(Unit::condition, "added", added_numbers(), D);
    in = add<ditto::Conv2d>(Unit::tokens, "in", ditto::ConvShape{x[0], first});
    for (const auto& place : places_of(o))
      blocks.push_back(add_block<Block>(depth(), o, place, depth(), needs.width("text")));
    norm = add<ditto::GroupNorm>(Unit::head, "norm", o.norm_num_groups, first, ditto::Split::none(), o.norm_eps);
    out = add<ditto::Conv2d>(Unit::head, "out", ditto::ConvShape{first, needs.out_channels}, ditto::Split::none(),
                             Init::zeros());
  }

  ditto::Conditioning condition(const Batch& batch, Context& ctx) override {
    Tensor cond_BD = time->forward(batch.at("t"), ctx);
    if (options.has_classes()) cond_BD = cond_BD + classes(batch.at("label"), ctx);
    if (added) cond_BD = cond_BD + added->forward(pooled_and_sizes(batch, ctx), ctx);
    ditto::Conditioning c;
    c.cond_BD = ctx.ops.silu(cond_BD);
    const auto padded = options.text.padded(batch);
    c.text_BSE = padded.at("text").to(ctx.compute);
    if (!options.text.mask) return c;
    const auto& mask_BS = padded.at("text_mask");  // attention to nothing is undefined: then to all of it
    c.text_mask_BS = mask_BS.bitwise_or(mask_BS.any(1, /*keepdim=*/true).bitwise_not());
    return c;
  }

  Stream tokens(const Batch& batch, Context& ctx) override {
    const auto& pictures = batch.at("x");
    check_picture(pictures.sizes().slice(1));
    Stream s;
    s.grid = {1, pictures.size(2), pictures.size(3)};
    const Tensor map = in->forward(pictures.to(ctx.compute), ctx);
    s.extra[kMap] = {map};
    s.extra[skip(0)] = {map};
    return s;
  }

  int64_t depth() const override { return std::ssize(blocks); }
  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    return blocks[static_cast<size_t>(i)]->forward(std::move(s), ctx);
  }

  Tensor head(const Stream& s, Context& ctx) override {
    const auto map = norm->forward(s.extra.at(kMap).tensor, ctx, {.silu = true});
    return out->forward(map, ctx);
  }

  ditto::TensorSpecs takes() const override {
    std::vector<std::string> names{"x", "t"};
    if (options.has_classes()) names.emplace_back("label");
    if (added) names.emplace_back("time_ids");
    auto inputs = ditto::takes_offered(needs, names);
    for (auto& input : options.text.takes(needs))
      if (added || !input.name.starts_with("text_pooled")) inputs.push_back(std::move(input));
    return inputs;
  }

  // The text alone is left out; classes and sizes stay, as in diffusers' pipelines. A pooled text that is not taken is
  // another network's.
  Batch without_condition(Batch batch, const Tensor& which_B) const override {
    auto others = added ? decltype(batch.tensors)::node_type() : batch.tensors.extract("text_pooled");
    auto made = options.text.without_text(std::move(batch), which_B);
    made.tensors.insert(std::move(others));
    return made;
  }

  std::vector<std::string> foreign_formats() const override { return formats(options); }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    return names(*this, options, needs, format);
  }
  static std::vector<std::string> foreign_classes() { return {kClass}; }
  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    return needs_of(reader, file);
  }

 private:
  void check_picture(at::IntArrayRef picture) const {
    if (picture.size() != 3)
      throw Error(ErrorKind::shape, kWho, "takes pictures [C, H, W], and these are " + c10::str(picture),
                  "choose data of pictures, or another model");
    for (const int64_t side : picture.slice(1))
      if (side != ditto::kOwnSide && (side < 1 || side % options.factor() != 0))
        throw Error(ErrorKind::shape, kWho,
                    "halves the sides " + std::to_string(options.levels() - 1) + " times, and pictures are " +
                        c10::str(picture),
                    "choose sides that are multiples of " + std::to_string(options.factor()));
  }

  void add_classes(int64_t D) {
    const auto* label = find(needs.inputs, "label");
    const auto refuse = [&](const std::string& what, const std::string& remedy) {
      throw Error(ErrorKind::config, kWho, what, remedy);
    };
    if (!label)
      refuse("takes a label, the data has none", "choose data with labels, or leave the classes' options out");
    const auto& type = options.class_embed_type;
    const int64_t numbers = type == Options::kIdentity ? D : options.projection_class_embeddings_input_dim;
    const std::vector<int64_t> shape = type == Options::kIdentity || type == Options::kProjection
                                           ? std::vector<int64_t>{numbers}
                                           : std::vector<int64_t>{};
    if (label->shape != shape)
      refuse("takes labels " + c10::str(at::IntArrayRef(shape)) + ", and the data's are " +
                 c10::str(at::IntArrayRef(label->shape)),
             "choose other data, or another class_embed_type");
    if (options.num_class_embeds > 0) {
      if (label->values > options.num_class_embeds)
        refuse("has a table of " + std::to_string(options.num_class_embeds) + " classes, and the data has " +
                   std::to_string(label->values),
               "set num_class_embeds to as many");
      table = add<ditto::Embedding>(Unit::condition, "label", options.num_class_embeds, D);
    }
    if (type == Options::kTimestep)
      moment = add<ditto::TimeEmbed>(Unit::condition, "label", D, features(options, options.channels(0)));
    if (type == Options::kProjection) numbers_ = add<VectorEmbed>(Unit::condition, "label", numbers, D);
  }

  Tensor classes(const Tensor& label, Context& ctx) {
    if (table) return table->forward(label, ctx);
    if (moment) return moment->forward(label, ctx);
    return numbers_ ? numbers_->forward(label, ctx) : label.to(ctx.compute);
  }

  // Of the pooled text and the features of time_ids.
  int64_t added_numbers() const {
    const int64_t pooled = needs.width("text_pooled"), each = options.addition_time_embed_dim;
    const auto* ids = find(needs.inputs, "time_ids");
    if (pooled == 0)
      throw Error(ErrorKind::config, kWho, "takes a pooled text, the data has none",
                  "choose data with \"text_pooled\", or set addition_embed_type = \"none\"");
    const int64_t count = ids && ids->shape.size() == 1 ? ids->shape[0] : kWholePicture, all = pooled + count * each;
    if (const int64_t said = options.projection_class_embeddings_input_dim; said != 0 && said != all)
      throw Error(ErrorKind::config, "model.projection_class_embeddings_input_dim",
                  "= " + std::to_string(said) + ", and a pooled text of " + std::to_string(pooled) + " numbers with " +
                      std::to_string(count) + " time_ids of " + std::to_string(each) + " features makes " +
                      std::to_string(all),
                  "choose data of such a text and such time_ids, or leave the option out");
    return all;
  }

  Tensor pooled_and_sizes(const Batch& batch, Context& ctx) const {
    const Tensor ids = find(needs.inputs, "time_ids") ? batch.at("time_ids") : whole_picture(batch);
    const int64_t each = options.addition_time_embed_dim;
    const auto of = features(options, each);
    auto sizes = ditto::timestep_features(ids.flatten(), of.count / 2, of.divisor, ctx);
    if (of.sine_first) {
      const auto halves = sizes.chunk(2, -1);
      sizes = torch::cat({halves[1], halves[0]}, -1);
    }
    return torch::cat(
        {batch.at("text_pooled").to(ctx.compute), sizes.unflatten(0, {-1, ids.size(1)}).flatten(1).to(ctx.compute)}, 1);
  }

  // Its sides in pixels, from its first one on, all of it.
  Tensor whole_picture(const Batch& batch) const {
    const auto& pictures = batch.at("x");
    const auto number = [&](int64_t value) {
      return torch::full({pictures.size(0)}, static_cast<double>(value), batch.at("t").options());
    };
    const Tensor rows = number(options.pixels * pictures.size(2)), columns = number(options.pixels * pictures.size(3));
    return torch::stack({rows, columns, number(0), number(0), rows, columns}, 1);
  }

  Options options;
  Needs needs;
  std::vector<int64_t> x;  // [C, H, W]
  std::shared_ptr<ditto::TimeEmbed> time, moment;
  std::shared_ptr<ditto::Embedding> table;
  std::shared_ptr<VectorEmbed> numbers_, added;
  std::shared_ptr<ditto::Conv2d> in, out;
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<ditto::GroupNorm> norm;
};

}  // namespace

}  // namespace unet_sd

using unet_sd::UnetSd;
DITTO_MODEL_PLUGIN(UnetSd, "unet_sd", "1.0.0", "Apache-2.0",
                   "the UNet of Stable Diffusion 1, 2 and XL (R. Rombach et al., 2021; D. Podell et al., 2023)")
