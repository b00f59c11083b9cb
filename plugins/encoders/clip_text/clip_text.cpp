// CLIP's text encoders: A. Radford et al., "Learning transferable visual models from natural language supervision",
// 2021 (arXiv:2103.00020), and OpenCLIP's. A text is pooled at its end, of what the last block makes, whatever layer
// its tokens are taken of.
//
// Legend: B samples, S places, D width, P width of the pooled text.
#include <ditto/ditto.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/formats/tokenizer.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/text_attention.h>
#include <ditto/token_encoder.h>

#include <algorithm>

namespace {

using ditto::Context;
using ditto::Init;
using ditto::Split;
using ditto::Unit;
using torch::Tensor;
namespace formats = ditto::formats;
namespace most = ditto::most;

constexpr int64_t kLargestId = 2;       // as an end token, in configurations
constexpr int64_t kEndOfClass = 49407;  // where a configuration says none

struct ClipOptions : ditto::TextTokens {
  std::string preset, activation = "quick_gelu";
  int64_t depth = 12, width = 768, heads = 12, hidden = 3072, vocabulary = 49408, positions = 77, projection = 0;
  int64_t layer = -1, end_token = kLargestId;
  bool final_norm = true;
  double eps = 1e-5;

  void read(ditto::OptionReader& option) {
    const std::string large = "clip-l", huge = "sd2", giant = "clip-g";
    TextTokens::read(option);
    option("preset", preset,
           "a published size, clip-l if none: of Stable Diffusion 1, of 2, and the larger one of SDXL and Stable "
           "Diffusion 3; the options below override its parts")
        .one_of({"", large, huge, giant});
    if (preset == huge) depth = 23, width = 1024, heads = 16, hidden = 4096, activation = "gelu";
    if (preset == giant) depth = 32, width = 1280, heads = 20, hidden = 5120, activation = "gelu", projection = 1280;
    option("depth", depth, "number of transformer blocks").between(1, most::kBlocks);
    option("width", width, "of a token's embedding, D").between(1, most::kWidth);
    option("heads", heads, "attention heads; must divide the width").between(1, most::kHeads);
    option("hidden", hidden, "width of the perceptron's inside").between(1, most::kWidth * most::kMlpRatio);
    option("vocabulary", vocabulary, "rows of the table of tokens").between(2, most::kClasses);
    option("positions", positions, "rows of the table of places").between(2, most::kSide);
    option("activation", activation, "of the perceptron; \"quick_gelu\": x sigmoid(1.702 x)")
        .one_of({"quick_gelu", "gelu"});
    option("projection", projection, "the pooled text is mapped to so many numbers; 0: it is not")
        .between(0, most::kWidth);
    option("layer", layer, "tokens are taken behind the last block, -1, or the one before it, -2, …")
        .between(-most::kBlocks, -1);
    option("final_norm", final_norm, "and go through the norm behind the last block");
    option(
        "end_token", end_token,
        "a text is pooled at the first token of this id; 2, as in the configurations of older ones: at its largest id")
        .between(0, most::kClasses);
    option("eps", eps, "of the norms").above(0);
    if (width % heads != 0)
      option.reject("heads", "= " + std::to_string(heads) + " does not divide the width, " + std::to_string(width),
                    "choose one of its divisors");
    if (tokens > positions)
      option.reject("tokens",
                    "= " + std::to_string(tokens) + " are more than the places it knows, " + std::to_string(positions),
                    "choose at most so many");
    if (-layer > depth)
      option.reject("layer",
                    "= " + std::to_string(layer) + " is before the first of " + std::to_string(depth) + " blocks",
                    "choose -1 to -" + std::to_string(depth));
  }
  int64_t pooled() const { return projection > 0 ? projection : width; }
  std::string numbers() const {
    return "clip_text 1, layer " + std::to_string(layer) + (final_norm ? ", normed" : "") + ", " + activation +
           ", heads " + std::to_string(heads) + ", end " + std::to_string(end_token) + ", eps " + ditto::to_text(eps);
  }
};

// x + attention(norm(x)), and x + down(activation(up(norm(x)))): no token sees those behind it.
struct Block : ditto::Layer {
  explicit Block(const ClipOptions& o)
      : quick(o.activation == "quick_gelu"),
        norm(make<ditto::LayerNorm>("norm", o.width, o.eps)),
        attn(make<ditto::TextAttention>(
            "attn", ditto::TextAttention::Shape{o.width, o.heads, o.width / o.heads, /*bias=*/true})),
        mlp_norm(make<ditto::LayerNorm>("mlp_norm", o.width, o.eps)),
        up(linear("up", o.width, o.hidden, Split::columns({o.hidden}))),
        down(linear("down", o.hidden, o.width, Split::rows())) {}
  Tensor forward(const Tensor& x_BSD, Context& ctx) const {
    ditto::TokensSeen seen;
    seen.causal = true;
    const auto x = x_BSD + attn->forward(norm->forward(x_BSD, ctx), seen, ctx);
    const auto inside = up(mlp_norm->forward(x, ctx), ctx);
    return x + down(quick ? ctx.ops.silu(inside * kQuick) / kQuick : ctx.ops.gelu(inside, /*tanh=*/false), ctx);
  }
  static constexpr double kQuick = 1.702;
  bool quick;
  std::shared_ptr<ditto::LayerNorm> norm;
  std::shared_ptr<ditto::TextAttention> attn;
  std::shared_ptr<ditto::LayerNorm> mlp_norm;
  ditto::Linear up, down;
};

// The norm behind the last block, and the pooled text's map.
struct End : ditto::Layer {
  explicit End(const ClipOptions& o) : norm(make<ditto::LayerNorm>("norm", o.width, o.eps)) {
    if (o.projection > 0)
      projection = linear("projection", o.width, o.projection, {}, Init::xavier(o.width, o.projection), ditto::kNoBias);
  }
  Tensor pooled(const Tensor& x_BD, Context& ctx) const {
    const auto normed = norm->forward(x_BD, ctx);
    return projection ? projection(normed, ctx) : normed;
  }
  std::shared_ptr<ditto::LayerNorm> norm;
  ditto::Linear projection;
};

// Names in transformers: of the models that were published, and, where it has no projection, as version 5 saves one.
constexpr const char *kPlain = "CLIPTextModel", *kProjecting = "CLIPTextModelWithProjection";
constexpr const char *kPublished = "transformers", *kBare = "transformers5";
std::string beginning(const std::string& format) { return format == kBare ? "" : "text_model."; }
constexpr const char *kTable = "embeddings.token_embedding.weight", *kPlaces = "embeddings.position_embedding.weight",
                     *kBlocks = "encoder.layers.", *kProjection = "text_projection.weight";

struct ClipText final : ditto::TokenEncoder {
  using Options = ClipOptions;

