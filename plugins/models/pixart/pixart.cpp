// PixArt: J. Chen et al., "PixArt-alpha", 2023 (arXiv:2310.00426), and "PixArt-sigma", 2024 (arXiv:2403.04692), but for
// its compression of keys: one map of modulations for all blocks (adaLN-single), and attention to a text's tokens
// without norm and gate.
//
// Legend: B samples, D width, E width of a text's tokens, P patch side.
#include <ditto/ditto.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/conditions.h>
#include <ditto/nn/patches.h>

#include <algorithm>

namespace {

using ditto::AdaLn;
using ditto::Batch;
using ditto::Context;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;

struct PixArtOptions : ditto::TransformerSize {
  std::string null_text = "learned";
  int64_t base_size = 0, pixels = 8;
  double interpolation_scale = 1;
  bool micro_conditions = false;

  void read(ditto::OptionReader& option) {
    const std::string xl = "PixArt-XL/2", large = "PixArt-XL/2-1024-MS", sigma = "PixArt-Sigma-XL/2-1024-MS";
    TransformerSize::read(option, {{xl, 28, 1152, 16}, {large, 28, 1152, 16}, {sigma, 28, 1152, 16}},
                          "a published model; the options below override its parts");
    if (preset == large || preset == sigma) base_size = 64, interpolation_scale = 2;
    if (preset == large) micro_conditions = true;
    ditto::read_null_text(option, null_text);
    option("base_size", base_size, "patches of a side that a picture's are measured by in positions; 0: its own")
        .between(0, ditto::most::kSide);
    option("interpolation_scale", interpolation_scale, "positions are divided by this").above(0);
    option("micro_conditions", micro_conditions,
           "size and aspect ratio are added to the time: the data's \"resolution\" and \"aspect_ratio\", or those of "
           "the model's own pictures");
    option("pixels", pixels, "of a decoded picture, along a side of one of the model's").between(1, ditto::most::kSide);
    option.only_if(micro_conditions, {"pixels"}, "is of micro_conditions, and they are false");
    if (micro_conditions && width % 3 != 0)
      option.reject("width", "= " + std::to_string(width) + " is not a multiple of 3",
                    "height, width and aspect ratio share it");
  }
};

// x <- x + gate * f(norm(x) * (1 + scale) + shift) for attention and MLP, and x <- x + cross(x) between them.
struct Block : ditto::Layer {
  explicit Block(const PixArtOptions& o)
      : modulation(make<ditto::Modulation>("modulation", AdaLn::single, o.width, 2)),
        attn(make<ditto::SelfAttention>("attn", o.attention())),
        mlp(make<ditto::Mlp>("mlp", o.width, o.mlp_ratio * o.width)),
        // Without a gate, zero weights make it nothing at first.
        cross(make<ditto::CrossAttention>("cross", o.attention(), ditto::Init::zeros())) {}

  Tensor forward(const Stream& s, Context& ctx) {
    const auto m = modulation->forward(s, ctx);
    auto x_BTD = ditto::modulated(s.x_BTD, m[0], s, ctx, [&](const Tensor& h) {
      return attn->forward(h, ditto::Pattern::full, s.rotary_TK, s, ctx);
    });
    x_BTD = x_BTD + cross->forward(x_BTD, s, ctx);
    return ditto::modulated(x_BTD, m[1], s, ctx, [&](const Tensor& h) { return mlp->forward(h, ctx); });
  }

