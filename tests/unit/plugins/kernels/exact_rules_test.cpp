// Claim (one number): The kernel set `exact` follows its rule: trees over fixed leaves, which padding, slices and
// strides do not change.
#include <cmath>

#include <doctest/doctest.h>

#include "tests/unit/exact_rows.h"

namespace ditto::exact {
namespace {

// The rule, in words of its own.
float by_the_rule(std::vector<float> leaves) {
  while (leaves.size() > 1) {
    std::vector<float> above;
    for (size_t i = 0; i < leaves.size(); i += 2)
      above.push_back(i + 1 < leaves.size() ? leaves[i] + leaves[i + 1] : leaves[i]);
    leaves = above;
  }
  return leaves.at(0);
}

TEST_CASE("a product is the tree over its leaves of chains of fused multiply-adds, parts taken run by run") {
  const int64_t M = 7, N = 5, widths[] = {12, 30, 6}, leaves = 3, K = 48;
  const auto x = numbers({M, K}, 1), weight = numbers({N, K}, 2);
  const auto out = row_of("linear", variants()[0])
                       .forward({{x, weight, Tensor()}, {{"in_leaves", std::vector<int64_t>{leaves, 12, 30, 6}}}})
                       .at(0);
  for (int64_t i = 0; i < M; ++i)
    for (int64_t j = 0; j < N; ++j) {
      std::vector<float> chains;
      for (int64_t leaf = 0; leaf < leaves; ++leaf) {
        float chain = 0;
        int64_t start = 0;
        for (const int64_t width : widths) {
          for (int64_t k = start + leaf * width / leaves; k < start + (leaf + 1) * width / leaves; ++k)
            chain = std::fma(x[i][k].item<float>(), weight[j][k].item<float>(), chain);
          start += width;
        }
        chains.push_back(chain);
      }
      CHECK(out[i][j].item<float>() == by_the_rule(chains));
    }
}

TEST_CASE("a weight's gradient is a tree over samples of trees over leaves of tokens") {
  const int64_t S = 3, T = 19, N = 4, K = 3, leaf = 8;
  const auto x = numbers({S, T, K}, 1), grad = numbers({S, T, N}, 2);
  const auto found =
      answer(row_of("linear", variants()[0]), {{x, numbers({N, K}, 3), numbers({N}, 4)}, {{"token_leaf", leaf}}}, grad);
  for (int64_t n = 0; n < N; ++n)
    for (int64_t k = -1; k < K; ++k) {  // -1: of the bias
      std::vector<float> samples;
      for (int64_t s = 0; s < S; ++s) {
        std::vector<float> chains;
        for (int64_t t = 0; t < T; ++t) {
          if (t % leaf == 0) chains.push_back(0);
          const float g = grad[s][t][n].item<float>();
          chains.back() = k < 0 ? chains.back() + g : std::fma(g, x[s][t][k].item<float>(), chains.back());
        }
        samples.push_back(by_the_rule(chains));
      }
      CHECK((k < 0 ? found.grads[2][n] : found.grads[1][n][k]).item<float>() == by_the_rule(samples));
    }
}

TEST_CASE("keys and queries that are padded and masked change no bit") {
  const int64_t S = 21, T = 13, N = 2, K = 12;
  const auto call = [&](int64_t more) -> OpInputs {
    const auto mask = torch::arange(S + more).lt(S - 2).unsqueeze(0);
    const auto padded = [&](const Tensor& x, int64_t which) {
      return torch::cat({x, numbers({1, more, N, K}, which)}, 1);
    };
    return {{padded(numbers({1, T, N, K}, 1), 4), padded(numbers({1, S, N, K}, 2), 5),
             padded(numbers({1, S, N, K}, 3), 6), mask},
            {{"token_leaf", int64_t{8}}}};
  };
  for (const auto& variant : variants()) {
    const auto row = row_of("attention", variant);
    const auto grad = numbers({1, T, N, K}, 11);
    const auto expected = answer(row, call(0), grad);
    for (const int64_t more : {1, 3, 11, 64}) {
      const auto found = answer(row, call(more), torch::constant_pad_nd(grad, {0, 0, 0, 0, 0, more}));
      CHECK(same_bits(found.out.narrow(1, 0, T), expected.out));
      CHECK(same_bits(found.grads[0].narrow(1, 0, T), expected.grads[0]));
      for (const size_t i : {1, 2}) CHECK(same_bits(found.grads[i].narrow(1, 0, S), expected.grads[i]));
    }
  }
}

TEST_CASE("tokens whose gradient is zero change no bit of a weight's") {
  const int64_t S = 2, T = 11, more = 30;
  const auto x = numbers({S, T + more, 20}, 1), weight = numbers({9, 20}, 2), bias = numbers({9}, 3);
  const auto grad = numbers({S, T + more, 9}, 4);
  grad.narrow(1, T, more).zero_();
  const std::map<std::string, Attribute> leaf{{"token_leaf", int64_t{8}}};
  for (const auto& variant : variants()) {
    const auto row = row_of("linear", variant);
    const auto padded = answer(row, {{x, weight, bias}, leaf}, grad);
    const auto whole = answer(row, {{x.narrow(1, 0, T), weight, bias}, leaf}, grad.narrow(1, 0, T).contiguous());
    for (const size_t i : {1, 2}) CHECK(same_bits(padded.grads[i], whole.grads[i]));
  }
}

TEST_CASE("AdamW gives a slice the bits of the whole, in every variant, and follows its formula") {
  const int64_t n = 137;
  const std::map<std::string, Attribute> options{{"lr", 0.01},  {"beta1", 0.9},        {"beta2", 0.99},
                                                 {"eps", 1e-8}, {"weight_decay", 0.1}, {"step", 3.0}};
  const auto start = [&]() -> Tensors {
    return {numbers({n}, 1), numbers({n}, 2), numbers({n}, 3), numbers({n}, 4).square()};
  };
  const auto before = start();
  auto expected = start();
  row_of("adamw").forward({expected, options});
  CHECK(expected[1].equal(before[1]));
  for (const auto& variant : variants())
    for (const int64_t middle : {1, 16, 99}) {
      const auto found = start();
      for (const auto& [first, size] : {std::pair<int64_t, int64_t>{0, middle}, {middle, n - middle}}) {
        Tensors slice;
        for (const auto& x : found) slice.push_back(x.narrow(0, first, size));
        row_of("adamw", variant).forward({slice, options});
      }
      for (const size_t i : {0, 2, 3}) CHECK(same_bits(found[i], expected[i]));
    }
  Tensors t;
  for (const auto& x : before) t.push_back(x.to(torch::kDouble));
  const auto m = t[2] * 0.9 + t[1] * 0.1, v = t[3] * 0.99 + t[1] * t[1] * 0.01;
  const auto w = t[0] * (1 - 0.001) - 0.01 / (1 - std::pow(0.9, 3)) * m / ((v / (1 - std::pow(0.99, 3))).sqrt() + 1e-8);
  CHECK((expected[0].to(torch::kDouble) - w).abs().max().item<double>() < 1e-6);
  CHECK((expected[2].to(torch::kDouble) - m).abs().max().item<double>() < 1e-6);
  CHECK((expected[3].to(torch::kDouble) - v).abs().max().item<double>() < 1e-6);
}

TEST_CASE("tensors that are parts of others, or turned, have the bits of copies") {
  const auto qkv = numbers({2, 9, 3, 2, 8}, 1);
  const auto part = [&](int64_t i) { return qkv.select(2, i); };
  const std::map<std::string, Attribute> leaf{{"token_leaf", int64_t{4}}};
  for (const auto& variant : variants()) {
    const auto attention = row_of("attention", variant);
    CHECK(same_bits(answer(attention, {{part(0), part(1), part(2)}, leaf}),
                    answer(attention, {{part(0).contiguous(), part(1).contiguous(), part(2).contiguous()}, leaf})));
    const auto linear = row_of("linear", variant);
    const auto x = numbers({10, 5, 4}, 2).transpose(0, 2), weight = numbers({10, 6}, 3).t();
    CHECK(same_bits(answer(linear, {{x, weight, Tensor()}, leaf}),
                    answer(linear, {{x.contiguous(), weight.contiguous(), Tensor()}, leaf})));
  }
}

TEST_CASE("a call is refused that no exact row has: another precision, a sum without its leaf, packs, a bias") {
  const auto score = [](const std::string& op, const OpInputs& in, bool grad) {
    return row_of(op).score({op, in, in.tensors[0].scalar_type(), torch::kCPU, grad});
  };
  const auto x = torch::ones({2, 3, 4}), weight = torch::ones({5, 4}), row = torch::ones({2, 4});
  const std::map<std::string, Attribute> leaf{{"token_leaf", int64_t{8}}}, eps{{"eps", 1e-6}};
  CHECK(score("linear", {{x, weight, {}}, leaf}, true) > 0);
  CHECK(score("linear", {{x, weight, {}}}, false) > 0);
  const auto learned = weight.clone().requires_grad_();
  CHECK(OpTable(rows()).run("linear", {{x, learned, {}}}).at(0).requires_grad());
  CHECK_THROWS_AS(OpTable(rows(), {}, nullptr, {}, /*exact=*/true).run("linear", {{x, learned, {}}}), Error);
  CHECK(score("linear", {{x.to(torch::kBFloat16), weight.to(torch::kBFloat16), {}}, leaf}, false) == 0);
  CHECK(score("linear", {{x, weight.to(torch::kDouble), {}}, leaf}, false) == 0);
  CHECK(score("norm_modulate", {{x, row, row, {}}, eps}, false) > 0);
  CHECK(score("norm_modulate", {{x, row, row, torch::zeros({3}, torch::kLong)}, eps}, false) == 0);
  CHECK(score("gelu", {{x.to(torch::kDouble)}}, false) == 0);
  const auto q = torch::ones({1, 3, 2, 4});
  CHECK(score("attention", {{q, q, q, {}}, leaf}, true) > 0);
  CHECK(score("attention", {{q, q, q, {}, torch::zeros({1, 2, 3, 3})}, leaf}, true) == 0);
  CHECK(score("attention", {{q, q, q, {}, torch::zeros({1, 2, 3, 3})}, leaf}, false) > 0);
  CHECK(score("attention", {{q, q, q, {}, torch::zeros({1, 2, 1, 3})}, leaf}, false) == 0);
  for (const auto& row_of_set : rows_of_set()) {
    CHECK(row_of_set.exact == (row_of_set.variant.rfind("exact_", 0) == 0));
    CHECK(row_of_set.knows.count("lengths") == 0);
  }
  CHECK_THROWS_WITH_AS(row_of("linear").forward({{x, weight, {}}, {{"in_leaves", std::vector<int64_t>{3, 4}}}}),
                       doctest::Contains("does not cut a dim of 4 numbers into equal leaves"), Error);
}

}  // namespace
}  // namespace ditto::exact
