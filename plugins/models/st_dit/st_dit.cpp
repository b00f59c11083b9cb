// A diffusion transformer for video with attention in space and in time: NeMo's ST-DiT layer (spatial, full, cross,
// temporal attention, MLP), and blocks that alternate, as Open-Sora's STDiT3, whose weights it reads and writes.
//
// Legend: C channels, T tokens, D width, K head width, P patch side, Q frames of a patch.
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
namespace most = ditto::most;

struct StDitOptions : ditto::SpaceTimeOptions {
  std::string arrangement = "joint", cross = "auto", rotary = "none";
  bool full = false;

  void read(ditto::OptionReader& option) {
    for (const auto* value : {"Latte-1", "Latte-XL/2"}) option.replaced_by("latte", "st_dit", "preset", value);
    TransformerSize::read(option,
                          {{"STDiT3-XL/2", 56, 1152, 16},  // 28 pairs of blocks
                           {"STDiT3-3B/2", 56, 1872, 26}},
                          "a published size; the options below override its parts");
    read_frames(option);
    if (!preset.empty()) {
      arrangement = "alternating", adaln = "single", cross = "all", rotary = "temporal";
      qk_norm = true, null_tokens = 300, base_side = 64, fps = 24;
    }
    read_keys(option);
    option("arrangement", arrangement,
           "of attention in a block: \"joint\" spatial, full, cross and temporal, as NeMo; \"alternating\" spatial in "
           "even blocks and temporal in odd ones, each followed by cross")
        .one_of({"joint", "alternating"});
    option("full", full, "joint: attention of all tokens of a sample, too");
    option("null_tokens", null_tokens, "tokens of a learned null text, an embedding each; 0: one for all places")
        .between(0, most::kSide);
    option("cross", cross, "blocks with attention to text: \"auto\" is all where the data has text, and none else")
        .one_of({"auto", "none", "spatial", "all"});
    option(
        "rotary", rotary,
        "\"none\": sine-cosine tables of places and frames; \"temporal\": the frames' by rotation instead, in temporal "
        "and full attention; \"all\": no table, rotation in all self-attention")
        .one_of({"none", "temporal", "all"});
    read_parts(option);
    option("fps", fps,
           "frames a second, where the data does not say \"fps\": embedded, and added to the time; 0: it is not")
        .between(0.0, 1e6);
    check(option);
  }

  bool is_joint() const { return arrangement == "joint"; }

  // Of each block.
  std::vector<ditto::Parts> parts(bool data_has_text) const {
    if (!data_has_text && (cross == "spatial" || cross == "all"))
      throw ditto::Error(ditto::ErrorKind::config, "model.cross",
                         "= \"" + cross + "\" attends to text, the data has none",
                         "choose data with text, or cross = \"none\"");
    const bool has_text = data_has_text && cross != "none";
    std::vector<ditto::Parts> blocks;
    for (int64_t i = 0; i < depth; ++i) {
      const bool odd = i % 2 == 1;
      auto& list = blocks.emplace_back();
      if (is_joint() || !odd) list.push_back(Part::spatial);
      if (full) list.push_back(Part::full);
      if (!is_joint() && odd) list.push_back(Part::temporal);
      if (has_text && (is_joint() || !odd || cross != "spatial")) list.push_back(Part::cross);
      if (is_joint()) list.push_back(Part::temporal);
      list.push_back(Part::mlp);
    }
    return blocks;
  }
  // STDiT3 has no norms of queries and keys where it attends to text.
  ditto::AttentionOptions cross_attention() const {
    auto o = attention();
    o.qk_norm = qk_norm && is_joint();
    return o;
  }

 private:
  void check(const ditto::OptionReader& option) const {
    if (null_tokens > 0 && null_text != "learned")
      option.reject("null_tokens", "are learned, and null_text is \"" + null_text + "\"", "change one of the two");
    if (base_side > 0 && rotary == "all")
      option.reject("base_side", "is of a table of places, which rotary = \"all\" has not", "change one of the two");
    if (full && !is_joint())
      option.reject("full", "goes with arrangement = \"joint\", this is \"" + arrangement + "\"",
                    "change one of the two");
    if (cross == "spatial" && is_joint())
      option.reject("cross", "= \"spatial\" goes with arrangement = \"alternating\"", "use \"all\" or \"none\"");
    if (!is_joint()) require_pairs(option);
    if (!is_joint() && rotary == "none")
      option.reject("rotary", "= \"none\" goes with arrangement = \"joint\", this is \"" + arrangement + "\"",
                    "use \"temporal\" or \"all\"; plugin = \"latte\" has a table of frames");
    if (const int64_t least = rotary == "all" ? 6 : 2;
        rotary != "none" && (head_width() % 2 != 0 || head_width() < least))
      option.reject("heads", "give heads of width " + std::to_string(head_width()),
                    "rotary = \"" + rotary + "\" needs an even width of at least " + std::to_string(least));
  }
};

struct StDit final : ditto::SpaceTimeTransformer {
  using Options = StDitOptions;
  StDit(const Options& o, const Needs& given)
      : SpaceTimeTransformer("st_dit", o, {o.parts(given.width("text") > 0), o.cross_attention(), o.rotary == "all"},
                             given),
        options(o) {}

