// Texts that a model pads, and what stands for a dropped one.
#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/ditto.h>
#include <ditto/nn/padded_text.h>
#include <ditto/testing/checks.h>

#include "tests/support/files.h"

using ditto::Batch;
using ditto::PaddedText;
using ditto::test::error_of;
using torch::Tensor;

namespace {

ditto::ModelNeeds needs_of_texts(int64_t tokens) {
  auto made = ditto::testing::model_needs({3, 8, 8}, 3, 0, 5);
  for (auto& input : made.inputs)
    if (input.name.starts_with("text")) input.shape[0] = tokens;
  made.inputs.push_back({"text_pooled", torch::kFloat, {4}, ""});
  return made;
}

// Two texts of 3 tokens, the second of which is shorter; the empty text has one.
Batch two_texts() {
  Batch batch;
  batch["text"] = torch::arange(1, 31).view({2, 3, 5}).to(torch::kFloat);
  batch["text_mask"] = torch::tensor({1, 1, 1, 1, 1, 0}).view({2, 3}).to(torch::kBool);
  batch["text_pooled"] = torch::ones({2, 4});
  batch["text_empty"] = torch::full({2, 1, 5}, -1.0f);
  batch["text_empty_mask"] = torch::ones({2, 1}).to(torch::kBool);
  batch["text_pooled_empty"] = torch::full({2, 4}, -1.0f);
  batch.ids = {0, 1};
  return batch;
}

Tensor the_second() { return torch::tensor({0, 1}).to(torch::kBool); }

}  // namespace

TEST_CASE("padded texts end with zeros that the mask does not show, and longer ones are refused") {
  PaddedText text;
  text.tokens = 4;
  const auto padded = text.padded(two_texts());
  CHECK(padded.at("text").sizes().vec() == std::vector<int64_t>{2, 4, 5});
  CHECK(torch::equal(padded.at("text").slice(1, 0, 3), two_texts().at("text")));
  CHECK_FALSE(padded.at("text").select(1, 3).any().item<bool>());
  CHECK_FALSE(padded.at("text_mask").select(1, 3).any().item<bool>());
  text.tokens = 2;
  CHECK(error_of(ditto::ErrorKind::shape, [&] { text.padded(two_texts()); }).find("3 tokens") != std::string::npos);
}

TEST_CASE("padding that is seen must be of a length that the recipe or the data says") {
  PaddedText text;
  text.mask = false;
  CHECK(error_of(ditto::ErrorKind::config, [&] {
          text.check(needs_of_texts(-1), "mmdit");
        }).find("model.text_tokens") != std::string::npos);
  text.check(needs_of_texts(7), "mmdit");
  text.tokens = 7;
  text.check(needs_of_texts(-1), "mmdit");
  CHECK(error_of(ditto::ErrorKind::config, [&] {
          text.check(ditto::testing::model_needs({3, 8, 8}, 3), "mmdit");
        }) != "");
}

TEST_CASE("a dropped text is zeros, or the empty text with its mask; the others stay") {
  PaddedText text;
  const auto zero = text.without_text(two_texts(), the_second());
  for (const char* name : {"text", "text_pooled"}) {
    CHECK(torch::equal(zero.at(name)[0], two_texts().at(name)[0]));
    CHECK_FALSE(zero.at(name)[1].any().item<bool>());
  }
  CHECK(torch::equal(zero.at("text_mask")[0], two_texts().at("text_mask")[0]));
  CHECK_FALSE(zero.at("text_mask")[1].any().item<bool>());
  text.null = "empty";
  const auto empty = text.without_text(two_texts(), the_second());
  CHECK(torch::equal(empty.at("text")[0], two_texts().at("text")[0]));
  CHECK(torch::equal(empty.at("text")[1][0], two_texts().at("text_empty")[1][0]));
  CHECK_FALSE(empty.at("text")[1].slice(0, 1).any().item<bool>());
  CHECK(torch::equal(empty.at("text_mask")[1], torch::tensor({1, 0, 0}).to(torch::kBool)));
  CHECK(torch::equal(empty.at("text_pooled")[1], two_texts().at("text_pooled_empty")[1]));
  CHECK(text.takes(needs_of_texts(-1)).size() == 6);
}
