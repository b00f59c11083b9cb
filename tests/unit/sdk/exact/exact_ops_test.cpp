// What run.numerics = "one" asks of the op table and of layers: exact rows alone, leaves of sums, refusals by name. And
// that ops which layers call have the bits of the calls that they stand for.
#include <doctest/doctest.h>

#include <torch/types.h>

#include <ditto/context.h>
#include <ditto/error.h>
#include <ditto/nn/transformer.h>
#include <ditto/optimizer.h>
#include <ditto/scheduler.h>

#include "tests/unit/exact_rows.h"

namespace ditto {
namespace {

using torch::Tensor;

std::function<Tensors(const OpInputs&)> reference_of(const std::string& name) {
  for (const Op& op : ops())
    if (op.name == name) return op.reference;
  return {};
}

// A row that computes what the reference does.
KernelRow row_of(const std::string& op, const std::string& variant, int score, bool exact) {
  KernelRow row{op, variant, [score](const OpCall&) { return score; }, reference_of(op), {}};
  row.knows = {"token_leaf", "in_leaves", "out_leaves"};
  row.exact = exact;
  return row;
}

Tensor drawn(std::vector<int64_t> shape, uint64_t seed) {
  return torch::randn(shape, at::detail::createCPUGenerator(seed), torch::kFloat);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const auto bytes = [](const Tensor& x) { return x.detach().contiguous().reshape({-1}).view(torch::kByte); };
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && bytes(a).equal(bytes(b));
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::config);
    return error.what();
  }
  return "it is not refused";
}

