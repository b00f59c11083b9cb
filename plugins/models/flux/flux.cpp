// Black Forest Labs' Flux.1 (github.com/black-forest-labs/flux): first blocks in which text and picture have weights of
// their own and one attention (P. Esser et al., 2024, arXiv:2403.03206), then blocks with one set of weights for both,
// in which attention and MLP are beside one another (M. Dehghani et al., "Scaling vision transformers to 22 billion
// parameters", 2023, arXiv:2302.05442). Queries and keys are normed, and the picture's turned by row and column.
//
// Legend: B samples, T tokens, D width, K head width, P patch side, C channels.
#include <ditto/ditto.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/joint_transformer.h>
#include <ditto/nn/tables.h>

#include <algorithm>
#include <numeric>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Split;
using ditto::Stream;
using ditto::Tensors;
using ditto::Unit;
using torch::Tensor;
namespace most = ditto::most;

struct FluxOptions : ditto::JointOptions {
  int64_t single_depth = 0;
  std::vector<int64_t> rotary;
  bool guidance_embed = false;
  double guidance = 3.5;

  void read(ditto::OptionReader& option) {
    read_size(option, {{"Flux.1-dev", 19, 3072, 24}, {"Flux.1-schnell", 19, 3072, 24}},
              "a published size; the options below override its parts. depth: blocks in which text and picture have "
              "weights of their own");
    qk_norm = true;
    if (!preset.empty()) text.mask = false, guidance_embed = preset == "Flux.1-dev";
    if (single_depth == 0) single_depth = 2 * depth;
    option("single_depth", single_depth, "blocks after them with one set of weights; as published twice as many")
        .between(1, most::kBlocks);
    if (rotary.empty()) rotary = published_rotary();
    option("rotary", rotary,
           "numbers of a head that turn with nothing, with the row and with the column; as published about an eighth, "
           "and half of the others each");
    option("guidance_embed", guidance_embed, "the model is told a guidance scale, as one distilled from guidance is");
    option("guidance", guidance, "that scale");
    option.only_if(guidance_embed, {"guidance"}, "is what guidance_embed tells the model, and it is false");
    text.read(option);
    if (!turns_heads())
      option.reject("rotary", "is not three even numbers, the last two above 0, that add up to a head's width",
                    "the positions need it, and heads of an even width of at least 6");
  }

 private:
  std::vector<int64_t> published_rotary() const {
    const int64_t side = head_width() * 7 / 32 * 2;  // [16, 56, 56] of 128
    return {head_width() - 2 * side, side, side};
  }
  bool turns_heads() const {
    return rotary.size() == 3 && std::accumulate(rotary.begin(), rotary.end(), int64_t{0}) == head_width() &&
           std::all_of(rotary.begin(), rotary.end(), [](int64_t n) { return n >= 0 && n % 2 == 0; }) && rotary[1] > 0 &&
           rotary[2] > 0;
  }
};

// Attention and MLP beside one another, of text and picture with the same weights.
struct SingleBlock final : ditto::Layer {
  explicit SingleBlock(const FluxOptions& o)
      : modulation(zero_linear("modulation", o.width, 3 * o.width, Split::columns({3 * o.width}).gathered())),
        heads(make<ditto::JointHeads>("attn", o, ditto::JointHeads::split(o).side_by_side())),
        up(linear("up", o.width, 4 * o.width, Split::columns({4 * o.width}).in_units(o.head_width()).side_by_side())),
        out(linear("out", 5 * o.width, o.width,
                   Split::rows().in_parts({o.width, 4 * o.width}).in_units(o.head_width()).side_by_side())) {}

