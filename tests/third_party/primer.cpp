// A transformer whose MLP is a layer class of its own, around an op of its own: squared ReLU (D. So et al., "Primer",
// 2021, arXiv:2109.08668), gated. The op is the kernel plugin relu2_gate's.
//
// Legend: B samples, T tokens here, D width, H hidden numbers.
#include <ditto/ditto.h>
#include <ditto/nn/transformer.h>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;

struct PrimerOptions {
  int64_t depth = 4, patch = 2;
  ditto::AttentionOptions attention;
  std::string neighbours = "none";

  void read(ditto::OptionReader& option) {
    attention.width = 64, attention.heads = 4;
    option("depth", depth, "number of transformer blocks").at_least(1);
    attention.read(option);
    option("patch", patch, "patch side, in pixels").at_least(1);
    option("neighbours", neighbours,
           "\"said\": every token has its neighbours added, which are on other ranks where tokens are cut; \"unsaid\": "
           "the same by a layer that does not say so, a planted fault")
        .one_of({"none", "said", "unsaid"});
    if (attention.head_width() % 4 != 0)
      option.reject("heads", "leave a head width that is no multiple of 4", "rotary positions need it");
  }
};

// y = c + B op(A x): cut along its hidden numbers, of which runs of 4 stay together. A makes gates and values.
struct GatedSquare : ditto::CutLayer {
  GatedSquare(int64_t width, int64_t hidden)
      : a(parameter("a", {2 * hidden, width}, ditto::Init::xavier(width, hidden))),
        shift(parameter("shift", {2 * hidden}, ditto::Init::normal(0.1))),
        b(parameter("b", {width, hidden}, ditto::Init::xavier(hidden, width))),
        c(parameter("c", {width}, ditto::Init::zeros())) {
    ditto::LayerCut cut{{{"a", 0, {hidden, hidden}, 4}, {"shift", 0, {hidden, hidden}, 4}, {"b", 1, {}, 4}},
                        "runs of 4 hidden numbers"};
    cut.output = ditto::LayerCut::Values::partial;
    declare(ditto::Axis::tensor, cut, "gated square");
  }

  Tensor forward(const Tensor& x_BTD, Context& ctx) {
    const auto both = torch::linear(enter(x_BTD).to(ctx.compute), a(ctx), shift(ctx));
    ctx.count("linear", 3.0 * static_cast<double>(both.numel() * x_BTD.size(-1)));
    const auto halves = both.chunk(2, -1);
    const auto h = ctx.ops.run("relu2_gate", {{halves[0], halves[1]}, {{"scale", 0.5}}}).at(0);
    return leave(torch::linear(h, b(ctx))) + c(ctx);
  }

  ditto::Parameter a, shift, b, c;  // [2 H, D], [2 H], [D, H], [D]
};

// y_t = w0 x_{t-1} + w1 x_t + w2 x_{t+1}, number by number.
struct Neighbours : ditto::CutLayer {
  Neighbours(int64_t width, bool is_said_)
      : w(parameter("w", {3, width}, ditto::Init::normal(0.5))), is_said(is_said_) {}
  bool token_local() const override { return !is_said; }

  Tensor forward(const Tensor& x_BTD, Context& ctx) {
    const auto x = torch::constant_pad_nd(x_BTD, {0, 0, 1, 1});
    const auto w_D = w(ctx).unbind(0);
    const int64_t T = x_BTD.size(1);
    return x.narrow(1, 0, T) * w_D[0] + x_BTD * w_D[1] + x.narrow(1, 2, T) * w_D[2];
  }

  ditto::Parameter w;
  bool is_said;
};

struct Block : ditto::Layer {
  explicit Block(const PrimerOptions& o)
      : modulation(make<ditto::Modulation>("modulation", ditto::AdaLn::single, o.attention.width, 2)),
        attention(make<ditto::SelfAttention>("attention", o.attention)),
        square(make<GatedSquare>("square", o.attention.width, 2 * o.attention.width)) {
    if (o.neighbours != "none") neighbours = make<Neighbours>("neighbours", o.attention.width, o.neighbours == "said");
  }

