// The context-parallel plugins against attention on one rank, on real ranks.
//
// Legend: B samples, T tokens, N heads, K head width, D width.
#include <cstdlib>
#include <limits>

#include <doctest/doctest.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ditto/error.h>
#include <ditto/parallel/token_cut.h>

#include "tests/unit/context_cut.h"

namespace ditto {
namespace {

using namespace testing;  // of context_cut.h
using torch::Tensor;

const std::vector<Setting> kSettings{{"full", Pattern::full},
                                     {"spatial", Pattern::spatial},
                                     {"temporal", Pattern::temporal},
                                     {"packed", Pattern::full, true},
                                     {"full, masked", Pattern::full, false, true},
                                     {"spatial, masked", Pattern::spatial, false, true},
                                     {"temporal, masked", Pattern::temporal, false, true},
                                     {"packed, masked", Pattern::full, true, true}};

// Tokens that see each other: of one frame, of one place, of one sample of the pack.
Tensor hoods(const Setting& setting) {
  if (setting.packed) return torch::repeat_interleave(torch::tensor(kPack));
  const auto token = torch::arange(kVideo.tokens());
  const int64_t places = kVideo.rows * kVideo.columns;
  if (setting.pattern == Pattern::spatial) return token.div(places, "floor");
  return setting.pattern == Pattern::temporal ? token.remainder(places) : torch::zeros_like(token);
}

// Half of the tokens, and of those that see each other one at least.
Tensor mask_of(const Setting& setting, int64_t rows) {
  const auto hood_T = hoods(setting);
  auto mask_BT = normal({rows, hood_T.size(0)}, 30).gt(0);
  for (int64_t i = 0; i < hood_T.size(0); ++i)
    if (i == 0 || !hood_T.slice(0, 0, i).eq(hood_T[i]).any().item<bool>())
      mask_BT.index_put_({torch::indexing::Slice(), i}, true);
  return mask_BT;
}

using Results = std::map<std::string, Tensor>;

// The output, and the gradients of q, k and v, of attention alone.
Results attend(const std::shared_ptr<ParallelStrategy>& strategy, const Setting& setting, const Group& group,
               at::ScalarType dtype) {
  Runner runner(strategy, dtype);
  auto stream = stream_of(setting);
  const std::vector<int64_t> shape{setting.packed ? 1 : 2, tokens_of(stream), 12, 4};
  std::vector<Tensor> leaves;
  for (int64_t i = 0; i < 3; ++i) leaves.push_back(normal(shape, 10 + i, dtype).requires_grad_());
  stream.x_BTD = leaves[0].flatten(2);
  stream.extra["k"] = {leaves[1], 1, Role::evolving};
  stream.extra["v"] = {leaves[2], 1, Role::evolving};
  if (setting.masked) stream.extra["mask"] = {mask_of(setting, shape[0]), 1, Role::constant};
  runner.run(stream, [&](Stream& s) {
    const auto q = s.x_BTD.unflatten(2, {12, 4});
    const AttentionPart part{q, s.extra["k"].tensor, s.extra["v"].tensor, s, s.extra["mask"].tensor};
    s.x_BTD = runner.ctx->attention({.parts = {part}, .pattern = setting.pattern}).at(0).flatten(2);
    s.extra.clear();
  });
  (stream.x_BTD * normal(stream.x_BTD.sizes(), 20, dtype)).sum().div(strategy ? group.size() : 1).backward();
  Results results{{"out", stream.x_BTD.detach()}};
  for (size_t i = 0; i < 3; ++i) {
    auto gradient = leaves[i].grad().to(torch::kDouble).contiguous();
    results[std::string(1, "qkv"[i])] = strategy ? group.all_reduce(gradient) : gradient;
  }
  return results;
}

void compare(const Results& found, const Results& expected, double bound) {
  for (const auto& [name, tensor] : expected) {
    CAPTURE(name);
    CHECK(distance(found.at(name), tensor) < bound);
  }
}

TEST_CASE("a key that a mask leaves out is not seen, in any pattern, nor of a pack") {
  const auto ctx = small_context(torch::kDouble);
  for (const auto& setting : kSettings) {
    CAPTURE(setting.text);
    const auto stream = stream_of(setting);
    const int64_t rows = setting.packed ? 1 : 2;
    const auto part = [&](int64_t seed) { return normal({rows, tokens_of(stream), 3, 4}, seed); };
    const auto q = part(1), k = part(2), v = part(3);
    const auto mask_BT = setting.masked ? mask_of(setting, rows) : Tensor();
    const auto hood_T = hoods(setting);
    auto sees_BTT = hood_T.unsqueeze(0).eq(hood_T.unsqueeze(1)).unsqueeze(0);
    if (setting.masked) sees_BTT = sees_BTT.logical_and(mask_BT.unsqueeze(1));
    const auto scores_BNTT = torch::matmul(q.transpose(1, 2), k.permute({0, 2, 3, 1})) / 2.0;  // sqrt of 4
    const auto hidden = sees_BTT.unsqueeze(1).logical_not();
    const auto shares = torch::softmax(scores_BNTT.masked_fill(hidden, -std::numeric_limits<double>::infinity()), -1);
    const auto expected = torch::matmul(shares, v.transpose(1, 2)).transpose(1, 2);
    const auto found = ctx->attention({.parts = {{q, k, v, stream, mask_BT}}, .pattern = setting.pattern});
    CHECK(distance(found[0], expected) < 1e-13);
  }
}

TEST_CASE("a mask of other keys than those that are given is refused") {
  const auto ctx = small_context(torch::kDouble);
  const auto x = normal({2, 30, 3, 4}, 1);
  const auto refused = [&](const Tensor& mask_BS) {
    CHECK_THROWS_WITH_AS(ctx->attention({.parts = {{x, x, x, {kVideo, nullptr}, mask_BS}}}),
                         doctest::Contains("was given a key mask that is"), Error);
  };
  refused(torch::ones({2, 15}, torch::kBool));
  refused(torch::ones({1, 30}, torch::kBool));
  refused(torch::ones({2, 30}));
}

TEST_CASE("rank of: attention under a context cut" * doctest::skip()) {
  setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16", 0);  // where announced matrix tiles die
  const auto mesh = testing::mesh_of({{Axis::context, rank_info().world_size}});
  const auto& group = mesh.group(Axis::context);
  for (const std::string id : {"ring", "ulysses", "spatiotemporal"})
    for (const auto& setting : kSettings) {
      CAPTURE(id);
      CAPTURE(setting.text);
      const auto expected = attend(nullptr, setting, group, torch::kDouble);
      compare(attend(make(id, needs_of(mesh)), setting, group, torch::kDouble), expected, 1e-13);
      compare(attend(make(id, needs_of(mesh, torch::kBFloat16)), setting, group, torch::kBFloat16), expected, 0.06);
    }
}

TEST_CASE("attention of cut tokens is attention of the whole: outputs and gradients, all patterns, uneven and packed") {
  for (const int ranks : {2, 3, 4}) CHECK(testing::as_ranks(ranks, "rank of: attention under a context cut") == 0);
}

// Attends to its own tokens and to text in one unit.
struct SelfAndText : Layer {
  SelfAndText() {
    qkv = linear("qkv", 48, 3 * 48, Split::heads({12, 12, 12}, 4));
    kv = linear("kv", 48, 2 * 48, Split::heads({12, 12}, 4).of_condition());
    out = linear("out", 48, 48, Split::rows());
  }
  Tensor forward(const Tensor& x_BTD, Pattern pattern, const Stream& s, Context& ctx) {
    const auto text = kv(s.condition.text_BSE, ctx).unflatten(-1, {2, 12, 4}).unbind(-3);
    return ctx.attention_unit(qkv, out, x_BTD, [&](const Tensor& x) {
      const auto own = qkv(x, ctx).unflatten(-1, {3, -1, 4}).unbind(-3);
      const auto to_own = ctx.attention(own[0], own[1], own[2], pattern, s);
      return out((to_own + ctx.attention(own[0], text[0], text[1], Pattern::cross, s)).flatten(-2), ctx);
    });
  }
  Linear qkv, kv, out;
};

struct MoreSubLayers : SubLayers {
  MoreSubLayers() { both = make<SelfAndText>("both"); }
  std::shared_ptr<SelfAndText> both;
};

// Sub-layers of a block, with rotary positions and norms of queries and keys.
template <class Layers = SubLayers>
Results run_sub_layers(const std::shared_ptr<ParallelStrategy>& strategy, const Setting& setting, const Mesh& mesh,
                       int64_t token_leaf = 0) {
  const auto& group = mesh.group(Axis::context);
  const auto layers = filled<Layers>(torch::kDouble);
  Runner runner(strategy);
  runner.ctx->token_leaf = token_leaf;
  const bool sums = strategy && token_leaf == 0;  // under one number what is whole has a whole gradient
  auto stream = stream_of(setting);
  const int64_t samples = setting.packed ? 1 : 2;
  const auto x = normal({samples, tokens_of(stream), 48}, 1).requires_grad_();
  const auto texts = setting.packed ? static_cast<int64_t>(kPack.size()) : samples;  // a row for each sample
  const auto text = normal({texts, 4, 48}, 2).requires_grad_();
  stream.x_BTD = x.clone();
  stream.rotary_TK = normal({tokens_of(stream), 4}, 3);
  stream.condition.text_BSE = text.clone();
  stream.condition.text_mask_BS = torch::arange(4).unsqueeze(0).expand({texts, 4}) < 3;
  {
    const Traffic::Scope pass(mesh.traffic(), Traffic::Pass::forward);
    runner.run(stream, [&](Stream& s) {
      s.x_BTD = s.x_BTD + layers->self->forward(s.x_BTD, setting.pattern, s.rotary_TK, s, *runner.ctx);
      s.x_BTD = s.x_BTD + layers->cross->forward(s.x_BTD, s, *runner.ctx);
      if constexpr (requires { layers->both; })
        s.x_BTD = s.x_BTD + layers->both->forward(s.x_BTD, setting.pattern, s, *runner.ctx);
    });
  }
  {
    const Traffic::Scope pass(mesh.traffic(), Traffic::Pass::backward);
    (stream.x_BTD * normal(stream.x_BTD.sizes(), 4)).sum().div(sums ? group.size() : 1).backward();
  }
  Results results{{"out", stream.x_BTD.detach()}};
  const auto gradient = [&](const Tensor& leaf) {
    return sums ? group.all_reduce(leaf.grad().contiguous()) : leaf.grad();
  };
  results["x"] = gradient(x);
  results["text"] = gradient(text);
  for (const auto& item : layers->named_parameters()) results[item.key()] = gradient(item.value());
  return results;
}

TEST_CASE("rank of: sub-layers under a context cut" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::context, rank_info().world_size}});
  for (const std::string id : {"ring", "ulysses", "fastseq", "spatiotemporal"})
    for (const auto& setting : kSettings) {
      if (setting.masked) continue;  // the layers have none
      CAPTURE(id);
      CAPTURE(setting.text);
      const auto expected = run_sub_layers<MoreSubLayers>(nullptr, setting, mesh);
      compare(run_sub_layers<MoreSubLayers>(make(id, needs_of(mesh)), setting, mesh), expected, 1e-12);
    }
  auto needs = needs_of(mesh);
  needs.token_leaf = 2;
  const auto expected = run_sub_layers<MoreSubLayers>(nullptr, kSettings[0], mesh);
  compare(run_sub_layers<MoreSubLayers>(make("fastseq", needs), kSettings[0], mesh, needs.token_leaf), expected, 1e-12);
}

