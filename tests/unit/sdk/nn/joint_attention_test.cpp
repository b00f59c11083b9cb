// Several sequences that attend together, causal attention, grouped heads, bias and dropout: against plain softmax
// attention on one rank, and under every strategy against one rank.
//
// Legend: B rows, T tokens, N heads, M heads of keys and values, K head width.
#include <limits>

#include <doctest/doctest.h>

#include "tests/unit/full_model.h"

namespace ditto {
namespace {

using testing::check_full;
using testing::FullOptions;
using testing::Named;
using testing::small_context;
using torch::Tensor;

Tensor normal(at::IntArrayRef shape, int64_t seed) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return torch::randn(shape, generator, torch::kDouble);
}

double distance(const Tensor& a, const Tensor& b) {
  REQUIRE((a.sizes() == b.sizes()));
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

struct Setting {
  const char* text;
  std::vector<std::vector<int64_t>> lengths;  // of each sequence: of a pack's samples, or of all rows
  bool packed = false, masked = false, causal = false, biased = false;
  int64_t shared = 4;  // heads of keys and values, for 4 of queries
  std::optional<double> scale = {};
  int64_t rows() const { return packed ? 1 : 2; }
  int64_t tokens(size_t part) const { return std::accumulate(lengths[part].begin(), lengths[part].end(), int64_t{0}); }
  int64_t tokens() const {
    int64_t all = 0;
    for (size_t part = 0; part < lengths.size(); ++part) all += tokens(part);
    return all;
  }
};

const std::vector<Setting> kSettings{
    {"joint", {{9}, {4}}},
    {"joint, masked", {{9}, {4}}, false, true},
    {"joint, causal", {{9}, {4}}, false, false, true},
    {"joint, grouped", {{9}, {4}}, false, false, false, false, 2},
    {"joint, biased", {{9}, {4}}, false, false, false, true},
    {"three, all of it", {{5}, {4}, {7}}, false, true, true, true, 2, 0.3},
    {"packed", {{3, 1, 6}, {2, 4, 1}}, true},
    {"packed, all of it", {{3, 1, 6}, {2, 4, 1}}, true, true, true, false, 2, 0.3},
    {"alone, causal, grouped", {{11}}, false, false, true, false, 1},
    {"alone in a pack, causal", {{3, 1, 7}}, true, false, true, false, 2},
};

AttentionCall call_of(const Setting& setting) {
  AttentionCall call;
  for (size_t i = 0; i < setting.lengths.size(); ++i) {
    const int64_t tokens = setting.tokens(i), seed = 10 * static_cast<int64_t>(i);
    AttentionPart part;
    part.q = normal({setting.rows(), tokens, 4, 6}, seed + 1).requires_grad_();
    part.k = normal({setting.rows(), tokens, setting.shared, 6}, seed + 2).requires_grad_();
    part.v = normal({setting.rows(), tokens, setting.shared, 6}, seed + 3).requires_grad_();
    part.tokens.grid = {1, 1, tokens};
    if (setting.packed) part.tokens.packing = packing_of(setting.lengths[i], torch::kCPU);
    // Of the first sequence of a masked call no key is hidden, and of a sample or a row never all.
    if (setting.masked && i > 0) part.key_mask_BS = normal({setting.rows(), tokens}, seed + 4).gt(-0.3);
    call.parts.push_back(part);
  }
  call.causal = setting.causal;
  call.scale = setting.scale;
  if (setting.biased) call.bias = normal({1, 4, setting.tokens(), setting.tokens()}, 99);
  return call;
}

// Softmax over one row of all tokens, with what may not be seen at minus infinity.
Tensors by_hand(const Setting& setting, const AttentionCall& call) {
  Tensors q, k, v, masks;
  std::vector<int64_t> sample, order;  // of each token; its place among those of its sample, part by part
  for (size_t p = 0; p < call.parts.size(); ++p) {
    const auto& part = call.parts[p];
    q.push_back(part.q), k.push_back(part.k), v.push_back(part.v);
    masks.push_back(part.key_mask_BS.defined() ? part.key_mask_BS
                                               : torch::ones({setting.rows(), part.k.size(1)}, torch::kBool));
    for (size_t i = 0; i < setting.lengths[p].size(); ++i)
      for (int64_t j = 0; j < setting.lengths[p][i]; ++j)
        sample.push_back(static_cast<int64_t>(i)), order.push_back(static_cast<int64_t>(100 * p) + j);
  }
  const auto heads = [&](const Tensors& x) { return torch::cat(x, 1).transpose(1, 2); };
  const auto spread = [&](const Tensors& x) { return heads(x).repeat_interleave(4 / setting.shared, 1); };
  const auto sample_T = torch::tensor(sample), order_T = torch::tensor(order);
  auto sees_BTT = sample_T.unsqueeze(0).eq(sample_T.unsqueeze(1)).logical_and(torch::cat(masks, 1).unsqueeze(1));
  if (setting.causal) sees_BTT = sees_BTT.logical_and(order_T.unsqueeze(0).le(order_T.unsqueeze(1)));
  auto scores = torch::matmul(heads(q), spread(k).transpose(-2, -1)) * setting.scale.value_or(1 / std::sqrt(6.0));
  if (setting.biased) scores = scores + call.bias;
  const auto shares = torch::softmax(
      scores.masked_fill(sees_BTT.unsqueeze(1).logical_not(), -std::numeric_limits<double>::infinity()), -1);
  std::vector<int64_t> sizes;
  for (const auto& part : call.parts) sizes.push_back(part.q.size(1));
  return torch::matmul(shares, spread(v)).transpose(1, 2).split_with_sizes(sizes, 1);
}

// Outputs, then the gradients of q, k and v, part by part.
Tensors with_gradients(const AttentionCall& call, const Tensors& outputs) {
  Tensor loss = torch::zeros({}, torch::kDouble);
  Tensors all;
  for (size_t i = 0; i < outputs.size(); ++i) {
    loss = loss + (outputs[i] * normal(outputs[i].sizes(), 50 + static_cast<int64_t>(i))).sum();
    all.push_back(outputs[i].detach());
  }
  loss.backward();
  for (const auto& part : call.parts)
    for (const Tensor* leaf : {&part.q, &part.k, &part.v}) all.push_back(leaf->grad());
  return all;
}

Tensors expected_of(const Setting& setting) {
  const auto call = call_of(setting);
  return with_gradients(call, by_hand(setting, call));
}

TEST_CASE("sequences that attend together are one softmax over all of them: masks, causal, bias, groups and packs") {
  for (const auto& setting : kSettings) {
    CAPTURE(setting.text);
    const auto call = call_of(setting);
    const auto found = with_gradients(call, small_context(torch::kDouble)->attention(call));
    const auto expected = expected_of(setting);
    for (size_t i = 0; i < expected.size(); ++i) CHECK(distance(found[i], expected[i]) < 1e-12);
  }
}

TEST_CASE("a bias may be learned where attention is whole") {
  auto call = call_of(kSettings[4]);
  call.bias.requires_grad_();
  with_gradients(call, small_context(torch::kDouble)->attention(call));
  const auto found = call.bias.grad().clone();
  call.bias.mutable_grad().reset();
  with_gradients(call, by_hand(kSettings[4], call));
  CHECK(distance(found, call.bias.grad()) < 1e-12);
}

std::shared_ptr<ParallelStrategy> make(const std::string& id, const Mesh& mesh) {
  Registry registry(std::vector<SearchFolder>{{test::plugin_folder(), "the test"}});
  OptionReader none(OptionMap{"parallel", "the test", {}});
  return registry.factory<ParallelStrategy>(id, "the test").make(none, {&mesh, true, true, torch::kDouble, 1});
}

// With this rank's slice of every sequence; results whole again.
Tensors under(const std::string& id, const Setting& setting, const Mesh& mesh) {
  const auto& group = mesh.group(Axis::context);
  const auto strategy = make(id, mesh);
  const auto ctx = small_context(torch::kDouble);
  ctx->attention_op = strategy->wrap_attention(ctx->attention_op);
  const auto whole = call_of(setting);
  Stream stream;
  const auto name = [](size_t part, const char* what) { return std::to_string(part) + what; };
  for (size_t i = 0; i < whole.parts.size(); ++i) {
    const auto& part = whole.parts[i];
    stream.extra[name(i, "q")] = {part.q, 1, Role::evolving, part.tokens};
    stream.extra[name(i, "k")] = {part.k, 1, Role::constant, part.tokens};
    stream.extra[name(i, "v")] = {part.v, 1, Role::constant, part.tokens};
    if (part.key_mask_BS.defined()) stream.extra[name(i, "mask")] = {part.key_mask_BS, 1, Role::constant, part.tokens};
  }
  strategy->split(stream);
  auto own = whole;
  for (size_t i = 0; i < own.parts.size(); ++i) {
    auto& part = own.parts[i];
    const auto& q = stream.extra.at(name(i, "q"));
    part.q = q.tensor, part.tokens = *q.own;
    part.k = stream.extra.at(name(i, "k")).tensor, part.v = stream.extra.at(name(i, "v")).tensor;
    if (part.key_mask_BS.defined()) part.key_mask_BS = stream.extra.at(name(i, "mask")).tensor;
  }
  const auto outputs = ctx->attention(own);
  for (size_t i = 0; i < outputs.size(); ++i) stream.extra.at(name(i, "q")).tensor = outputs[i];
  strategy->join(stream);
  Tensors joined;
  for (size_t i = 0; i < outputs.size(); ++i) joined.push_back(stream.extra.at(name(i, "q")).tensor / group.size());
  auto results = with_gradients(whole, joined);
  for (size_t i = 0; i < results.size(); ++i)
    results[i] = i < outputs.size() ? results[i] * group.size() : group.all_reduce(results[i].contiguous());
  return results;
}

TEST_CASE("rank of: joint attention under a context cut" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::context, rank_info().world_size}});
  for (const std::string id : {"ring", "ulysses", "spatiotemporal"})
    for (const auto& setting : kSettings) {
      if (id == "ulysses" && 4 % mesh.world_size() != 0) continue;
      CAPTURE(id);
      CAPTURE(setting.text);
      const auto found = under(id, setting, mesh), expected = expected_of(setting);
      for (size_t i = 0; i < expected.size(); ++i) CHECK(distance(found[i], expected[i]) < 1e-12);
    }
}

