// NeMo's diffusion transformer with cross-attention (nemo/collections/diffusion/models/dit, 2.2.1): adaLN-Zero blocks
// without biases, norms of queries and keys, a condition of time and frames a second that is normalised, and text as
// its encoder made it.
//
// Legend: B samples, T tokens here, D width, N heads, M heads of keys, K head width, P patch side, E width of text.
#include <ditto/ditto.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/nn/video.h>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Init;
using ditto::Split;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;

// NeMo writes 1e-6 into its configuration, as a class attribute that a dataclass does not read: 1e-5 is what it runs.
// Its Megatron has 1e-6 for the norms of queries and keys.
constexpr double kEps = 1e-5, kHeadEps = 1e-6;

std::vector<ditto::TransformerSize> sizes() {
  return {{"S", 12, 384, 6},    {"B", 12, 768, 12},   {"L", 24, 1024, 16}, {"XL", 28, 1152, 16},
          {"7B", 32, 3072, 24}, {"28B", 36, 5632, 44}};  // NeMo says no shape of it: this one is ours
}

struct NemoDitOptions : ditto::TransformerSize {
  std::string positions = "sincos";
  ditto::VideoPlaces places{34, 80};

  void read(ditto::OptionReader& option) {
    TransformerSize::read(option, sizes(),
                          "NeMo's sizes, and \"28B\" of our own; the options below override its parts");
    qk_norm = true;
    read_keys(option);
    option("positions", positions,
           "\"sincos\": a table of frames, rows and columns; \"factorised\": a learned one of each, that are added")
        .one_of({"sincos", "factorised"});
    places.read(option);
    if (width % 16 != 0)
      option.reject("width", "= " + std::to_string(width) + " is not a multiple of 16", "the position table needs it");
  }
  ditto::AttentionOptions attention() const {
    auto o = TransformerSize::attention();
    o.bias = false, o.norm_eps = kHeadEps;
    return o;
  }
};

// Self-attention, attention to text where there is one, MLP; x <- x + gate * f(norm(x) * (1 + scale) + shift).
struct Block : ditto::Layer {
  Block(const NemoDitOptions& o, int64_t text_width)
      : sublayers(text_width > 0 ? 3 : 2),
        modulation(map("modulation", o.width, 3 * sublayers * o.width,
                       Split::columns({3 * sublayers * o.width}).gathered(), Init::zeros())),
        attn(make<ditto::SelfAttention>("attn", o.attention())) {
    const int64_t D = o.width, hidden = o.mlp_ratio * D;
    if (text_width > 0) cross = make<ditto::CrossAttention>("cross", o.attention().to_text(text_width));
    up = map("up", D, hidden, Split::columns({hidden}), Init::xavier(D, hidden));
    down = map("down", hidden, D, Split::rows(), Init::xavier(hidden, D));
  }
  ditto::Linear map(const char* name, int64_t in, int64_t out, Split split, Init weight) {
    return linear(name, in, out, std::move(split), weight, ditto::kNoBias);
  }

  Tensor forward(const Stream& s, Context& ctx) {
    const auto rows = modulation(ctx.ops.silu(s.condition.cond_BD), ctx).chunk(3 * sublayers, -1);
    auto row = rows.begin();
    auto x_BTD = s.x_BTD;
    const auto modulated = [&](auto&& f) {
      const auto y = f(ctx.ops.norm_modulate(x_BTD, row[0], row[1], s, kEps));
      x_BTD = ctx.ops.gated_residual(x_BTD, row[2], y, s);
      row += 3;
    };
    modulated([&](const Tensor& h) { return attn->forward(h, ditto::Pattern::full, {}, s, ctx); });
    if (cross) modulated([&](const Tensor& h) { return cross->forward(h, s, ctx); });
    modulated([&](const Tensor& h) { return down(ctx.ops.gelu(up(h, ctx), /*tanh=*/false), ctx); });
    return x_BTD;
  }

  int64_t sublayers;
  ditto::Linear modulation, up, down;
  std::shared_ptr<ditto::SelfAttention> attn;
  std::shared_ptr<ditto::CrossAttention> cross;
};

// Its conditions are time, frames a second, and text where the data has it.
struct NemoDit final : ditto::VideoTransformer {
  using Options = NemoDitOptions;

