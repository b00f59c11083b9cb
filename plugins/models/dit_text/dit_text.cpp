// DiT with cross-attention to text, on the blocks of W. Peebles and S. Xie, 2023 (arXiv:2212.09748): NeMo's DiT-XattN,
// or with attention to the text as PixArt has it (J. Chen et al., 2023, arXiv:2310.00426).
//
// Legend: B samples, T tokens here, D width, K head width, P patch side, S tokens of text.
#include <ditto/ditto.h>
#include <ditto/sizes.h>
#include <ditto/transformer.h>

#include <array>

namespace {

using ditto::AdaLn;
using ditto::Batch;
using ditto::Context;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;

struct Size {
  const char* name;
  int64_t depth, width, heads;
};
constexpr std::array<Size, 5> kSizes{
    {{"S/2", 12, 384, 6}, {"B/2", 12, 768, 12}, {"L/2", 24, 1024, 16}, {"XL/2", 28, 1152, 16}, {"7B/2", 32, 3072, 24}}};

struct DitTextOptions {
  std::string preset, cross = "plain", null_text = "learned";
  int64_t depth = 12, patch = 2, mlp_ratio = 4;
  ditto::AttentionOptions attention;
  bool rotary = false;

  void read(ditto::OptionReader& option) {
    std::vector<std::string> names{""};
    for (const auto& size : kSizes) names.emplace_back(size.name);
    option("preset", preset,
           "NeMo's sizes of DiT-XattN, as in \"XL/2\", with their cross = \"modulated\" and qk_norm; the options below "
           "override its parts")
        .one_of(names);
    set_preset();
    option("depth", depth, "number of transformer blocks").between(1, ditto::most::kBlocks);
    attention.read(option);
    option("patch", patch, "patch side P, in the model's input pixels").between(1, ditto::most::kPatch);
    option("mlp_ratio", mlp_ratio, "hidden width of the MLP over D").between(1, ditto::most::kMlpRatio);
    option(
        "cross", cross,
        "\"plain\": x + cross(x), without norm or gate, as PixArt; \"modulated\": with a norm, shift, scale and gate "
        "of its own, as NeMo")
        .one_of({"plain", "modulated"});
    option("null_text", null_text,
           "what stands for a dropped text: \"learned\", an embedding; \"zero\"; or \"empty\", the empty text's "
           "embedding, "
           "which comes as text_empty and text_empty_mask")
        .one_of({"learned", "zero", "empty"});
    option("rotary", rotary, "rotary positions in the self-attention instead of a sine-cosine table");
    if (attention.width % 4 != 0)
      option.reject("width", "= " + std::to_string(attention.width) + " is not a multiple of 4",
                    "the position table needs it");
    if (rotary && (attention.head_width() % 2 != 0 || attention.head_width() < 4))
      option.reject("heads", "give heads of width " + std::to_string(attention.head_width()),
                    "rotary positions need an even width of at least 4");
  }

  bool is_cross_modulated() const { return cross == "modulated"; }
  int64_t sublayers() const { return is_cross_modulated() ? 3 : 2; }  // that are modulated

 private:
  void set_preset() {
    for (const auto& size : kSizes)
      if (preset == size.name) {
        depth = size.depth, attention.width = size.width, attention.heads = size.heads;
        attention.qk_norm = true, cross = "modulated";
      }
  }
};

// Self-attention, cross-attention, MLP; x <- x + gate * f(norm(x) * (1 + scale) + shift).
struct Block : ditto::Layer {
  explicit Block(const DitTextOptions& o)
      : modulation(register_module("modulation",
                                   std::make_shared<ditto::Modulation>(AdaLn::zero, o.attention.width, o.sublayers()))),
        attn(register_module("attn", std::make_shared<ditto::SelfAttention>(o.attention))),
        mlp(register_module("mlp", std::make_shared<ditto::Mlp>(o.attention.width, o.mlp_ratio * o.attention.width))),
        is_cross_modulated(o.is_cross_modulated()) {
    // Without a gate, zero weights make it nothing at first (PixArt's own start).
    cross = register_module("cross", is_cross_modulated
                                         ? std::make_shared<ditto::CrossAttention>(o.attention)
                                         : std::make_shared<ditto::CrossAttention>(o.attention, ditto::Init::zeros()));
  }

