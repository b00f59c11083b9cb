// The encoders of T5: C. Raffel et al., "Exploring the limits of transfer learning with a unified text-to-text
// transformer", 2020 (arXiv:1910.10683); of its version 1.1, with gated perceptrons (N. Shazeer, 2020,
// arXiv:2002.05202); and of UMT5 (H. W. Chung et al., 2023, arXiv:2304.09151), whose blocks each have positions of
// their own. Scores are not scaled; of a token's place a query sees how far it is, in buckets, by a number for each
// head.
//
// Legend: B samples, S places, D width, N heads, K head width.
#include <ditto/ditto.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/formats/tokenizer.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/text_attention.h>
#include <ditto/token_encoder.h>

#include <algorithm>
#include <cstdlib>

namespace {

using ditto::Context;
using ditto::Init;
using ditto::Split;
using ditto::Unit;
using torch::Tensor;
namespace formats = ditto::formats;
namespace most = ditto::most;

struct T5Options : ditto::TextTokens {
  std::string preset;
  int64_t depth = 24, width = 4096, heads = 64, head_width = 64, hidden = 10240, vocabulary = 32128;
  int64_t buckets = 32, distance = 128;
  bool gated = true, own_positions = false, mask = true;
  double eps = 1e-6;

  T5Options() { tokens = 128; }

  void read(ditto::OptionReader& option) {
    const std::string first = "t5-11b", second = "t5-v1_1-xxl", umt5 = "umt5-xxl";
    TextTokens::read(option);
    option("preset", preset, "a published size, 1.1's XXL if none; the options below override its parts")
        .one_of({"", first, second, umt5});
    if (preset == first) width = 1024, heads = 128, head_width = 128, hidden = 65536, gated = false;
    if (preset == umt5) vocabulary = 256384, own_positions = true;
    option("depth", depth, "number of transformer blocks").between(1, most::kBlocks);
    option("width", width, "of a token's embedding, D").between(1, most::kWidth);
    option("heads", heads, "attention heads N").between(1, most::kHeads);
    option("head_width", head_width, "K of each").between(1, most::kWidth);
    option("hidden", hidden, "width of the perceptron's inside").between(1, most::kWidth * most::kMlpRatio);
    option("vocabulary", vocabulary, "rows of the table of tokens").between(2, most::kClasses);
    option("buckets", buckets, "of distances between tokens, half of them behind").between(4, most::kSide);
    option("distance", distance, "from this one on all are in the last bucket").between(2, most::kSide);
    option("gated", gated, "the perceptron is GELU(gate) * up, as of version 1.1; false: ReLU(up), as of 1.0");
    option("own_positions", own_positions,
           "each block has its own numbers of distances, as UMT5's; false: one has all");
    option("mask", mask,
           "tokens see the text alone; false: padding too, as Stable Diffusion 3 and Flux were trained with");
    option("eps", eps, "of the norms").above(0);
    if (buckets % 4 != 0 || distance <= buckets / 4)
      option.reject("buckets",
                    "= " + std::to_string(buckets) +
                        " is not a multiple of 4, or a fourth of it not below "
                        "the distance",
                    "a half is for tokens behind, and of each half the first half for one distance each");
  }
  std::string numbers() const {
    return "t5 1, buckets " + std::to_string(buckets) + " to " + std::to_string(distance) + ", eps " +
           ditto::to_text(eps) + (mask ? "" : ", padding seen");
  }
};

// The bucket of a key that is `distance` behind its query: n places are one of max_exact buckets each, and from there
// on a bucket's first place is max_exact (distance / max_exact)^(i / rest).
int64_t bucket_of(int64_t behind, const T5Options& o) {
  const int64_t half = o.buckets / 2, exact = half / 2, rest = half - exact, n = std::abs(behind);
  const int64_t side = behind > 0 ? half : 0;
  if (n < exact) return side + n;
  const auto power = [](int64_t base, int64_t exponent) {
    double product = 1;
    while (exponent-- > 0) product *= static_cast<double>(base);
    return product;
  };
  int64_t i = 0;
  while (i + 1 < rest && power(n, rest) >= power(o.distance, i + 1) * power(exact, rest - i - 1)) ++i;
  return side + exact + i;
}

// Of each query's each key, int64 [S * S].
Tensor buckets_of(int64_t places, const T5Options& o, torch::Device device) {
  std::vector<int64_t> of_distance;
  for (int64_t behind = 1 - places; behind < places; ++behind) of_distance.push_back(bucket_of(behind, o));
  const auto place_S = torch::arange(places, torch::kLong);
  const auto behind_SS = place_S.unsqueeze(0) - place_S.unsqueeze(1) + (places - 1);
  return torch::tensor(of_distance, torch::kLong).index_select(0, behind_SS.flatten()).to(device);
}

// What is added to the scores, a number for each bucket and head.
struct Positions : ditto::Embedding {
  explicit Positions(const T5Options& o) : Embedding(o.buckets, o.heads, Split::columns({o.heads}), Init::normal(1)) {}
  Tensor bias(const Tensor& buckets, int64_t places, Context& ctx) {  // [1, N, S, S]
    return forward(buckets, ctx).unflatten(0, {places, places}).permute({2, 0, 1}).unsqueeze(0);
  }
};

struct Perceptron : ditto::Layer {
  explicit Perceptron(const T5Options& o) : gated(o.gated) {
    const int64_t D = o.width, H = o.hidden;
    if (gated)
      up = linear("gate_up", D, 2 * H, Split::columns({H, H}), Init::xavier(D, H), ditto::kNoBias);
    else
      up = linear("up", D, H, Split::columns({H}), Init::xavier(D, H), ditto::kNoBias);
    down = linear("down", H, D, Split::rows(), Init::xavier(H, D), ditto::kNoBias);
  }
  Tensor forward(const Tensor& x, Context& ctx) const {
    if (!gated) return down(torch::relu(up(x, ctx)), ctx);
    const auto both = up(x, ctx).chunk(2, -1);
    return down(ctx.ops.gelu(both[0], /*tanh=*/true) * both[1], ctx);
  }
  bool gated;
  ditto::Linear up, down;
};

struct Block : ditto::Layer {
  explicit Block(const T5Options& o)
      : norm(make<ditto::RmsNorm>("norm", o.width, o.eps)),
        attn(make<ditto::TextAttention>("attn",
                                        ditto::TextAttention::Shape{o.width, o.heads, o.head_width, /*bias=*/false})),
        mlp_norm(make<ditto::RmsNorm>("mlp_norm", o.width, o.eps)),
        mlp(make<Perceptron>("mlp", o)) {
    if (o.own_positions) positions = make<Positions>("positions", o);
  }
  Tensor forward(const Tensor& x_BSD, ditto::TokensSeen seen, const Tensor& buckets, Context& ctx) const {
    if (positions) seen.bias = positions->bias(buckets, x_BSD.size(1), ctx);
    const auto x = x_BSD + attn->forward(norm->forward(x_BSD, ctx), seen, ctx);
    return x + mlp->forward(mlp_norm->forward(x, ctx), ctx);
  }
  std::shared_ptr<ditto::RmsNorm> norm;
  std::shared_ptr<ditto::TextAttention> attn;
  std::shared_ptr<ditto::RmsNorm> mlp_norm;
  std::shared_ptr<Perceptron> mlp;
  std::shared_ptr<Positions> positions;
};

// Names in transformers.
constexpr const char *kTable = "shared.weight", *kBlocks = "encoder.block.", *kScores = ".layer.0.SelfAttention.",
                     *kInside = ".layer.1.DenseReluDense.", *kDistances = "relative_attention_bias.weight";

struct T5 final : ditto::TokenEncoder {
  using Options = T5Options;