  NemoDit(const Options& o, const Needs& needs)
      : VideoTransformer({"nemo_dit", o.depth, o.width, o.patch, 1, /*channel_fastest=*/true}, needs),
        options(o),
        text_width_(needs.width("text")) {
    o.places.check("nemo_dit", x_);
    const int64_t D = o.width;
    time = add<ditto::TimeAndRate>(Unit::condition, "time", D, o.places.fps, needs.inputs);
    if (o.positions == "factorised")
      positions = add<ditto::FactorisedPositions>(Unit::tokens, "positions", o.places.grid(o.patch), D);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o, text_width_));
    out = linear(Unit::head, "out", D, outputs());
  }

  ditto::Conditioning condition(const Batch& in, Context& ctx) override {
    ditto::Conditioning c;
    c.cond_BD = time->forward(in, ctx);
    if (text_width_ > 0) ditto::set_plain_text(in, c, ctx);
    return c;
  }

  Stream tokens(const Batch& in, Context& ctx) override {
    Stream s = patched(in, ctx);
    s.x_BTD = s.x_BTD + (positions ? positions->forward(s.grid, s.x_BTD.size(0), ctx)
                                   : fixed.of(s.grid, ctx.options(), [&] { return table(s.grid); }));
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
    if (text_width_ > 0)
      for (auto& input : ditto::plain_text(text_width_)) inputs.push_back(std::move(input));
    return inputs;
  }
  Batch without_condition(Batch in, const Tensor& which_B) const override {
    return text_width_ > 0 ? ditto::TextEmbed::without_text(std::move(in), which_B) : in;
  }
  std::vector<std::string> position_tables() const override {
    if (!positions) return {};
    return {"positions.frames.table", "positions.rows.table", "positions.columns.table"};
  }

  // The parameters of DiTCrossAttentionModel by their names there.
  std::vector<std::string> foreign_formats() const override { return {"nemo"}; }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    ditto::require_format(format, {"nemo"});
    const auto o = options.attention();
    ditto::ForeignNames n(*this, ditto::kNemoParts);
    n.layers("", "", ditto::kNemoEnds);
    if (!positions)
      n.format.constants["pos_embedder.pos_embedding.weight"] =
          table(options.places.grid(options.patch)).to(torch::kFloat);
    n.blocks(options.depth, "blocks.#.", "decoder.layers.#.",
             "modulation=adaLN.adaLN_modulation.1 attn=full_self_attention cross=cross_attention up=mlp.linear_fc1 "
             "down=mlp.linear_fc2");
    n.rows("blocks.#.attn.qkv", ditto::megatron_rows({o.heads / o.groups(), 1, 1}, o.groups(), o.head_width()));
    n.rows("blocks.#.cross.kv", ditto::megatron_rows({1, 1}, o.heads, o.head_width()));
    return n.format;
  }
  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    ditto::require_format(file.format, {"nemo"});
    const ditto::NemoSizes s(file, "full_self_attention");
    Options o;
    o.depth = s.depth, o.mlp_ratio = std::max<int64_t>(1, s.hidden / s.width);
    o.width = s.width, o.heads = std::max<int64_t>(1, s.heads), o.kv_heads = s.kv_heads;
    if (s.frames > 0) o.positions = "factorised", o.places.max_frames = s.frames, o.places.max_side = s.side * o.patch;
    ditto::read_over(o, reader, file, {"depth", "width", "heads", "kv_heads", "qk_norm", "mlp_ratio", "positions"});
    return s.needs(file, o.patch);
  }

 private:
  // A quarter of the numbers tells the frame, the rest column and row.
  Tensor table(const ditto::Grid& g) const {
    const int64_t D = options.width;
    const auto frames = ditto::sincos_positions(g.frames, D / 4).unsqueeze(1).expand({-1, g.rows * g.columns, -1});
    const auto places = ditto::sincos_positions({1, g.rows, g.columns}, 3 * D / 4).unsqueeze(0);
    return torch::cat({frames, places.expand({g.frames, -1, -1})}, -1).flatten(0, 1);
  }

  Options options;
  int64_t text_width_;
  std::shared_ptr<ditto::TimeAndRate> time;
  std::shared_ptr<ditto::FactorisedPositions> positions;
  ditto::GridTable fixed;
  std::vector<std::shared_ptr<Block>> blocks;
  ditto::Linear out;
};

}  // namespace

DITTO_MODEL_PLUGIN(NemoDit, "nemo_dit", "1.0.0", "Apache-2.0",
                   "NeMo's DiT with cross-attention, for video and pictures")