  std::shared_ptr<ditto::Modulation> modulation;
  std::shared_ptr<ditto::SelfAttention> attn;
  std::shared_ptr<ditto::Mlp> mlp;
  std::shared_ptr<ditto::CrossAttention> cross;
};

struct PixArt final : ditto::Model {
  using Options = PixArtOptions;
  PixArt(const Options& o, const Needs& given) : options(o), needs(given) {
    const int64_t D = o.width, E = ditto::require_text("pixart", needs);
    patches = add<ditto::Patches>(Unit::tokens, "patches", "pixart", needs, o.patch, 0, D);
    time = add<ditto::TimeEmbed>(Unit::condition, "time", D, 128.0);
    if (o.micro_conditions) {
      resolution = add<ditto::TimeEmbed>(Unit::condition, "resolution", D / 3, 128.0);
      aspect_ratio = add<ditto::TimeEmbed>(Unit::condition, "aspect_ratio", D / 3, 128.0);
    }
    modulation = add<ditto::SharedModulation>(Unit::condition, "modulation", D, 2);
    text = add<ditto::TextEmbed>(Unit::condition, "text", E, D, ditto::null_text(o.null_text));
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o));
    final_layer = add<ditto::FinalLayer>(Unit::head, "final", AdaLn::single, D, patches->outputs(needs.out_channels));
  }

  ditto::Conditioning condition(const Batch& in, Context& ctx) override {
    ditto::Conditioning c;
    c.cond_BD = time->forward(in.at("t"), ctx);
    if (resolution) {
      const auto& x = in.at("x");
      const auto side = [&](int64_t dim) {
        return torch::full({x.size(0)}, static_cast<double>(options.pixels * x.size(dim)), in.at("t").options());
      };
      const auto size_B2 = are_sizes_said() ? in.at("resolution") : torch::stack({side(2), side(3)}, 1);
      const auto ratio_B = are_sizes_said() ? in.at("aspect_ratio") : side(2) / side(3);
      // Both sides of a sample side by side: one number's sums over them are then sums over samples.
      const auto sides_BD = resolution->forward(size_B2.flatten(), ctx).unflatten(0, {-1, 2}).flatten(1);
      c.cond_BD = c.cond_BD + torch::cat({sides_BD, aspect_ratio->forward(ratio_B, ctx)}, 1);
    }
    c.cond_BD = modulation->forward(c.cond_BD, ctx);
    text->forward(in, c, ctx);
    return c;
  }

  Stream tokens(const Batch& in, Context& ctx) override {
    Stream s;
    s.grid = patches->grid(in.at("x"));
    const auto places = positions.of(s.grid, ctx.options(), [&] {
      return patches->positions(s.grid, options.base_size, options.interpolation_scale);
    });
    s.x_BTD = patches->forward(in.at("x"), ctx) + places;
    return s;
  }
  int64_t depth() const override { return options.depth; }
  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    s.x_BTD = blocks[static_cast<size_t>(i)]->forward(s, ctx);
    return s;
  }
  Tensor head(const Stream& s, Context& ctx) override {
    return patches->unpatchify(final_layer->forward(s, ctx), s.grid);
  }
  bool token_local() const override { return true; }

  ditto::TensorSpecs takes() const override {
    std::vector<std::string> names{"x", "t"};
    if (are_sizes_said()) names.insert(names.end(), {"resolution", "aspect_ratio"});
    auto inputs = ditto::takes_offered(needs, names);
    for (auto& input : text->takes()) inputs.push_back(std::move(input));
    return inputs;
  }
  ditto::TensorSpecs makes() const override { return {patches->features()}; }
  Batch without_condition(Batch in, const Tensor& which_B) const override {
    return ditto::TextEmbed::without_text(std::move(in), which_B);
  }

  std::vector<std::string> foreign_formats() const override {
    return ditto::formats_of({"diffusers"}, [&](const auto&) { return not_theirs(); });
  }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    ditto::require_format(format, {"diffusers"}, [&](const auto&) { return not_theirs(); });
    ditto::ForeignNames n(*this, ditto::kDiffusersParts);
    n.layers("", "",
             "patches.map=pos_embed.proj modulation.map=adaln_single.linear text=caption_projection "
             "final.table=scale_shift_table final.out=proj_out");
    n.layers("", "adaln_single.emb.",
             "time=timestep_embedder resolution=resolution_embedder aspect_ratio=aspect_ratio_embedder");
    n.blocks(options.depth, "blocks.#.", "transformer_blocks.#.",
             "modulation.table=scale_shift_table attn=attn1 cross=attn2 mlp=ff");
    n.shape("patches.map", patches->convolution());
    n.format.config = config(options, needs);
    return n.format;
  }

  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    ditto::require_format(file.format, {"diffusers"});
    const ditto::ForeignSizes s(
        file, {"pos_embed.proj.weight", "transformer_blocks.", ".ff.net.0.proj.weight", "proj_out.weight"});
    const int64_t side = file.number("sample_size", ditto::most::kSide);
    Options o{s.size};
    o.heads = ditto::heads_of(file, "num_attention_heads", o.width);
    o.base_size = side / o.patch, o.null_text = "empty";
    o.interpolation_scale = file.config.count("interpolation_scale")
                                ? ditto::real_of(file, "interpolation_scale")
                                : static_cast<double>(std::max<int64_t>(side / 64, 1));
    o.micro_conditions = file.has("adaln_single.emb.resolution_embedder.linear_1.weight");
    ditto::read_sizes_over(o, reader, file, {}, {"base_size", "interpolation_scale", "micro_conditions"});
    auto made = s.needs(side);
    ditto::offer_text(made, file.size("caption_projection.linear_1.weight", 1, ditto::most::kWidth),
                      o.null_text == "empty");
    ditto::expect_config(file, config(o, made));
    return made;
  }

 private:
  bool are_sizes_said() const {  // by the data
    return options.micro_conditions && needs.width("resolution") > 0 && find(needs.inputs, "aspect_ratio");
  }

  // Why no PixArtTransformer2DModel is this model; empty: one is.
  std::string not_theirs() const {
    if (options.null_text == "learned") return "PixArtTransformer2DModel has no learned null text, and this model has";
    if (options.mlp_ratio != 4) return "PixArtTransformer2DModel has an MLP of 4 times its width";
    if (options.base_size == 0 && (patches->tokens() < 0 || !patches->is_square()))
      return "PixArtTransformer2DModel measures positions by a square, and this model has no base_size";
    return {};
  }

  static ditto::ForeignConfig config(const Options& o, const Needs& needs) {
    const auto& x = needs.shape("x");
    auto made = ditto::diffusers_config("PixArtTransformer2DModel", o, x[0], needs.out_channels,
                                        o.base_size > 0 ? o.base_size * o.patch : x[1]);
    made["cross_attention_dim"] = o.width, made["caption_channels"] = needs.width("text");
    made["norm_type"] = "ada_norm_single", made["norm_eps"] = 1e-6;
    made["interpolation_scale"] = ditto::number_of(o.interpolation_scale);
    made["use_additional_conditions"] = o.micro_conditions;
    return made;
  }

  Options options;
  Needs needs;
  std::shared_ptr<ditto::Patches> patches;
  ditto::GridTable positions;
  std::shared_ptr<ditto::TimeEmbed> time, resolution, aspect_ratio;
  std::shared_ptr<ditto::SharedModulation> modulation;
  std::shared_ptr<ditto::TextEmbed> text;
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<ditto::FinalLayer> final_layer;
};

}  // namespace

DITTO_MODEL_PLUGIN(PixArt, "pixart", "1.0.0", "Apache-2.0",
                   "PixArt-alpha and PixArt-sigma (J. Chen et al., 2023, 2024)")