TEST_CASE("every rank holds its slice of each sequence, and what attends jointly gives what it gives on one") {
  for (const int ranks : {2, 3, 4})
    CHECK(testing::as_ranks(ranks, "rank of: joint attention under a context cut") == 0);
}

TEST_CASE("rank of: a learned bias around a ring" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::context, 2}});
  auto call = call_of({"", {{4}}, false, false, false, true});
  for (auto* x : {&call.parts[0].q, &call.parts[0].k, &call.parts[0].v}) *x = x->detach().narrow(1, 0, 2);
  call.bias.requires_grad_();
  const auto strategy = make("ring", mesh);
  const auto op = strategy->wrap_attention(small_context(torch::kDouble)->attention_op);
  CHECK_THROWS_WITH_AS(op.run(call), doctest::Contains("a bias that is learned"), Error);
}

TEST_CASE("a ring refuses a bias whose gradient it would lose") {
  CHECK(testing::as_ranks(2, "rank of: a learned bias around a ring") == 0);
}

TEST_CASE("attention that makes no sense is refused before it is computed") {
  const auto ctx = small_context(torch::kDouble);
  const auto refused = [&](const char* what, const std::function<void(AttentionCall&)>& change) {
    auto call = call_of(kSettings[0]);
    change(call);
    CHECK_THROWS_WITH_AS(ctx->attention(call), doctest::Contains(what), Error);
  };
  refused("no sequence", [](AttentionCall& call) { call.parts.clear(); });
  refused("a pattern other than full", [](AttentionCall& call) { call.pattern = Pattern::spatial; });
  refused("4 heads of queries for 3", [](AttentionCall& call) {
    for (auto* x : {&call.parts[0].k, &call.parts[0].v}) *x = x->narrow(2, 0, 3);
  });
  refused("sequences of q", [](AttentionCall& call) {
    for (auto* x : {&call.parts[1].q, &call.parts[1].k, &call.parts[1].v}) *x = x->narrow(2, 0, 2);
  });
  refused("a pack of other samples",
          [](AttentionCall& call) { call.parts[1].tokens.packing = packing_of({4}, torch::kCPU); });
  refused("is to be causal", [](AttentionCall& call) {
    call.parts.resize(1);
    call.causal = true, call.pattern = Pattern::cross;
  });
  refused("a bias for a pack", [](AttentionCall& call) {
    call.parts.resize(1);
    call.bias = torch::zeros({1, 1, 9, 9}), call.parts[0].tokens.packing = packing_of({4, 5}, torch::kCPU);
  });
}