  Stream tokens(const Batch& in, Context& ctx) override {
    Stream s = patched(in, ctx);
    if (options.rotary != "all") add_positions(s, options.rotary == "none", ctx);
    return s;
  }

  void constants(const Batch&, Stream& s, Context& ctx) override {
    const int64_t K = options.head_width();
    if (options.rotary == "none") return;
    s.rotary_TK = turns.of(s.grid, torch::TensorOptions(torch::kDouble).device(ctx.device), [&] {
      return options.rotary == "all" ? ditto::rotary_table(s.grid, K) : ditto::rotary_table(s.grid, {K / 2, 0, 0});
    });
  }

  std::vector<std::string> foreign_formats() const override {
    return ditto::formats_of(all_formats(), [&](const auto&) { return not_theirs(); });
  }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    ditto::require_format(format, all_formats(), [&](const auto&) { return not_theirs(); });
    const int64_t C = x_[0], K = options.head_width(), P = options.patch;
    ditto::ForeignNames n(*this, ditto::kFacebookParts);
    n.layers("", "",
             "patches.map=x_embedder.proj time=t_embedder rate=fps_embedder modulation.map=t_block.1 "
             "text.in=y_embedder.y_proj.fc1 text.out=y_embedder.y_proj.fc2 text.null=y_embedder.y_embedding "
             "final.table=final_layer.scale_shift_table final.out=final_layer.linear");
    for (const int64_t odd : {0, 1})  // even blocks are spatial
      n.blocks(options.depth / 2, "blocks.#.", odd ? "temporal_blocks.#." : "spatial_blocks.#.",
               "modulation.table=scale_shift_table spatial=attn temporal=attn cross=cross_attn mlp=mlp", odd, 2);
    n.shape("patches.map", {options.width, C, options.patch_frames, P, P});
    n.turn_pairs("blocks.#.temporal", K);
    // In fp32, as theirs: an export is the file that was imported.
    n.format.constants["rope.freqs"] =
        torch::pow(10000.0, torch::arange(0, K, 2, torch::kFloat) / static_cast<double>(K)).reciprocal();
    n.format.config = config(options, needs_);
    return n.format;
  }

  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    ditto::require_format(file.format, all_formats());
    const ditto::ForeignSizes s(
        file, {"x_embedder.proj.weight", "spatial_blocks.", ".mlp.fc1.weight", "final_layer.linear.weight"});
    Options o{{s.size}};
    o.depth *= 2, o.heads = ditto::heads_of(file, "num_heads", o.width);
    o.arrangement = "alternating", o.adaln = "single", o.cross = "all", o.rotary = "temporal", o.fps = 24;
    o.qk_norm = file.has("spatial_blocks.0.attn.q_norm.weight");
    o.null_tokens = file.size("y_embedder.y_embedding", 0, most::kSide);
    o.base_side = std::max<int64_t>(file.number("input_sq_size", most::kSide) / kCompression, o.patch);
    ditto::read_sizes_over(
        o, reader, file, {},
        {"arrangement", "adaln", "cross", "rotary", "qk_norm", "patch_frames", "null_tokens", "base_side"});
    auto made =
        ditto::foreign_needs_of({s.channels, ditto::kOwnSide, ditto::kOwnSide, ditto::kOwnSide}, s.out_channels);
    ditto::offer_text(made, file.size("y_embedder.y_proj.fc1.weight", 1, most::kWidth), /*and_empty=*/false);
    ditto::expect_config(file, config(o, made));
    return made;
  }

 private:
  static std::vector<std::string> all_formats() { return {"open-sora"}; }
  static constexpr int64_t kCompression = 8;  // pixels a latent's side stands for: their configuration counts pixels

  // Why no STDiT3 is this model; empty: one is. Its sizes are any.
  std::string not_theirs() const {
    const auto& o = options;
    if (!o.is_joint() && o.adaln == "single" && (o.cross == "all" || o.cross == "auto") && needs_.width("text") > 0 &&
        o.kv_heads == 0 && o.rotary == "temporal" && o.fps > 0 && o.null_tokens > 0 && o.base_side > 0)
      return {};
    return "STDiT3 has arrangement = \"alternating\", adaln = \"single\", cross = \"all\", rotary = \"temporal\", fps, "
           "base_side and null_tokens, and no kv_heads, and this model has not";
  }

  static ditto::ForeignConfig config(const Options& o, const Needs& needs) {
    const auto& x = needs.shape("x");
    return {{"model_type", "STDiT3"},
            {"depth", o.depth / 2},
            {"hidden_size", o.width},
            {"num_heads", o.heads},
            {"in_channels", x[0]},
            {"pred_sigma", needs.out_channels == 2 * x[0]},
            {"patch_size", std::vector<int64_t>{o.patch_frames, o.patch, o.patch}},
            {"mlp_ratio", static_cast<double>(o.mlp_ratio)},
            {"caption_channels", needs.width("text")},
            {"model_max_length", o.null_tokens},
            {"input_sq_size", kCompression * o.base_side},
            {"qk_norm", o.qk_norm}};
  }

  Options options;
  ditto::GridTable turns;
};

}  // namespace

DITTO_MODEL_PLUGIN(StDit, "st_dit", "2.0.0", "Apache-2.0",
                   "video with spatial, temporal, full and cross attention (STDiT3, NeMo ST-DiT)")
