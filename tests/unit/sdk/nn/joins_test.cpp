// Pictures joined to x: against torch's functions, and what is refused.
#include <doctest/doctest.h>

#include <ditto/error.h>
#include <ditto/nn/joins.h>

#include "tests/unit/sdk/nn/layer_check.h"

namespace ditto::joins_test {
namespace {

using layer_check::input;
using testing::small_context;

ModelNeeds offered() {
  return {{{"x", torch::kFloat, {3, 8, 8}},
           {"t", torch::kFloat, {}},
           {"label", torch::kLong, {}, "", 10},
           {"clean", torch::kFloat, {3, 8, 8}},
           {"low", torch::kFloat, {3, 4, 2}},
           {"outline", torch::kFloat, {1, 8, 8}},
           {"text", torch::kFloat, {6, 24}},
           {"large", torch::kFloat, {3, 16, 8}},
           {"any", torch::kFloat, {3, kOwnSide, kOwnSide}}},
          3};
}

TEST_CASE("pictures stand behind x in the recipe's order, smaller ones as LibTorch's bicubic enlarges them") {
  const auto ctx = small_context(torch::kDouble);
  const Joins joins("one", {"outline", "low"}, offered());
  CHECK(joins.joined().shape("x") == std::vector<int64_t>{7, 8, 8});
  CHECK(joins.joined().out_channels == 3);
  Batch batch;
  batch["x"] = input({2, 3, 8, 8}), batch["low"] = input({2, 3, 4, 2}), batch["outline"] = input({2, 1, 8, 8});
  const auto made = joins.forward(batch, *ctx);
  const auto large = torch::upsample_bicubic2d(batch.at("low"), {8, 8}, /*align_corners=*/false);
  CHECK(torch::allclose(made, torch::cat({batch.at("x"), batch.at("outline"), large}, 1), 1e-12, 1e-12));
  TensorSpecs takes;
  joins.add_to(takes);
  REQUIRE(takes.size() == 2);
  CHECK(to_text(takes[1]) == to_text(*find(offered().inputs, "low")));
  CHECK(!joins.not_theirs().empty());
}

TEST_CASE("of no names x is what it was, whatever it is") {
  const auto ctx = small_context(torch::kDouble);
  auto needs = offered();
  needs.inputs[0].shape = {3, 4, kOwnSide, kOwnSide};
  const Joins none("one", {}, needs);
  CHECK(none.joined().shape("x") == needs.shape("x"));
  Batch batch;
  batch["x"] = input({2, 3, 4, 8, 8});
  CHECK(none.forward(batch, *ctx).is_same(batch.at("x")));
  CHECK(none.not_theirs().empty());
}

TEST_CASE("what cannot be joined is refused in one sentence") {
  const auto refused = [](const std::vector<std::string>& names, const char* what, std::vector<int64_t> x = {3, 8, 8}) {
    auto needs = offered();
    needs.inputs[0].shape = std::move(x);
    CHECK_THROWS_WITH_AS(Joins("one", names, needs), doctest::Contains(what), Error);
  };
  refused({"depth"},
          "names \"depth\", and neither the data nor an encoder makes it; choose among: low, outline, large, any");
  refused({"x"}, "names \"x\", which they are joined to");
  refused({"clean"}, "names \"clean\", which is what the model is to predict");
  refused({"low", "low"}, "names \"low\" twice");
  refused({"text"}, "which is no picture");
  refused({"label"}, "which is no picture");
  refused({"large"}, "give a picture that is no larger");
  refused({"any"}, "give a picture that is no larger, of one size");
  refused({"low"}, "model \"one\" is given [3, 4, 8, 8]", {3, 4, 8, 8});
  refused({"low"}, "these have several", {3, kOwnSide, kOwnSide});
}

}  // namespace
}  // namespace ditto::joins_test