bool has(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

TEST_CASE("an exact table takes exact rows alone, however high others score, and never a reference") {
  const std::vector<KernelRow> rows{row_of("silu", "quick", 50, false), row_of("silu", "exact_a", 5, true),
                                    row_of("silu", "exact_b", 7, true), row_of("gelu", "quick", 50, false)};
  const auto x = torch::ones({2, 3});
  const auto chosen = [&](const OpTable& table) {
    table.run("silu", {{x}});
    return table.chosen().begin()->second;
  };
  CHECK(chosen(OpTable(rows)) == "quick");
  const OpTable table(rows, {}, {}, {}, true);
  CHECK(table.exact());
  CHECK(chosen(table) == "exact_b");
  const auto text = refusal([&] { table.run("gelu", {{x}, {{"tanh", true}}}); });
  CHECK(has(text, "run.numerics"));
  CHECK(has(text, "gelu fp32 cpu [2, 3]"));
  CHECK(has(text, "none of the run's kernel plugins has the op \"gelu\" in an exact form"));
  // An op that a plugin adds, with a reference and no exact row.
  Op own{"own", "x -> x", {}, [](const OpInputs& in) -> Tensors { return {in.tensor(0)}; }, {}, {}};
  const OpTable with_own({}, {}, {}, {own}, true);
  CHECK(has(refusal([&] { with_own.run("own", {{x}}); }), "own fp32 cpu"));
}

TEST_CASE("a pin of an exact table names an exact variant") {
  const std::vector<KernelRow> rows{row_of("silu", "quick", 50, false), row_of("silu", "exact_a", 5, true),
                                    row_of("silu", "exact_b", 7, true)};
  const auto pinned = [](const char* variant) {
    return std::map<std::string, GivenOption>{{"silu", {std::string(variant), "recipe.toml:1"}}};
  };
  const OpTable table(rows, pinned("exact_a"), {}, {}, true);
  table.run("silu", {{torch::ones({2})}});
  CHECK(table.chosen().begin()->second == "exact_a");
  for (const char* variant : {"quick", "reference"}) {
    const auto text = refusal([&] { OpTable(rows, pinned(variant), {}, {}, true); });
    CHECK(has(text, "names no exact variant"));
    CHECK(has(text, "exact_b"));
  }
}

TEST_CASE("a refusal says what of the call the exact rows lack: an attribute, a tensor, a flag, the gradient") {
  auto attention = row_of("attention", "exact", 5, true);
  attention.score = [](const OpCall& call) { return call.inputs.tensor(4).defined() ? 0 : 5; };
  auto gelu = row_of("gelu", "exact", 5, true);
  gelu.score = [](const OpCall& call) { return call.inputs.flag("tanh") ? 5 : 0; };
  auto linear = row_of("linear", "exact", 5, true);
  linear.score = [](const OpCall& call) { return call.dtype == torch::kFloat ? 5 : 0; };
  const std::vector<KernelRow> rows{attention, gelu, linear};
  const OpTable table(rows, {}, {}, {}, true);
  const auto x = torch::ones({1, 4, 2, 4});
  const auto of = [&](const std::string& op, const OpInputs& in) { return refusal([&] { table.run(op, in); }); };
  CHECK(has(of("attention", {{x, x, x, {}}, {{"lengths", std::vector<int64_t>{1, 3}}}}), "without \"lengths\" there"));
  CHECK(has(of("attention", {{x, x, x, {}, torch::zeros({1, 1, 4, 4})}}), "without tensor 5 there"));
  CHECK(has(of("gelu", {{x}, {{"tanh", false}}}), "without \"tanh\" = false there"));
  const auto weight = torch::ones({3, 4}).requires_grad_();
  CHECK(has(of("linear", {{x, weight, {}}}), "without its gradient there"));
  CHECK(has(of("linear", {{x.to(torch::kDouble), weight.detach().to(torch::kDouble), {}}}), "other shapes, dtypes"));
  CHECK(has(refusal([&] { table.variant("attention_partial", {{x, x, x}}); }), "attention_partial fp32 cpu"));
  CHECK(has(refusal([&] { table.run_as("reference", "attention_merge", {{x, x, x, x}}); }), "attention_merge"));
}

TEST_CASE("shapes alone are counted: by an exact row's shapes, by the reference where it has none") {
  auto row = row_of("silu", "exact", 5, true);
  OpTable table({row}, {}, {}, {}, true);
  const auto x = torch::empty({4, 8}, torch::TensorOptions(torch::kMeta));
  CHECK(table.run("silu", {{x}}).at(0).sizes() == x.sizes());
  CHECK(table.run("gelu", {{x}, {{"tanh", true}}}).at(0).sizes() == x.sizes());  // of no device that was said
  table.meta_stands_for = torch::kCPU;
  CHECK(table.run("silu", {{x}}).at(0).sizes() == x.sizes());
  CHECK(has(refusal([&] { table.run("gelu", {{x}, {{"tanh", true}}}); }), "run.numerics"));
}

TEST_CASE("leaves of a layer's sums follow from its Split") {
  using List = std::vector<int64_t>;
  const auto in = [](const Split& split, int64_t width) { return SumLeaves::of(split, width, 7).in; };
  const auto out = [](const Split& split, int64_t width) { return SumLeaves::of(split, 7, width).out; };
  CHECK(out(Split::heads({6, 6, 6}, 8), 144) == List{6, 48, 48, 48});
  CHECK(out(Split::heads({6, 2, 2}, 8), 80) == List{2, 48, 16, 16});  // grouped queries: a head of keys with its three
  CHECK(in(Split::rows().in_units(8), 48) == List{6, 48});
  CHECK(in(Split::rows(), 1536) == List{48, 1536});
  CHECK(out(Split::columns({1536}), 1536) == List{48, 1536});
  CHECK(in(Split::rows(), 100) == List{2, 100});                   // 32 does not divide it: runs of 50
  CHECK(out(Split::columns({96, 160}), 256) == List{2, 96, 160});  // divides both, in runs of 32 at least
  CHECK(in(Split::rows(), 48) == List{12, 48});                    // 12 runs, or more so that none is longer than 32
  CHECK(in(Split::rows(), 192) == List{12, 192});
  CHECK(out(Split::columns({1152, 1152}), 2304) == List{36, 1152, 1152});
  CHECK(in(Split::rows(), 31).empty());
  CHECK(SumLeaves::of({}, 64, 64).in.empty());
  CHECK(SumLeaves::of({}, 64, 64).out.empty());
  CHECK(SumLeaves::of(Split::rows(), 64, 64).out.empty());
  CHECK(SumLeaves::of(Split::columns({64}), 64, 64).in.empty());
}

// Layers, and every call that they make of the table.
struct Calls {
  Calls() {
    std::vector<KernelRow> rows;
    for (const Op& op : ops()) {
      if (!op.leader.empty()) continue;
      auto row = row_of(op.name, "noted", 5, false);
      row.score = [this](const OpCall& call) {
        attributes[call.op] = call.inputs.attributes;
        return 0;
      };
      row.backward = [](const Tensors&, const OpInputs&, const Tensors&) { return Tensors(); };  // asked, and never run
      rows.push_back(std::move(row));
    }
    ctx = std::make_unique<Context>(std::make_shared<OpTable>(std::move(rows)), Random(1));
  }
  std::map<std::string, std::map<std::string, Attribute>> attributes;
  std::unique_ptr<Context> ctx;
};

struct Layers : Layer {
  Layers()
      : qkv(linear("qkv", 16, 48, Split::heads({2, 2, 2}, 8))),
        up(linear("up", 16, 64, Split::columns({64}))),
        down(linear("down", 64, 16, Split::rows())),
        rms(make<RmsNorm>("rms", 16)),
        norm(make<LayerNorm>("norm", 16)),
        final_layer(make<FinalLayer>("final", AdaLn::single, 16, 6)),
        modulation(make<Modulation>("modulation", AdaLn::single, 16, 2)) {
    torch::NoGradGuard no_grad;
    uint64_t seed = 0;
    for (auto& item : named_parameters()) item.value().copy_(drawn(item.value().sizes().vec(), ++seed));
  }
  Linear qkv, up, down;
  std::shared_ptr<RmsNorm> rms;
  std::shared_ptr<LayerNorm> norm;
  std::shared_ptr<FinalLayer> final_layer;
  std::shared_ptr<Modulation> modulation;
};

Stream stream_of(int64_t samples) {
  Stream s;
  s.grid = {1, 3, 3};
  s.x_BTD = drawn({samples, 9, 16}, 50);
  s.condition.cond_BD = drawn({samples, 7 * 16}, 51).requires_grad_();
  return s;
}

TEST_CASE("layers say the leaves of their sums under one, and nothing of them under fast") {
  Layers layers;
  for (const int64_t leaf : {int64_t{0}, int64_t{32}}) {
    Calls calls;
    Context& ctx = *calls.ctx;
    ctx.token_leaf = leaf;
    CHECK(ctx.ops.leaves().tokens == leaf);
    const auto x = drawn({2, 9, 16}, 40);
    const auto said = [&](const char* op) { return calls.attributes.at(op); };
    const auto whole = [&](const char* op, const char* name) { return std::get<int64_t>(said(op).at(name)); };
    const auto list = [&](const char* op, const char* name) {
      return std::get<std::vector<int64_t>>(said(op).at(name));
    };
    layers.qkv(x, ctx);
    if (leaf > 0) CHECK(list("linear", "out_leaves") == std::vector<int64_t>{2, 16, 16, 16});
    layers.down(ctx.ops.linear_gelu_tanh(x, layers.up, ctx), ctx);
    layers.rms->forward(x, ctx);
    layers.norm->forward(x, ctx);
    layers.modulation->forward(stream_of(2), ctx);
    layers.final_layer->forward(stream_of(2), ctx);
    ctx.ops.gated_residual(x, x.select(1, 0), x, stream_of(2));
    const auto q = x.unflatten(-1, {2, 8});
    ctx.attention(q, q, q, Pattern::full, stream_of(2));
    for (const char* op : {"linear", "linear_gelu_tanh", "rms_norm", "layer_norm", "add_row", "norm_modulate",
                           "gated_residual", "attention"}) {
      CAPTURE(op);
      CHECK(said(op).count("token_leaf") == (leaf > 0 ? 1 : 0));
      if (leaf > 0) CHECK(whole(op, "token_leaf") == leaf);
      if (leaf == 0) CHECK(said(op).count("in_leaves") + said(op).count("out_leaves") == 0);
    }
    if (leaf > 0) CHECK(list("linear_gelu_tanh", "out_leaves") == std::vector<int64_t>{2, 64});
    Context copy(ctx);
    CHECK(copy.token_leaf == leaf);
    copy.ops.silu(x);
    CHECK(copy.ops.leaves().tokens == leaf);
  }
}

TEST_CASE("what has no exact form is refused by name under one, and goes on under fast") {
  Context ctx(std::make_shared<OpTable>(), Random(1));
  Embedding table(5, 4);
  {
    const torch::NoGradGuard no_grad;
    table.table.leaf().fill_(0.5);
  }
  const auto look_up = [&] { return table.forward(torch::zeros({2, 3}, torch::kLong), ctx); };
  CHECK(look_up().defined());
  ctx.token_leaf = 32;
  const auto text = refusal(look_up);
  CHECK(has(text, "= \"one\" has no exact form of"));
  CHECK(has(text, "looked up token by token"));
}

TEST_CASE("under one a frozen table is looked up token by token, as samples of one token each are") {
  const auto table_of_ops = std::make_shared<OpTable>(exact::rows(), std::map<std::string, GivenOption>(), nullptr,
                                                      std::vector<Op>(), /*exact=*/true);
  Context ctx(table_of_ops, Random(1));
  ctx.token_leaf = 32;
  Embedding table(5, 4);
  const torch::NoGradGuard no_grad;
  table.table.leaf().copy_(drawn({5, 4}, 1));
  const auto index = torch::arange(6).remainder(5);
  const auto rows = table.forward(index.view({2, 3}), ctx);
  CHECK(same_bits(rows.flatten(0, 1), table.forward(index, ctx)));
  CHECK(same_bits(rows.flatten(0, 1), table.table.leaf().index_select(0, index)));
}

// Runs `make` on fresh leaves of the same numbers; results, then gradients.
Tensors with_gradients(const Tensors& numbers, const std::function<Tensor(const Tensors& leaves)>& make) {
  Tensors leaves;
  for (const auto& one : numbers) leaves.push_back(one.detach().clone().requires_grad_());
  const auto y = make(leaves);
  y.backward(drawn(y.sizes().vec(), 99));
  Tensors all{y};
  for (const auto& leaf : leaves) all.push_back(leaf.grad());
  return all;
}

void check_same_bits(const Tensors& numbers, const std::function<Tensor(const Tensors&)>& by_op,
                     const std::function<Tensor(const Tensors&)>& by_call) {
  const auto a = with_gradients(numbers, by_op), b = with_gradients(numbers, by_call);
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(a[i], b[i]));
  }
}

