// Nothing is wrong with it: an encoder of captions that is a small transformer over their bytes.
//
// Legend: B samples, S bytes, D width.
#include <numeric>

#include <ditto/ditto.h>
#include <ditto/encoder.h>
#include <ditto/nn/transformer.h>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Unit;
using torch::Tensor;

struct BytesOptions {
  int64_t depth = 2;
  double noise = 0;
  bool careless = false;
  ditto::AttentionOptions attention{12, 2};

  void read(ditto::OptionReader& option) {
    attention.read(option);
    option("depth", depth, "blocks").between(1, 8);
    option("noise", noise, "deviation of what is drawn for each number, by the sample's id").at_least(0.0);
    option("careless", careless, "look a byte up outside of its unit");
  }
};

struct Bytes : ditto::Layer {
  explicit Bytes(int64_t width) : table(parameter("table", {256, width}, ditto::Init::normal(1))) {}
  Tensor forward(const Tensor& caption_BS, Context& ctx) const {
    return table.rows(caption_BS.flatten().to(torch::kLong), ctx).unflatten(0, caption_BS.sizes());
  }
  ditto::Parameter table;
};

struct Block : ditto::Layer {
  explicit Block(const BytesOptions& o)
      : norm(register_module("norm", std::make_shared<ditto::RmsNorm>(o.attention.width))),
        attn(register_module("attn", std::make_shared<ditto::CrossAttention>(o.attention))),
        mlp(register_module("mlp", std::make_shared<ditto::Mlp>(o.attention.width, 4 * o.attention.width))) {}
  // Of the bytes that are there, among themselves.
  Tensor forward(const Tensor& x_BSD, const Tensor& mask_BS, Context& ctx) const {
    ditto::Stream s;
    s.grid = {1, 1, x_BSD.size(1)};
    s.condition.text_BSE = norm->forward(x_BSD, ctx);
    s.condition.text_mask_BS = mask_BS;
    const auto x = x_BSD + attn->forward(s.condition.text_BSE, s, ctx);
    return x + mlp->forward(x, ctx);
  }
  std::shared_ptr<ditto::RmsNorm> norm;
  std::shared_ptr<ditto::CrossAttention> attn;
  std::shared_ptr<ditto::Mlp> mlp;
};

struct BytesText final : ditto::Encoder {
  using Options = BytesOptions;
  BytesText(const Options& o, const Needs&) : options(o) {
    bytes = add<Bytes>(Unit::tokens, "bytes", o.attention.width);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o));
  }

  ditto::TensorSpecs takes() const override { return {{"caption", torch::kByte, {-1}, "UTF-8"}}; }
  ditto::TensorSpecs makes() const override {
    return {{"text", torch::kFloat, {-1, options.attention.width}, "any"}, {"text_mask", torch::kBool, {-1}, ""}};
  }

  Batch encode(Batch batch, Context& ctx) const override {
    const auto caption_BS = batch.at("caption");
    auto mask_BS = caption_BS != 0;
    mask_BS.select(1, 0).fill_(true);  // an empty text is one byte
    const int64_t length = caption_BS.size(1), width = options.attention.width;
    const auto look_up = [&] { return bytes->forward(caption_BS, ctx); };
    auto x_BSD = options.careless ? look_up() : ctx.in_unit({Unit::tokens}, look_up);
    x_BSD = x_BSD + ditto::sincos_positions(length, width).to(ctx.options());
    if (options.noise > 0) {
      const auto drawn = ctx.random.normal(ditto::Purpose::encoding, batch.ids, {length, width}, torch::kDouble);
      x_BSD = x_BSD + (options.noise * drawn).to(ctx.options());
    }
    for (int64_t i = 0; i < options.depth; ++i)
      x_BSD = ctx.in_unit({Unit::Kind::block, i},
                          [&] { return blocks[static_cast<size_t>(i)]->forward(x_BSD, mask_BS, ctx); });
    batch["text"] = x_BSD * mask_BS.unsqueeze(-1);
    batch["text_mask"] = mask_BS;
    batch.tensors.erase("caption");
    return batch;
  }
  std::string fingerprint() const override { return "bytes_text 1"; }

  // Another project's names: keys and values apart.
  ditto::ForeignFormat foreign(const std::string& format) const override {
    if (format != "apart") return Encoder::foreign(format);
    ditto::ForeignFormat apart;
    for (const auto& item : named_parameters()) {
      const auto& name = item.key();
      const auto kv = name.find("kv.");
      if (kv == std::string::npos)
        apart.tensors.push_back({name, {"encoder." + name}, {}});
      else
        apart.tensors.push_back({name,
                                 {"encoder." + name.substr(0, kv) + "k." + name.substr(kv + 3),
                                  "encoder." + name.substr(0, kv) + "v." + name.substr(kv + 3)},
                                 {}});
    }
    return apart;
  }
  std::vector<std::string> foreign_formats() const override { return {"apart"}; }

  Options options;
  std::shared_ptr<Bytes> bytes;
  std::vector<std::shared_ptr<Block>> blocks;
};

}  // namespace

DITTO_PLUGIN(Encoder, BytesText, "bytes_text", "1.0.0", "Apache-2.0", "a transformer over a caption's bytes")
