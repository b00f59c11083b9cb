// What layers compute, against torch's functions, in double precision with every gradient; and on shapes alone.
#include <doctest/doctest.h>

#include <cstring>
#include <set>

#include <ditto/error.h>
#include <ditto/math/prepared.h>
#include <ditto/nn/maps.h>
#include <ditto/nn/transformer.h>

#include "tests/unit/sdk/nn/layer_check.h"

namespace ditto {
namespace {

using layer_check::check;
using layer_check::fill;
using layer_check::input;
using layer_check::Values;
using layer_check::values_of;
using torch::Tensor;

TEST_CASE("what is made of a parameter's numbers is kept until they change or learn, without autograd alone") {
  const Parameter parameter(testing::numbers({4, 6}, 1).requires_grad_(), Init::zeros());
  const auto ctx = testing::small_context(torch::kBFloat16);
  int made = 0;
  const auto doubled = [&](const std::string& what = "doubled") {
    const Tensor copy = parameter(*ctx);
    return prepared(copy, what, [&] { return ++made, 2 * copy.detach(); });
  };
  const auto holds = [&] { return torch::equal(doubled(), 2 * parameter.leaf().detach().to(torch::kBFloat16)); };
  {
    const torch::NoGradGuard no_grad;
    CHECK((holds() && holds() && made == 1));
    doubled("another");
    CHECK((holds() && made == 2));
    parameter.leaf().mul_(3);
    CHECK((holds() && holds() && made == 3));
    // As a fused update does: it writes the copy by itself, unseen by its version, and says so.
    parameter.leaf().add_(1);
    const Tensor rounded = parameter.leaf().to(torch::kBFloat16), copy = parameter.copy();
    std::memcpy(copy.data_ptr(), rounded.data_ptr(), rounded.nbytes());
    parameter.copied();
    CHECK((copy.is_same(parameter(*ctx)) && holds() && holds() && made == 4));
    copy.mul_(1);  // seen by its version
    CHECK((holds() && made == 5));
    const Tensor turned = copy.detach().t_();  // the same numbers in another order
    prepared(turned, "doubled", [&] { return ++made, turned; });
    CHECK(made == 6);
  }
  CHECK((holds() && holds() && made == 8));
  const torch::NoGradGuard no_grad;
  CHECK((holds() && holds() && made == 9));  // what was kept before it learned is gone
}

TEST_CASE("convolutions are torch's, with stride, padding and sides of their own") {
  Conv2d plain({3, 5});
  check(plain, input({2, 3, 6, 7}), [](const Tensor& x, Values& p) {
    return torch::conv2d(x, p["weight"], p["bias"], {1, 1}, {1, 1});
  });
  Conv2d down({4, 6, {2}, {2}, {0}});
  check(down, input({2, 4, 6, 8}),
        [](const Tensor& x, Values& p) { return torch::conv2d(x, p["weight"], p["bias"], 2); });
  Conv3d video({2, 3, {3, 1, 5}, {1, 2, 1}});
  check(video, input({2, 2, 4, 4, 5}), [](const Tensor& x, Values& p) {
    return torch::conv3d(x, p["weight"], p["bias"], {1, 2, 1}, {1, 0, 2});
  });
  Conv1d line({3, 4, {4}, {2}, {1}});
  check(line, input({2, 3, 9}),
        [](const Tensor& x, Values& p) { return torch::conv1d(x, p["weight"], p["bias"], 2, 1); });
}

TEST_CASE("a convolution's zeros may be others after a side than before it") {
  Conv2d half({.in = 3, .out = 4, .stride = {2}, .padding = {0}, .padding_after = {1}});
  check(half, input({2, 3, 6, 8}), [](const Tensor& x, Values& p) {
    return torch::conv2d(torch::constant_pad_nd(x, {0, 1, 0, 1}), p["weight"], p["bias"], 2);
  });
  Conv3d causal({.in = 2, .out = 3, .padding = {2, 1, 1}, .padding_after = {0, 1, 1}});
  check(causal, input({1, 2, 3, 4, 5}), [](const Tensor& x, Values& p) {
    return torch::conv3d(torch::constant_pad_nd(x, {1, 1, 1, 1, 2, 0}), p["weight"], p["bias"]);
  });
  CHECK(Conv2d({3, 3, {1}}).token_local());
  CHECK(!Conv2d({.in = 3, .out = 3, .kernel = {1}, .padding = {0}, .padding_after = {1}}).token_local());
}

TEST_CASE("norms are torch's") {
  GroupNorm groups(3, 12);
  check(groups, input({2, 12, 4, 5}),
        [](const Tensor& x, Values& p) { return torch::group_norm(x, 3, p["weight"], p["bias"], 1e-5); });
  LayerNorm tokens(8, 1e-6);
  check(tokens, input({2, 5, 8}),
        [](const Tensor& x, Values& p) { return torch::layer_norm(x, {8}, p["weight"], p["bias"], 1e-6); });
}

// A norm with what follows it.
struct NormThen : GroupNorm {
  using GroupNorm::GroupNorm;
  Tensor forward(const Tensor& x, Context& ctx) { return GroupNorm::forward(x, ctx, then); }
  AfterNorm then;
};

TEST_CASE("what follows a norm of groups is what torch makes of it, also where a strategy stands between") {
  const auto scale = input({2, 12}), shift = testing::numbers({2, 12}, 9, torch::kDouble).tanh();
  for (const bool between : {false, true})
    for (const bool modulated : {false, true})
      for (const bool silu : {false, true}) {
        CAPTURE(between);
        CAPTURE(modulated);
        CAPTURE(silu);
        NormThen norm(3, 12);
        norm.then.silu = silu;
        if (modulated) norm.then.scale = scale, norm.then.shift = shift;
        if (between) norm.after = [](const Tensor& y) { return 2 * y; };
        check(norm, input({2, 12, 4, 5}), [&](const Tensor& x, Values& p) {
          auto y = torch::group_norm(x, 3, p["weight"], p["bias"], 1e-5);
          if (between) y = 2 * y;
          if (modulated) y = y * (1 + scale.view({2, 12, 1, 1})) + shift.view({2, 12, 1, 1});
          return silu ? torch::silu(y) : y;
        });
      }
}

TEST_CASE("a norm's shift and scale are both there, a row of the map's channels for each sample") {
  const auto ctx = testing::small_context(torch::kDouble);
  GroupNorm norm(3, 12);
  fill(norm);
  const auto rows = input({2, 12}), x = input({2, 12, 4, 5});
  CHECK(norm.forward(x, *ctx, {.shift = rows, .scale = rows}).defined());
  for (const auto& then : {AfterNorm{.scale = rows}, AfterNorm{.shift = rows}, AfterNorm{rows, input({1, 12})},
                           AfterNorm{input({2, 24}), input({2, 24})}})
    CHECK_THROWS_WITH_AS(norm.forward(x, *ctx, then), doctest::Contains("group norm: is given a shift of"), Error);
}

TEST_CASE("layers over maps compute by the table's ops") {
  const auto ctx = testing::small_context(torch::kDouble);
  Conv2d conv({3, 4});
  GroupNorm norm(2, 4);
  fill(conv), fill(norm);
  norm.forward(conv.forward(input({2, 3, 5, 6}), *ctx), *ctx);
  std::set<std::string> ops;
  for (const auto& [call, variant] : ctx->ops.table().chosen()) ops.insert(call.substr(0, call.find(' ')));
  CHECK(ops == std::set<std::string>{"conv", "group_norm"});
}

TEST_CASE("a parameter that a forward uses twice has no one number, and is refused in backward") {
  LayerNorm norm(8, 1e-6);
  fill(norm);
  const auto ctx = testing::small_context(torch::kDouble);
  const Tensor x = input({2, 5, 8});
  const auto backward = [&](bool twice) {
    const Tensor y = norm.forward(x, *ctx);
    (twice ? norm.forward(y, *ctx) : y).square().sum().backward();
  };
  CHECK_NOTHROW(backward(true));
  ctx->token_leaf = 8;
  CHECK_NOTHROW(backward(false));
  CHECK_NOTHROW(backward(false));
  try {
    backward(true);
    FAIL("it was taken");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::plugin);
    CHECK(std::string(error.what()).find("is used 2 times in one forward") != std::string::npos);
  }
}

TEST_CASE("a table's rows are torch's embedding, for an index of any shape") {
  Embedding table(7, 6);
  check(table, torch::tensor({{1, 6, 1}, {0, 3, 1}}, torch::kLong),
        [](const Tensor& index, Values& p) { return torch::embedding(p["table"], index); });
}

TEST_CASE("gated perceptrons are down(gate(x) * up(x)), the gate's outputs first") {
  const auto formula = [](const std::function<Tensor(const Tensor&)>& gate) {
    return [gate](const Tensor& x, Values& p) {
      const auto w = p["gate_up.weight"].chunk(2), b = p["gate_up.bias"].chunk(2);
      const auto hidden = gate(torch::linear(x, w[0], b[0])) * torch::linear(x, w[1], b[1]);
      return torch::linear(hidden, p["down.weight"], p["down.bias"]);
    };
  };
  SwiGlu swiglu(6, 10);
  check(swiglu, input({2, 5, 6}), formula([](const Tensor& g) { return g * torch::sigmoid(g); }));
  GeGlu geglu(6, 10);
  check(geglu, input({2, 5, 6}),
        formula([](const Tensor& g) { return g * 0.5 * (1 + torch::erf(g / std::sqrt(2.0))); }));
  GatedMlp tanh(Gate::gelu_tanh, 6, 10);
  check(tanh, input({2, 5, 6}), formula([](const Tensor& g) { return torch::gelu(g, "tanh"); }));
}

TEST_CASE("on shapes alone maps have the shapes that they have with numbers, and convolutions count their operations") {
  const ShapesAlone no_numbers;
  std::map<std::string, double> flops;
  Context ctx(std::make_shared<OpTable>(), Random(0));
  ctx.device = torch::kMeta;
  ctx.flops = &flops;
  const auto x = torch::empty({2, 4, 9, 7}, torch::TensorOptions().device(torch::kMeta));
  Conv2d down({4, 6, {3}, {2}});
  const auto y = down.forward(x, ctx);
  CHECK((y.sizes() == at::IntArrayRef({2, 6, 5, 4})));
  CHECK(flops.at("conv") == 2.0 * 2 * 6 * 5 * 4 * (4 * 3 * 3));
  GroupNorm norm(3, 6);
  CHECK((norm.forward(y, ctx).sizes() == y.sizes()));
  const auto rows = torch::empty({2, 6}, torch::TensorOptions().device(torch::kMeta));
  CHECK((norm.forward(y, ctx, {.shift = rows, .scale = rows, .silu = true}).sizes() == y.sizes()));
  CHECK((upsampled(y, ctx).sizes() == at::IntArrayRef({2, 6, 10, 8})));
  CHECK((downsampled(y, ctx, {5, 2}).sizes() == at::IntArrayRef({2, 6, 1, 2})));
  CHECK((bicubic(y, ctx, {7, 3}).sizes() == at::IntArrayRef({2, 6, 7, 3})));
  CHECK((add_channels(y, rows, ctx).sizes() == y.sizes()));
  flops.clear();
  ConvTransposed2d twice({4, 6, {4}, {2}, {1}});
  CHECK((twice.forward(x, ctx).sizes() == at::IntArrayRef({2, 6, 18, 14})));
  CHECK(flops.at("conv") == 2.0 * 2 * 4 * 9 * 7 * (6 * 4 * 4));
  flops.clear();
  Conv2d half({.in = 4, .out = 6, .stride = {2}, .padding = {0}, .padding_after = {1}});
  CHECK((half.forward(x, ctx).sizes() == at::IntArrayRef({2, 6, 4, 3})));
  CHECK(flops.at("conv") == 2.0 * 2 * 6 * 4 * 3 * (4 * 3 * 3));
  flops.clear();
  Conv3d video({6, 8, {1, 3, 3}});
  CHECK((video.forward(y.unsqueeze(2), ctx).sizes() == at::IntArrayRef({2, 8, 1, 5, 4})));
  CHECK(flops.at("conv") == 2.0 * 2 * 8 * 5 * 4 * (6 * 3 * 3));
}

TEST_CASE("a dropped text is a learned embedding, zeros, or the empty text, and other texts stay as they are") {
  const auto ctx = testing::small_context(torch::kDouble);
  Batch batch;
  batch["text"] = input({2, 3, 4});
  batch["text_mask"] = torch::tensor({{true, true, false}, {false, false, false}});
  batch["text_empty"] = testing::numbers({2, 5, 4}, 11, torch::kDouble).tanh();
  batch["text_empty_mask"] = torch::tensor({true, false, false, false, false}).repeat({2, 1});
  for (const std::string name : {"learned", "zero", "empty"}) {
    CAPTURE(name);
    batch.lengths = {{"text", {2, 0}}, {"text_empty", {1, 1}}};
    TextEmbed embed(4, 6, null_text(name));
    fill(embed);
    auto p = values_of(embed);
    CHECK(p.count("null") == (name == "learned"));
    CHECK(embed.takes().size() == (name == "empty" ? 4 : 2));
    Conditioning made;
    embed.forward(batch, made, *ctx);
    const auto map = [&](const Tensor& x) {
      const auto h = torch::gelu(torch::linear(x, p["in.weight"], p["in.bias"]), "tanh");
      return torch::linear(h, p["out.weight"], p["out.bias"]);
    };
    const auto texts = made.text_BSE.unbind(0), masks = made.text_mask_BS.unbind(0);
    CHECK(torch::allclose(texts[0].narrow(0, 0, 3), map(batch["text"][0]), 1e-12, 1e-12));
    CHECK(masks[0].sum().item<int64_t>() == 2);
    CHECK(made.text_lengths == std::vector<int64_t>{2, 1});  // of no text one token
    const auto null = name == "learned" ? p["null"].expand({3, 4})
                      : name == "zero"  ? torch::zeros({3, 4}, torch::kDouble)
                                        : batch["text_empty"][1];
    CHECK(torch::allclose(texts[1], map(null), 1e-12, 1e-12));
    CHECK(masks[1].sum().item<int64_t>() == (name == "empty" ? 1 : 3));
  }
  // Which texts are dropped is not known where lengths are: theirs hold the empty one too, or stay.
  batch.lengths = {{"text", {2, 0}}, {"text_empty", {4, 1}}};
  const auto dropped = TextEmbed::without_text(batch, torch::tensor({true, true}));
  for (const auto& [name, lengths] : std::map<std::string, std::vector<int64_t>>{{"zero", {2, 1}}, {"empty", {4, 1}}}) {
    TextEmbed embed(4, 6, null_text(name));
    fill(embed);
    Conditioning made;
    embed.forward(dropped, made, *ctx);
    CHECK(made.text_lengths == lengths);
  }
  batch["text"] = input({2, 2, 4});  // of another text nothing is known
  CHECK(batch.lengths.count("text") == 0);
  CHECK_THROWS_AS(null_text("nothing"), Error);
}

}  // namespace
}  // namespace ditto
