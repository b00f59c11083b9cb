// The transformer of Movie Gen (A. Polyak et al., 2024, arXiv:2410.13720) as NeMo has it (dit_llama, 2.2.1): Llama's
// blocks with attention to text between self-attention and perceptron, and learned positions that are added at every
// block.
//
// Legend: B samples, T tokens here, D width, N heads, M heads of keys, H hidden width, P patch side.
#include <ditto/ditto.h>
#include <ditto/foreign_names.h>
#include <ditto/sizes.h>
#include <ditto/video.h>

#include <array>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Init;
using ditto::Split;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;

constexpr double kEps = 1e-5, kHeadEps = 1e-6;

struct Size {
  const char* name;
  int64_t depth, width, hidden, heads;
};
constexpr std::array<Size, 3> kSizes{
    {{"1B", 16, 2048, 8192, 32}, {"5B", 32, 3072, 8192, 24}, {"30B", 48, 6144, 16384, 48}}};

struct MoviegenOptions {
  std::string preset, cross = "residual";
  int64_t depth = 12, hidden = 1024, patch = 2, max_frames = 128, max_side = 240;
  ditto::AttentionOptions attention;
  double fps = 30;

  void read(ditto::OptionReader& option) {
    option("preset", preset, "NeMo's sizes, with 8 heads of keys; the options below override its parts")
        .one_of({"", "1B", "5B", "30B"});
    for (const auto& size : kSizes)
      if (preset == size.name) {
        depth = size.depth, hidden = size.hidden;
        attention.width = size.width, attention.heads = size.heads, attention.kv_heads = 8;
      }
    attention.bias = false, attention.norm_eps = kHeadEps;
    option("depth", depth, "number of transformer blocks").between(1, ditto::most::kBlocks);
    attention.read(option);
    option("hidden", hidden, "hidden width H of the perceptron").between(1, ditto::most::kWidth);
    option("cross", cross,
           "attention to text: \"residual\", x + cross(x), as the paper; or \"nemo\", whose perceptron sees cross(x) "
           "alone, and whose x never does")
        .one_of({"residual", "nemo"});
    option("patch", patch, "patch side P, in the model's input pixels").between(1, ditto::most::kPatch);
    option("max_frames", max_frames, "places of the tables of positions: frames").between(1, ditto::most::kSide);
    option("max_side", max_side, "and pixels of rows and of columns").between(1, ditto::most::kSide);
    option("fps", fps, "frames a second, where the data does not say \"fps\"").between(0.0, 1e6);
    if (attention.width % 4 != 0)
      option.reject("width", "= " + std::to_string(attention.width) + " is not a multiple of 4",
                    "the features of time need it");
  }
  ditto::AttentionOptions to_text(int64_t text_width) const {
    auto o = attention;
    o.kv_heads = 0, o.text_width = text_width;  // keys of text are of every head
    return o;
  }
};

// An RMS norm of two places. Of one number every sample has the weight as a row of its own, so that a gradient of both
// is a sum over samples of what both add: sums over samples that are added would depend on micro-batches.
struct Norm : ditto::Layer {
  explicit Norm(int64_t width) : weight(parameter("weight", {width}, Init::ones())) {}
  Tensor rows(int64_t samples, Context& ctx) const {
    return ctx.token_leaf == 0 ? weight(ctx) : ctx.ops.spread(weight(ctx), samples, 1, 1).squeeze(1);
  }
  ditto::Parameter weight;
};

struct Block : ditto::Layer {
  Block(const MoviegenOptions& o, int64_t text_width)
      : modulation(map("modulation", o.attention.width, 6 * o.attention.width,
                       Split::columns({6 * o.attention.width}).gathered(), Init::zeros())),
        norm(make<Norm>("norm", o.attention.width)),
        attn(make<ditto::SelfAttention>("attn", o.attention)),
        cross(make<ditto::CrossAttention>("cross", o.to_text(text_width))),
        gate_up(map("gate_up", o.attention.width, 2 * o.hidden, Split::columns({o.hidden, o.hidden}),
                    Init::xavier(o.attention.width, o.hidden))),
        down(map("down", o.hidden, o.attention.width, Split::rows(), Init::xavier(o.hidden, o.attention.width))),
        has_residual(o.cross == "residual") {}
  ditto::Linear map(const char* name, int64_t in, int64_t out, Split split, Init weight) {
    return linear(name, in, out, std::move(split), weight, ditto::kNoBias);
  }

  Tensor forward(const Stream& s, Context& ctx) {
    const auto m = modulation(ctx.ops.silu(s.condition.cond_BD), ctx).chunk(6, -1);
    const auto norm_rows = norm->rows(s.x_BTD.size(0), ctx);
    auto x_BTD = s.x_BTD + s.extra.at("positions").tensor;
    const auto h = attn->forward(modulated(x_BTD, norm_rows, m[0], m[1], s, ctx), ditto::Pattern::full, {}, s, ctx);
    x_BTD = ctx.ops.gated_residual(x_BTD, m[2], h, s);
    auto seen = cross->forward(x_BTD, s, ctx);
    if (has_residual) seen = x_BTD = x_BTD + seen;
    // Of each what is here.
    const auto both = gate_up(modulated(seen, norm_rows, m[3], m[4], s, ctx), ctx).chunk(2, -1);
    return ctx.ops.gated_residual(x_BTD, m[5], down(ctx.ops.silu(both[0]) * both[1], ctx), s);
  }

  // norm(x) * (1 + scale) + shift; one learned norm for both of a block's.
  static Tensor modulated(const Tensor& x_BTD, const Tensor& rows, const Tensor& shift, const Tensor& scale,
                          const Stream& s, Context& ctx) {
    const auto y = ctx.ops.rms_norm(x_BTD, rows, kEps).to(ctx.compute);
    return ctx.ops.gated_residual(ctx.ops.gated_residual(y, scale, y, s), shift, torch::ones_like(y), s);
  }

