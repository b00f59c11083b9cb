// Nothing is wrong with it: an encoder of captions that is a small transformer over their bytes.
//
// Legend: B samples, S bytes, D width.
#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>

#include <ditto/ditto.h>
#include <ditto/encoder.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/nn/transformer.h>
#include <ditto/text_encoder.h>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Unit;
using torch::Tensor;

struct BytesOptions {
  int64_t depth = 2;
  double noise = 0;
  std::vector<std::string> noise_in{"train", "evaluate", "sample"};
  bool careless = false, pooled = false;
  int64_t throws_at = -1, stops_at = -1;
  ditto::AttentionOptions attention{12, 2};
  ditto::TextNames names;

  void read(ditto::OptionReader& option) {
    attention.read(option);
    names.read(option);
    option("depth", depth, "blocks").between(1, 8);
    option("noise", noise, "deviation of what is drawn for each number, by the sample's id").at_least(0.0);
    option("noise_in", noise_in, "the phases in which it is drawn");
    option("careless", careless, "look a byte up outside of its unit");
    option("throws_at", throws_at, "the place in the run's order of a sample that it throws at; -1: none");
    option("stops_at", stops_at, "the place of one that it never comes back from; -1: none");
    option("pooled", pooled, "its first byte's place stands for all of the text too");
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
  BytesText(const Options& o, const Needs& needs) : options(o), caption(o.names.taken(needs.inputs)) {
    bytes = add<Bytes>(Unit::tokens, "bytes", o.attention.width);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o));
  }

  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    Options o;
    std::vector<std::string> theirs;
    if (!file.config_file.empty()) {
      o.depth = file.number("num_layers", 8);
      theirs = {"depth"};
    }
    ditto::read_over(o, reader, file, theirs);
    return {};
  }
  static std::vector<std::string> foreign_classes() { return {"BytesModel", "BytesModelWithHead"}; }

  ditto::TensorSpecs takes() const override { return {caption}; }
  ditto::TensorSpecs caches() const override {
    auto specs = makes();
    if (options.noise > 0) specs.front().name += "_mean";
    return specs;
  }
  ditto::TensorSpecs makes() const override {
    return options.names.made(-1, options.attention.width, options.pooled ? options.attention.width : 0);
  }

  Batch precompute(Batch batch, Context& ctx) const override {
    for (const int64_t id : batch.ids) {
      if (id == options.throws_at) throw std::runtime_error("sample " + std::to_string(id) + " is too much");
      if (id == options.stops_at) std::this_thread::sleep_for(std::chrono::hours(1));
    }
    std::vector<int64_t> lengths;  // an empty text is one byte
    for (const auto& text : options.names.texts(batch))
      lengths.push_back(std::max(static_cast<int64_t>(text.size()), int64_t{1}));
    const auto caption_BS = batch.at(caption.name).to(ctx.device);
    const int64_t length = caption_BS.size(1), width = options.attention.width;
    const auto mask_BS = ditto::mask_of(lengths, length, ctx.device);
    const auto look_up = [&] { return bytes->forward(caption_BS, ctx); };
    auto x_BSD = options.careless ? look_up() : ctx.in_unit({Unit::tokens}, look_up);
    x_BSD = x_BSD + ditto::sincos_positions(length, width).to(ctx.options());
    for (int64_t i = 0; i < options.depth; ++i)
      x_BSD = ctx.in_unit({Unit::Kind::block, i},
                          [&] { return blocks[static_cast<size_t>(i)]->forward(x_BSD, mask_BS, ctx); });
    options.names.put(batch, x_BSD * mask_BS.unsqueeze(-1), std::move(lengths),
                      options.pooled ? x_BSD.select(1, 0) : Tensor());
    if (options.noise > 0) rename(batch, options.names.name, caches().front().name);
    return batch;
  }
  Batch encode(Batch batch, Context& ctx) const override {
    if (options.noise == 0) return batch;
    const auto& name = options.names.name;
    rename(batch, caches().front().name, name);
    constexpr const char* kPhases[] = {"train", "evaluate", "sample"};
    if (std::count(options.noise_in.begin(), options.noise_in.end(), kPhases[static_cast<size_t>(ctx.phase)]) == 0)
      return batch;
    const auto mean_BSD = batch.at(name), mask_BS1 = batch.at(name + "_mask").unsqueeze(-1);
    const auto drawn =
        ctx.random.normal(ditto::Purpose::encoding, batch.ids, mean_BSD.sizes().slice(1), torch::kDouble);
    batch.tensors[name] = mean_BSD + options.noise * drawn.to(mean_BSD) * mask_BS1;
    return batch;
  }
  static void rename(Batch& batch, const std::string& from, const std::string& to) {
    batch.tensors[to] = batch.tensors.extract(from).mapped();
    batch.lengths[to] = batch.lengths.extract(from).mapped();
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
  ditto::TensorSpec caption;
  std::shared_ptr<Bytes> bytes;
  std::vector<std::shared_ptr<Block>> blocks;
};

}  // namespace

DITTO_PLUGIN(Encoder, BytesText, "bytes_text", "1.0.0", "Apache-2.0", "a transformer over a caption's bytes")
