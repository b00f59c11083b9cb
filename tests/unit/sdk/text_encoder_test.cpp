// What encoders of texts share: which text they take, the names and masks of what they make, and where texts lie.
#include <ditto/text_encoder.h>

#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/error.h>

#include "support/files.h"

using ditto::Batch;
using ditto::ErrorKind;
using ditto::TensorSpec;
using ditto::TensorSpecs;
using ditto::TextNames;
using ditto::test::contains;
using ditto::test::error_of;

namespace {

// Two samples, "ab" and the empty text.
Batch captions() {
  Batch batch;
  batch.ids = {0, 1};
  batch.weights = {1, 1};
  batch["caption"] = torch::tensor({{97, 98, 0}, {0, 0, 0}}, at::kByte);
  return batch;
}

}  // namespace

TEST_CASE("texts are read up to their first NUL, in host memory, where a batch that moves leaves them") {
  auto batch = captions();
  batch["image"] = torch::zeros({2, 1, 4, 4});
  CHECK(TextNames().texts(batch) == std::vector<std::string>{"ab", ""});
  const auto moved = batch.to(torch::kMeta);
  CHECK(moved.at("image").is_meta());
  CHECK(moved.at("caption").is_cpu());
  CHECK(ditto::texts_of(moved.at("caption")) == std::vector<std::string>{"ab", ""});
  const auto refusal = [](const torch::Tensor& text) {
    return error_of(ErrorKind::plugin, [&] { ditto::texts_of(text); });
  };
  CHECK(contains(refusal(torch::zeros({2, 3}, at::kLong)), "a text is Long of 2 dims on cpu, expected Byte [B, S]"));
  CHECK(contains(refusal(torch::zeros({2, 3, 1}, at::kByte)), "Byte of 3 dims"));
  CHECK(contains(refusal(torch::empty({2, 3}, torch::TensorOptions(at::kByte).device(torch::kMeta))), "on meta"));
}

TEST_CASE("what is made of a text has its name, a mask of its lengths, and the lengths") {
  TextNames names;
  names.name = "words";
  const auto specs = names.made(-1, 4, 3);
  REQUIRE(specs.size() == 3);
  CHECK(ditto::to_text(specs[0]) == "\"words\" Float [any, 4]");
  CHECK(ditto::to_text(specs[1]) == "\"words_mask\" Bool [any]");
  CHECK(ditto::to_text(specs[2]) == "\"words_pooled\" Float [3]");
  CHECK(names.made(77, 4).size() == 2);
  auto batch = captions();
  names.put(batch, torch::ones({2, 3, 4}), {2, 1}, torch::ones({2, 3}));
  CHECK(batch.at("words_mask").equal(torch::tensor({{1, 1, 0}, {1, 0, 0}}, at::kBool)));
  CHECK(batch.lengths.at("words") == std::vector<int64_t>{2, 1});
  CHECK(batch.has("words_pooled"));
  CHECK(batch.has("caption"));
}

TEST_CASE("the text that is taken is one of the data's") {
  const TensorSpecs there{{"image", at::kFloat, {1, 8, 8}}, {"title", at::kByte, {-1}}, {"bytes", at::kByte, {4}}};
  TextNames names;
  names.takes = "title";
  CHECK(names.taken(there).name == "title");
  for (const std::string other : {"caption", "image", "bytes"}) {
    names.takes = other;
    const auto said = error_of(ErrorKind::config, [&] { names.taken(there); });
    CHECK(contains(said, "takes = \"" + other + "\": there is no such text, only: \"image\" Float [1, 8, 8]"));
  }
}