  ditto::Linear modulation;
  std::shared_ptr<Norm> norm;
  std::shared_ptr<ditto::SelfAttention> attn;
  std::shared_ptr<ditto::CrossAttention> cross;
  ditto::Linear gate_up, down;
  bool has_residual;
};

// Its conditions are time, frames a second, and text.
struct Moviegen final : ditto::VideoTransformer {
  using Options = MoviegenOptions;

  Moviegen(const Options& o, const Needs& needs)
      : VideoTransformer({"moviegen", o.depth, o.attention.width, o.patch, 1, /*channel_fastest=*/true}, needs),
        options(o),
        text_width_(needs.width("text")) {
    if (text_width_ == 0)
      throw ditto::Error(ditto::ErrorKind::config, "model \"moviegen\"", "takes text, the data has none",
                         "choose data with text, or model nemo_dit");
    if (x_[1] > o.max_frames || std::max(x_[2], x_[3]) > o.max_side)
      throw ditto::Error(ditto::ErrorKind::config, "model \"moviegen\"",
                         "has positions of " + std::to_string(o.max_frames) + " frames of side " +
                             std::to_string(o.max_side) + ", the data has larger videos",
                         "raise max_frames or max_side");
    const int64_t D = o.attention.width, places = o.max_side / o.patch;
    time = add<ditto::TimeAndRate>(Unit::condition, "time", D, o.fps, needs.inputs);
    positions =
        add<ditto::FactorisedPositions>(Unit::tokens, "positions", ditto::Grid{o.max_frames, places, places}, D);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o, text_width_));
    out = linear(Unit::head, "out", D, outputs());
  }

  ditto::Conditioning condition(const Batch& in, Context& ctx) override {
    ditto::Conditioning c;
    c.cond_BD = time->forward(in, ctx);
    ditto::set_plain_text(in, c, ctx);
    return c;
  }

  Stream tokens(const Batch& in, Context& ctx) override {
    Stream s = patched(in, ctx);
    s.extra["positions"] = {positions->forward(s.grid, s.x_BTD.size(0), ctx), 1};
    return s;
  }

  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    s.x_BTD = blocks[static_cast<size_t>(i)]->forward(s, ctx);
    return s;
  }

  Tensor head(const Stream& s, Context& ctx) override { return patches_->unpatchify(out(s.x_BTD, ctx), s.grid); }

  ditto::TensorSpecs takes() const override {
    auto inputs = VideoTransformer::takes();
    for (auto& input : time->takes()) inputs.push_back(std::move(input));
    for (auto& input : ditto::plain_text(text_width_)) inputs.push_back(std::move(input));
    return inputs;
  }
  Batch without_condition(Batch in, const Tensor& which_B) const override {
    return ditto::TextEmbed::without_text(std::move(in), which_B);
  }
  std::vector<std::string> position_tables() const override {
    return {"positions.frames.table", "positions.rows.table", "positions.columns.table"};
  }

  // The parameters of DiTLlamaModel by their names there.
  std::vector<std::string> foreign_formats() const override { return {"nemo"}; }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    ditto::require_format(format, {"nemo"});
    const auto& o = options.attention;
    ditto::ForeignNames n(*this);
    n.layers("", "", ditto::kNemoEnds);
    n.blocks(options.depth, "blocks.#.", "decoder.layers.#.",
             "modulation=adaLN.adaLN_modulation.1 norm=adaLN.ln gate_up=mlp.linear_fc1 down=mlp.linear_fc2");
    n.blocks(options.depth, "blocks.#.attn.", "decoder.layers.#.self_attention.",
             "qkv=linear_qkv proj=linear_proj q_norm=q_layernorm k_norm=k_layernorm");
    n.blocks(options.depth, "blocks.#.cross.", "decoder.layers.#.cross_attention.",
             "q=linear_q kv=linear_kv proj=linear_proj q_norm=q_layernorm k_norm=k_layernorm");
    n.rows("blocks.#.attn.qkv", ditto::megatron_rows({o.heads / o.groups(), 1, 1}, o.groups(), o.head_width()));
    n.rows("blocks.#.cross.kv", ditto::megatron_rows({1, 1}, o.heads, o.head_width()));
    return n.format;
  }
  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    ditto::require_format(file.format, {"nemo"});
    const ditto::NemoSizes s(file, "self_attention");
    Options o;
    o.depth = s.depth, o.hidden = std::max<int64_t>(1, s.hidden / 2), o.max_frames = s.frames;
    o.max_side = s.side * o.patch;
    o.attention.width = s.width, o.attention.heads = std::max<int64_t>(1, s.heads), o.attention.kv_heads = s.kv_heads;
    o.attention.qk_norm = s.heads > 0;
    std::vector<std::string> said{"depth", "width", "qk_norm", "hidden"};
    if (s.heads > 0) said.insert(said.end(), {"heads", "kv_heads"});
    ditto::read_over(o, reader, file, said);
    if (s.heads == 0) ditto::require_heads(reader, file);
    return s.needs(file, o.patch);
  }

 private:
  Options options;
  int64_t text_width_;
  std::shared_ptr<ditto::TimeAndRate> time;
  std::shared_ptr<ditto::FactorisedPositions> positions;
  std::vector<std::shared_ptr<Block>> blocks;
  ditto::Linear out;
};

}  // namespace

DITTO_MODEL_PLUGIN(Moviegen, "moviegen", "1.0.0", "Apache-2.0", "Movie Gen's transformer of video (NeMo's DiTLlama)")
