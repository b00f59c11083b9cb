// Imagen's attention, conditioning and options; their whole models stand against NeMo's in tests/golden/models.
#include <ditto/nn/imagen.h>

#include <limits>
#include <numbers>

#include <doctest/doctest.h>
#include <torch/types.h>

#include "tests/support/files.h"
#include "tests/unit/small_model.h"

namespace ditto {
namespace {

using test::contains;
using test::error_of;
using testing::small_context;
using torch::Tensor;

constexpr int64_t kChannels = 64, kText = 64, kPlaces = 5;

Tensor drawn(at::IntArrayRef shape, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn(shape, generator, torch::kDouble);
}

template <class L, class... Args>
std::shared_ptr<L> filled(Args&&... args) {
  const torch::NoGradGuard no_grad;
  auto made = std::make_shared<L>(std::forward<Args>(args)...);
  made->to(torch::kDouble);
  uint64_t seed = 1;
  for (auto& item : made->named_parameters()) item.value().copy_(drawn(item.value().sizes(), ++seed) * 0.1);
  return made;
}

std::shared_ptr<ImagenAttention> attention(const std::string& type) {
  return filled<ImagenAttention>(ImagenAttentionShape{type, kChannels, 4, kText});
}

Conditioning of(const Tensor& text_BSE, const std::vector<int64_t>& lengths) {
  Conditioning made;
  made.text_BSE = text_BSE;
  made.text_mask_BS = torch::arange(text_BSE.size(1)).lt(torch::tensor(lengths).unsqueeze(1));
  return made;
}

Tensor normed(ImagenAttention& layer, const std::string& name, const Tensor& x) {
  const auto p = layer.named_parameters();
  return torch::group_norm(x, kImagenGroups, p[name + ".weight"], p[name + ".bias"], 1e-5);
}
Tensor mapped(ImagenAttention& layer, const std::string& name, const Tensor& x) {
  const auto p = layer.named_parameters();
  return torch::linear(x.transpose(1, 2), p[name + ".weight"], p[name + ".bias"]);
}

}  // namespace

TEST_CASE("fused attention is one softmax over a map's places and then the text's that count") {
  const auto ctx = small_context(torch::kDouble);
  const auto layer = attention("fused");
  const auto x = drawn({2, kChannels, 3, 2}, 50), text = drawn({2, kPlaces, kText}, 51);
  const auto condition = of(text, {5, 2});
  const auto lines = x.flatten(2);
  const auto heads = [](const Tensor& y) { return y.unflatten(-1, {4, -1}).transpose(1, 2); };
  const auto q = heads(mapped(*layer, "q", normed(*layer, "norm", lines)));
  const auto own = mapped(*layer, "kv_self", normed(*layer, "norm_self", lines)).chunk(2, -1);
  const auto words = mapped(*layer, "kv_text", normed(*layer, "norm_text", text.transpose(1, 2))).chunk(2, -1);
  const auto k = heads(torch::cat({own[0], words[0]}, 1)), v = heads(torch::cat({own[1], words[1]}, 1));
  auto mask = torch::cat({torch::ones({2, 6}, torch::kBool), condition.text_mask_BS}, 1).view({2, 1, 1, -1});
  const auto scores = (torch::matmul(q, k.transpose(-1, -2)) / 4)
                          .masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity());
  const auto seen = torch::matmul(scores.softmax(-1), v).transpose(1, 2).flatten(2).transpose(1, 2);
  const auto expected = x + mapped(*layer, "proj", seen).transpose(1, 2).view_as(x);
  CHECK(torch::allclose(layer->forward(x, condition, *ctx), expected, 1e-10, 1e-10));
}

TEST_CASE("a text of which nothing counts adds the last map's bias alone, and has no gradient that is not finite") {
  const auto ctx = small_context(torch::kDouble);
  const auto layer = attention("cross");
  const auto x = drawn({2, kChannels, 3, 2}, 50).requires_grad_();
  const auto y = layer->forward(x, of(drawn({2, kPlaces, kText}, 51), {3, 0}), *ctx);
  const auto bias = layer->named_parameters()["proj.bias"].view({-1, 1, 1});
  CHECK(torch::allclose(y[1], x[1] + bias, 1e-12, 1e-12));
  CHECK(!torch::allclose(y[0], x[0] + bias, 1e-3, 1e-3));
  y.square().sum().backward();
  for (const auto& item : layer->named_parameters()) CHECK(item.value().grad().isfinite().all().item<bool>());
  CHECK(x.grad().isfinite().all().item<bool>());
}

