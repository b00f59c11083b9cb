// BERT: J. Devlin et al., 2019 (arXiv:1810.04805), as encoder of sentences too: N. Reimers and I. Gurevych,
// "Sentence-BERT", 2019 (arXiv:1908.10084); MiniLM: W. Wang et al., 2020 (arXiv:2002.10957).
//
// Legend: B samples, S places, D width.
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

struct BertOptions : ditto::TextTokens {
  std::string pooling = "mean";
  int64_t depth = 6, width = 384, heads = 12, hidden = 1536, vocabulary = 30522, positions = 512, types = 2;
  bool pooler = true;
  double eps = 1e-12;

  BertOptions() { tokens = 128; }

  void read(ditto::OptionReader& option) {
    TextTokens::read(option);
    option("depth", depth, "number of transformer blocks; the sizes are MiniLM's").between(1, most::kBlocks);
    option("width", width, "of a token's embedding, D").between(1, most::kWidth);
    option("heads", heads, "attention heads; must divide the width").between(1, most::kHeads);
    option("hidden", hidden, "width of the perceptron's inside").between(1, most::kWidth * most::kMlpRatio);
    option("vocabulary", vocabulary, "rows of the table of tokens").between(2, most::kClasses);
    option("positions", positions, "rows of the table of places").between(2, most::kSide);
    option("types", types, "rows of the table of types, of which a text has the first").between(1, most::kClasses);
    option("pooler", pooler, "behind the last block there is a map of the first token");
    option("pooling", pooling,
           "the pooled text is the mean of its tokens, its first token (\"cls\"), or that through the map (\"pooler\")")
        .one_of({"mean", "cls", "pooler"});
    option("eps", eps, "of the norms").above(0);
    if (width % heads != 0)
      option.reject("heads", "= " + std::to_string(heads) + " does not divide the width, " + std::to_string(width),
                    "choose one of its divisors");
    if (tokens > positions)
      option.reject("tokens",
                    "= " + std::to_string(tokens) + " are more than the places it knows, " + std::to_string(positions),
                    "choose at most so many");
    if (pooling == "pooler" && !pooler)
      option.reject("pooling", "is \"pooler\", and there is no such map", "choose \"mean\" or \"cls\"");
  }
  std::string numbers() const {
    return "bert 1, pooling " + pooling + ", heads " + std::to_string(heads) + ", eps " + ditto::to_text(eps);
  }
};

// A token's row, its type's and its place's, normed.
struct Embeddings : ditto::Layer {
  explicit Embeddings(const BertOptions& o)
      : table(make<ditto::Embedding>("table", o.vocabulary, o.width, Split::columns({o.width}).gathered())),
        places(make<ditto::Embedding>("places", o.positions, o.width)),
        types(make<ditto::Embedding>("types", o.types, o.width)),
        norm(make<ditto::LayerNorm>("norm", o.width, o.eps)) {}
  Tensor forward(const Tensor& ids_BS, Context& ctx) const {
    const auto place_S = torch::arange(ids_BS.size(1), ids_BS.options());
    const auto first = types->forward(torch::zeros({1}, ids_BS.options()), ctx);
    return norm->forward(table->forward(ids_BS, ctx) + first + places->forward(place_S, ctx), ctx);
  }
  std::shared_ptr<ditto::Embedding> table, places, types;
  std::shared_ptr<ditto::LayerNorm> norm;
};

// norm(x + attention(x)), and norm(x + down(GELU(up(x)))).
struct Block : ditto::Layer {
  explicit Block(const BertOptions& o)
      : attn(make<ditto::TextAttention>(
            "attn", ditto::TextAttention::Shape{o.width, o.heads, o.width / o.heads, /*bias=*/true})),
        norm(make<ditto::LayerNorm>("norm", o.width, o.eps)),
        up(linear("up", o.width, o.hidden, Split::columns({o.hidden}))),
        down(linear("down", o.hidden, o.width, Split::rows())),
        mlp_norm(make<ditto::LayerNorm>("mlp_norm", o.width, o.eps)) {}
  Tensor forward(const Tensor& x_BSD, const Tensor& mask_BS, Context& ctx) const {
    ditto::TokensSeen seen;
    seen.mask_BS = mask_BS;
    const auto x = norm->forward(x_BSD + attn->forward(x_BSD, seen, ctx), ctx);
    return mlp_norm->forward(x + down(ctx.ops.gelu(up(x, ctx), /*tanh=*/false), ctx), ctx);
  }
  std::shared_ptr<ditto::TextAttention> attn;
  std::shared_ptr<ditto::LayerNorm> norm;
  ditto::Linear up, down;
  std::shared_ptr<ditto::LayerNorm> mlp_norm;
};

struct Pooler : ditto::Layer {
  explicit Pooler(int64_t width) : map(linear("map", width, width)) {}
  Tensor forward(const Tensor& first_BD, Context& ctx) const {
    return ctx.ops.run("tanh", {{map(first_BD, ctx)}}).at(0);
  }
  ditto::Linear map;
};

// Names in transformers.
constexpr const char *kTable = "embeddings.word_embeddings.weight", *kPlaces = "embeddings.position_embeddings.weight",
                     *kTypes = "embeddings.token_type_embeddings.weight", *kBlocks = "encoder.layer.",
                     *kInside = ".intermediate.dense.weight", *kPooler = "pooler.dense";

