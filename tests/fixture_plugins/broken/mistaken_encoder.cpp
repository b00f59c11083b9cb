// An encoder of captions, a transformer over their bytes, with one of the mistakes that authors make, as its option
// says; with "none" it has none.
//
// Legend: B samples, S bytes, D width.
#include <ditto/ditto.h>
#include <ditto/encoder.h>
#include <ditto/text_encoder.h>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Split;
using ditto::Unit;
using torch::Tensor;

struct MistakenOptions {
  std::string mistake = "none";
  int64_t depth = 2, width = 32, heads = 4;
  void read(ditto::OptionReader& option) {
    option("mistake", mistake, "what is wrong");
    option("depth", depth, "blocks").at_least(1);
    option("width", width, "token width D").at_least(4);
    option("heads", heads, "attention heads N").at_least(1);
  }
};

Split split_of_qkv(const MistakenOptions& o) {
  const int64_t N = o.heads, K = o.width / o.heads;
  if (o.mistake == "qkv without Split") return Split::none();
  if (o.mistake == "qkv by columns") return Split::columns({3 * o.width});
  if (o.mistake == "qkv by rows") return Split::rows();
  if (o.mistake == "qkv as one run of heads") return Split::heads({3 * N}, K);
  if (o.mistake == "qkv with other counts") return Split::heads({N, 2 * N}, K);
  return Split::heads({N, N, N}, K);
}

struct Bytes : ditto::Layer {
  explicit Bytes(int64_t width) : table(parameter("table", {256, width}, ditto::Init::normal(1))) {}
  Tensor forward(const Tensor& caption_BS, Context& ctx) const {
    return table.rows(caption_BS.flatten().to(torch::kLong), ctx).unflatten(0, caption_BS.sizes());
  }
  ditto::Parameter table;
};

struct Block : ditto::Layer {
  explicit Block(const MistakenOptions& o)
      : options(o),
        qkv(linear("qkv", o.width, 3 * o.width, split_of_qkv(o))),
        proj(linear("proj", o.width, o.width, is("proj without Split") ? Split::none() : Split::rows())),
        gated(linear("gated", o.width, 4 * o.width,
                     is("up without Split")   ? Split::none()
                     : is("up by rows")       ? Split::rows()
                     : is("gate in one part") ? Split::columns({4 * o.width})
                                              : Split::columns({2 * o.width, 2 * o.width}))),
        down(linear("down", 2 * o.width, o.width, is("down without Split") ? Split::none() : Split::rows())) {}
  bool is(const char* name) const { return options.mistake == name; }

  Tensor forward(Tensor x_BSD, const Tensor& mask_BS, Context& ctx) const {
    ditto::Stream s;
    s.grid = {1, 1, x_BSD.size(1)};
    s.x_BTD = x_BSD;
    if (is("sees the padding")) x_BSD = x_BSD + x_BSD.mean(1, true);
    if (is("sees its neighbours")) x_BSD = x_BSD + x_BSD.mean(0, true);
    if (is("noise by generator")) x_BSD = x_BSD + 0.1 * torch::randn_like(x_BSD);
    const int64_t K = options.width / options.heads;
    const auto all = qkv(x_BSD, ctx);
    const auto part =
        (is("hard-coded heads") ? all.unflatten(-1, {3, options.heads, -1}) : all.unflatten(-1, {3, -1, K})).unbind(-3);
    const auto seen = is("attends to the padding") ? Tensor() : mask_BS;
    const auto y = ctx.attention({.parts = {{part[0], part[1], part[2], s, seen}}});
    const auto x = x_BSD + proj(y[0].flatten(-2), ctx);
    const auto gate = gated(x, ctx).chunk(2, -1);
    return x + down(torch::silu(gate[0]) * gate[1], ctx);
  }

  MistakenOptions options;
  ditto::Linear qkv, proj, gated, down;
};

struct Mistaken final : ditto::Encoder {
  using Options = MistakenOptions;
  Mistaken(const Options& o, const Needs&) : options(o) {
    bytes = add<Bytes>(Unit::tokens, "bytes", o.width);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o));
  }
  ditto::TensorSpecs takes() const override { return {{"caption", torch::kByte, {-1}, "UTF-8"}}; }
  ditto::TensorSpecs makes() const override {
    return {{"text", torch::kFloat, {-1, options.width}, "any"}, {"text_mask", torch::kBool, {-1}, ""}};
  }

  Batch precompute(Batch batch, Context& ctx) const override {
    std::vector<int64_t> lengths;
    for (const auto& text : ditto::TextNames().texts(batch)) lengths.push_back(static_cast<int64_t>(text.size()));
    const auto caption_BS = batch.at("caption");
    const auto mask_BS = caption_BS != 0;
    const auto look_up = [&] { return bytes->forward(caption_BS, ctx); };
    auto x_BSD = options.mistake == "outside of its unit" ? look_up() : ctx.in_unit({Unit::tokens}, look_up);
    x_BSD = x_BSD + ditto::sincos_positions(caption_BS.size(1), options.width).to(ctx.options());
    for (int64_t i = 0; i < options.depth; ++i)
      x_BSD = ctx.in_unit({Unit::Kind::block, i},
                          [&] { return blocks[static_cast<size_t>(i)]->forward(x_BSD, mask_BS, ctx); });
    if (is("draws what is kept"))
      x_BSD = x_BSD + ctx.random.normal(ditto::Purpose::encoding, batch.ids, {1, options.width}).to(x_BSD);
    batch["text"] = x_BSD * mask_BS.unsqueeze(-1);
    batch["text_mask"] = is("shows the padding") ? torch::ones_like(mask_BS) : mask_BS;
    if (is("other lengths")) lengths.assign(lengths.size(), caption_BS.size(1));
    if (!is("no lengths")) batch.lengths["text"] = std::move(lengths);
    return batch;
  }
  Batch encode(Batch batch, Context&) const override {
    if (is("reads the text again")) batch["text"] = batch.at("text") * (batch.at("caption") != 0).unsqueeze(-1);
    return batch;
  }
  bool is(const char* mistake) const { return options.mistake == mistake; }
  std::string fingerprint() const override { return options.mistake == "no fingerprint" ? "" : "mistaken_encoder 1"; }

  Options options;
  std::shared_ptr<Bytes> bytes;
  std::vector<std::shared_ptr<Block>> blocks;
};

}  // namespace

DITTO_PLUGIN(Encoder, Mistaken, "mistaken_encoder", "1.0.0", "Apache-2.0", "has one of the mistakes that authors make")
