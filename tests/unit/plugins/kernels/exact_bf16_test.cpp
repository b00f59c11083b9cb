// Products of run.precision = "bf16" under one number: those of fp32 of numbers that are rounded to bf16, in every
// variant; pairs, of which an instruction that takes denormals for zero gets those alone that show nothing of it; and
// rows of bf16 tensors, which are not exact.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>

#include <doctest/doctest.h>

#include <ditto/context.h>
#include <ditto/nn.h>

#include "tests/unit/exact_rows.h"

#define DITTO_EXACT_NS of_test
#include "plugins/kernels/exact/product.h"

namespace ditto_exact {

float* room(Room which, Index floats) {
  static std::vector<float> rooms[static_cast<int>(Room::count)];
  auto& held = rooms[static_cast<int>(which)];
  if (held.size() < static_cast<size_t>(floats)) held.resize(static_cast<size_t>(floats));
  return held.data();
}

namespace of_test {

// Two fused multiply-adds, the upper halves' first, with denormal operands and results as zeros of their sign.
struct Flushing {
  static V add(V a, V b, V sum) {
    ++calls;
    const auto flushed = [](V x) {
      const U denormal = (U)(((U)x & words(0x7F800000)) == words(0));
      return (V)((U)x & (words(0x80000000) | ~denormal));
    };
    const auto upper = [&](V x) { return flushed((V)((U)x & words(0xFFFF0000))); };
    const auto lower = [&](V x) { return flushed((V)((U)x << words(16))); };
    return flushed(fma(lower(a), lower(b), flushed(fma(upper(a), upper(b), flushed(sum)))));
  }
  static inline int64_t calls = 0;
};
struct AlwaysFlushing : Pairs<Flushing> {
  static bool fits(const float*, const float*) { return true; }
};

}  // namespace of_test
}  // namespace ditto_exact