  Stream forward(Stream s, Context& ctx) {
    auto& text = s.extra.at("text");
    const auto m = modulation(ctx.ops.silu(s.condition.cond_BD), ctx).chunk(3, -1);
    const auto y = ctx.ops.norm_modulate(text.tensor, m[0], m[1], *text.own);
    const auto x = ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s);
    const auto two = [&](const Tensor& both) { return both.split_with_sizes({y.size(1), x.size(1)}, 1); };
    const auto both = ctx.attention_unit(heads->qkv, out, torch::cat({y, x}, 1), [&](const Tensor& in) {
      Tensors of_text, of_picture;
      for (const auto& tensor : heads->forward(in, ctx)) {
        const auto parts = two(tensor);
        of_text.push_back(parts[0]), of_picture.push_back(parts[1]);
      }
      const auto seen = ditto::attend_jointly(of_picture, of_text, s, ctx);
      const auto attended = torch::cat({seen[1], seen[0]}, 1).flatten(-2);
      return out(torch::cat({attended, ctx.ops.linear_gelu_tanh(in, up, ctx)}, -1), ctx);
    });
    const auto parts = two(both);
    text.tensor = ctx.ops.gated_residual(text.tensor, m[2], parts[0], *text.own);
    s.x_BTD = ctx.ops.gated_residual(s.x_BTD, m[2], parts[1], s);
    return s;
  }

  ditto::Linear modulation;
  std::shared_ptr<ditto::JointHeads> heads;
  ditto::Linear up, out;
};

// Names in diffusers (FluxTransformer2DModel; "diffusers"), and in one file as Black Forest Labs gave it out and
// ComfyUI loads it ("comfy").
struct Names {
  std::string parts, whole, joint_blocks, joint, single_blocks, single;
};
Names names_in(const std::string& format) {
  if (format == "diffusers")
    return {.parts = ditto::kDiffusersParts,
            .whole = std::string("patches.map=x_embedder ") + ditto::kDiffusersJointEnds,
            .joint_blocks = "transformer_blocks.",
            .joint = ditto::kDiffusersJointBlock,
            .single_blocks = "single_transformer_blocks.",
            .single = "modulation=norm.linear attn=attn up=proj_mlp out=proj_out"};
  return {.parts =
              "qkv=qkv q_norm.weight=norm.query_norm.scale k_norm.weight=norm.key_norm.scale in=in_layer out=out_layer",
          .whole =
              "patches.map=img_in text=txt_in time=time_in pooled_in=vector_in.in_layer pooled_out=vector_in.out_layer "
              "guidance=guidance_in final_modulation=final_layer.adaLN_modulation.1 out=final_layer.linear",
          .joint_blocks = "double_blocks.",
          .joint =
              "picture.modulation=img_mod.lin picture.attn=img_attn picture.proj=img_attn.proj picture.up=img_mlp.0 "
              "picture.down=img_mlp.2 words.modulation=txt_mod.lin words.attn=txt_attn words.proj=txt_attn.proj "
              "words.up=txt_mlp.0 words.down=txt_mlp.2",
          .single_blocks = "single_blocks.",
          .single =
              "modulation=modulation.lin attn.qkv=linear1 attn.q_norm.weight=norm.query_norm.scale "
              "attn.k_norm.weight=norm.key_norm.scale up=linear1 out=linear2"};
}

struct Flux final : ditto::JointTransformer {
  using Options = FluxOptions;

  Flux(const Options& o, const Needs& needs) : JointTransformer("flux", o, needs), options(o) {
    if (o.guidance_embed) guidance = add<ditto::TimeEmbed>(Unit::condition, "guidance", o.width, 128.0);
    for (int64_t i = 0; i < o.depth; ++i) add_joint_block();
    for (int64_t i = 0; i < o.single_depth; ++i) blocks.push_back(add_block<SingleBlock>(o.depth + i, o));
  }

  Tensor time(const Batch& in, Context& ctx) override {
    const auto time_BD = JointTransformer::time(in, ctx);
    if (!guidance) return time_BD;
    return time_BD + guidance->forward(torch::full_like(in.at("t"), 1000 * options.guidance), ctx);
  }

  void constants(const Batch& in, Stream& s, Context& ctx) override {
    JointTransformer::constants(in, s, ctx);
    const auto& r = options.rotary;
    s.rotary_TK = turns.of(s.grid, torch::TensorOptions(torch::kDouble).device(ctx.device), [&] {
      return ditto::rotary_table_in_double(s.grid, {r[0] / 2, r[1] / 2, r[2] / 2});
    });
  }

