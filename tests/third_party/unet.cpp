// A UNet over pictures: residual blocks of convolutions and group norms, skips, and attention at the lowest resolution.
// J. Ho, A. Jain and P. Abbeel, "Denoising diffusion probabilistic models", 2020 (arXiv:2006.11239).
//
// Legend: B samples, C channels, H rows, W columns, D width of the conditioning, N heads, K = C / N.
#include <ditto/ditto.h>
#include <ditto/nn/maps.h>
#include <ditto/nn/transformer.h>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Conv2d;
using ditto::ConvShape;
using ditto::GroupNorm;
using ditto::Split;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;

struct UNetOptions {
  int64_t channels = 32, groups = 8, heads = 4;
  bool own_norm = false, claims_local = false;

  void read(ditto::OptionReader& option) {
    option("channels", channels, "channels at the highest resolution; twice as many at the others").at_least(1);
    option("groups", groups, "groups of a norm").at_least(1);
    option("heads", heads, "attention heads; must divide the channels twice").at_least(1);
    option("own_norm", own_norm, "a planted fault: a norm over all channels that declares to be cut by any of them");
    option("claims_local", claims_local, "a planted fault: says that blocks mix tokens through attention alone");
    if (channels % groups != 0 || 2 * channels % heads != 0)
      option.reject("channels", "are no multiple of groups and heads", "choose a multiple");
  }
};

// The planted fault: its mean and deviation are those of the channels that are here.
struct OwnNorm : ditto::CutLayer {
  explicit OwnNorm(int64_t channels)
      : weight(parameter("weight", {channels}, ditto::Init::ones())),
        bias(parameter("bias", {channels}, ditto::Init::zeros())) {
    ditto::LayerCut cut{{{"weight", 0}, {"bias", 0}}, "channels"};
    cut.input = cut.output = ditto::LayerCut::Values::cut;
    cut.channels = 1;
    declare(ditto::Axis::tensor, cut, "norm");
  }
  Tensor forward(const Tensor& x, Context& ctx) {
    return leave(torch::group_norm(enter(x), 1, weight(ctx), bias(ctx), 1e-5));
  }
  ditto::Parameter weight, bias;
};

// Its middle is cut by channels.
struct Residual : ditto::Layer {
  Residual(const UNetOptions& o, int64_t in, int64_t out, int64_t width)
      : norm1(make<GroupNorm>("norm1", o.groups, in)),
        conv1(make<Conv2d>("conv1", ConvShape{in, out}, Split::columns({out}))),
        cond(linear("cond", width, out, Split::columns({out}).of_condition())),
        conv2(make<Conv2d>("conv2", ConvShape{out, out}, Split::rows())) {
    if (o.own_norm)
      own_norm = make<OwnNorm>("norm2", out);
    else
      norm2 = make<GroupNorm>("norm2", o.groups, out, Split::along({out}));
    if (in != out) past = make<Conv2d>("past", ConvShape{in, out, {1}});
  }

  Tensor forward(const Tensor& x_BCHW, const Tensor& cond_BD, Context& ctx) {
    auto h = conv1->forward(torch::silu(norm1->forward(x_BCHW, ctx)), ctx);
    h = h + cond(torch::silu(cond_BD), ctx).unsqueeze(-1).unsqueeze(-1);
    h = norm2 ? norm2->forward(h, ctx) : own_norm->forward(h, ctx);
    return (past ? past->forward(x_BCHW, ctx) : x_BCHW) + conv2->forward(torch::silu(h), ctx);
  }

  std::shared_ptr<GroupNorm> norm1;
  std::shared_ptr<Conv2d> conv1;
  ditto::Linear cond;
  std::shared_ptr<GroupNorm> norm2;
  std::shared_ptr<OwnNorm> own_norm;
  std::shared_ptr<Conv2d> conv2, past;
};

// Every place of a map attends to all of them.
struct MapAttention : ditto::Layer {
  MapAttention(int64_t channels, int64_t groups, int64_t heads)
      : norm(make<GroupNorm>("norm", groups, channels)),
        qkv(linear("qkv", channels, 3 * channels, Split::heads({heads, heads, heads}, channels / heads))),
        proj(linear("proj", channels, channels, Split::rows())),
        head_width(channels / heads) {}

  Tensor forward(const Tensor& x_BCHW, Context& ctx) {
    const int64_t rows = x_BCHW.size(2), columns = x_BCHW.size(3);
    const ditto::Sequence places{{1, rows, columns}, nullptr};
    const auto y =
        ctx.attention_unit(qkv, proj, norm->forward(x_BCHW, ctx).flatten(2).transpose(1, 2), [&](const Tensor& x_BTC) {
          const auto qkv_BTNK = qkv(x_BTC, ctx).unflatten(-1, {3, -1, head_width}).unbind(-3);
          const auto out = ctx.attention({.parts = {{qkv_BTNK[0], qkv_BTNK[1], qkv_BTNK[2], places, {}}}});
          return proj(out[0].flatten(-2), ctx);
        });
    return x_BCHW + y.transpose(1, 2).unflatten(2, {rows, columns});
  }

  std::shared_ptr<GroupNorm> norm;
  ditto::Linear qkv, proj;
  int64_t head_width;
};

// The map's way through the network: down twice, middle, up twice. A skip is a field of the stream from its block on
// the way down to that on the way up.
struct Block : ditto::Layer {
  virtual void forward(Stream& s, Context& ctx) = 0;

 protected:
  static Tensor& map(Stream& s) { return s.extra.at("map").tensor; }
};