TEST_CASE("under fast the ops have the bits of the calls they stand for, gradients included") {
  Context ctx(std::make_shared<OpTable>(), Random(1));
  const Tensor x = drawn({3, 9, 24}, 1), w = drawn({40, 24}, 2), b = drawn({40}, 3), row = drawn({24}, 4);
  check_same_bits(
      {x, w, b}, [&](const Tensors& t) { return ctx.ops.linear(t[0], t[1], t[2]); },
      [](const Tensors& t) { return torch::linear(t[0], t[1], t[2]); });
  check_same_bits(
      {x, w}, [&](const Tensors& t) { return ctx.ops.linear(t[0], t[1], {}); },
      [](const Tensors& t) { return torch::linear(t[0], t[1]); });
  check_same_bits(
      {x}, [&](const Tensors& t) { return ctx.ops.silu(t[0]); }, [](const Tensors& t) { return torch::silu(t[0]); });
  check_same_bits(
      {x}, [&](const Tensors& t) { return ctx.ops.gelu(t[0]); },
      [](const Tensors& t) { return torch::gelu(t[0], "tanh"); });
  check_same_bits(
      {x}, [&](const Tensors& t) { return ctx.ops.gelu(t[0], false); },
      [](const Tensors& t) { return torch::gelu(t[0]); });
  check_same_bits(
      {x, row}, [&](const Tensors& t) { return ctx.ops.rms_norm(t[0], t[1], 1e-6); },
      [](const Tensors& t) { return t[0] * torch::rsqrt(t[0].square().mean(-1, true) + 1e-6) * t[1]; });
  check_same_bits(
      {x, row, row}, [&](const Tensors& t) { return ctx.ops.layer_norm(t[0], t[1], t[2], 1e-5); },
      [](const Tensors& t) { return torch::layer_norm(t[0], {24}, t[1], t[2], 1e-5); });
  check_same_bits(
      {x, row}, [&](const Tensors& t) { return ctx.ops.add_row(t[0], t[1]); },
      [](const Tensors& t) { return t[0] + t[1]; });
  check_same_bits(
      {x}, [&](const Tensors& t) { return ctx.ops.sample_mean(t[0]); },
      [](const Tensors& t) { return t[0].flatten(1).mean(1); });
  const auto index = torch::tensor({4, 0, 4, 39, 4, 7});
  check_same_bits(
      {w}, [&](const Tensors& t) { return Parameter(t[0], Init::zeros()).rows(index, ctx); },
      [&](const Tensors& t) {
        const auto rows = t[0].detach().index_select(0, index).requires_grad_();
        rows.register_hook([leaf = t[0], index](const Tensor& grad) {
          leaf.mutable_grad() = torch::zeros_like(leaf.detach()).index_add_(0, index, grad);
        });
        return rows * 1;
      });
}