const Named kSequence{"tensor", {{"sequence", true}}};

// A process is of one mesh.
void check_joint(const Degrees& degrees, const std::vector<std::vector<Named>>& strategies, double dropout = 0) {
  const auto mesh = testing::mesh_of(degrees);
  for (const bool packed : {false, true})
    for (const auto& some : strategies) {
      CAPTURE(packed);
      CAPTURE(some[0].id);
      check_full(mesh, {.is_packed = packed, .is_joint = true, .dropout = dropout}, some, 2);
    }
}

TEST_CASE("rank of: a joint model around a ring" * doctest::skip()) {
  check_joint({{Axis::context, rank_info().world_size}}, {{{"ring"}}});
}
TEST_CASE("rank of: a joint model cut by tokens" * doctest::skip()) {
  check_joint(
      {{Axis::context, 2}},
      {{{"ulysses"}}, {{"fastseq"}}, {{"spatiotemporal"}}, {{"ring"}, {"recompute", {{"recompute", "attention"}}}}});
}
TEST_CASE("rank of: a joint model cut by heads" * doctest::skip()) {
  check_joint({{Axis::tensor, 2}}, {{{"tensor"}}, {kSequence}, {kSequence, {"recompute"}}});
}
TEST_CASE("rank of: a joint model in shards" * doctest::skip()) { check_joint({{Axis::shard, 2}}, {{{"fsdp"}}}); }
TEST_CASE("rank of: a joint model cut by tokens and heads" * doctest::skip()) {
  check_joint({{Axis::context, 2}, {Axis::tensor, 2}}, {{kSequence, {"ring"}}});
}