struct Bert final : ditto::TokenEncoder {
  using Options = BertOptions;

  Bert(const Options& o, const Needs& needs) : TokenEncoder(o, needs, {o.width, o.width}, o.numbers()), options(o) {
    embeddings = add<Embeddings>(Unit::tokens, "embeddings", o);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o));
    if (o.pooler) pooler = add<Pooler>(Unit::head, "pooler", o.width);
    if (!needs.opens_files) return;
    const auto folder = tokenizer_folder(needs);
    std::shared_ptr<const formats::Tokenizer> opened = formats::open_bert_tokenizer(
        folder, {o.tokens, formats::cleaning_of(o.clean), o.pad.empty() ? std::nullopt : std::optional(o.pad)});
    opened->require_table(o.vocabulary, "encoder \"bert\"");
    use({[opened](const std::string& text, const std::string& where) { return opened->row(text, where); },
         opened->fingerprint()});
  }

  Embedded embed(const ditto::TextRows& text, Context& ctx) const override {
    auto x_BSD = ctx.in_unit({Unit::tokens}, [&] { return embeddings->forward(text.ids_BS, ctx); });
    for (int64_t i = 0; i < options.depth; ++i)
      x_BSD = ctx.in_unit({Unit::Kind::block, i},
                          [&] { return blocks[static_cast<size_t>(i)]->forward(x_BSD, text.mask_BS, ctx); });
    if (options.pooling == "mean") return {x_BSD, mean(x_BSD, text, ctx)};
    const auto first_BD = x_BSD.select(1, 0).contiguous();
    if (options.pooling == "cls") return {x_BSD, first_BD};
    return {x_BSD, ctx.in_unit({Unit::head}, [&] { return pooler->forward(first_BD, ctx); })};
  }

  std::vector<std::string> foreign_formats() const override { return {"transformers"}; }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    ditto::require_format(format, foreign_formats());
    ditto::ForeignNames n(*this);
    n.layers("embeddings.", "",
             std::string("table.table=") + kTable + " places.table=" + kPlaces + " types.table=" + kTypes +
                 " norm=embeddings.LayerNorm");
    n.blocks(options.depth, "blocks.#.", std::string(kBlocks) + "#.",
             "attn.qkv=attention.self.query+attention.self.key+attention.self.value "
             "attn.proj=attention.output.dense norm=attention.output.LayerNorm up=intermediate.dense "
             "down=output.dense mlp_norm=output.LayerNorm");
    n.layers("", "", std::string("pooler.map=") + kPooler);
    return n.format;
  }

  static std::vector<std::string> foreign_classes() { return {"BertModel"}; }
  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    Options o;
    if (file.format.empty()) {  // by our own names: the recipe says all
      o.read(reader);
      return {};
    }
    ditto::require_format(file.format, {"transformers"});
    o.vocabulary = file.size(kTable, 0, most::kClasses);
    o.width = file.size(kTable, 1, most::kWidth);
    o.positions = file.size(kPlaces, 0, most::kSide);
    o.tokens = std::min(o.tokens, o.positions);
    o.types = file.size(kTypes, 0, most::kClasses);
    o.depth = file.count(kBlocks, kInside, most::kBlocks);
    o.hidden = file.size(std::string(kBlocks) + "0" + kInside, 0, most::kNumbers);
    o.pooler = file.has(std::string(kPooler) + ".weight");
    o.heads = ditto::heads_of(file, "num_attention_heads", o.width);
    if (file.config.count("layer_norm_eps")) o.eps = ditto::real_of(file, "layer_norm_eps");
    ditto::read_over(o, reader, file,
                     {"depth", "width", "heads", "hidden", "vocabulary", "positions", "types", "pooler", "eps"});
    ditto::expect_config(file, {{"num_hidden_layers", o.depth},
                                {"hidden_size", o.width},
                                {"num_attention_heads", o.heads},
                                {"intermediate_size", o.hidden},
                                {"vocab_size", o.vocabulary},
                                {"max_position_embeddings", o.positions},
                                {"type_vocab_size", o.types},
                                {"hidden_act", std::string("gelu")},
                                {"position_embedding_type", std::string("absolute")},
                                {"is_decoder", false},
                                {"model_type", std::string("bert")},
                                {"layer_norm_eps", ditto::number_of(o.eps)}});
    return {};
  }

 private:
  // Of a text's own tokens.
  Tensor mean(const Tensor& x_BSD, const ditto::TextRows& text, Context& ctx) const {
    const auto own_BDS = x_BSD.masked_fill(text.mask_BS.bitwise_not().unsqueeze(-1), 0).transpose(1, 2).contiguous();
    const auto count_B1 = torch::tensor(text.lengths, torch::kLong).to(own_BDS.options()).unsqueeze(1);
    return ctx.ops.row_total(own_BDS).select(-1, 0) / count_B1;
  }

  Options options;
  std::shared_ptr<Embeddings> embeddings;
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<Pooler> pooler;
};

}  // namespace

DITTO_PLUGIN(Encoder, Bert, "bert", "1.0.0", "Apache-2.0", "BERT and MiniLM (J. Devlin et al., 2019)")