TEST_CASE("under fast tables of adaLN-single are added as ever, gradients included") {
  Context ctx(std::make_shared<OpTable>(), Random(1));
  const Tensor cond = drawn({5, 16}, 1), table = drawn({2, 16}, 2);
  check_same_bits(
      {cond, table},
      [&](const Tensors& t) {
        return ctx.ops.add_row(t[0].unsqueeze(1).expand({-1, 2, -1}), t[1]);
      },
      [](const Tensors& t) { return t[0].unsqueeze(1) + t[1]; });
}

TEST_CASE("under one a text that was dropped has one place, however long the others of its micro-batch are") {
  Context ctx(std::make_shared<OpTable>(), Random(1));
  TextEmbed embed(6, 8);
  {
    torch::NoGradGuard no_grad;
    uint64_t seed = 0;
    for (auto& leaf : embed.parameters()) leaf.copy_(drawn(leaf.sizes().vec(), ++seed));
  }
  const auto of = [&](int64_t places) {
    Batch batch;
    batch["text"] = torch::constant_pad_nd(drawn({2, 3, 6}, 9), {0, 0, 0, places - 3});
    batch["text_mask"] =
        torch::constant_pad_nd(torch::tensor({{true, true, false}, {false, false, false}}), {0, places - 3});
    Conditioning condition;
    embed.forward(batch, condition, ctx);
    return condition;
  };
  const auto fast = of(4);
  CHECK(fast.text_mask_BS.equal(torch::tensor({{true, true, false, false}, {true, true, true, true}})));
  ctx.token_leaf = 32;
  for (const int64_t places : {3, 7}) {
    const auto one = of(places);
    CHECK(one.text_mask_BS.sum(1).equal(torch::tensor({2, 1})));
    CHECK(one.text_mask_BS[1][0].item<bool>());
    CHECK(torch::allclose(one.text_BSE.narrow(1, 0, 3), fast.text_BSE.narrow(1, 0, 3)));  // the same embeddings
  }
}