  Tensor forward(const Stream& s, Context& ctx) {
    const auto m = modulation->forward(s, ctx);
    const auto modulated = [&](const Tensor& x, const ditto::Modulation::Row& row, auto&& f) {
      return ctx.ops.gated_residual(x, row.gate, f(ctx.ops.norm_modulate(x, row.shift, row.scale, s)), s);
    };
    const auto to_text = [&](const Tensor& h) { return cross->forward(h, s, ctx); };
    auto x_BTD = modulated(s.x_BTD, m.front(), [&](const Tensor& h) {
      return attn->forward(h, ditto::Pattern::full, s.rotary_TK, s, ctx);
    });
    x_BTD = is_cross_modulated ? modulated(x_BTD, m[1], to_text) : x_BTD + to_text(x_BTD);
    return modulated(x_BTD, m.back(), [&](const Tensor& h) { return mlp->forward(h, ctx); });
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

  DitText(const Options& o, const Needs& needs) : options(o), x_(needs.shape("x")) {
    check(o, x_, needs.width("text"));
    const int64_t width = o.attention.width;
    patches = add<ditto::PatchEmbed>(Unit::tokens, "patches", x_[0], o.patch, width);
    time = add<ditto::TimeEmbed>(Unit::condition, "time", width, 128.0);
    text = add<ditto::TextEmbed>(Unit::condition, "text", needs.width("text"), width, ditto::null_text(o.null_text));
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o));
    final_layer =
        add<ditto::FinalLayer>(Unit::head, "final", AdaLn::zero, width, o.patch * o.patch * needs.out_channels);
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
    if (!options.rotary) s.x_BTD = s.x_BTD + ditto::sincos_positions(s.grid, options.attention.width).to(ctx.options());
    return s;
  }

  void constants(const Batch&, Stream& s, Context& ctx) override {
    if (options.rotary) s.rotary_TK = ditto::rotary_table(s.grid, options.attention.head_width()).to(ctx.device);
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
    ditto::TensorSpecs inputs{{"x", torch::kFloat, x_, "noisy picture"},
                              {"t", torch::kFloat, {}, "time, in the scheduler's units"}};
    for (auto& input : text->takes()) inputs.push_back(std::move(input));
    return inputs;
  }
  ditto::TensorSpecs makes() const override {
    const int64_t tokens = ditto::count_patches({x_[1], x_[2]}, {options.patch, options.patch});
    return {{"features", torch::kFloat, {tokens, options.attention.width}}};
  }

  Batch without_condition(Batch in, const Tensor& which_B) const override {
    return ditto::TextEmbed::without_text(std::move(in), which_B);
  }

 private:
  static void check(const Options& o, const std::vector<int64_t>& x, int64_t text_width) {
    if (x.size() != 3)
      throw ditto::Error(ditto::ErrorKind::config, "model \"dit_text\"",
                         "takes pictures [C, H, W], the data has " + std::to_string(x.size()) + " dims",
                         "choose a model for video");
    if (text_width == 0)
      throw ditto::Error(ditto::ErrorKind::config, "model \"dit_text\"", "takes text, the data has none",
                         "choose data with text, or a model without");
    ditto::check_patches("model.patch", o.patch, "pictures of", {x[1], x[2]});
  }

  Options options;
  std::vector<int64_t> x_;  // [C, H, W]
  std::shared_ptr<ditto::PatchEmbed> patches;
  std::shared_ptr<ditto::TimeEmbed> time;
  std::shared_ptr<ditto::TextEmbed> text;
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<ditto::FinalLayer> final_layer;
};

}  // namespace

DITTO_MODEL_PLUGIN(DitText, "dit_text", "1.1.0", "Apache-2.0", "DiT with cross-attention to text")