  Tensor forward(const Stream& s, Context& ctx) {
    const auto m = modulation->forward(s, ctx);
    auto h = ctx.ops.norm_modulate(s.x_BTD, m[0].shift, m[0].scale, s);
    if (neighbours) h = h + neighbours->forward(h, ctx);
    h = attention->forward(h, ditto::Pattern::full, s.rotary_TK, s, ctx);
    const auto x_BTD = ctx.ops.gated_residual(s.x_BTD, m[0].gate, h, s);
    h = square->forward(ctx.ops.norm_modulate(x_BTD, m[1].shift, m[1].scale, s), ctx);
    return ctx.ops.gated_residual(x_BTD, m[1].gate, h, s);
  }

  std::shared_ptr<ditto::Modulation> modulation;
  std::shared_ptr<ditto::SelfAttention> attention;
  std::shared_ptr<GatedSquare> square;
  std::shared_ptr<Neighbours> neighbours;
};

struct Primer final : ditto::Model {
  using Options = PrimerOptions;

  Primer(const Options& o, const Needs& needs) : options(o), x_(needs.shape("x")) {
    if (x_.size() != 3)
      throw ditto::Error(ditto::ErrorKind::config, "model 'primer'", "takes pictures [C, H, W]", "choose such data");
    ditto::check_patches("model.patch", o.patch, "pictures of", {x_[1], x_[2]});
    const int64_t width = o.attention.width;
    patches = add<ditto::PatchEmbed>(Unit::tokens, "patches", x_[0], o.patch, width);
    time = add<ditto::TimeEmbed>(Unit::condition, "time", width, 128.0);
    if (const int64_t classes = needs.values("label"); classes > 0)
      label = add<ditto::LabelEmbed>(Unit::condition, "label", classes, width);
    modulation = add<ditto::SharedModulation>(Unit::condition, "modulation", width, 2);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o));
    last =
        add<ditto::FinalLayer>(Unit::head, "last", ditto::AdaLn::single, width, o.patch * o.patch * needs.out_channels);
  }

  ditto::Conditioning condition(const Batch& in, Context& ctx) override {
    auto c = time->forward(in.at("t"), ctx);
    if (label) c = c + label->forward(in.at("label"), ctx);
    return {.cond_BD = modulation->forward(c, ctx), .text_BSE = {}, .text_mask_BS = {}};
  }

  Stream tokens(const Batch& in, Context& ctx) override {
    Stream s;
    s.grid = patches->grid(in.at("x"));
    s.x_BTD = patches->forward(in.at("x"), ctx);
    return s;
  }

  void constants(const Batch&, Stream& s, Context& ctx) override {
    s.rotary_TK = ditto::rotary_table(s.grid, options.attention.head_width()).to(ctx.device);
  }

  int64_t depth() const override { return options.depth; }

  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    s.x_BTD = blocks[static_cast<size_t>(i)]->forward(s, ctx);
    return s;
  }

  Tensor head(const Stream& s, Context& ctx) override { return patches->unpatchify(last->forward(s, ctx), s.grid); }

  bool token_local() const override { return true; }

  ditto::TensorSpecs takes() const override {
    ditto::TensorSpecs inputs{{"x", torch::kFloat, x_, "noisy picture"},
                              {"t", torch::kFloat, {}, "time, in the scheduler's units"}};
    if (label)
      inputs.push_back({"label", torch::kLong, {}, "a class, or the null class after the last", label->null_label()});
    return inputs;
  }

  Batch without_condition(Batch in, const Tensor& which_B) const override {
    if (label)
      in["label"] = torch::where(which_B, torch::full_like(in.at("label"), label->null_label()), in.at("label"));
    return in;
  }

  Options options;
  std::vector<int64_t> x_;  // [C, H, W]
  std::shared_ptr<ditto::PatchEmbed> patches;
  std::shared_ptr<ditto::TimeEmbed> time;
  std::shared_ptr<ditto::LabelEmbed> label;
  std::shared_ptr<ditto::SharedModulation> modulation;
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<ditto::FinalLayer> last;
};

}  // namespace

DITTO_MODEL_PLUGIN(Primer, "primer", "1.0.0", "Apache-2.0", "a transformer with a layer and an op of its own")