  ClipText(const Options& o, const Needs& needs)
      : TokenEncoder(o, needs, {o.width, o.pooled()}, o.numbers()), options(o) {
    table = add<ditto::Embedding>(Unit::tokens, "table", o.vocabulary, o.width, Split::columns({o.width}).gathered());
    places = add<ditto::Embedding>(Unit::tokens, "places", o.positions, o.width);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o));
    end = add<End>(Unit::head, "end", o);
    if (!needs.opens_files) return;
    const auto folder = tokenizer_folder(needs);
    std::shared_ptr<const formats::Tokenizer> opened = formats::open_clip_tokenizer(
        folder, {o.tokens, formats::cleaning_of(o.clean), o.pad.empty() ? std::nullopt : std::optional(o.pad)});
    opened->require_table(o.vocabulary, "encoder \"clip_text\"");
    if (o.end_token != kLargestId && o.end_token != opened->end())
      throw ditto::Error(ditto::ErrorKind::config, "end_token",
                         "is " + std::to_string(o.end_token) + ", and texts of the tokenizer in " + folder +
                             " end with " + std::to_string(opened->end()),
                         "name the tokenizer that the encoder was trained with");
    use({[opened](const std::string& text, const std::string& where) { return opened->row(text, where); },
         opened->fingerprint()});
  }

  Embedded embed(const ditto::TextRows& text, Context& ctx) const override {
    auto x_BSD = ctx.in_unit({Unit::tokens}, [&] {
      const auto place_S = torch::arange(options.tokens, text.ids_BS.options());
      return table->forward(text.ids_BS, ctx) + places->forward(place_S, ctx);
    });
    Tensor taken_BSD;
    for (int64_t i = 0; i < options.depth; ++i) {
      x_BSD = ctx.in_unit({Unit::Kind::block, i}, [&] { return blocks[static_cast<size_t>(i)]->forward(x_BSD, ctx); });
      if (i == options.depth + options.layer) taken_BSD = x_BSD;
    }
    const auto end_BD = x_BSD.flatten(0, 1).index_select(0, ends(text).to(ctx.device));
    Embedded made;
    made.pooled_BP = ctx.in_unit({Unit::head}, [&] {
      if (options.final_norm) taken_BSD = end->norm->forward(taken_BSD, ctx);
      return end->pooled(end_BD, ctx);
    });
    made.text_BSE = taken_BSD;
    return made;
  }

  std::vector<std::string> foreign_formats() const override {
    return options.projection > 0 ? std::vector<std::string>{kPublished} : std::vector<std::string>{kPublished, kBare};
  }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    ditto::require_format(format, foreign_formats());
    ditto::ForeignNames n(*this);
    const auto before = beginning(format);
    n.layers("", before,
             std::string("table.table=") + kTable + " places.table=" + kPlaces + " end.norm=final_layer_norm");
    n.blocks(
        options.depth, "blocks.#.", before + kBlocks + "#.",
        "norm=layer_norm1 attn.qkv=self_attn.q_proj+self_attn.k_proj+self_attn.v_proj attn.proj=self_attn.out_proj "
        "mlp_norm=layer_norm2 up=mlp.fc1 down=mlp.fc2");
    n.layers("", "", std::string("end.projection.weight=") + kProjection);
    return n.format;
  }

  static std::vector<std::string> foreign_classes() { return {kPlain, kProjecting}; }
  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    Options o;
    if (file.format.empty()) {  // by our own names: the recipe says all
      o.read(reader);
      return {};
    }
    ditto::require_format(file.format, {kPublished, kBare});
    const auto before = beginning(file.format);
    for (const std::string other : {kPublished, kBare})
      if (!file.has(before + kTable) && file.has(beginning(other) + kTable))
        throw ditto::Error(ditto::ErrorKind::checkpoint, file.file,
                           "has tensor '" + beginning(other) + kTable + "', as weights in the format " + other +
                               " do, and not '" + before + kTable + "'",
                           "set format = \"" + other + "\"");
    o.vocabulary = file.size(before + kTable, 0, most::kClasses);
    o.width = file.size(before + kTable, 1, most::kWidth);
    o.positions = file.size(before + kPlaces, 0, most::kSide);
    o.tokens = std::min(o.tokens, o.positions);
    o.depth = file.count(before + kBlocks, ".mlp.fc1.weight", most::kBlocks);
    o.hidden = file.size(before + kBlocks + "0.mlp.fc1.weight", 0, most::kNumbers);
    o.projection = file.has(kProjection) ? file.size(kProjection, 0, most::kWidth) : 0;
    o.heads = ditto::heads_of(file, "num_attention_heads", o.width);
    const auto act = file.config.find("hidden_act");
    if (act != file.config.end() && act->second == ditto::OptionValue(std::string("gelu"))) o.activation = "gelu";
    o.end_token = file.config.count("eos_token_id") ? file.number("eos_token_id", most::kClasses) : kEndOfClass;
    if (file.config.count("layer_norm_eps")) o.eps = ditto::real_of(file, "layer_norm_eps");
    ditto::read_over(o, reader, file,
                     {"depth", "width", "heads", "hidden", "vocabulary", "positions", "projection", "activation",
                      "end_token", "eps"});
    ditto::expect_config(file, config(o));
    return {};
  }

 private:
  // What a config.json may say, and then as here. Without a projection it says a size of one all the same.
  static ditto::ForeignConfig config(const Options& o) {
    ditto::ForeignConfig made{{"num_hidden_layers", o.depth},   {"hidden_size", o.width},
                              {"num_attention_heads", o.heads}, {"intermediate_size", o.hidden},
                              {"vocab_size", o.vocabulary},     {"max_position_embeddings", o.positions},
                              {"hidden_act", o.activation},     {"layer_norm_eps", ditto::number_of(o.eps)}};
    made["architectures"] = std::vector<std::string>{o.projection > 0 ? kProjecting : kPlain};
    if (o.projection > 0) made["projection_dim"] = o.projection;
    return made;
  }

  // Of each text the place among those of all, int64 [B].
  Tensor ends(const ditto::TextRows& text) const {
    std::vector<int64_t> list;
    for (size_t i = 0; i < text.rows.size(); ++i) {
      const auto& ids = text.rows[i].ids;
      const auto at = options.end_token == kLargestId ? std::max_element(ids.begin(), ids.end())
                                                      : std::find(ids.begin(), ids.end(), options.end_token);
      const int64_t place = at == ids.end() ? 0 : at - ids.begin();  // of rows without a number: any
      list.push_back(static_cast<int64_t>(i) * options.tokens + place);
    }
    return torch::tensor(list, torch::kLong);
  }

  Options options;
  std::shared_ptr<ditto::Embedding> table, places;
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<End> end;
};

}  // namespace

DITTO_PLUGIN(Encoder, ClipText, "clip_text", "1.0.0", "Apache-2.0", "CLIP's text encoders (A. Radford et al., 2021)")
