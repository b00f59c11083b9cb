// Experts and routers under run.numerics = "one": trees over samples of trees over their tokens, whoever is routed
// where; ties by index. And that their ops have the bits of the calls they stand for under "fast".
#include <cmath>

#include <doctest/doctest.h>

#include <ditto/context.h>
#include <ditto/model.h>
#include <ditto/nn.h>
#include <ditto/testing/checks.h>

#include "tests/unit/exact_rows.h"

namespace ditto::exact {
namespace {

constexpr int64_t kTokens = 21, kWidth = 13, kHidden = 37, kExperts = 5, kLeaf = 8;

// Which tokens an expert takes, of `samples` samples in their order: many, few, none of most samples, and none at all.
bool takes(int64_t expert, int64_t sample, int64_t token) {
  switch (expert) {
    case 0: return (token * 7 + sample * 3) % 5 < 3;
    case 1: return sample % 3 == 1 && token > 15;
    case 2: return (token + sample) % 7 == 0;
    case 3: return sample == 2;
    default: return false;
  }
}

struct Rows {
  std::vector<int64_t> counts, tokens;
};
Rows rows_of(int64_t first, int64_t samples) {
  Rows rows;
  for (int64_t e = 0; e < kExperts; ++e) {
    const auto before = rows.tokens.size();
    for (int64_t s = 0; s < samples; ++s)
      for (int64_t t = 0; t < kTokens; ++t)
        if (takes(e, first + s, t)) rows.tokens.push_back(s * kTokens + t);
    rows.counts.push_back(static_cast<int64_t>(rows.tokens.size() - before));
  }
  return rows;
}
Tensor index_of(const std::vector<int64_t>& list) { return torch::tensor(list, torch::kLong); }

// Numbers of a row follow from its expert, sample and token.
Tensor numbers_of_rows(int64_t first, int64_t samples, int64_t width, int64_t which) {
  const auto all = numbers({kExperts, 8, kTokens, width}, which);
  const auto rows = rows_of(first, samples);
  Tensors list;
  size_t at = 0;
  for (int64_t e = 0; e < kExperts; ++e)
    for (int64_t i = 0; i < rows.counts[static_cast<size_t>(e)]; ++i, ++at)
      list.push_back(all[e][first + rows.tokens[at] / kTokens][rows.tokens[at] % kTokens]);
  return torch::stack(list);
}

OpInputs call(int64_t first, int64_t samples) {
  const auto rows = rows_of(first, samples);
  return {{numbers_of_rows(first, samples, kWidth, 1), numbers({kExperts, kHidden, kWidth}, 2) * 0.3,
           numbers({kExperts, kHidden}, 3), numbers({kExperts, kWidth, kHidden}, 4) * 0.2,
           numbers({kExperts, kWidth}, 5), index_of(rows.counts), index_of(rows.tokens)},
          {{"tokens", kTokens}, {"token_leaf", kLeaf}}};
}

float by_the_rule(std::vector<float> leaves) {
  while (leaves.size() > 1) {
    std::vector<float> above;
    for (size_t i = 0; i < leaves.size(); i += 2)
      above.push_back(i + 1 < leaves.size() ? leaves[i] + leaves[i + 1] : leaves[i]);
    leaves = above;
  }
  return leaves.at(0);
}

TEST_CASE("an expert's bias gradient is a tree over samples of trees over leaves of tokens, of those that it takes") {
  const int64_t S = 6;
  const auto in = call(0, S);
  const auto grad = numbers_of_rows(0, S, kWidth, 11);
  const auto found = answer(row_of("experts", variants()[0]), in, grad).grads.at(4);
  int64_t first = 0;
  for (int64_t e = 0; e < kExperts; ++e) {
    const int64_t rows = in.tensors[5][e].item<int64_t>();
    for (int64_t d = 0; d < kWidth; ++d) {
      std::vector<float> samples;
      for (int64_t s = 0; s < S; ++s) {
        std::vector<float> chains((kTokens + kLeaf - 1) / kLeaf, 0.0f);
        for (int64_t r = first; r < first + rows; ++r) {
          const int64_t token = in.tensors[6][r].item<int64_t>() - s * kTokens;
          if (token >= 0 && token < kTokens) chains[static_cast<size_t>(token / kLeaf)] += grad[r][d].item<float>();
        }
        samples.push_back(by_the_rule(chains));
      }
      CHECK(found[e][d].item<float>() == by_the_rule(samples));
    }
    first += rows;
  }
}

TEST_CASE("experts' rows have the same bits in any batch, and micro-batches' gradients add to the batch's") {
  const int64_t S = 8;
  for (const auto& variant : variants()) {
    const auto row = row_of("experts", variant);
    const auto whole = answer(row, call(0, S), numbers_of_rows(0, S, kWidth, 11));
    const auto all = rows_of(0, S);
    for (const int64_t size : {1, 2, 4}) {
      std::vector<Answer> parts;
      for (int64_t first = 0; first < S; first += size)
        parts.push_back(answer(row, call(first, size), numbers_of_rows(first, size, kWidth, 11)));
      for (int64_t part = 0; part < S / size; ++part) {  // its rows among all
        std::vector<int64_t> here;
        for (size_t r = 0; r < all.tokens.size(); ++r)
          if (all.tokens[r] / kTokens / size == part) here.push_back(static_cast<int64_t>(r));
        const auto& found = parts[static_cast<size_t>(part)];
        CHECK(same_bits(found.out, whole.out.index_select(0, index_of(here))));
        CHECK(same_bits(found.grads[0], whole.grads[0].index_select(0, index_of(here))));
      }
      for (const size_t i : {1, 2, 3, 4}) {
        Tensors sums;
        for (const auto& part : parts) sums.push_back(part.grads[i]);
        while (sums.size() > 1)
          for (size_t j = 0; j < sums.size(); ++j) {  // siblings
            sums[j] = sums[j] + sums[j + 1];
            sums.erase(sums.begin() + static_cast<int64_t>(j) + 1);
          }
        CHECK_MESSAGE(same_bits(sums[0], whole.grads[i]), variant, " gradient ", i, " by ", size);
      }
    }
  }
}

// The second bias as a sum by itself, after the experts.
OpInputs biased(const OpInputs& experts) {
  const auto& in = experts.tensors;
  return {{in[0], in[4], in[5], in[6]}, experts.attributes};
}

TEST_CASE("what is added after experts has the gradient of their second bias") {
  const auto in = call(0, 6);
  const auto grad = numbers_of_rows(0, 6, kWidth, 11);
  for (const auto& variant : variants()) {
    const auto added = answer(row_of("add_expert_rows", variant), biased(in), grad);
    CHECK(same_bits(added.grads.at(1), answer(row_of("experts", variant), in, grad).grads.at(4)));
    CHECK(same_bits(added.grads.at(0), grad));
  }
}

// Rows of two ranks, each with half of the samples, as experts that are dealt out see them.
TEST_CASE("samples that are far apart are halves of the same tree") {
  const int64_t S = 8, apart = (int64_t{1} << 24) * kTokens;
  const auto near = call(0, S);
  auto far = near;
  const auto half = near.tensors[6].div(kTokens * S / 2, "floor");
  far.tensors[6] = near.tensors[6] + half * (apart - kTokens * S / 2);
  const auto grad = numbers_of_rows(0, S, kWidth, 11);
  CHECK(same_bits(answer(row_of("experts"), far, grad), answer(row_of("experts"), near, grad)));
}

struct Threads {
  ~Threads() { at::set_num_threads(before); }
  int before = at::get_num_threads();
};

std::vector<std::pair<std::string, OpInputs>> calls(int64_t S) {
  const auto rows = rows_of(0, S);
  const auto R = static_cast<int64_t>(rows.tokens.size());
  const auto order = torch::arange(R).mul(7).add(3).remainder(R);
  REQUIRE(R % 7 != 0);
  auto in_runs = call(0, S);
  for (const size_t i : {1, 2}) in_runs.tensors[i] = in_runs.tensors[i].narrow(1, 0, 36).contiguous();
  in_runs.tensors[3] = in_runs.tensors[3].narrow(2, 0, 36).contiguous();
  in_runs.tensors[4] = Tensor();
  in_runs.attributes["hidden_leaves"] = std::vector<int64_t>{3, 36};
  return {{"experts", call(0, S)},
          {"experts", in_runs},
          {"add_expert_rows", biased(call(0, S))},
          {"token_rows", {{numbers({S * kTokens, 37}, 1), index_of(rows.tokens)}}},
          {"combine_rows",
           {{numbers({R, 37}, 1), numbers({R}, 2), order, index_of(rows.tokens)}, {{"tokens", S * kTokens}}}},
          {"softmax", {{numbers({S, kTokens, 37}, 1) * 5}}},
          {"row_total", {{numbers({S, kTokens, 37}, 1)}}},
          {"expert_balance", {{numbers({S, kTokens, 10}, 1)}, {{"token_leaf", kLeaf}}}}};
}

TEST_CASE("every variant has the bits of the plain one, on any number of threads") {
  const Threads restore;
  for (const auto& [op, in] : calls(6)) {
    at::set_num_threads(1);
    const auto expected = answer(row_of(op), in);
    for (const auto& variant : variants())
      for (const int threads : {1, 2, 3}) {
        at::set_num_threads(threads);
        CHECK_MESSAGE(same_bits(answer(row_of(op, variant), in), expected), op, " ", variant, ", ", threads,
                      " threads");
      }
  }
}

TEST_CASE("outputs and gradients are the references' in fp64 within rounding, and shapes are theirs") {
  for (const auto& [op, in] : calls(6)) {
    const auto row = row_of(op, variants()[0]);
    OpInputs wide{{}, in.attributes}, meta{{}, in.attributes};
    for (const auto& x : in.tensors) {
      const bool real = x.defined() && x.is_floating_point();
      wide.tensors.push_back(real ? x.to(torch::kDouble).requires_grad_() : x);
      meta.tensors.push_back(x.defined() ? x.to(torch::kMeta) : x);
    }
    Tensor meant;
    for (const Op& one : ops())
      if (one.name == op) meant = one.reference(wide).at(0);
    const auto found = answer(row, in);
    meant.backward(grad_of(found.out).to(torch::kDouble));
    const auto error = [](const Tensor& a, const Tensor& b) {
      return ((a.to(torch::kDouble) - b).abs().max() / b.abs().max()).item<double>();
    };
    CHECK_MESSAGE(error(found.out, meant.detach()) < 2e-6, op);
    for (size_t i = 0; i < wide.tensors.size(); ++i)
      if (wide.tensors[i].defined() && wide.tensors[i].is_floating_point())
        CHECK_MESSAGE(error(found.grads.at(i), wide.tensors[i].grad()) < 4e-6, op, " gradient ", i);
    const auto results = row.forward(in), shapes = row.shapes(meta);
    REQUIRE(results.size() == shapes.size());
    for (size_t i = 0; i < results.size(); ++i) CHECK((results[i].sizes() == shapes[i].sizes()));
  }
}

TEST_CASE("rows of an expert that are not in the order of their tokens are refused") {
  auto in = call(0, 2);
  in.tensors[6] = in.tensors[6].flip(0).contiguous();
  CHECK_THROWS_WITH_AS(answer(row_of("experts"), in), doctest::Contains("not in the order of their tokens"), Error);
}

// --- layers --------------------------------------------------------------------------------------------------------

TEST_CASE("of equally likely experts a token takes the first ones, of equally likely tokens an expert") {
  for (const bool by_tokens : {true, false}) {
    const auto model = testing::make<Model>(test::plugin_folder() + "/models/libdit_moe.so",
                                            {{"depth", int64_t{1}},
                                             {"width", int64_t{32}},
                                             {"heads", int64_t{4}},
                                             {"experts", int64_t{8}},
                                             {"top_k", int64_t{2}},
                                             {"router", std::string(by_tokens ? "token_choice" : "expert_choice")}},
                                            testing::model_needs({4, 8, 8}, 4));
    const torch::NoGradGuard no_grad;
    for (auto& leaf : model->parameters()) leaf.fill_(0);  // so all are equally likely
    Context ctx(
        std::make_shared<OpTable>(rows(), std::map<std::string, GivenOption>(), nullptr, std::vector<Op>(), true),
        Random(1));
    ctx.token_leaf = kLeaf;
    Tensor picks;
    ctx.observe = [&](const std::string&, const Tensor& value) { picks = value; };
    Batch batch;
    batch["x"] = numbers({3, 4, 8, 8}, 1);
    batch["t"] = torch::full({3}, 0.5);
    auto condition = model->condition(batch, ctx);
    auto stream = model->tokens(batch, ctx);
    stream.condition = condition;
    model->run_block(0, stream, ctx);
    REQUIRE(picks.defined());
    if (by_tokens)
      CHECK(picks.equal(torch::arange(2).expand({3, 16, 2})));
    else  // 2 * 16 / 8 tokens each
      CHECK(picks.equal(torch::arange(16).lt(4).view({1, 16, 1}).expand({3, 16, 8})));
  }
}

TEST_CASE("under fast experts have the bits of the calls their ops stand for, gradients included") {
  const int64_t N = 3 * kTokens, E = 3, k = 2;
  const auto expert = torch::arange(N).mul(5).remainder(E);
  const auto token_R = torch::arange(N).repeat_interleave(k);
  const auto expert_R = torch::stack({expert, expert.add(1).remainder(E)}, 1).flatten();
  ExpertsModule layer(E, kWidth, kHidden);
  const Tensors start{numbers({3, kTokens, kWidth}, 1), numbers({N * k}, 2)};
  Tensors weights;
  {
    torch::NoGradGuard no_grad;
    int64_t which = 3;
    for (auto& leaf : layer.parameters()) weights.push_back(leaf.copy_(numbers(leaf.sizes().vec(), which++)));
  }
  const auto run = [&](const std::function<Tensor(const Tensor& x, const Tensor& weight_R)>& forward) {
    const auto x = start[0].clone().requires_grad_(), weight_R = start[1].clone().requires_grad_();
    for (auto& leaf : layer.parameters()) leaf.mutable_grad().reset();
    const auto y = forward(x, weight_R);
    y.backward(grad_of(y));
    Tensors all{y.detach(), x.grad(), weight_R.grad()};
    for (auto& leaf : layer.parameters()) all.push_back(leaf.grad().clone());
    return all;
  };
  Context ctx(std::make_shared<OpTable>(), Random(1));
  const auto by_ops = run([&](const Tensor& x, const Tensor& weight_R) {
    return layer.forward(
        x,
        [&](const Tensor&) {
          return Routing{token_R, expert_R, weight_R};
        },
        ctx);
  });
  const auto by_calls = run([&](const Tensor& x, const Tensor& weight_R) {
    const auto tokens = x.flatten(0, 1);
    const auto order = torch::argsort(expert_R * N + token_R, /*stable=*/true);
    const auto at = token_R.index_select(0, order);
    const auto counts = torch::bincount(expert_R, {}, E);
    const auto parts = tokens.index_select(0, at).split_with_sizes(
        {counts[0].item<int64_t>(), counts[1].item<int64_t>(), counts[2].item<int64_t>()});
    Tensors done;
    for (int64_t e = 0; e < E; ++e) {
      const auto& part = parts[static_cast<size_t>(e)];
      const auto h = torch::gelu(torch::linear(part, layer.up(ctx)[e], layer.up_bias(ctx)[e]), "tanh");
      done.push_back(torch::linear(h, layer.down(ctx)[e], layer.down_bias(ctx)[e]));
    }
    const auto weighted = torch::cat(done) * weight_R.index_select(0, order).unsqueeze(-1);
    return torch::zeros_like(tokens).index_add(0, at, weighted).view_as(x);
  });
  REQUIRE(by_ops.size() == by_calls.size());
  for (size_t i = 0; i < by_ops.size(); ++i) {
    CAPTURE(i);
    CHECK(by_ops[i].equal(by_calls[i]));
  }
}

TEST_CASE("under fast a router's ops have the bits of the calls they stand for, gradients included") {
  Context ctx(std::make_shared<OpTable>(), Random(1));
  const auto p = torch::softmax(numbers({3, kTokens, 8}, 1), -1);
  const auto taken = numbers({3, kTokens, 8}, 2).gt(0);
  const auto same = [](const Tensor& x, const std::function<Tensor(const Tensor&)>& a,
                       const std::function<Tensor(const Tensor&)>& b) {
    const auto run = [&](const std::function<Tensor(const Tensor&)>& f) {
      const auto leaf = x.clone().requires_grad_();
      const auto y = f(leaf);
      y.backward(grad_of(y));
      return std::pair(y.detach(), leaf.grad());
    };
    const auto [y, dx] = run(a);
    const auto [z, dz] = run(b);
    CHECK(y.equal(z));
    CHECK(dx.equal(dz));
  };
  same(
      p, [&](const Tensor& x) { return ctx.ops.softmax(x); }, [](const Tensor& x) { return torch::softmax(x, -1); });
  same(
      p, [&](const Tensor& x) { return x / ctx.ops.row_total(x * taken); },
      [&](const Tensor& x) { return x / (x * taken).sum(-1, true); });
  same(
      p, [&](const Tensor& x) { return ctx.ops.expert_balance(x); },
      [](const Tensor& x) {
        const auto mean = x.mean(1).chunk(2, -1);
        return (mean[0] * mean[1]).sum(-1);
      });
}

}  // namespace
}  // namespace ditto::exact