  T5(const Options& o, const Needs& needs) : TokenEncoder(o, needs, {o.width}, o.numbers()), options(o) {
    if (!o.own_positions) positions = add<Positions>(Unit::condition, "positions", o);
    table = add<ditto::Embedding>(Unit::tokens, "table", o.vocabulary, o.width, Split::columns({o.width}).gathered(),
                                  Init::normal(1));
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o));
    norm = add<ditto::RmsNorm>(Unit::head, "norm", o.width, o.eps);
    if (!needs.opens_files) return;
    const auto folder = tokenizer_folder(needs);
    std::shared_ptr<const formats::Tokenizer> opened = formats::open_sentencepiece_tokenizer(
        folder, {o.tokens, formats::cleaning_of(o.clean), o.pad.empty() ? std::nullopt : std::optional(o.pad)});
    opened->require_table(o.vocabulary, "encoder \"t5\"");
    use({[opened](const std::string& text, const std::string& where) { return opened->row(text, where); },
         opened->fingerprint()});
  }

  Embedded embed(const ditto::TextRows& text, Context& ctx) const override {
    const int64_t places = options.tokens;
    const auto buckets = buckets_of(places, options, ctx.device);
    ditto::TokensSeen seen;
    seen.scale = 1;
    if (options.mask) seen.mask_BS = text.mask_BS;
    if (positions) seen.bias = ctx.in_unit({Unit::condition}, [&] { return positions->bias(buckets, places, ctx); });
    auto x_BSD = ctx.in_unit({Unit::tokens}, [&] { return table->forward(text.ids_BS, ctx); });
    for (int64_t i = 0; i < options.depth; ++i)
      x_BSD = ctx.in_unit({Unit::Kind::block, i},
                          [&] { return blocks[static_cast<size_t>(i)]->forward(x_BSD, seen, buckets, ctx); });
    return {ctx.in_unit({Unit::head}, [&] { return norm->forward(x_BSD, ctx); })};
  }

  std::vector<std::string> foreign_formats() const override { return {"transformers"}; }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    ditto::require_format(format, foreign_formats());
    ditto::ForeignNames n(*this);
    n.layers("", "",
             std::string("table.table=") + kTable + " norm=encoder.final_layer_norm positions.table=" + kBlocks + "0" +
                 kScores + kDistances);
    n.blocks(options.depth, "blocks.#.", std::string(kBlocks) + "#.",
             "norm=layer.0.layer_norm attn.qkv=layer.0.SelfAttention.q+layer.0.SelfAttention.k+layer.0.SelfAttention.v "
             "attn.proj=layer.0.SelfAttention.o "
             "positions.table=layer.0.SelfAttention.relative_attention_bias.weight mlp_norm=layer.1.layer_norm "
             "mlp.gate_up=layer.1.DenseReluDense.wi_0+layer.1.DenseReluDense.wi_1 mlp.up=layer.1.DenseReluDense.wi "
             "mlp.down=layer.1.DenseReluDense.wo");
    return n.format;
  }

  static std::vector<std::string> foreign_classes() {
    return {"T5EncoderModel", "T5ForConditionalGeneration", "T5WithLMHeadModel", "UMT5EncoderModel",
            "UMT5ForConditionalGeneration"};
  }
  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    Options o;
    if (file.format.empty()) {  // by our own names: the recipe says all
      o.read(reader);
      return {};
    }
    ditto::require_format(file.format, {"transformers"});
    const auto scores = [](int64_t block) { return kBlocks + std::to_string(block) + kScores; };
    const std::string inside = std::string(kBlocks) + "0" + kInside;
    o.vocabulary = file.size(kTable, 0, most::kClasses);
    o.width = file.size(kTable, 1, most::kWidth);
    o.depth = file.count(kBlocks, std::string(kScores) + "q.weight", most::kBlocks);
    o.buckets = file.size(scores(0) + kDistances, 0, most::kSide);
    o.heads = file.size(scores(0) + kDistances, 1, most::kHeads);
    o.head_width = std::max<int64_t>(file.size(scores(0) + "q.weight", 0, most::kNumbers) / o.heads, 1);
    o.own_positions = file.has(scores(1) + kDistances);
    o.gated = file.has(inside + "wi_0.weight");
    o.hidden = file.size(inside + (o.gated ? "wi_0.weight" : "wi.weight"), 0, most::kNumbers);
    if (file.config.count("relative_attention_max_distance"))
      o.distance = file.number("relative_attention_max_distance", most::kSide);
    if (file.config.count("layer_norm_epsilon")) o.eps = ditto::real_of(file, "layer_norm_epsilon");
    ditto::read_over(o, reader, file,
                     {"depth", "width", "heads", "head_width", "hidden", "vocabulary", "buckets", "distance", "gated",
                      "own_positions", "eps"});
    ditto::expect_config(file, config(o));
    if (o.depth > 1) require_kind(file, o.own_positions);
    return {};
  }

 private:
  // Where there is one block alone, the two are one function.
  static void require_kind(const ditto::ForeignShapes& file, bool own_positions) {
    file.expect("model_type", std::string(own_positions ? "umt5" : "t5"));
    const auto found = file.config.find("architectures");
    if (found == file.config.end()) return;
    const auto* said = std::get_if<std::vector<std::string>>(&found->second);
    if (!said || said->empty() || said->front().starts_with("UMT5") == own_positions) return;
    throw ditto::Error(ditto::ErrorKind::checkpoint, file.config_file,
                       "says that the weights are of " + said->front() + ", and in " + file.file + " " +
                           (own_positions ? "each block has numbers of distances, as UMT5's"
                                          : "the first block alone has numbers of distances, as T5's"),
                       "take the config.json of this model");
  }

  // What a config.json may say, and then as here.
  static ditto::ForeignConfig config(const Options& o) {
    return {{"num_layers", o.depth},
            {"d_model", o.width},
            {"num_heads", o.heads},
            {"d_kv", o.head_width},
            {"d_ff", o.hidden},
            {"vocab_size", o.vocabulary},
            {"relative_attention_num_buckets", o.buckets},
            {"relative_attention_max_distance", o.distance},
            {"feed_forward_proj", std::string(o.gated ? "gated-gelu" : "relu")},
            {"dense_act_fn", std::string(o.gated ? "gelu_new" : "relu")},
            {"is_gated_act", o.gated},
            {"is_decoder", false},
            {"layer_norm_epsilon", ditto::number_of(o.eps)}};
  }

  Options options;
  std::shared_ptr<Positions> positions;
  std::shared_ptr<ditto::Embedding> table;
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<ditto::RmsNorm> norm;
};

}  // namespace

DITTO_PLUGIN(Encoder, T5, "t5", "1.0.0", "Apache-2.0", "T5, its version 1.1 and UMT5 (C. Raffel et al., 2020)")