TEST_CASE("attention sub-layers of cut tokens train as the whole: every gradient, norms, rotary positions and text") {
  for (const int ranks : {2, 3, 4}) CHECK(testing::as_ranks(ranks, "rank of: sub-layers under a context cut") == 0);
}

using Calls = std::map<std::string, int64_t>;

// Calls and bytes of one sub-layer with B = 2, T = 30, D = 48 in fp64, by "forward all_gather".
std::pair<Calls, Calls> count(const std::string& id, Pattern pattern, const Mesh& mesh) {
  mesh.traffic().clear();
  auto strategy = make(id, needs_of(mesh));
  run_sub_layers(strategy, {"", pattern}, mesh);
  std::pair<Calls, Calls> counts;
  for (const auto& [key, count] : mesh.traffic().counts()) {
    if (key.pass == Traffic::Pass::other) continue;
    const std::string name_of = std::string(name(key.pass)) + " " + key.op;
    counts.first[name_of] = count.calls;
    counts.second[name_of] = count.bytes;
  }
  return counts;
}

TEST_CASE("rank of: counted context exchanges" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::context, 2}});
  // Bytes of this rank's half of [B, T, D]: frames are dealt 2 and 3.
  const int64_t half = 2 * 15 * 48 * 8, frames = 2 * (mesh.rank() == 0 ? 12 : 18) * 48 * 8;
  const int64_t others = 2 * 30 * 48 * 8 - frames;
  {
    const auto [calls, bytes] = count("ring", Pattern::full, mesh);
    CHECK(
        calls ==
        Calls{{"forward shift", 1}, {"forward all_gather", 1}, {"backward shift", 3}, {"backward reduce_scatter", 1}});
    CHECK(bytes.at("forward shift") == 2 * half);
    CHECK(bytes.at("backward shift") == 6 * half);
  }
  {
    const auto [calls, bytes] = count("ulysses", Pattern::full, mesh);
    CHECK(calls == Calls{{"forward all_to_all", 2},
                         {"forward all_gather", 1},
                         {"backward all_to_all", 2},
                         {"backward reduce_scatter", 1}});
    CHECK(bytes.at("forward all_to_all") == 4 * half / 2);
    CHECK(bytes.at("backward all_to_all") == 4 * half / 2);
  }
  {
    const auto [calls, bytes] = count("fastseq", Pattern::full, mesh);
    CHECK(calls == Calls{{"forward all_to_all", 1},
                         {"forward all_gather", 2},
                         {"backward all_to_all", 1},
                         {"backward reduce_scatter", 2}});
    CHECK(bytes.at("forward all_to_all") == half / 2);
    CHECK(bytes.at("forward all_gather") == 2 * half);
    CHECK(bytes.at("backward reduce_scatter") == 2 * half);
  }
  {
    const auto [calls, bytes] = count("spatiotemporal", Pattern::spatial, mesh);
    CHECK(calls == Calls{{"forward all_gather", 1}, {"backward reduce_scatter", 1}});
  }
  {
    const auto [calls, bytes] = count("spatiotemporal", Pattern::temporal, mesh);
    CHECK(calls == Calls{{"forward all_to_all", 2},
                         {"forward all_gather", 1},
                         {"backward all_to_all", 2},
                         {"backward reduce_scatter", 1}});
    CHECK(bytes.at("forward all_to_all") == 3 * frames / 2 + others / 2);
  }
}