TEST_CASE("two sequences with weights of their own that attend jointly train as on one rank, under every strategy") {
  for (const int ranks : {2, 3, 4}) CHECK(testing::as_ranks(ranks, "rank of: a joint model around a ring") == 0);
  for (const char* cut : {"cut by tokens", "cut by heads", "in shards"})
    CHECK(testing::as_ranks(2, std::string("rank of: a joint model ") + cut) == 0);
  CHECK(testing::as_ranks(4, "rank of: a joint model cut by tokens and heads") == 0);
}

TEST_CASE("rank of: dropout on replicas" * doctest::skip()) { check_joint({{Axis::replicate, 2}}, {{{"ddp"}}}, 0.4); }
TEST_CASE("rank of: dropout under a cut by heads" * doctest::skip()) {
  check_joint({{Axis::tensor, 2}}, {{{"tensor"}}, {kSequence}}, 0.4);
}
TEST_CASE("rank of: dropout under a cut by tokens" * doctest::skip()) {
  check_joint({{Axis::context, 2}}, {{{"ring"}}, {{"fastseq"}, {"recompute"}}}, 0.4);
}

TEST_CASE("what is dropped in a block depends on seed, sample, name and place alone: the same on any layout") {
  for (const char* cut : {"on replicas", "under a cut by heads", "under a cut by tokens"})
    CHECK(testing::as_ranks(2, std::string("rank of: dropout ") + cut) == 0);
}

TEST_CASE(
    "dropout leaves out the share that it is told, other numbers by sample and by name, and nothing when sampling") {
  const auto ctx = small_context(torch::kDouble);
  Stream stream;
  stream.grid = {1, 10, 20};
  stream.x_BTD = torch::ones({2, 200, 50}, torch::kDouble);
  stream.ids = {7, 8};
  const auto drop = [&](const char* name) { return ctx->dropout(stream.x_BTD, 0.25, stream, name); };
  const auto x = drop("a");
  CHECK(x.ne(0).to(torch::kDouble).mean().item<double>() == doctest::Approx(0.75).epsilon(0.02));
  CHECK(x.mean().item<double>() == doctest::Approx(1).epsilon(0.02));
  CHECK(x.equal(drop("a")));
  CHECK(!x.equal(drop("b")));
  CHECK(!x[0].equal(x[1]));
  std::swap(stream.ids[0], stream.ids[1]);
  CHECK(x.flip(0).equal(drop("a")));
  ctx->phase = Phase::sample;
  CHECK(drop("a").equal(stream.x_BTD));
}

TEST_CASE("dropout of what is not a sequence's whole tokens, or of samples without ids, is refused") {
  const auto ctx = small_context(torch::kDouble);
  Stream stream;
  stream.grid = {1, 1, 4};
  stream.x_BTD = torch::ones({2, 4, 6}, torch::kDouble);
  stream.ids = {1, 2};
  const auto drop = [&](const Tensor& x, double p) { ctx->dropout(x, p, stream, "here"); };
  CHECK_THROWS_WITH_AS(drop(stream.x_BTD.narrow(2, 0, 3), 0.1), doctest::Contains("drop whole tokens"), Error);
  CHECK_THROWS_WITH_AS(drop(stream.x_BTD, 1), doctest::Contains("has p = 1"), Error);
  stream.ids.clear();
  CHECK_THROWS_WITH_AS(drop(stream.x_BTD, 0.1), doctest::Contains("0 sample ids for 2 samples"), Error);
}

}  // namespace
}  // namespace ditto