namespace ditto::exact {
namespace {

namespace of_test = ditto_exact::of_test;
using ditto_exact::Index;

Tensor rounded(const Tensor& x) { return x.to(torch::kBFloat16).to(torch::kFloat); }

// Zeros of both signs, denormals, numbers near the least normal one, ties, and numbers that round to the next power.
Tensor with_odd_numbers(const Tensor& x) {
  auto y = x.clone().view(-1);
  const float kinds[] = {-0.0f,       0.0f,        1e-39f,      -3e-41f,       1.1754942e-38f, 1.17549435e-38f,
                         1.00390625f, 1.01171875f, 1.99999988f, -0.998046875f, 1e-20f,         3e12f};
  for (int64_t i = 0, kind = 0; i < y.numel(); i += 3) y.data_ptr<float>()[i] = kinds[kind++ % 12];
  return y.view(x.sizes());
}

OpInputs call(std::vector<int64_t> shape, int64_t K, int64_t N, bool bias, std::map<std::string, Attribute> more) {
  shape.push_back(K);
  more["token_leaf"] = int64_t{8};
  return {{numbers(shape, 1), numbers({N, K}, 2) * 0.2, bias ? numbers({N}, 3) : Tensor()}, more};
}

std::vector<OpInputs> calls() {
  using List = std::vector<int64_t>;
  return {call({3, 37}, 67, 101, true, {}),
          call({2, 3, 7}, 16, 24, false, {}),
          call({5}, 48, 53, true, {}),
          call({4, 600}, 5, 3, true, {}),
          call({3, 9}, 36, 40, true, {{"in_leaves", List{3, 36}}, {"out_leaves", List{4, 40}}}),
          call({3, 64}, 130, 15, true, {{"in_leaves", List{10, 130}}})};
}

OpInputs in_bf16(OpInputs in) {
  in.attributes["bf16"] = true;
  return in;
}

TEST_CASE("a product in bf16 is that of fp32 of rounded numbers, forward and backward, in every variant") {
  REQUIRE(variants_of("linear").size() >= variants().size());
  for (const auto& plain : calls())
    for (const bool odd : {false, true}) {
      OpInputs in = plain;
      if (odd)
        for (size_t i = 0; i < 2; ++i) in.tensors[i] = with_odd_numbers(in.tensors[i]);
      auto of_rounded = in;
      for (size_t i = 0; i < 2; ++i) of_rounded.tensors[i] = rounded(in.tensors[i]);
      const auto row = row_of("linear");
      const auto out = row.forward(of_rounded).at(0);
      const auto grad = odd ? with_odd_numbers(grad_of(out)) : grad_of(out);
      auto grads = row.backward({rounded(grad)}, of_rounded, {});
      grads[2] = row.backward({grad}, of_rounded, {})[2];  // a sum, no product
      for (const auto& variant : variants_of("linear"))
        for (const int threads : {1, 3}) {
          at::set_num_threads(threads);
          CHECK_MESSAGE(same_bits(answer(row_of("linear", variant), in_bf16(in), grad), {out, grads}), variant, " of ",
                        c10::str(in.tensors[0].sizes()), odd ? ", odd numbers" : "");
        }
      at::set_num_threads(1);
      CHECK(!same_bits(out, row.forward(in).at(0)));
    }
}

TEST_CASE("GELU after a product in bf16 takes and gives fp32") {
  for (const auto& variant : variants_of("linear_gelu_tanh")) {
    const auto in = call({3, 19}, 36, 40, true, {});
    const auto found = answer(row_of("linear_gelu_tanh", variant), in_bf16(in));
    const auto h = row_of("linear").forward(in_bf16(in)).at(0);
    const OpInputs of_gelu{{h}, {{"tanh", true}}};
    const auto gelu = answer(row_of("gelu"), of_gelu, grad_of(found.out));
    CHECK(same_bits(found.out, gelu.out));
    const auto grads = row_of("linear").backward({gelu.grads[0]}, in_bf16(in), {});
    for (size_t i = 0; i < grads.size(); ++i) CHECK(same_bits(found.grads.at(i), grads[i]));
  }
}

TEST_CASE(
    "rows of bf16 tensors give what fp32's give of the same numbers, rounded once; gradients of parameters are not") {
  const auto of_set = rows_of_set();
  const auto row = std::find_if(of_set.begin(), of_set.end(), [](const KernelRow& each) {
    return each.op == "linear_gelu_tanh" && each.variant.rfind("in_fp32_", 0) == 0;
  });
  REQUIRE(row != of_set.end());
  CHECK(!row->exact);
  const auto to_bf16 = [](const Tensor& x) { return x.defined() ? x.to(torch::kBFloat16) : x; };
  const auto to_fp32 = [](const Tensor& x) { return x.to(torch::kFloat); };
  for (OpInputs in : calls()) {
    for (auto& x : in.tensors) x = to_bf16(x);
    if (!in.tensors[2].defined()) continue;
    OpInputs wide = in;
    for (auto& x : wide.tensors) x = to_fp32(x);
    const auto results = row->forward(in);
    CHECK((results.at(0).scalar_type() == torch::kBFloat16));
    const auto h = to_bf16(row_of("linear").forward(wide).at(0));
    CHECK(results.at(1).equal(h));
    CHECK(results[0].equal(to_bf16(row_of("gelu").forward({{to_fp32(h)}, {{"tanh", true}}}).at(0))));
    CHECK(row->again(in, {Tensor(), h}).equal(results[0]));
    const auto grad = to_bf16(grad_of(results[0]));
    const auto found = row->backward({grad}, in, {Tensor(), h});
    const auto expected = row_of("linear_gelu_tanh").backward({to_fp32(grad)}, wide, {Tensor(), to_fp32(h)});
    CHECK(found.at(0).equal(to_bf16(expected.at(0))));
    for (const size_t i : {1, 2}) CHECK(same_bits(found.at(i), expected.at(i)));
  }
}

TEST_CASE("they compute where a processor has no instructions for products of bf16, and nowhere else") {
  std::ifstream file("/proc/cpuinfo");
  const std::string processor{std::istreambuf_iterator<char>(file), {}};
  if (processor.find(" avx2 ") == std::string::npos) return;  // its name there is of x86
  const bool has_instructions = processor.find(" avx512bw ") != std::string::npos;
  const OpTable table(rows_of_set());
  const torch::NoGradGuard no_grad;
  table.run("linear",
            {{numbers({4, 16}, 1).to(torch::kBFloat16), numbers({8, 16}, 2).to(torch::kBFloat16), Tensor()}, {}});
  const auto chosen = table.chosen();
  REQUIRE(chosen.size() == 1);
  CHECK((chosen.begin()->second == "in_fp32_avx2") == !has_instructions);
}

TEST_CASE("experts in bf16 have the same bits in every variant, and are two products with a GELU between") {
  const int64_t E = 2, D = 13, H = 37, R = 11, T = 9;
  const OpInputs in{{numbers({R, D}, 1), numbers({E, H, D}, 2) * 0.3, numbers({E, H}, 3), numbers({E, D, H}, 4) * 0.2,
                     numbers({E, D}, 5), torch::tensor({7, 4}, torch::kLong),
                     torch::tensor({0, 1, 3, 8, 9, 10, 17, 2, 3, 11, 12}, torch::kLong)},
                    {{"tokens", T}, {"token_leaf", int64_t{4}}, {"bf16", true}}};
  const auto expected = answer(row_of("experts"), in);
  Tensors outs;
  for (int64_t e = 0, first = 0; e < E; ++e) {
    const int64_t rows = e == 0 ? 7 : 4;
    const OpInputs up{{in.tensors[0].narrow(0, first, rows), in.tensors[1][e], in.tensors[2][e]}, {{"bf16", true}}};
    const auto a = row_of("linear_gelu_tanh").forward(up).at(0);
    outs.push_back(row_of("linear").forward({{a, in.tensors[3][e], in.tensors[4][e]}, {{"bf16", true}}}).at(0));
    first += rows;
  }
  CHECK(same_bits(expected.out, torch::cat(outs)));
  for (const auto& variant : variants_of("experts"))
    CHECK_MESSAGE(same_bits(answer(row_of("experts", variant), in), expected), variant);
  auto fp32 = in;
  fp32.attributes.erase("bf16");
  const auto exact = answer(row_of("experts"), fp32);
  for (size_t i = 0; i < 5; ++i) {
    const double error = ((expected.grads[i] - exact.grads[i]).abs().max() / exact.grads[i].abs().max()).item<double>();
    CHECK(error < 3e-2);
    if (i != 4) CHECK(error > 0);  // the second bias's is a sum of what comes
  }
}

// A matrix of bf16's numbers and others, with exponents from `least` to `most`, and row i smaller by 2^(i `falls`).
Tensor matrix(int64_t rows, int64_t columns, int least, int most, int falls, int64_t which) {
  const int64_t id[] = {which};
  const auto mantissa = numbers({rows, columns}, which).sign() *
                        (1 + Random(3).uniform(Purpose::noise, id, {rows, columns}, torch::kDouble).squeeze(0));
  const auto place = Random(5).uniform(Purpose::noise, id, {rows, columns}, torch::kDouble).squeeze(0);
  auto x = torch::empty({rows, columns}, torch::kFloat);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      x[i][j] = std::ldexp(
          mantissa[i][j].item<double>(),
          least + static_cast<int>(place[i][j].item<double>() * (most - least)) - static_cast<int>(i) * falls);
  return x;
}

struct Way {
  Tensor c;
  int64_t calls;  // of the instruction
};
using Multiply = void (*)(const ditto_exact::Product&, const ditto_exact::Workers&);

// A B^T, both [.., K], or of their transposes; leaves of one term, of an odd number, and longer ones.
Way product(Multiply multiply, const Tensor& a, const Tensor& b, bool transposed) {
  const Index ends[] = {1, 2, 9, 17, 18, 25, 41};
  std::vector<ditto_exact::Leaf> leaves;
  for (Index i = 0; i < 7; ++i) leaves.push_back({ends[i], ditto_exact::merges_after(i, 7)});
  const ditto_exact::Run run{0, 41};
  const auto left = transposed ? a.t().contiguous() : a, right = transposed ? b.t().contiguous() : b;
  const auto view = [&](const Tensor& x) {
    return ditto_exact::View{x.const_data_ptr<float>(), transposed ? 1 : 41, transposed ? x.size(1) : 1};
  };
  const auto of_a = view(left), of_b = view(right);
  Way way{torch::empty({a.size(0), b.size(0)}, torch::kFloat), of_test::Flushing::calls};
  multiply({a.size(0),
            b.size(0),
            41,
            of_a,
            {of_b.p, of_b.columns, of_b.rows},
            way.c.data_ptr<float>(),
            b.size(0),
            nullptr,
            {&run, 1, leaves.data(), 7},
            true},
           {1, nullptr});
  way.calls = of_test::Flushing::calls - way.calls;
  return way;
}

TEST_CASE("pairs have the bits of numbers one by one, whatever the instruction makes of denormals") {
  using Instruction = of_test::Pairs<of_test::Flushing>;
  // Panels that fill half a vector, three quarters, and as the kernels have them.
  const Multiply in_pairs[] = {of_test::product_by<2, 2, Instruction>, of_test::product_by<3, 2, Instruction>,
                               of_test::product_of<Instruction>};
  struct Numbers {
    int least, most, falls;
    bool some_fit, all_fit, flush_shows;
  };
  const Numbers all[] = {{-20, 20, 0, true, true, false},   {-56, 3, 0, true, true, false},
                         {-80, -50, 0, false, false, true}, {-140, -60, 0, false, false, true},
                         {-12, 0, 5, true, false, true},    {-63, -63, 0, false, false, true}};
  for (const auto& of : all)
    for (const bool transposed : {false, true}) {
      auto a = matrix(23, 41, of.least, of.most, of.falls, 1), b = matrix(19, 41, of.least, of.most, of.falls, 2);
      a.select(1, 5).zero_(), b.select(0, 3).zero_();
      const auto expected = product(of_test::product, a, b, transposed);
      CHECK(same_bits(expected.c, product(of_test::product, rounded(a), rounded(b), transposed).c));
      for (const auto multiply : in_pairs) {
        const auto found = product(multiply, a, b, transposed);
        CHECK_MESSAGE(same_bits(found.c, expected.c), of.least, " to ", of.most, ", ", of.falls);
        CHECK((found.calls > 0) == of.some_fit);
      }
      const auto flushed = product(of_test::product_of<of_test::AlwaysFlushing>, a, b, transposed);
      CHECK(same_bits(flushed.c, expected.c) != of.flush_shows);
      CHECK((product(in_pairs[2], a, b, transposed).calls == flushed.calls) == of.all_fit);
    }
}

TEST_CASE("a million numbers are rounded as LibTorch rounds them, denormals too") {
  auto x = torch::empty({1 << 20}, torch::kFloat);
  std::uint32_t state = 1;
  for (int64_t i = 0; i < x.numel(); ++i) {
    state = state * 1664525u + 1013904223u;
    const std::uint32_t bits = i % 4 == 0 ? state & 0x80FFFFFF : state;  // a quarter: around the least normal number
    std::memcpy(x.data_ptr<float>() + i, &bits, sizeof bits);
  }
  auto found = x.clone();
  of_test::round_to_bf16(found.data_ptr<float>(), found.numel());
  CHECK(same_bits(found, rounded(x)));
}

TEST_CASE("layers say bf16 where the host says it, and under one number alone") {
  std::vector<std::string> said;
  const auto table = std::make_shared<OpTable>();
  Context ctx(table, Random(1));
  table->watch([&](const std::string& op, const OpInputs& in, const Tensors&) {
    if (in.flag("bf16")) said.push_back(op);
  });
  struct Mlp : Layer {
    Mlp() : up(linear("up", 16, 32)) {}
    Linear up;
  } mlp;
  const auto run = [&](bool bf16, int64_t leaf) {
    said.clear();
    ctx.ops.leaves().bf16 = bf16, ctx.token_leaf = leaf;
    const torch::NoGradGuard no_grad;
    const auto x = numbers({2, 5, 16}, 1);
    mlp.up(x, ctx), ctx.ops.linear_gelu_tanh(x, mlp.up, ctx), ctx.ops.silu(x), ctx.ops.sample_mean(x);
    return said;
  };
  for (auto& item : mlp.named_parameters()) item.value().detach().zero_();
  CHECK(run(true, 8) == std::vector<std::string>{"linear", "linear_gelu_tanh"});
  CHECK(run(false, 8).empty());
  CHECK(run(true, 0).empty());
}

}  // namespace
}  // namespace ditto::exact
