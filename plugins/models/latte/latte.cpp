// Latte: X. Ma et al., 2024 (arXiv:2401.03048), variant 1: blocks of attention in space and in time alternate. Of
// classes as the paper's, or of text as Latte-1, whose spatial blocks attend to it.
//
// Legend: C channels, F frames, T tokens, D width, P patch side.
#include <ditto/ditto.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/conditions.h>
#include <ditto/nn/space_time.h>

#include <algorithm>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Part;
using ditto::Stream;
using torch::Tensor;
namespace most = ditto::most;

struct LatteOptions : ditto::SpaceTimeOptions {
  void read(ditto::OptionReader& option) {
    TransformerSize::read(option, {{"Latte-XL/2", 28, 1152, 16}, {"Latte-1", 56, 1152, 16}},
                          "of classes, the paper's, or of text; the options below override its parts");
    if (preset == "Latte-1") adaln = "single", null_text = "empty";
    read_parts(option);
    require_pairs(option);
  }

  // Of each block.
  std::vector<ditto::Parts> parts(bool has_text) const {
    std::vector<ditto::Parts> blocks;
    for (int64_t i = 0; i < depth; ++i)
      blocks.push_back(i % 2 == 1 ? ditto::Parts{Part::temporal, Part::mlp}
                       : has_text ? ditto::Parts{Part::spatial, Part::cross, Part::mlp}
                                  : ditto::Parts{Part::spatial, Part::mlp});
    return blocks;
  }
};

struct Latte final : ditto::SpaceTimeTransformer {
  using Options = LatteOptions;
  Latte(const Options& o, const Needs& given)
      : SpaceTimeTransformer("latte", o, {o.parts(given.width("text") > 0), o.attention()}, given), options(o) {}

  Stream tokens(const Batch& in, Context& ctx) override {
    Stream s = patched(in, ctx);
    add_positions(s, /*of_frames=*/false, ctx);
    return s;
  }

  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    if (i == 1) s.x_BTD = s.x_BTD + frames_here(s, ctx);  // before the first that attends in time
    return SpaceTimeTransformer::run_block(i, std::move(s), ctx);
  }

  std::vector<std::string> foreign_formats() const override {
    return ditto::formats_of({"diffusers"}, [&](const auto&) { return not_theirs(); });
  }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    ditto::require_format(format, {"diffusers"}, [&](const auto&) { return not_theirs(); });
    ditto::ForeignNames n(*this, ditto::kDiffusersParts);
    n.layers("", "",
             "patches.map=pos_embed.proj time=adaln_single.emb.timestep_embedder modulation.map=adaln_single.linear "
             "text=caption_projection final.table=scale_shift_table final.out=proj_out");
    for (const int64_t odd : {0, 1})  // even blocks are spatial
      n.blocks(options.depth / 2, "blocks.#.", odd ? "temporal_transformer_blocks.#." : "transformer_blocks.#.",
               "modulation.table=scale_shift_table spatial=attn1 temporal=attn1 cross=attn2 mlp=ff", odd, 2);
    n.shape("patches.map", {options.width, x_[0], options.patch, options.patch});
    n.format.config = config(options, needs_);
    return n.format;
  }

  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    ditto::require_format(file.format, {"diffusers"});
    const ditto::ForeignSizes s(
        file, {"pos_embed.proj.weight", "transformer_blocks.", ".ff.net.0.proj.weight", "proj_out.weight"});
    const int64_t side = file.number("sample_size", most::kSide);
    Options o{{s.size}};
    o.depth *= 2, o.heads = ditto::heads_of(file, "num_attention_heads", o.width);
    o.adaln = "single", o.null_text = "empty";
    if (side >= 128) o.base_side = side / (side / 64);
    ditto::read_sizes_over(o, reader, file, {}, {"adaln", "base_side"});
    auto made =
        ditto::foreign_needs_of({s.channels, file.number("video_length", most::kSide), side, side}, s.out_channels);
    ditto::offer_text(made, file.size("caption_projection.linear_1.weight", 1, most::kWidth), /*and_empty=*/false);
    ditto::expect_config(file, config(o, made));
    return made;
  }

 private:
  // [B, T, D], for the tokens here; a picture has none.
  Tensor frames_here(const Stream& s, const Context& ctx) const {
    const auto table = [&](const ditto::Grid& g) { return g.frames > 1 ? frames(g) : torch::zeros_like(frames(g)); };
    std::vector<Tensor> tables;
    if (s.packing)
      for (const auto& grid : s.packing->grids) tables.push_back(table(grid));
    else
      tables.assign(static_cast<size_t>(s.x_BTD.size(0)), table(s.grid));
    const auto row_T = s.frame_of_token(s.x_BTD.size(0), s.x_BTD.size(1), s.x_BTD.device());
    return torch::cat(tables).to(ctx.options()).index_select(0, row_T).view(s.x_BTD.sizes());
  }

  // Why no LatteTransformer3DModel is this model; empty: one is. Its sizes are any.
  std::string not_theirs() const {
    const int64_t side = x_[2], times = std::max<int64_t>(side / 64, 1);
    if (options.adaln != "single" || options.null_text == "learned" || options.mlp_ratio != 4 ||
        needs_.width("text") == 0)
      return "LatteTransformer3DModel has adaln = \"single\", text, no learned null text and an mlp_ratio of 4, and "
             "this "
             "model has not";
    if (side <= 0 || side != x_[3] || (times == 1 ? options.base_side != 0 : options.base_side * times != side))
      return "LatteTransformer3DModel has square frames, and a base_side where they are of 128 and more";
    return {};
  }

  static ditto::ForeignConfig config(const Options& o, const Needs& needs) {
    const auto& x = needs.shape("x");
    ditto::TransformerSize size = o;
    size.depth /= 2;  // it counts pairs
    auto made = ditto::diffusers_config("LatteTransformer3DModel", size, x[0], needs.out_channels, x[2]);
    made["cross_attention_dim"] = o.width, made["caption_channels"] = needs.width("text");
    made["norm_type"] = "ada_norm_single", made["norm_eps"] = 1e-6;
    made["video_length"] = x[1];
    return made;
  }

  Options options;
};

}  // namespace

DITTO_MODEL_PLUGIN(Latte, "latte", "1.0.0", "Apache-2.0", "Latte: video of classes or text (X. Ma et al., 2024)")