TEST_CASE("context exchanges are counted as derived: ring, ulysses, fastseq and spatiotemporal") {
  CHECK(testing::as_ranks(2, "rank of: counted context exchanges") == 0);
}

// A mesh of one process that says it is a rank of more, for what needs no peers.
class Alone final : public Mesh {
 public:
  explicit Alone(int context, int tensor = 1)
      : context_(context), tensor_(tensor), group_(0, context, "context", nullptr) {}
  int size(Axis axis) const override { return axis == Axis::context ? context_ : axis == Axis::tensor ? tensor_ : 1; }
  int index(Axis) const override { return 0; }
  int rank() const override { return 0; }
  int world_size() const override { return context_ * tensor_; }
  const Group& group(const AxisSet&) const override { return group_; }
  Traffic& traffic() const override { return traffic_; }

 private:
  int context_, tensor_;
  Group group_;
  mutable Traffic traffic_;
};

TEST_CASE("a pack's slices cost the same as far as whole tokens allow") {
  const Alone mesh(3);
  const TokenCut cut(needs_of(mesh));
  const auto lengths = [&](std::vector<int64_t> samples) {
    auto packing = std::make_shared<Packing>();
    packing->lengths = std::move(samples);
    return cut.lengths({{}, packing});
  };
  CHECK(lengths({6, 6, 6}) == std::vector<int64_t>{6, 6, 6});
  CHECK(lengths({9}) == std::vector<int64_t>{3, 3, 3});
  CHECK(lengths({12, 4, 4, 4}) == std::vector<int64_t>{5, 6, 13});  // costs 192 in all, 64 each
  CHECK(lengths({1, 1, 30}) == std::vector<int64_t>{12, 10, 10});
  CHECK(lengths({1, 1, 1}) == std::vector<int64_t>{1, 1, 1});
  CHECK(lengths({30, 1, 1}) == std::vector<int64_t>{10, 10, 12});
}

