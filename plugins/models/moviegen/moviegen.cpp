// The transformer of Movie Gen (A. Polyak et al., 2024, arXiv:2410.13720) as NeMo has it (dit_llama, 2.2.1): Llama's
// blocks with attention to text between self-attention and perceptron, and learned positions that are added at every
// block.
//
// Legend: B samples, T tokens here, D width, N heads, M heads of keys, H hidden width, P patch side.
#include <ditto/ditto.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/video.h>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Init;
using ditto::Split;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;

constexpr double kEps = 1e-5, kHeadEps = 1e-6;

struct MoviegenOptions : ditto::TransformerSize {
  std::string cross = "residual";
  int64_t hidden = 1024;
  ditto::VideoPlaces places{128, 240};

  void read(ditto::OptionReader& option) {
    read_size(option, {{"1B", 16, 2048, 32}, {"5B", 32, 3072, 24}, {"30B", 48, 6144, 48}},
              "NeMo's sizes, with 8 heads of keys; the options below override its parts");
    if (!preset.empty()) kv_heads = 8, hidden = preset == "30B" ? 16384 : 8192;
    read_keys(option);
    option("hidden", hidden, "hidden width H of the perceptron").between(1, ditto::most::kWidth);
    option("cross", cross,
           "attention to text: \"residual\", x + cross(x), as the paper; or \"nemo\", whose perceptron sees cross(x) "
           "alone, and whose x never does")
        .one_of({"residual", "nemo"});
    places.read(option);
    if (width % 4 != 0)
      option.reject("width", "= " + std::to_string(width) + " is not a multiple of 4", "the features of time need it");
  }
  ditto::AttentionOptions attention() const {
    auto o = TransformerSize::attention();
    o.bias = false, o.norm_eps = kHeadEps;
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
      : modulation(map("modulation", o.width, 6 * o.width, Split::columns({6 * o.width}).gathered(), Init::zeros())),
        norm(make<Norm>("norm", o.width)),
        attn(make<ditto::SelfAttention>("attn", o.attention())),
        cross(make<ditto::CrossAttention>("cross", o.attention().to_text(text_width))),
        gate_up(map("gate_up", o.width, 2 * o.hidden, Split::columns({o.hidden, o.hidden}),
                    Init::xavier(o.width, o.hidden))),
        down(map("down", o.hidden, o.width, Split::rows(), Init::xavier(o.hidden, o.width))),
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
    return ditto::scale_and_shift(ctx.ops.rms_norm(x_BTD, rows, kEps).to(ctx.compute), shift, scale, s, ctx);
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
      : VideoTransformer({"moviegen", o.depth, o.width, o.patch, 1, /*channel_fastest=*/true}, needs),
        options(o),
        text_width_(needs.width("text")) {
    if (text_width_ == 0)
      throw ditto::Error(ditto::ErrorKind::config, "model \"moviegen\"", "takes text, the data has none",
                         "choose data with text, or model nemo_dit");
    o.places.check("moviegen", x_);
    const int64_t D = o.width;
    time = add<ditto::TimeAndRate>(Unit::condition, "time", D, o.places.fps, needs.inputs);
    positions = add<ditto::FactorisedPositions>(Unit::tokens, "positions", o.places.grid(o.patch), D);
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
    const auto o = options.attention();
    ditto::ForeignNames n(*this, ditto::kNemoParts);
    n.layers("", "", ditto::kNemoEnds);
    n.blocks(options.depth, "blocks.#.", "decoder.layers.#.",
             "modulation=adaLN.adaLN_modulation.1 norm=adaLN.ln attn=self_attention cross=cross_attention "
             "gate_up=mlp.linear_fc1 down=mlp.linear_fc2");
    n.rows("blocks.#.attn.qkv", ditto::megatron_rows({o.heads / o.groups(), 1, 1}, o.groups(), o.head_width()));
    n.rows("blocks.#.cross.kv", ditto::megatron_rows({1, 1}, o.heads, o.head_width()));
    return n.format;
  }
  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    ditto::require_format(file.format, {"nemo"});
    const ditto::NemoSizes s(file, "self_attention");
    Options o;
    o.depth = s.depth, o.width = s.width, o.heads = s.heads, o.kv_heads = s.kv_heads, o.qk_norm = s.heads > 0;
    o.hidden = std::max<int64_t>(1, s.hidden / 2);
    o.places.max_frames = s.frames, o.places.max_side = s.side * o.patch;
    std::vector<std::string> said{"qk_norm", "hidden"};
    if (s.heads > 0) said.emplace_back("kv_heads");
    ditto::read_heads_over(o, reader, file, {}, said);
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