TEST_CASE("norms of a text see its padding: it is of as many places as the model is trained on") {
  const auto ctx = small_context(torch::kDouble);
  const auto layer = attention("cross");
  const auto x = drawn({1, kChannels, 3, 2}, 50), text = drawn({1, kPlaces, kText}, 51);
  const auto with = [&](int64_t places) {
    return layer->forward(x, of(torch::constant_pad_nd(text, {0, 0, 0, places - kPlaces}), {kPlaces}), *ctx);
  };
  CHECK(with(kPlaces).equal(with(kPlaces)));
  CHECK(!torch::allclose(with(kPlaces), with(4 * kPlaces), 1e-3, 1e-3));
}

TEST_CASE("a text becomes one vector of all of its places, by their mean or by attention") {
  const auto ctx = small_context(torch::kDouble);
  const auto text = drawn({2, kPlaces, kText}, 51);
  for (const bool by_attention : {false, true}) {
    const auto layer = filled<ImagenText>(ImagenText::Shape{kText, 32, 8, by_attention, true, true});
    const auto p = layer->named_parameters();
    const auto map = [&](const std::string& name, const Tensor& in) {
      return torch::linear(in, p[name + ".weight"], p[name + ".bias"]);
    };
    const auto norm = [&](const std::string& name, const Tensor& in) {
      return torch::layer_norm(in, {in.size(-1)}, p[name + ".weight"], p[name + ".bias"], 1e-5);
    };
    const auto pooled = [&] {
      const auto share = map("pool", text).softmax(1);
      return map("pool_out", norm("pool_norm", (text * share).sum(1)));
    };
    const auto vector = by_attention ? pooled() : map("to_context", text).mean(1);
    const auto expected = map("out", torch::silu(map("in", norm("norm", vector))));
    Conditioning made;
    const auto mask = torch::ones({2, kPlaces}, torch::kBool);
    CHECK(torch::allclose(layer->forward(text, mask, made, *ctx), expected, 1e-10, 1e-10));
    CHECK(torch::allclose(made.text_BSE.slice(1, 0, kPlaces), map("to_context", text), 1e-10, 1e-10));
    CHECK(made.text_BSE.select(1, kPlaces)[1].equal(p["null"]));
    CHECK(made.text_mask_BS.sizes().vec() == std::vector<int64_t>{2, kPlaces + 1});
    CHECK(made.text_mask_BS.all().item<bool>());
  }
}

TEST_CASE("times with learned frequencies are told in turns, beside the time itself") {
  const auto ctx = small_context(torch::kDouble);
  const auto layer = filled<ImagenTime>(6, 32, 8);
  const auto p = layer->named_parameters();
  const auto t = torch::tensor({0.25, -3.5}, torch::kDouble);
  const auto angle = t.unsqueeze(1) * p["weights"] * (2 * std::numbers::pi);
  const auto features = torch::cat({t.unsqueeze(1), angle.sin(), angle.cos()}, 1);
  const auto h = torch::silu(torch::linear(features, p["in.weight"], p["in.bias"]));
  CHECK(torch::allclose(layer->forward(t, *ctx), torch::linear(h, p["out.weight"], p["out.bias"]), 1e-10, 1e-10));
}

TEST_CASE("options that cannot be are refused with one sentence") {
  const auto refused = [](std::map<std::string, OptionValue> given) {
    OptionMap map{"model", "test.toml:1:1", {}};
    for (auto& [key, value] : given) map.given[key] = {value, "test.toml:2:1"};
    OptionReader reader(map);
    ImagenOptions options;
    return error_of(ErrorKind::config, [&] { options.read(reader); });
  };
  CHECK(refused({}).empty());
  CHECK(contains(refused({{"embed_dim", int64_t{48}}}), "which 32 groups do not divide"));
  CHECK(contains(refused({{"channel_mult", std::vector<int64_t>{}}}), "give 1 to"));
  CHECK(contains(refused({{"noise_cond_aug", true}}), "low_res_cond"));
  CHECK(contains(refused({{"init_conv_kernel_size", int64_t{4}}}), "odd"));
  CHECK(contains(refused({{"learned_sinu_pos_emb_dim", int64_t{5}}}), "even"));
  CHECK(contains(refused({{"per_head_channels", int64_t{0}}}), "-1"));
  CHECK(contains(refused({{"attention_type", std::string("fuse")}}), "did you mean \"fused\""));
}

}  // namespace ditto
