// A transformer over a map's places: which precision attention has, which text is seen, and what is refused.
#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/nn/map_transformer.h>

#include "tests/support/files.h"
#include "tests/unit/small_model.h"

namespace ditto {
namespace {

using torch::Tensor;

MapTransformerShape small() { return {.channels = 8, .heads = 2, .layers = 1, .text = 6, .groups = 4}; }

void fill(torch::nn::Module& layer) {
  const torch::NoGradGuard no_grad;
  int64_t seed = 10;
  for (auto& item : layer.named_parameters())
    item.value().copy_(testing::numbers(item.value().sizes(), ++seed, torch::kDouble).tanh());
}

Conditioning two_texts(at::ScalarType dtype) {
  Conditioning condition;
  condition.text_BSE = testing::numbers({2, 3, 6}, 3, torch::kDouble).to(dtype);
  return condition;
}

Tensor map_of(at::ScalarType dtype) { return testing::numbers({2, 8, 2, 4}, 4, torch::kDouble).to(dtype); }

}  // namespace

TEST_CASE("a transformer over a map computes attention in fp32 where it is told to, and hands on what it was given") {
  for (const bool upcast : {false, true}) {
    auto shape = small();
    shape.upcast = upcast;
    MapTransformer layer(shape);
    fill(layer);
    const auto ctx = testing::small_context(torch::kBFloat16);
    int64_t calls = 0;
    const auto plain = ctx->attention_op.run;
    ctx->attention_op.run = [&](const AttentionCall& call) {
      CHECK((call.parts[0].q.scalar_type() == (upcast ? torch::kFloat : torch::kBFloat16)));
      CHECK((call.parts[0].v.scalar_type() == call.parts[0].q.scalar_type()));
      ++calls;
      return plain(call);
    };
    const auto made = layer.forward(map_of(torch::kBFloat16), two_texts(torch::kBFloat16), *ctx);
    CHECK((made.scalar_type() == torch::kBFloat16));
    CHECK(calls == 2);
  }
}

TEST_CASE("places of a map see each other and the text, or the text alone") {
  const auto ctx = testing::small_context(torch::kDouble);
  const auto moved_by = [&](bool only_text, bool of_text) {
    auto shape = small();
    shape.only_text = only_text;
    MapTransformer layer(shape);
    layer.to(torch::kDouble);
    fill(layer);
    auto map = map_of(torch::kDouble);
    auto condition = two_texts(torch::kDouble);
    const auto before = layer.forward(map, condition, *ctx);
    // A norm sees all places of a group: its scale is held by exchanging two of them.
    if (of_text)
      condition.text_BSE = condition.text_BSE + 1;
    else
      map = map.flip({3}).contiguous();
    const auto after = layer.forward(map, condition, *ctx);
    return ((of_text ? after : after.flip({3})) - before).abs().max().item<double>();
  };
  CHECK(moved_by(false, true) > 1e-3);
  CHECK(moved_by(true, true) > 1e-3);
  CHECK(moved_by(false, false) < 1e-12);  // no place is another than the others
  CHECK(moved_by(true, false) < 1e-12);
}

TEST_CASE("what a mask does not show of a text changes nothing") {
  const auto ctx = testing::small_context(torch::kDouble);
  MapTransformer layer(small());
  layer.to(torch::kDouble);
  fill(layer);
  auto condition = two_texts(torch::kDouble);
  condition.text_mask_BS = torch::tensor({1, 1, 0, 1, 0, 0}).view({2, 3}).to(torch::kBool);
  const auto before = layer.forward(map_of(torch::kDouble), condition, *ctx);
  condition.text_BSE = torch::where(condition.text_mask_BS.unsqueeze(-1), condition.text_BSE, 7.0);
  CHECK(torch::equal(layer.forward(map_of(torch::kDouble), condition, *ctx), before));
}

TEST_CASE("of two attentions to the text the first sees all of it, and the second what its mask shows") {
  const auto ctx = testing::small_context(torch::kDouble);
  auto shape = small();
  shape.only_text = true;
  MapTransformer layer(shape);
  layer.to(torch::kDouble);
  fill(layer);
  auto condition = two_texts(torch::kDouble);
  condition.text_mask_BS = torch::tensor({1, 1, 1, 1, 0, 0}).view({2, 3}).to(torch::kBool);
  const auto rows = [&](const std::string& silenced) {
    const torch::NoGradGuard no_grad;
    for (auto& item : layer.named_parameters())
      if (item.key().find(silenced) != std::string::npos) item.value().zero_();
    const auto before = layer.forward(map_of(torch::kDouble), condition, *ctx);
    auto other = condition;
    other.text_BSE = torch::where(condition.text_mask_BS.unsqueeze(-1), condition.text_BSE, 7.0);
    const auto moved = (layer.forward(map_of(torch::kDouble), other, *ctx) - before).abs().flatten(1).amax(1);
    fill(layer);
    return moved;
  };
  const auto by_attn = rows("cross.proj"), by_cross = rows("attn.proj");
  CHECK(by_attn[0].item<double>() == 0);
  CHECK(by_attn[1].item<double>() > 1e-3);
  CHECK(by_cross.max().item<double>() == 0);
}

TEST_CASE("a transformer over a map refuses heads that do not divide its channels") {
  auto shape = small();
  shape.heads = 3;
  CHECK(test::error_of(ErrorKind::plugin, [&] { MapTransformer layer(shape); }).find("3 heads of 8 channels") !=
        std::string::npos);
}

}  // namespace ditto
