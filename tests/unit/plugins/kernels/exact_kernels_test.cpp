// The kernel set `exact`: the same bits from every variant, on any number of threads, in any batch and micro-batch.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include <doctest/doctest.h>

#include <ATen/Parallel.h>

#include <ditto/context.h>

#include "tests/unit/exact_rows.h"

namespace ditto::exact {
namespace {

// Denormals, zeros of both signs, tiny and large numbers among the others.
Tensor odd_numbers(const Tensor& x) {
  auto y = x.clone().view(-1);
  const float kinds[] = {-0.0f, 0.0f, 1e-39f, 1e-25f, 1e12f};
  for (int64_t i = 0; i < y.numel(); i += 3) {
    float* const place = y.data_ptr<float>() + i;
    *place = i / 3 % 5 < 2 ? kinds[i / 3 % 5] : *place * kinds[i / 3 % 5];
  }
  return y.view(x.sizes());
}

struct Case {
  std::string op;
  OpInputs in;
  std::function<Tensor(const Tensors&)> meaning;  // of tensors in fp64
  std::vector<size_t> shared = {};  // tensors that all samples share: their gradients are sums over samples
  std::string name() const {
    std::string text = op;
    for (const auto& x : in.tensors) text += x.defined() ? " " + c10::str(x.sizes()) : " none";
    return text;
  }
};

Tensor per_token(const Tensor& x) { return x.unsqueeze(1); }

Tensor per_channel(const Tensor& rows, int64_t dims) {
  auto sizes = rows.sizes().vec();
  sizes.resize(static_cast<size_t>(dims), 1);
  return rows.view(sizes);
}

// Ops over maps.
void add_maps(std::vector<Case>& list, int64_t S) {
  using List = std::vector<int64_t>;
  const auto add_conv = [&](List x, List weight, List stride, List padding, bool transposed,
                            std::map<std::string, Attribute> more = {}) {
    x.insert(x.begin(), S);
    more["stride"] = stride, more["token_leaf"] = int64_t{8};
    more[transposed ? "padding" : "before"] = padding;
    if (!transposed) more["after"] = padding;
    const List none(stride.size(), 0), ones(stride.size(), 1);
    list.push_back({transposed ? "conv_transposed" : "conv",
                    {{numbers(x, 1), numbers(weight, 2) * 0.2, numbers({weight[transposed ? 1 : 0]}, 3)}, more},
                    [=](const Tensors& t) {
                      return torch::convolution(t[0], t[1], t[2], stride, padding, ones, transposed, none, 1);
                    },
                    {1, 2}});
  };
  for (const bool transposed : {false, true}) {
    const auto weight = [&](int64_t out, int64_t in, List kernel) {
      kernel.insert(kernel.begin(), {transposed ? in : out, transposed ? out : in});
      return kernel;
    };
    add_conv({5, 9, 7}, weight(19, 5, {3, 3}), {1, 1}, {1, 1}, transposed);
    add_conv({12, 6, 8}, weight(10, 12, {4, 4}), {2, 2}, {1, 1}, transposed,
             {{"in_leaves", List{3, 12}}, {"out_leaves", List{5, 10}}});
    add_conv({16, 5, 4}, weight(53, 16, {1, 1}), {1, 1}, {0, 0}, transposed);
    add_conv({7, 37}, weight(5, 7, {3}), {2}, {1}, transposed);
    add_conv({3, 3, 4, 5}, weight(6, 3, {1, 3, 2}), {1, 1, 2}, {0, 1, 1}, transposed);
  }
  const auto add_norm = [&](List x, int64_t groups, bool modulated, bool silu) {
    x.insert(x.begin(), S);
    const int64_t C = x[1];
    const auto rows = [&](int64_t which) { return modulated ? numbers({S, C}, which) * 0.5 : Tensor(); };
    list.push_back({"group_norm",
                    {{numbers(x, 1), numbers({C}, 2), numbers({C}, 3), rows(4), rows(5)},
                     {{"groups", groups}, {"eps", 1e-5}, {"silu", silu}, {"token_leaf", int64_t{8}}}},
                    [=](const Tensors& t) {
                      auto y = torch::group_norm(t[0], groups, t[1], t[2], 1e-5);
                      if (modulated) y = y * (1 + per_channel(t[4], y.dim())) + per_channel(t[3], y.dim());
                      return silu ? torch::silu(y) : y;
                    },
                    {1, 2}});
  };
  add_norm({6, 4, 5}, 3, false, false);
  add_norm({12, 9, 7}, 4, true, true);
  add_norm({10, 37}, 5, false, true);
  add_norm({16}, 4, true, false);
  for (const List& x : {List{6, 4, 5}, List{5, 37}, List{17}}) {
    List sizes = x;
    sizes.insert(sizes.begin(), S);
    list.push_back({"add_channels",
                    {{numbers(sizes, 1), numbers({S, x[0]}, 2)}, {{"token_leaf", int64_t{8}}}},
                    [](const Tensors& t) { return t[0] + per_channel(t[1], t[0].dim()); }});
  }
  const auto add_resample = [&](List x, Resample kind, List sides, std::function<Tensor(const Tensor&)> meaning) {
    x.insert(x.begin(), S);
    list.push_back({"resample",
                    {{numbers(x, 1)}, {{"kind", static_cast<int64_t>(kind)}, {"sides", sides}}},
                    [meaning](const Tensors& t) { return meaning(t[0]); }});
  };
  add_resample({3, 5, 6}, Resample::nearest, {2, 3},
               [](const Tensor& x) { return x.repeat_interleave(2, 2).repeat_interleave(3, 3); });
  add_resample({3, 6, 15}, Resample::mean, {2, 3}, [](const Tensor& x) { return torch::avg_pool2d(x, {2, 3}); });
  add_resample({4, 21}, Resample::mean, {3}, [](const Tensor& x) { return torch::avg_pool1d(x, {3}); });
  for (const List& sides : {List{9, 4}, List{3, 14}})
    add_resample({3, 5, 7}, Resample::bicubic, sides,
                 [sides](const Tensor& x) { return torch::upsample_bicubic2d(x, sides, false); });
}

std::vector<Case> cases(int64_t S) {
  std::vector<Case> list;
  add_maps(list, S);
  const auto add_linear = [&](std::vector<int64_t> shape, int64_t K, int64_t N, std::map<std::string, Attribute> more,
                              bool gelu) {
    shape.insert(shape.begin(), S), shape.push_back(K);
    more["token_leaf"] = int64_t{8};
    list.push_back({gelu ? "linear_gelu_tanh" : "linear",
                    {{numbers(shape, 1), numbers({N, K}, 2) * 0.2, gelu || N % 2 ? numbers({N}, 3) : Tensor()}, more},
                    [=](const Tensors& t) {
                      const auto h = torch::linear(t[0], t[1], t[2]);
                      return gelu ? torch::gelu(h, "tanh") : h;
                    },
                    {1, 2}});
  };
  using List = std::vector<int64_t>;
  add_linear({37}, 67, 101, {}, false);
  add_linear({3, 7}, 16, 24, {}, false);
  add_linear({}, 48, 53, {}, false);
  add_linear({600}, 5, 3, {}, false);  // as many tokens as are taken in several runs of samples
  add_linear({64}, 130, 15, {}, true);
  add_linear({9}, 36, 40, {{"in_leaves", List{3, 36}}, {"out_leaves", List{4, 40}}}, false);
  add_linear({9}, 60, 42, {{"in_leaves", List{5, 20, 30, 10}}, {"out_leaves", List{3, 12, 30}}}, true);
  list.push_back({"silu", {{numbers({S, 13, 11}, 4) * 3}}, [](const Tensors& t) { return torch::silu(t[0]); }});
  for (const bool tanh : {true, false})
    list.push_back({"gelu", {{numbers({S, 13, 11}, 4) * 3}, {{"tanh", tanh}}}, [=](const Tensors& t) {
                      return torch::gelu(t[0], tanh ? "tanh" : "none");
                    }});
  const std::map<std::string, Attribute> of_norm{{"eps", 1e-6}, {"token_leaf", int64_t{8}}};
  for (const int64_t width : {16, 37, 130}) {
    list.push_back({"layer_norm",
                    {{numbers({S, 19, width}, 5), numbers({width}, 6), numbers({width}, 7)}, of_norm},
                    [=](const Tensors& t) { return torch::layer_norm(t[0], {width}, t[1], t[2], 1e-6); },
                    {1, 2}});
    list.push_back({"rms_norm",
                    {{numbers({S, 11, 3, width}, 5), numbers({width}, 6)}, of_norm},
                    [=](const Tensors& t) { return t[0] * (t[0].square().mean(-1, true) + 1e-6).rsqrt() * t[1]; },
                    {1}});
    list.push_back({"norm_modulate",
                    {{numbers({S, 19, width}, 5), numbers({S, width}, 6), numbers({S, width}, 7), Tensor()}, of_norm},
                    [=](const Tensors& t) {
                      return torch::layer_norm(t[0], {width}, {}, {}, 1e-6) * (1 + per_token(t[2])) + per_token(t[1]);
                    }});
    list.push_back({"gated_residual",
                    {{numbers({S, 19, width}, 5), numbers({S, width}, 6), numbers({S, 19, width}, 7), Tensor()},
                     {{"token_leaf", int64_t{8}}}},
                    [](const Tensors& t) { return t[0] + per_token(t[1]) * t[2]; }});
    list.push_back({"add_row",
                    {{numbers({S, 19, width}, 5), numbers({width}, 6)}, {{"token_leaf", int64_t{8}}}},
                    [](const Tensors& t) { return t[0] + t[1]; },
                    {1}});
  }
  list.push_back({"add_row",
                  {{numbers({S, 5, 6}, 5), numbers({5, 6}, 6)}, {{"token_leaf", int64_t{8}}}},
                  [](const Tensors& t) { return t[0] + t[1]; },
                  {1}});
  list.push_back({"sample_mean", {{numbers({S, 3, 35}, 5)}}, [](const Tensors& t) { return t[0].mean({1, 2}); }});
  const auto add_attention = [&](std::vector<int64_t> sizes, bool causal, bool masked) {
    const int64_t T = sizes[0], keys = sizes[1], N = sizes[2], M = sizes[3], K = sizes[4];
    const auto mask =
        masked ? torch::arange(keys).unsqueeze(0).lt(torch::arange(S).add(keys / 2).unsqueeze(1)) : Tensor();
    list.push_back({"attention",
                    {{numbers({S, T, N, K}, 1) * 2, numbers({S, keys, M, K}, 2), numbers({S, keys, M, K}, 3), mask},
                     {{"causal", causal}, {"token_leaf", int64_t{8}}}},
                    [=](const Tensors& t) {
                      const auto head = [&](size_t i) {
                        const auto x = t[i].transpose(1, 2);
                        return i == 0 ? x : x.repeat_interleave(N / M, 1);
                      };
                      auto scores = torch::matmul(head(0), head(1).transpose(2, 3)) / std::sqrt(static_cast<double>(K));
                      if (masked) scores = scores.masked_fill(mask.logical_not().view({S, 1, 1, keys}), -INFINITY);
                      if (causal)
                        scores = scores.masked_fill(torch::arange(keys).unsqueeze(0).gt(torch::arange(T).unsqueeze(1)),
                                                    -INFINITY);
                      return torch::matmul(torch::softmax(scores, -1), head(2)).transpose(1, 2);
                    }});
  };
  add_attention({37, 37, 3, 3, 16}, false, false);
  add_attention({9, 45, 2, 2, 13}, false, true);
  add_attention({40, 40, 6, 2, 8}, true, false);
  add_attention({300, 300, 1, 1, 32}, true, true);
  list.push_back(
      {"embedding_rows",
       {{numbers({6, 21}, 1), torch::arange(S).remainder(3).remainder(2)}},
       [index = torch::arange(S).remainder(3).remainder(2)](const Tensors& t) { return t[0].index_select(0, index); },
       {0}});
  return list;
}

OpInputs with_odd_numbers(OpInputs in) {
  for (auto& x : in.tensors)
    if (x.defined() && x.is_floating_point()) x = odd_numbers(x);
  return in;
}

// Samples [first, first + count) of a call whose other tensors are `shared`.
OpInputs samples_of(const Case& one, int64_t all, int64_t first, int64_t count) {
  OpInputs part{{}, one.in.attributes};
  for (size_t i = 0; i < one.in.tensors.size(); ++i) {
    const auto& x = one.in.tensors[i];
    const bool shared = std::find(one.shared.begin(), one.shared.end(), i) != one.shared.end();
    const int64_t each = x.defined() && !shared ? x.size(0) / all : 0;
    part.tensors.push_back(!x.defined() || shared ? x : x.narrow(0, first * each, count * each));
  }
  return part;
}

struct Threads {
  ~Threads() { at::set_num_threads(before); }
  int before = at::get_num_threads();
};

TEST_CASE("every variant has the bits of the plain one, on any number of threads, for odd numbers too") {
  const Threads restore;
  REQUIRE(variants().size() >= 1);
  for (const auto& one : cases(3))
    for (const bool odd : {false, true}) {
      const auto in = odd ? with_odd_numbers(one.in) : one.in;
      at::set_num_threads(1);
      const auto expected = answer(row_of(one.op), in);
      for (const auto& variant : variants())
        for (const int threads : {1, 2, 3}) {
          at::set_num_threads(threads);
          CHECK_MESSAGE(same_bits(answer(row_of(one.op, variant), in), expected), one.name(), " ", variant, ", ",
                        threads, " threads", odd ? ", odd numbers" : "");
        }
    }
}

TEST_CASE("outputs and gradients are those of fp64 within rounding") {
  for (const auto& one : cases(3)) {
    Tensors leaves;
    for (const auto& x : one.in.tensors)
      leaves.push_back(x.defined() && x.is_floating_point() ? x.to(torch::kDouble).requires_grad_() : Tensor());
    const auto meant = one.meaning(leaves);
    const auto found = answer(row_of(one.op, variants()[0]), one.in);
    meant.backward(grad_of(found.out).to(torch::kDouble));
    const auto error = [](const Tensor& a, const Tensor& b) {
      return ((a.to(torch::kDouble) - b).abs().max() / b.abs().max()).item<double>();
    };
    CHECK_MESSAGE(error(found.out, meant.detach()) < 2e-6, one.name());
    for (size_t i = 0; i < leaves.size(); ++i)
      if (leaves[i].defined())
        CHECK_MESSAGE(error(found.grads.at(i), leaves[i].grad()) < 4e-6, one.name(), " gradient ", i);
  }
}

TEST_CASE("GELU by the error function keeps its digits in the tail, and what is infinite or no number") {
  const auto x = torch::arange(-12.5, 12.5, 1.0 / 512, torch::kFloat);
  const auto wide = x.to(torch::kDouble).requires_grad_();
  // PyTorch's own loses the tail's digits in 1 + erf.
  const auto meant = wide * 0.5 * torch::erfc(wide * -std::sqrt(0.5));
  const OpInputs in{{x}, {{"tanh", false}}};
  const auto found = answer(row_of("gelu", variants()[0]), in);
  meant.backward(grad_of(found.out).to(torch::kDouble));
  CHECK(((found.out - meant.detach()) / meant.detach()).nan_to_num(0).abs().max().item<double>() < 1e-6);
  const auto grad = grad_of(found.out).to(torch::kDouble);
  CHECK(((found.grads.at(0) - wide.grad()) / grad).abs().max().item<double>() < 4e-7);
  const float infinite = std::numeric_limits<float>::infinity();
  const auto ends = torch::tensor({infinite, 0.f, std::nanf(""), -30.f, 30.f});
  const auto of_ends = answer(row_of("gelu", variants()[0]), {{ends}, {{"tanh", false}}}).out;
  CHECK(of_ends[0].item<float>() == infinite);
  CHECK(of_ends[1].item<float>() == 0);
  CHECK(std::isnan(of_ends[2].item<float>()));
  CHECK(of_ends[3].item<float>() == 0);
  CHECK(of_ends[4].item<float>() == 30);
}

TEST_CASE("a sample has the same bits alone and in a batch, and micro-batches' gradients add to the batch's") {
  const int64_t S = 8;
  for (const auto& one : cases(S))
    for (const bool odd : {false, true}) {
      Case all = one;
      if (odd) all.in = with_odd_numbers(all.in);
      const auto row = row_of(all.op, variants()[0]);
      const auto whole = answer(row, all.in);
      const auto grad = grad_of(whole.out);
      const auto part = [&](int64_t first, int64_t count) {
        const int64_t each = whole.out.size(0) / S;
        return answer(row, samples_of(all, S, first, count), grad.narrow(0, first * each, count * each));
      };
      const auto has = [](const Tensors& grads, size_t i) { return i < grads.size() && grads[i].defined(); };
      for (const int64_t size : {1, 2, 4}) {
        std::vector<Answer> found;
        Tensors outs;
        for (int64_t first = 0; first < S; first += size)
          found.push_back(part(first, size)), outs.push_back(found.back().out);
        CHECK_MESSAGE(same_bits(torch::cat(outs), whole.out), all.name(), " by ", size);
        for (size_t i = 0; i < all.in.tensors.size(); ++i) {
          if (!has(whole.grads, i)) continue;
          Tensors of_parts;
          for (const auto& answer : found) of_parts.push_back(answer.grads[i]);
          if (std::find(all.shared.begin(), all.shared.end(), i) == all.shared.end()) {
            of_parts = {torch::cat(of_parts)};
          } else {
            while (of_parts.size() > 1)
              for (size_t j = 0; j < of_parts.size(); ++j) {  // siblings
                of_parts[j] = of_parts[j] + of_parts[j + 1];
                of_parts.erase(of_parts.begin() + static_cast<int64_t>(j) + 1);
              }
          }
          CHECK_MESSAGE(same_bits(of_parts[0], whole.grads[i]), all.name(), " gradient ", i, " by ", size);
        }
      }
    }
}

TEST_CASE("shapes are those of what forward gives, and empty tensors have results") {
  for (const auto& one : cases(2)) {
    const auto row = row_of(one.op);
    OpInputs meta{{}, one.in.attributes};
    for (const auto& x : one.in.tensors) meta.tensors.push_back(x.defined() ? x.to(torch::kMeta) : x);
    const auto expected = row.forward(one.in), found = row.shapes(meta);
    REQUIRE(found.size() == expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      CHECK((found[i].sizes() == expected[i].sizes()));
      CHECK(found[i].is_meta());
      CHECK((found[i].scalar_type() == expected[i].scalar_type()));
    }
    const auto none = answer(row, samples_of(one, 2, 0, 0));
    for (const size_t i : one.shared)
      if (i < none.grads.size() && none.grads[i].defined())
        CHECK(none.grads[i].equal(torch::zeros_like(none.grads[i])));
  }
}

}  // namespace
}  // namespace ditto::exact