  int64_t depth() const override { return options.depth + options.single_depth; }
  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    if (i < options.depth) return JointTransformer::run_block(i, std::move(s), ctx);
    return blocks[static_cast<size_t>(i - options.depth)]->forward(std::move(s), ctx);
  }

  std::vector<std::string> foreign_formats() const override {
    return ditto::formats_of(all_formats(), [&](const auto&) { return not_theirs(); });
  }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    const auto& o = options;
    ditto::require_format(format, all_formats(), [&](const auto&) { return not_theirs(); });
    const auto they = names_in(format);
    const int64_t D = o.width, P = o.patch, C = needs_.out_channels;
    ditto::ForeignNames n(*this, they.parts);
    n.layers("", "", they.whole);
    n.blocks(o.depth, "blocks.#.", they.joint_blocks + "#.", they.joint);
    n.blocks(o.single_depth, "blocks.#.", they.single_blocks + "#.", they.single, o.depth);
    for (const char* attention : {"blocks.#.picture.attn", "blocks.#.words.attn", "blocks.#.attn"})
      n.turn_pairs(attention, o.head_width());
    std::vector<int64_t> channel_first;  // of a patch; ours has the channel last
    for (int64_t i = 0; i < P * P * C; ++i) channel_first.push_back(i % C * P * P + i / C);
    n.rows("out", channel_first);
    if (format == "comfy") {  // "linear1" is both
      for (const char* layer : {"blocks.#.attn.qkv", "blocks.#.up"}) n.shape(layer, {7 * D, D});
      n.rows("blocks.#.up", ditto::foreign_rows({{3 * D, 4 * D}}));
      return n.format;
    }
    n.rows("final_modulation", ditto::foreign_rows({{D, D}, {0, D}}));  // the scale before the shift
    n.format.config = config_of(o, needs_);
    return n.format;
  }

  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    ditto::require_format(file.format, all_formats());
    const auto they = names_in(file.format);
    const auto whole = [&](const char* ours) { return ditto::foreign_name(they.whole, ours, they.parts); };
    const auto joint = [&](const char* ours) { return "." + ditto::foreign_name(they.joint, ours, they.parts); };
    Options o;
    o.text.mask = false, o.text.tokens = 512;
    o.width = file.size(whole("text.weight"), 0, most::kWidth);
    o.depth = file.count(they.joint_blocks, joint("picture.modulation.weight"), most::kBlocks);
    o.single_depth = file.count(they.single_blocks,
                                "." + ditto::foreign_name(they.single, "modulation.weight", they.parts), most::kBlocks);
    o.heads = o.width / file.size(they.joint_blocks + "0" + joint("picture.attn.q_norm.weight"), 0, o.width);
    o.guidance_embed = file.has(whole("guidance.in.weight"));
    if (const auto axes = file.config.find("axes_dims_rope"); axes != file.config.end())
      if (const auto* list = std::get_if<std::vector<int64_t>>(&axes->second)) o.rotary = *list;
    ditto::read_heads_over(o, reader, file, {}, {"single_depth", "patch", "guidance_embed"});
    // No file says sizes of samples.
    const int64_t in = file.size(whole("patches.map.weight"), 1, most::kNumbers), numbers = o.patch * o.patch,
                  out = ditto::rows_of(file, whole("out.weight"), o.width, most::kNumbers);
    auto made = ditto::joint_needs_of(file, {in / numbers, ditto::kOwnSide, ditto::kOwnSide}, out / numbers,
                                      whole("text.weight"), whole("pooled_in.weight"));
    if (file.format == "diffusers") ditto::expect_config(file, config_of(o, made));
    return made;
  }

 private:
  static std::vector<std::string> all_formats() { return {"diffusers", "comfy"}; }

  // The constructor's arguments there, where patches are the data's.
  static ditto::ForeignConfig config_of(const Options& o, const Needs& needs) {
    const int64_t of_patch = o.patch * o.patch, channels = needs.shape("x")[0];
    auto config = ditto::diffusers_joint_config("FluxTransformer2DModel", o, needs);
    config["patch_size"] = int64_t{1};
    config["in_channels"] = channels * of_patch;
    config["num_single_layers"] = o.single_depth;
    config["guidance_embeds"] = o.guidance_embed;
    config["axes_dims_rope"] = o.rotary;
    if (needs.out_channels != channels) config["out_channels"] = needs.out_channels * of_patch;
    return config;
  }

  Options options;
  std::shared_ptr<ditto::TimeEmbed> guidance;
  ditto::GridTable turns;
  std::vector<std::shared_ptr<SingleBlock>> blocks;
};

}  // namespace

DITTO_MODEL_PLUGIN(Flux, "flux", "1.0.0", "Apache-2.0",
                   "text and picture in one attention, with weights of their own and then shared (Flux.1)")
