// What samples are asked for by: tensors of files and prompts, checked against what the model takes.
#include "core/sample/conditions.h"

#include <torch/types.h>

#include <doctest/doctest.h>

#include <limits>

#include "core/checkpoint/tensor_file.h"
#include "support/files.h"

using namespace ditto;
using test::contains;
using test::TemporaryFolder;

namespace {

const TensorSpecs kTakes{{"text", at::kFloat, {-1, 3}, "embeddings"},
                         {"text_mask", at::kBool, {-1}, ""},
                         {"label", at::kLong, {}, "", 10},
                         {"picture", at::kFloat, {1, 2, 2}, ""}};

ConditionFile read(const NamedTensors& tensors) {
  const TemporaryFolder folder;
  write_tensors(folder / "c.safetensors", tensors);
  return ConditionFile(folder / "c.safetensors", kTakes);
}

std::string refusal(const NamedTensors& tensors) {
  return test::error_of(ErrorKind::data, [&] { read(tensors); });
}

}  // namespace

TEST_CASE("a file's rows are the samples', and one row is for all") {
  const auto text = torch::rand({4, 5, 3});
  const auto file =
      read({{"text", text}, {"picture", torch::ones({1, 1, 2, 2})}, {"label", torch::arange(4, torch::kInt)}});
  CHECK(file.rows() == 4);
  Batch batch;
  give_rows("c", file.tensors(), 4, batch);
  CHECK(batch.at("text").equal(text));
  CHECK(batch.at("picture").sizes().vec() == std::vector<int64_t>{4, 1, 2, 2});
  CHECK((batch.at("label").scalar_type() == torch::kLong));
  CHECK(batch.at("text_mask").equal(torch::ones({4, 5}, torch::kBool)));  // it is all there
  Batch half;
  give_rows("c", read({{"text", text.to(torch::kHalf)}}).tensors(), 4, half);
  CHECK(half.at("text").equal(text.to(torch::kHalf).to(torch::kFloat)));
}

TEST_CASE("too few rows, and a tensor that is given twice, are refused") {
  const auto file = read({{"label", torch::arange(4)}});
  Batch batch;
  const auto few = test::error_of(ErrorKind::data, [&] { give_rows("c", file.tensors(), 5, batch); });
  CHECK(contains(few, "has 4 rows, and --seeds ask for 5 samples"));
  give_rows("c", file.tensors(), 4, batch);
  const auto twice = test::error_of(ErrorKind::config, [&] { give_rows("--classes", file.tensors(), 4, batch); });
  CHECK(contains(twice, "gives \"label\", which is given already"));
}

TEST_CASE("what the model does not take is refused with both sides") {
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(contains(refusal({{"words", torch::ones({2, 3})}}), "has \"words\", which the model does not take"));
  CHECK(contains(refusal({{"text", torch::ones({2, 5, 4})}}), "\"text\" Float [2, 5, 4]"));
  CHECK(contains(refusal({{"text", torch::ones({2, 5, 4})}}), "takes \"text\" Float [any, any, 3]"));
  CHECK(contains(refusal({{"text", torch::ones({2, 3})}}), "\"text\" Float [2, 3]"));
  CHECK(contains(refusal({{"text", torch::ones({2, 5, 3}, torch::kLong)}}), "\"text\" Long [2, 5, 3]"));
  CHECK(contains(refusal({{"text_mask", torch::ones({2, 5})}}), "\"text_mask\" Float [2, 5]"));
  CHECK(contains(refusal({{"label", torch::tensor({1.0f})}}), "\"label\" Float [1]"));
  CHECK(contains(refusal({{"label", torch::tensor({3, 10})}}), "holds 10; its values are 0 to 9"));
  CHECK(contains(refusal({{"label", torch::tensor({-1, 3})}}), "holds -1"));
  CHECK(contains(refusal({{"text", torch::full({2, 5, 3}, nan)}}), "not finite"));
  CHECK(contains(refusal({{"text", torch::full({2, 5, 3}, 1e9).to(torch::kHalf)}}), "not finite"));
  CHECK(contains(refusal({{"text", torch::ones({0, 5, 3})}}), "is empty"));
  CHECK(contains(refusal({{"text", torch::ones({2, 5, 3})}, {"label", torch::ones({3}, torch::kLong)}}), "rows"));
  CHECK(contains(refusal({{"text", torch::ones({2, 5, 3})}, {"text_mask", torch::ones({2, 4}, torch::kBool)}}),
                 "their lengths must agree"));
  CHECK(contains(refusal(NamedTensors{}), "has no tensors"));
}

TEST_CASE("a condition that nobody gives is refused with who could") {
  Batch batch;
  give_rows("c", read({{"text", torch::ones({2, 5, 3})}, {"label", torch::ones({2}, torch::kLong)}}).tensors(), 2,
            batch);
  const auto message = test::error_of(ErrorKind::config, [&] { require_all("m", kTakes, batch); });
  CHECK(contains(message, "model \"m\": takes \"picture\" Float [1, 2, 2], and nobody gave it"));
  CHECK(contains(message, "--condition"));
  auto takes = kTakes;
  takes.push_back({"text_empty", at::kFloat, {-1, 3}, ""});
  const auto picture = torch::zeros({2, 1, 2, 2});
  give_rows("c", {{"picture", picture}}, 2, batch);
  CHECK(contains(
      test::error_of(ErrorKind::config, [&] { require_all("m", takes, batch); }),
      "takes \"text_empty\" Float [any, 3], the empty text that guidance leads away from, and nobody gave it"));
  CHECK_NOTHROW(require_all("m", takes, batch, {takes.back()}));
}

TEST_CASE("a class is asked for by its name, or by its number where no class is called by one") {
  const auto called = [](const std::string& word, std::vector<std::string> names) {
    return class_called(word, {"label", at::kLong, {}, "", 3, std::move(names)}, "r.toml:3:9", "picture.class");
  };
  const auto refusal_of = [&](const std::string& word, std::vector<std::string> names) {
    return test::error_of(ErrorKind::config, [&] { called(word, names); });
  };
  const std::vector<std::string> animals{"cat", "dog, small", "2"}, none, digits{"7", "8", "9"},
      cranes{"crane", "cat", "crane"};
  CHECK(called("dog, small", animals) == 1);
  CHECK(called("2", animals) == 2);
  CHECK(called("1", none) == 1);
  CHECK(called("8", digits) == 1);
  CHECK(called("number:0", digits) == 0);
  CHECK(contains(refusal_of("1", digits), "\"number:1\" for the number"));
  CHECK(contains(refusal_of("cst", {"cat", "dog", "cow"}), "r.toml:3:9: picture.class is \"cst\""));
  CHECK(contains(refusal_of("cst", {"cat", "dog", "cow"}), "did you mean \"cat\"? its classes are 0 to 2"));
  for (const std::string word : {"3", "-1", "1x", "", "number:", "number:3"})
    CHECK(contains(refusal_of(word, none), "which is no class of this model"));
  CHECK(contains(refusal_of("crane", cranes), "more than one class"));
}
