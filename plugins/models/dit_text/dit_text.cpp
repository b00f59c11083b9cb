// DiT with cross-attention to text, on the blocks of W. Peebles and S. Xie, 2023 (arXiv:2212.09748): NeMo's DiT-XattN,
// or with attention to the text as PixArt has it (J. Chen et al., 2023, arXiv:2310.00426).
//
// Legend: B samples, T tokens here, D width, K head width, P patch side, S tokens of text.
#include <ditto/ditto.h>
#include <ditto/nn/conditions.h>
#include <ditto/nn/patches.h>
#include <ditto/nn/transformer_size.h>

namespace {

using ditto::AdaLn;
using ditto::Batch;
using ditto::Context;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;

struct DitTextOptions : ditto::TransformerSize {
  std::string cross = "plain", null_text = "learned";
  bool rotary = false;

  void read(ditto::OptionReader& option) {
    TransformerSize::read(
        option,
        {{"S/2", 12, 384, 6},
         {"B/2", 12, 768, 12},
         {"L/2", 24, 1024, 16},
         {"XL/2", 28, 1152, 16},
         {"7B/2", 32, 3072, 24}},
        "NeMo's sizes of DiT-XattN, as in \"XL/2\", with their cross = \"modulated\" and qk_norm; the "
        "options below override its parts");
    if (!preset.empty()) qk_norm = true, cross = "modulated";
    read_keys(option);
    option(
        "cross", cross,
        "\"plain\": x + cross(x), without norm or gate, as PixArt; \"modulated\": with a norm, shift, scale and gate "
        "of its own, as NeMo")
        .one_of({"plain", "modulated"});
    ditto::read_null_text(option, null_text);
    option("rotary", rotary, "rotary positions in the self-attention instead of a sine-cosine table");
    if (rotary && (head_width() % 2 != 0 || head_width() < 4))
      option.reject("heads", "give heads of width " + std::to_string(head_width()),
                    "rotary positions need an even width of at least 4");
  }

  bool is_cross_modulated() const { return cross == "modulated"; }
  int64_t sublayers() const { return is_cross_modulated() ? 3 : 2; }  // that are modulated
};

// Self-attention, cross-attention, MLP; x <- x + gate * f(norm(x) * (1 + scale) + shift).
struct Block : ditto::Layer {
  explicit Block(const DitTextOptions& o)
      : modulation(
            register_module("modulation", std::make_shared<ditto::Modulation>(AdaLn::zero, o.width, o.sublayers()))),
        attn(register_module("attn", std::make_shared<ditto::SelfAttention>(o.attention()))),
        mlp(register_module("mlp", std::make_shared<ditto::Mlp>(o.width, o.mlp_ratio * o.width))),
        is_cross_modulated(o.is_cross_modulated()) {
    // Without a gate, zero weights make it nothing at first (PixArt's own start).
    cross = register_module(
        "cross", is_cross_modulated ? std::make_shared<ditto::CrossAttention>(o.attention())
                                    : std::make_shared<ditto::CrossAttention>(o.attention(), ditto::Init::zeros()));
  }

  Tensor forward(const Stream& s, Context& ctx) {
    const auto m = modulation->forward(s, ctx);
    const auto to_text = [&](const Tensor& h) { return cross->forward(h, s, ctx); };
    auto x_BTD = ditto::modulated(s.x_BTD, m.front(), s, ctx, [&](const Tensor& h) {
      return attn->forward(h, ditto::Pattern::full, s.rotary_TK, s, ctx);
    });
    x_BTD = is_cross_modulated ? ditto::modulated(x_BTD, m[1], s, ctx, to_text) : x_BTD + to_text(x_BTD);
    return ditto::modulated(x_BTD, m.back(), s, ctx, [&](const Tensor& h) { return mlp->forward(h, ctx); });
  }

  std::shared_ptr<ditto::Modulation> modulation;
  std::shared_ptr<ditto::SelfAttention> attn;
  std::shared_ptr<ditto::CrossAttention> cross;
  std::shared_ptr<ditto::Mlp> mlp;
  bool is_cross_modulated;
};

// Its conditions are time and text; labels, where the data has them, are not used.
struct DitText final : ditto::Model {
  using Options = DitTextOptions;

  DitText(const Options& o, const Needs& given) : options(o), needs(given) {
    const int64_t E = ditto::require_text("dit_text", needs);
    patches = add<ditto::Patches>(Unit::tokens, "patches", "dit_text", needs, o.patch, 0, o.width);
    time = add<ditto::TimeEmbed>(Unit::condition, "time", o.width, 128.0);
    text = add<ditto::TextEmbed>(Unit::condition, "text", E, o.width, ditto::null_text(o.null_text));
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o));
    final_layer =
        add<ditto::FinalLayer>(Unit::head, "final", AdaLn::zero, o.width, patches->outputs(needs.out_channels));
  }

  ditto::Conditioning condition(const Batch& in, Context& ctx) override {
    ditto::Conditioning c;
    c.cond_BD = time->forward(in.at("t"), ctx);
    text->forward(in, c, ctx);
    return c;
  }

  Stream tokens(const Batch& in, Context& ctx) override {
    Stream s;
    s.grid = patches->grid(in.at("x"));
    s.x_BTD = patches->forward(in.at("x"), ctx);
    if (!options.rotary)
      s.x_BTD = s.x_BTD + positions.of(s.grid, ctx.options(), [&] { return patches->positions(s.grid); });
    return s;
  }

  void constants(const Batch&, Stream& s, Context& ctx) override {
    if (options.rotary)
      s.rotary_TK = turns.of(s.grid, torch::TensorOptions(torch::kDouble).device(ctx.device),
                             [&] { return ditto::rotary_table(s.grid, options.head_width()); });
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
    auto inputs = ditto::takes_offered(needs, {"x", "t"});
    for (auto& input : text->takes()) inputs.push_back(std::move(input));
    return inputs;
  }
  ditto::TensorSpecs makes() const override { return {patches->features()}; }
  Batch without_condition(Batch in, const Tensor& which_B) const override {
    return ditto::TextEmbed::without_text(std::move(in), which_B);
  }

 private:
  Options options;
  Needs needs;
  std::shared_ptr<ditto::Patches> patches;
  ditto::GridTable positions, turns;
  std::shared_ptr<ditto::TimeEmbed> time;
  std::shared_ptr<ditto::TextEmbed> text;
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<ditto::FinalLayer> final_layer;
};

}  // namespace

DITTO_MODEL_PLUGIN(DitText, "dit_text", "1.1.0", "Apache-2.0", "DiT with cross-attention to text")