TEST_CASE("an exact update's average is made of single operations") {
  const Tensor weight = drawn({1000}, 1), average = drawn({1000}, 2);
  const double decay = 0.999;
  auto followed = average.clone();
  follow({.average = {followed}, .decay = decay, .exact = true}, {{"w", weight, {1000}}});
  bool all_same = true;
  for (int64_t i = 0; i < 1000; ++i) {
    const float a = average[i].item<float>(), w = weight[i].item<float>();
    const volatile float step = static_cast<float>(1 - decay) * (w - a);
    all_same = all_same && followed[i].item<float>() == a + step;
  }
  CHECK(all_same);
}

TEST_CASE("a schedule's loss takes its mean from the run's ops") {
  struct Straight final : Scheduler {
    Tensor times(const Tensor& u) const override { return u; }
    Tensor alpha(const Tensor& t) const override { return 1 - t; }
    Tensor sigma(const Tensor& t) const override { return t; }
    Tensor target(const Tensor& clean, const Tensor& noise, const Tensor&) const override { return noise - clean; }
    Tensor c_noise(const Tensor& t) const override { return t; }
    Tensor to_clean(const Tensor&, const Tensor& x, const Tensor&) const override { return x; }
    Tensor to_noise(const Tensor&, const Tensor& x, const Tensor&) const override { return x; }
    std::vector<double> time_grid(int64_t) const override { return {1, 0}; }
  } schedule;
  const Tensor clean = drawn({2, 3, 4}, 1), noise = drawn({2, 3, 4}, 2), guess = drawn({2, 3, 4}, 3);
  const auto t = torch::full({2}, 0.5, torch::kDouble);
  auto row = row_of("sample_mean", "zero", 5, true);
  row.forward = [](const OpInputs& in) -> Tensors { return {torch::zeros({in.tensor(0).size(0)})}; };
  const OpTable zero({row}, {}, {}, {}, true), none({}, {}, {}, {}, true);
  const auto plain = schedule.losses(guess, clean, noise, t).at("mse");
  CHECK(same_bits(plain, (guess - (noise - clean)).square().flatten(1).mean(1)));
  CHECK(schedule.losses(guess, clean, noise, t, &zero).at("mse").abs().max().item<float>() == 0);
  CHECK(has(refusal([&] { schedule.losses(guess, clean, noise, t, &none); }), "sample_mean fp32 cpu"));
}

}  // namespace
}  // namespace ditto