TEST_CASE("what a context cut cannot do is refused with the numbers") {
  const Alone mesh(4);
  const auto lengths = [&](TokenCut::Unit unit, const Grid& grid) {
    return TokenCut(needs_of(mesh), unit).lengths({grid, nullptr});
  };
  CHECK(lengths(TokenCut::Unit::token, {1, 2, 3}) == std::vector<int64_t>{1, 2, 1, 2});
  CHECK(lengths(TokenCut::Unit::frame, {6, 2, 3}) == std::vector<int64_t>{6, 12, 6, 12});
  CHECK(lengths(TokenCut::Unit::frame, {3, 2, 3}) == std::vector<int64_t>{4, 5, 4, 5});  // too few frames
  CHECK_THROWS_WITH_AS(lengths(TokenCut::Unit::token, {1, 1, 3}), doctest::Contains("number of tokens is 3"), Error);
  for (const std::string id : {"ring", "ulysses", "fastseq", "spatiotemporal"})
    CHECK_THROWS_WITH_AS(make(id, needs_of(mesh, torch::kDouble, false)),
                         doctest::Contains("return true from token_local() if its blocks do"), Error);

  Stream stream = stream_of({"", Pattern::full});
  stream.x_BTD = torch::zeros({1, 31, 2});
  CHECK_THROWS_WITH_AS(make("ring", needs_of(mesh))->split(stream), doctest::Contains("31 tokens"), Error);
}

