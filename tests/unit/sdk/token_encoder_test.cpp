// Encoders with a vocabulary: rows of tokens, what is beyond a text, and where a tokenizer is looked for.
#include <algorithm>
#include <filesystem>

#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/context.h>
#include <ditto/token_encoder.h>

#include "tests/support/files.h"

namespace ditto::token_rows {
namespace {

namespace fs = std::filesystem;
using torch::Tensor;

// A piece a letter, in its place of the alphabet, and 0 behind: of each token its id, and of a text its first one's.
struct Letters final : TokenEncoder {
  Letters(const TextTokens& options, const Needs& needs) : TokenEncoder(options, needs, {2, 1}, "letters 1") {
    if (!needs.opens_files) return;
    use({[places = static_cast<size_t>(options.tokens)](const std::string& text, const std::string& where) {
           if (text == "?") throw Error(ErrorKind::data, where, "is no text", "spell it");
           TokenRow row;
           for (size_t i = 0; i < std::min(text.size(), places - 1); ++i) row.ids.push_back(text[i] - 'a' + 2);
           row.ids.push_back(1);
           row.length = static_cast<int64_t>(row.ids.size());
           row.ids.resize(places);
           return row;
         },
         "abc"});
  }
  Embedded embed(const TextRows& text, Context& ctx) const override {
    const auto ids = text.ids_BS.to(ctx.options()) + 7;
    return {torch::stack({ids, ids}, -1), ids.slice(1, 0, 1)};
  }
  std::string folder_of(const Needs& needs) const { return tokenizer_folder(needs); }
};

const TensorSpecs kCaption{{"caption", torch::kByte, {-1}, "UTF-8"}};

TextTokens of(int64_t tokens) {
  TextTokens options;
  options.tokens = tokens;
  return options;
}

Batch two_texts(const char* second) {
  Batch batch;
  batch.ids = {10, 11}, batch.weights = {1, 1};
  auto texts = torch::zeros({2, 5}, torch::kByte);
  for (int64_t i = 0; i < 5; ++i) texts[0][i] = 'a' + i;
  for (int64_t i = 0; second[i] != 0; ++i) texts[1][i] = static_cast<int64_t>(second[i]);
  batch["caption"] = texts;
  return batch;
}

template <class Call>
std::string refusal_by(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE(
    "a text is a row of so many places, with its mask, its length, and zeros beyond it where they are asked for") {
  Context ctx(std::make_shared<OpTable>(), Random(1));
  auto options = of(4);
  for (const bool zeros : {false, true}) {
    options.zero_padding = zeros;
    const Letters encoder(options, {.inputs = kCaption});
    const auto out = encoder.precompute(two_texts("c"), ctx);
    const double beyond = zeros ? 0 : 7;
    CHECK(torch::equal(out.at("text").select(2, 1),
                       torch::tensor({{9.0, 10.0, 11.0, 8.0}, {11.0, 8.0, beyond, beyond}}).to(torch::kFloat)));
    CHECK(torch::equal(out.at("text_mask"), torch::tensor({{true, true, true, true}, {true, true, false, false}})));
    CHECK(out.lengths.at("text") == std::vector<int64_t>{4, 2});
    CHECK(torch::equal(out.at("text_pooled").flatten(), torch::tensor({9.0f, 11.0f})));
    CHECK(encoder.tokens("b")->ids == std::vector<int64_t>{3, 1, 0, 0});
    CHECK(says(encoder.fingerprint(), "letters 1, tokens 4"));
    CHECK(says(encoder.fingerprint(), "tokenizer abc"));
    CHECK(says(encoder.fingerprint(), "zeros beyond") == zeros);
  }
  const Letters encoder(options, {.inputs = kCaption});
  CHECK(says(refusal_by([&] { encoder.precompute(two_texts("?"), ctx); }), "caption of sample 11: is no text"));
}

TEST_CASE("where no file may be opened texts are as long as they may be") {
  Context ctx(std::make_shared<OpTable>(), Random(1));
  ctx.device = torch::kMeta;
  const Letters encoder(of(4), {.inputs = kCaption, .folder = {}, .opens_files = false});
  const auto out = encoder.precompute(two_texts("c"), ctx);
  CHECK(out.at("text").is_meta());
  CHECK(out.at("text").sizes() == at::IntArrayRef({2, 4, 2}));
  CHECK(out.lengths.at("text") == std::vector<int64_t>{4, 4});
  CHECK_FALSE(encoder.tokens("b").has_value());
}

TEST_CASE(
    "a tokenizer lies where the recipe says, with the weights, in their folder, or beside them as pipelines have it") {
  const test::TemporaryFolder work;
  const auto put = [&](const std::string& name) {
    fs::create_directories(work.path() / name);
    test::write_text(work / (name + "/vocab.txt"), "[PAD]\n");
    return (work.path() / name).string();
  };
  const auto found = [&](const std::string& weights, TextTokens options = {}) {
    const Encoder::Needs needs{.inputs = kCaption, .folder = weights};
    return Letters(options, needs).folder_of(needs);
  };
  const auto weights = (work.path() / "pipe/text_encoder_2").string();
  fs::create_directories(weights);
  CHECK(
      says(refusal_by([&] { found(weights); }), "tokenizer: is not said, and none lies by the weights in " + weights));
  CHECK(says(refusal_by([&] { found(""); }), "there are no weights beside which one could lie"));
  put("pipe/tokenizer");
  CHECK(says(refusal_by([&] { found(weights); }), "none lies by the weights"));  // the first encoder's
  const auto beside = put("pipe/tokenizer_2");
  CHECK(found(weights) == beside);
  CHECK(found(weights + "/") == beside);
  const auto in = put("pipe/text_encoder_2/tokenizer");
  CHECK(found(weights) == in);
  put("pipe/text_encoder_2");
  CHECK(found(weights) == weights);
  auto said = of(4);
  said.tokenizer = "elsewhere";
  CHECK(found(weights, said) == "elsewhere");
}

}  // namespace
}  // namespace ditto::token_rows