struct Down : Block {
  Down(const UNetOptions& o, int64_t in, int64_t out, int64_t width, const std::string& skip_)
      : residual(make<Residual>("residual", o, in, in, width)),
        half(make<Conv2d>("half", ConvShape{in, out, {3}, {2}})),
        skip("skip." + skip_) {}
  void forward(Stream& s, Context& ctx) override {
    const auto x = residual->forward(map(s), s.condition.cond_BD, ctx);
    s.extra[skip] = {x};
    map(s) = half->forward(x, ctx);
  }
  std::shared_ptr<Residual> residual;
  std::shared_ptr<Conv2d> half;
  std::string skip;
};

struct Middle : Block {
  Middle(const UNetOptions& o, int64_t channels, int64_t width)
      : residual1(make<Residual>("residual1", o, channels, channels, width)),
        attention(make<MapAttention>("attention", channels, o.groups, o.heads)),
        residual2(make<Residual>("residual2", o, channels, channels, width)) {}
  void forward(Stream& s, Context& ctx) override {
    const auto& cond_BD = s.condition.cond_BD;
    map(s) = attention->forward(residual1->forward(map(s), cond_BD, ctx), ctx);
    map(s) = residual2->forward(map(s), cond_BD, ctx);
  }
  std::shared_ptr<Residual> residual1;
  std::shared_ptr<MapAttention> attention;
  std::shared_ptr<Residual> residual2;
};

struct Up : Block {
  Up(const UNetOptions& o, int64_t in, int64_t out, int64_t width, const std::string& skip_)
      : twice(make<Conv2d>("twice", ConvShape{in, out})),
        residual(make<Residual>("residual", o, 2 * out, out, width)),
        skip("skip." + skip_) {}
  void forward(Stream& s, Context& ctx) override {
    const auto x = twice->forward(map(s).repeat_interleave(2, 2).repeat_interleave(2, 3), ctx);
    map(s) = residual->forward(torch::cat({x, s.extra.at(skip).tensor}, 1), s.condition.cond_BD, ctx);
    s.extra.erase(skip);
  }
  std::shared_ptr<Conv2d> twice;
  std::shared_ptr<Residual> residual;
  std::string skip;
};

struct UNet final : ditto::Model {
  using Options = UNetOptions;

  UNet(const Options& o, const Needs& needs) : options(o), x_(needs.shape("x")) {
    if (x_.size() != 3)
      throw ditto::Error(ditto::ErrorKind::config, "model 'unet'", "takes pictures [C, H, W]", "choose such data");
    ditto::check_patches("two halvings", 4, "pictures of", {x_[1], x_[2]});
    const int64_t c = o.channels, width = 4 * c;
    time = add<ditto::TimeEmbed>(Unit::condition, "time", width, 128.0);
    if (const int64_t classes = needs.values("label"); classes > 0)
      label = add<ditto::LabelEmbed>(Unit::condition, "label", classes, width);
    in = add<Conv2d>(Unit::tokens, "in", ConvShape{x_[0], c});
    blocks.push_back(add_block<Down>(0, o, c, 2 * c, width, "high"));
    blocks.push_back(add_block<Down>(1, o, 2 * c, 2 * c, width, "low"));
    blocks.push_back(add_block<Middle>(2, o, 2 * c, width));
    blocks.push_back(add_block<Up>(3, o, 2 * c, 2 * c, width, "low"));
    blocks.push_back(add_block<Up>(4, o, 2 * c, c, width, "high"));
    norm = add<GroupNorm>(Unit::head, "norm", o.groups, c);
    out = add<Conv2d>(Unit::head, "out", ConvShape{c, needs.out_channels}, Split::none(), ditto::Init::zeros());
  }

  ditto::Conditioning condition(const Batch& batch, Context& ctx) override {
    auto cond_BD = time->forward(batch.at("t"), ctx);
    if (label) cond_BD = cond_BD + label->forward(batch.at("label"), ctx);
    return {.cond_BD = cond_BD, .text_BSE = {}, .text_mask_BS = {}};
  }

  Stream tokens(const Batch& batch, Context& ctx) override {
    Stream s;
    s.grid = {1, batch.at("x").size(2), batch.at("x").size(3)};
    s.extra["map"] = {in->forward(batch.at("x"), ctx)};
    return s;
  }

  int64_t depth() const override { return static_cast<int64_t>(blocks.size()); }

  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    blocks[static_cast<size_t>(i)]->forward(s, ctx);
    return s;
  }

  Tensor head(const Stream& s, Context& ctx) override {
    return out->forward(torch::silu(norm->forward(s.extra.at("map").tensor, ctx)), ctx);
  }

  bool token_local() const override { return options.claims_local; }

  ditto::TensorSpecs takes() const override {
    ditto::TensorSpecs inputs{{"x", torch::kFloat, x_, "noisy picture"},
                              {"t", torch::kFloat, {}, "time, in the scheduler's units"}};
    if (label)
      inputs.push_back({"label", torch::kLong, {}, "a class, or the null class after the last", label->null_label()});
    return inputs;
  }

  Batch without_condition(Batch batch, const Tensor& which_B) const override {
    if (label)
      batch["label"] =
          torch::where(which_B, torch::full_like(batch.at("label"), label->null_label()), batch.at("label"));
    return batch;
  }

  Options options;
  std::vector<int64_t> x_;  // [C, H, W]
  std::shared_ptr<ditto::TimeEmbed> time;
  std::shared_ptr<ditto::LabelEmbed> label;
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<GroupNorm> norm;
  std::shared_ptr<Conv2d> in, out;
};

}  // namespace

DITTO_MODEL_PLUGIN(UNet, "unet", "1.0.0", "Apache-2.0", "a UNet with skips, and attention at its lowest resolution")