TEST_CASE("heads that a context degree does not divide are refused before any step") {
  testing::SmallModel model(24, 6, 8);
  auto layout = Layout::of(model);
  for (const std::string id : {"ulysses", "fastseq"}) {
    const Alone four(4), three(3), three_of_tensor(3, 2), two_of_tensor(2, 2);
    CHECK_THROWS_WITH_AS(make(id, needs_of(four))->shard(layout),
                         doctest::Contains("4 does not divide the 6 attention heads of \"blocks.0.qkv\""), Error);
    make(id, needs_of(three))->shard(layout);
    make(id, needs_of(three_of_tensor))->shard(layout);
    CHECK_THROWS_WITH_AS(make(id, needs_of(two_of_tensor))->shard(layout),
                         doctest::Contains("the 3 attention heads of \"blocks.0.qkv\" that parallel.tensor = 2 leaves"),
                         Error);
  }
  make("ring", needs_of(Alone(4)))->shard(layout);
}

TEST_CASE("fastseq gives attention inside of a unit the bias of its rank's heads") {
  const Alone mesh(2);
  const auto ctx = small_context(torch::kDouble);
  const auto strategy = make("fastseq", needs_of(mesh));
  const auto& plain = ctx->attention_op;
  const auto op = strategy->wrap_attention(plain);
  const auto q = normal({1, 30, 2, 2}, 1), bias = normal({1, 4, 30, 30}, 2);  // all tokens, two of four heads
  AttentionCall call{.parts = {{q, q, q, {kVideo, nullptr}, {}}}};
  call.bias = bias;
  const auto found = op.run(call).at(0);
  call.bias = bias.narrow(1, 0, 2);
  CHECK(torch::equal(found, plain.run(call).at(0)));
}

TEST_CASE("fastseq refuses attention outside of an attention unit") {
  const Alone mesh(4);  // the first of these has 7 of 30 tokens, the second 8
  const auto strategy = make("fastseq", needs_of(mesh));
  const auto op = strategy->wrap_attention(small_context(torch::kDouble)->attention_op);
  const auto q = normal({1, 7, 4, 2}, 1);
  CHECK_THROWS_WITH_AS(op.run({.parts = {{q, q, q, {kVideo, nullptr}, {}}}}), doctest::Contains("attention units"),
                       Error);
}

}  // namespace
}  // namespace ditto
