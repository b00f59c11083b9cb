#include <ditto/token_encoder.h>

#include <array>
#include <filesystem>
#include <utility>

#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/math/sizes.h>

namespace ditto {

using torch::Tensor;
namespace fs = std::filesystem;

namespace {

constexpr std::array<const char*, 4> kVocabularies{"spiece.model", "vocab.json", "vocab.txt", "tokenizer.json"};
constexpr const char *kTokenizer = "tokenizer", *kWeightsOfPipeline = "text_encoder";

bool has_vocabulary(const fs::path& folder) {
  std::error_code ignored;
  for (const char* name : kVocabularies)
    if (fs::exists(folder / name, ignored)) return true;
  return false;
}

}  // namespace

void TextTokens::read(OptionReader& option) {
  TextNames::read(option);
  option("tokens", tokens, "places of a text: a longer one loses its end, a shorter one is padded")
      .between(2, most::kSide);
  option("tokenizer", tokenizer, "folder of the tokenizer's files; \"\": as they lie by the weights").place();
  option("pad", pad, "the word that fills a text's places; \"\": the tokenizer's own");
  option("clean", clean,
         "what is made of a text first: \"whitespace\", runs of it are one space; \"clip\", that, in normal form C and "
         "lower case")
      .one_of({"none", "whitespace", "clip"});
  option("zero_padding", zero_padding, "embeddings beyond the text are zeros");
}

TokenEncoder::TokenEncoder(const TextTokens& options, const Needs& needs, Widths widths, std::string numbers)
    : options_(options), taken_(options.taken(needs.inputs)), widths_(widths), numbers_(std::move(numbers)) {}
TokenEncoder::~TokenEncoder() = default;

std::string TokenEncoder::tokenizer_folder(const Needs& needs) const {
  if (!options_.tokenizer.empty()) return options_.tokenizer;
  fs::path weights = fs::path(needs.folder).lexically_normal();
  if (!weights.has_filename()) weights = weights.parent_path();  // "FOLDER/"
  std::vector<fs::path> places{weights, weights / kTokenizer};
  const auto name = weights.filename().string(), pipeline = std::string(kWeightsOfPipeline);
  if (name.starts_with(pipeline)) places.push_back(weights.parent_path() / (kTokenizer + name.substr(pipeline.size())));
  for (const auto& place : places)
    if (!needs.folder.empty() && has_vocabulary(place)) return place.string();
  throw Error(ErrorKind::config, "tokenizer",
              needs.folder.empty() ? "is not said, and there are no weights beside which one could lie"
                                   : "is not said, and none lies by the weights in " + needs.folder,
              "name the folder of the files of the tokenizer that the encoder was trained with");
}

TensorSpecs TokenEncoder::makes() const { return options_.made(options_.tokens, widths_.text, widths_.pooled); }

Batch TokenEncoder::precompute(Batch batch, Context& ctx) const {
  TextRows text;
  if (tokenizer_.row) {
    const auto texts = options_.texts(batch);
    for (size_t i = 0; i < texts.size(); ++i)
      text.rows.push_back(tokenizer_.row(texts[i], options_.takes + " of sample " + std::to_string(batch.ids[i])));
  } else {  // shapes alone: of texts that fill their places
    const auto places = static_cast<size_t>(options_.tokens);
    text.rows.assign(static_cast<size_t>(batch.at(options_.takes).size(0)),
                     {std::vector<int64_t>(places), options_.tokens});
  }
  std::vector<int64_t> ids;
  for (const auto& row : text.rows) {
    ids.insert(ids.end(), row.ids.begin(), row.ids.end());
    text.lengths.push_back(row.length);
  }
  text.ids_BS = torch::tensor(ids, torch::kLong).view({-1, options_.tokens}).to(ctx.device);
  text.mask_BS = mask_of(text.lengths, options_.tokens, ctx.device);
  auto made = embed(text, ctx);
  if (options_.zero_padding) made.text_BSE = made.text_BSE.masked_fill(text.mask_BS.bitwise_not().unsqueeze(-1), 0);
  options_.put(batch, made.text_BSE, text.lengths, made.pooled_BP);
  return batch;
}

std::optional<TokenRow> TokenEncoder::tokens(const std::string& text) const {
  return tokenizer_.row ? std::optional(tokenizer_.row(text, "text")) : std::nullopt;
}

std::string TokenEncoder::fingerprint() const {
  return numbers_ + ", tokens " + std::to_string(options_.tokens) + ", pad \"" + options_.pad + "\", clean " +
         options_.clean + (options_.zero_padding ? ", zeros beyond" : "") + ", tokenizer " + tokenizer_.fingerprint;
}

}  // namespace ditto
