// The rule of order and the sum over copies, on real ranks.
//
// Claim (again): On 1 to 4 data ranks and with 1 to 6 micro-batches, gradients and their norm have the bits of one
// rank.
#include "core/mesh/gradient_sum.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tests/unit/ranks.h"

namespace ditto {
namespace {

using testing::numbers;
using testing::same_bits;
using torch::Tensor;

const std::vector<std::vector<int64_t>> kShapes{{7}, {3, 5}, {1}, {33, 31}, {2, 2}, {4}};
constexpr size_t kSometimes = 4, kNever = 5;  // takes part in every other micro-batch; in none

Layout make_layout(at::ScalarType dtype) {
  Layout layout;
  for (size_t i = 0; i < kShapes.size(); ++i)
    layout.entries.push_back(
        {"p" + std::to_string(i), torch::zeros(kShapes[i], dtype).requires_grad_(), kShapes[i], Unit{Unit::head, -1}});
  return layout;
}

// Backward of micro-batch j: leaf i's gradient is numbers(…), with a -0 in front, whose sign a sum with 0 would lose.
void run_micro_batch(Layout& layout, int64_t j, int64_t salt = 0) {
  Tensor loss = torch::zeros({}, layout.entries[0].tensor.options().requires_grad(false));
  for (size_t i = 0; i < layout.entries.size(); ++i) {
    if (i == kNever || (i == kSometimes && j % 2 == 0)) continue;
    auto& leaf = layout.entries[i].tensor;
    auto gradient = numbers(leaf.sizes(), 1000 * salt + 10 * j + static_cast<int64_t>(i), leaf.scalar_type());
    gradient.view(-1)[0] = -0.0;
    loss = loss + (leaf * gradient).sum();
  }
  loss.backward();
}

Layout one_rank(int64_t micro_batches, at::ScalarType dtype, int64_t salt = 0) {
  auto layout = make_layout(dtype);
  for (int64_t j = 0; j < micro_batches; ++j) run_micro_batch(layout, j, salt);
  return layout;
}

StepPlan plan_of(int64_t micro_batches, const Mesh& mesh) {
  const int64_t n = mesh.data_ranks(), r = mesh.data_rank();
  return {0, micro_batches, (micro_batches + n - 1) / n, (micro_batches - r + n - 1) / n, Phase::train};
}

void run_step(Layout& layout, GradientSum& sum, const Mesh& mesh, int64_t micro_batches, int64_t salt = 0) {
  const auto plan = plan_of(micro_batches, mesh);
  for (auto& entry : layout.entries) entry.tensor.mutable_grad().reset();
  for (int64_t accumulation = 0; accumulation < plan.accumulations; ++accumulation) {
    if (accumulation < plan.mine) run_micro_batch(layout, accumulation * mesh.data_ranks() + mesh.data_rank(), salt);
    sum.after_micro_batch(accumulation, plan);
  }
  sum.finish(plan);
}

Tensor gradient_or_zeros(const LayoutEntry& entry) {
  const auto& grad = entry.tensor.grad();
  return grad.defined() ? grad : torch::zeros_like(entry.tensor);
}

void check_bits_of_one_rank(const Mesh& mesh, at::ScalarType dtype) {
  auto layout = make_layout(dtype);
  GradientSum sum(layout, mesh, true);
  for (int64_t m = 1; m <= 6; ++m) {
    CAPTURE(m);
    run_step(layout, sum, mesh, m);
    const auto reference = one_rank(m, dtype);
    for (size_t i = 0; i < layout.entries.size(); ++i) {
      CAPTURE(i);
      const auto expected = gradient_or_zeros(reference.entries[i]);
      REQUIRE(layout.entries[i].tensor.grad().defined());
      const auto& found = layout.entries[i].tensor.grad();
      if (reference.entries[i].tensor.grad().defined())
        CHECK(same_bits(found, expected));
      else
        CHECK(torch::equal(found, expected));
    }
    Layout whole = reference;
    for (auto& entry : whole.entries) entry.tensor.mutable_grad() = gradient_or_zeros(entry);
    const auto alone = GlooMesh(RankInfo{}, {}, std::chrono::seconds(1));
    CHECK(grad_norm(layout, mesh) == grad_norm(whole, alone));
  }
}

TEST_CASE("the test's numbers show the order of their sum") {
  const auto a = numbers({1000}, 1), b = numbers({1000}, 2), c = numbers({1000}, 3);
  CHECK(!same_bits((a + b) + c, a + (b + c)));
}

TEST_CASE("rank of: gradient bits over replicate" * doctest::skip()) {
  const auto mesh = testing::mesh_of({});
  check_bits_of_one_rank(mesh, torch::kFloat);
  check_bits_of_one_rank(mesh, torch::kDouble);
}
TEST_CASE("rank of: gradient bits over shard" * doctest::skip()) {
  check_bits_of_one_rank(testing::mesh_of({{Axis::shard, rank_info().world_size}}), torch::kFloat);
}
TEST_CASE("rank of: gradient bits over replicate and shard" * doctest::skip()) {
  check_bits_of_one_rank(testing::mesh_of({{Axis::shard, 2}}), torch::kFloat);
}

TEST_CASE("gradients summed over ranks have the bits of one rank, for 1 to 4 ranks and 1 to 6 micro-batches") {
  for (int ranks = 1; ranks <= 4; ++ranks)
    CHECK(testing::as_ranks(ranks, "rank of: gradient bits over replicate") == 0);
  CHECK(testing::as_ranks(3, "rank of: gradient bits over shard") == 0);
  CHECK(testing::as_ranks(4, "rank of: gradient bits over replicate and shard") == 0);
}

// Node of pieces [begin, end) of a level that covers `width`, as the rule says it.
Tensor node_of(const std::vector<Tensor>& pieces, size_t begin, size_t width) {
  if (width == 1) return pieces[begin];
  const size_t half = width / 2;
  const auto left = node_of(pieces, begin, half);
  return begin + half < pieces.size() ? left + node_of(pieces, begin + half, half) : left;
}

Tensor tree_of(const std::vector<Tensor>& pieces) {
  size_t width = 1;
  while (width < pieces.size()) width *= 2;
  return node_of(pieces, 0, width);
}

// What micro-batch j leaves on one rank; +0 where it leaves nothing.
std::vector<Tensor> pieces_of(size_t entry, int64_t micro_batches) {
  std::vector<Tensor> pieces;
  for (int64_t j = 0; j < micro_batches; ++j) {
    auto layout = make_layout(torch::kFloat);
    run_micro_batch(layout, j);
    pieces.push_back(gradient_or_zeros(layout.entries[entry]).clone());
  }
  return pieces;
}

TEST_CASE("a tree of pieces is the rule's, whatever their number, and begins again") {
  TreeSum tree;
  CHECK(!tree.take().defined());
  bool shows = false;
  for (int64_t count = 1; count <= 33; ++count) {
    std::vector<Tensor> pieces;
    for (int64_t j = 0; j < count; ++j) pieces.push_back(numbers({50}, 7 * j));
    auto chain = pieces[0].clone();
    for (size_t j = 1; j < pieces.size(); ++j) chain.add_(pieces[j]);
    const auto buffer = torch::cat({torch::stack(pieces), torch::zeros({1, 50})});  // is more than any piece
    for (int64_t j = 0; j < count; ++j) tree.add(buffer[j]);
    tree.own();
    buffer.fill_(17);  // is nobody's any more
    CHECK(tree.pieces() == count);
    const auto sum = tree.take();
    CHECK(same_bits(sum, tree_of(pieces)));
    shows = shows || !same_bits(sum, chain);
  }
  CHECK(shows);
}

TEST_CASE("2^k micro-batches at once are one node of those one by one") {
  for (const size_t count : {5, 8, 13, 16})
    for (const size_t width : {2, 4, 8}) {
      TreeSum tree;
      for (size_t begin = 0; begin < count; begin += width) {
        TreeSum node;
        for (size_t j = begin; j < std::min(begin + width, count); ++j)
          node.add(numbers({50}, static_cast<int64_t>(j)));
        tree.add(node.take());
      }
      std::vector<Tensor> all;
      for (size_t j = 0; j < count; ++j) all.push_back(numbers({50}, static_cast<int64_t>(j)));
      CHECK(same_bits(tree.take(), tree_of(all)));
    }
}

void check_tree(const Mesh& mesh) {
  auto layout = make_layout(torch::kFloat);
  GradientSum sum(layout, mesh, true, SumOrder::tree);
  for (int64_t m = 1; m <= 6; ++m) {
    CAPTURE(m);
    run_step(layout, sum, mesh, m);
    for (size_t i = 0; i < layout.entries.size(); ++i) {
      CAPTURE(i);
      CHECK(same_bits(layout.entries[i].tensor.grad(), tree_of(pieces_of(i, m))));
    }
  }
}

TEST_CASE("rank of: gradient trees over replicate" * doctest::skip()) { check_tree(testing::mesh_of({})); }
TEST_CASE("rank of: gradient trees over replicate and shard" * doctest::skip()) {
  check_tree(testing::mesh_of({{Axis::shard, 2}}));
}

TEST_CASE("gradients summed as a tree are the rule's on any number of ranks, one too") {
  check_tree(GlooMesh(RankInfo{}, {}, std::chrono::seconds(1)));
  for (int ranks = 2; ranks <= 4; ++ranks)
    CHECK(testing::as_ranks(ranks, "rank of: gradient trees over replicate") == 0);
  CHECK(testing::as_ranks(4, "rank of: gradient trees over replicate and shard") == 0);
}

TEST_CASE("rank of: tensor copies" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::tensor, 2}});
  auto layout = make_layout(torch::kFloat);
  layout.entries[0].cuts[Axis::tensor] = {0, {14}, mesh.index(Axis::tensor), 2};
  layout.entries[0].full_shape = {14};
  layout.entries[1].summed.insert(Axis::tensor);
  GradientSum sum(layout, mesh, true);
  const int64_t mine = mesh.index(Axis::tensor);
  run_step(layout, sum, mesh, 5, mine);
  const auto first = one_rank(5, torch::kFloat, 0), second = one_rank(5, torch::kFloat, 1);
  const auto& own = mine == 0 ? first : second;
  double squares = 0;
  for (size_t i = 0; i < layout.entries.size(); ++i) {
    CAPTURE(i);
    const auto a = gradient_or_zeros(first.entries[i]), b = gradient_or_zeros(second.entries[i]);
    const bool left_alone = i < 2;  // cut, or summed already
    CHECK(torch::equal(layout.entries[i].tensor.grad(), left_alone ? gradient_or_zeros(own.entries[i]) : a + b));
    const auto all = i == 0 ? torch::cat({a, b}) : i == 1 ? torch::Tensor() : a + b;
    if (all.defined()) squares += all.to(torch::kDouble).square().sum().item<double>();
  }
  // Entry 1 pretends to be summed; its copies differ here, and each counts for a half.
  squares += (gradient_or_zeros(first.entries[1]).to(torch::kDouble).square().sum() +
              gradient_or_zeros(second.entries[1]).to(torch::kDouble).square().sum())
                 .item<double>() /
             2;
  CHECK(grad_norm(layout, mesh) == doctest::Approx(std::sqrt(squares)).epsilon(1e-7));
}

TEST_CASE(
    "copies along the tensor axis are summed, cuts and what a strategy has summed are not, and the norm counts all "
    "once") {
  CHECK(testing::as_ranks(2, "rank of: tensor copies") == 0);
  CHECK(testing::as_ranks(4, "rank of: tensor copies") == 0);
}

TEST_CASE("rank of: fastest sum" * doctest::skip()) {
  const auto mesh = testing::mesh_of({});
  auto layout = make_layout(torch::kDouble);
  GradientSum sum(layout, mesh, false);
  for (int64_t m : {1, 5}) {
    run_step(layout, sum, mesh, m);
    const auto reference = one_rank(m, torch::kDouble);
    for (size_t i = 0; i < layout.entries.size(); ++i)
      CHECK(torch::allclose(layout.entries[i].tensor.grad(), gradient_or_zeros(reference.entries[i]), 1e-12, 1e-12));
  }
}

TEST_CASE("without determinism the sum is the same up to rounding") {
  CHECK(testing::as_ranks(3, "rank of: fastest sum") == 0);
}

TEST_CASE("frozen leaves get no gradient") {
  const GlooMesh mesh(RankInfo{}, {}, std::chrono::seconds(1));
  auto layout = make_layout(torch::kFloat);
  layout.entries[2].tensor.set_requires_grad(false);
  GradientSum sum(layout, mesh, true);
  sum.after_micro_batch(0, {});
  sum.finish({});
  CHECK(!layout.entries[2].tensor.grad().defined());
  CHECK(layout.entries[3].tensor.grad().eq(0).all().item<bool>());
}

TEST_CASE("clipping scales a norm that is too large and leaves a small one as it is") {
  const GlooMesh mesh(RankInfo{}, {}, std::chrono::seconds(1));
  auto layout = one_rank(1, torch::kFloat);
  const double norm = grad_norm(layout, mesh);
  CHECK(norm == static_cast<double>(static_cast<float>(norm)));
  CHECK(clip_factor(norm, 2 * norm) == 1);
  for (auto& entry : layout.entries)
    if (entry.tensor.grad().defined()) entry.tensor.mutable_grad().mul_(clip_factor(norm, norm / 4));
  CHECK(grad_norm(layout, mesh) == doctest::Approx(norm / 4).epsilon(1e-5));
}

TEST_CASE("norm and clipping factor that a device keeps have the bits of the host's") {
  const GlooMesh mesh(RankInfo{}, {}, std::chrono::seconds(1));
  auto layout = one_rank(1, torch::kFloat);
  const auto norm = grad_norm_on(torch::kCPU, layout, mesh, OpTable());
  CHECK(norm.dim() == 0);
  CHECK((norm.scalar_type() == torch::kDouble));
  CHECK(norm.item<double>() == grad_norm(layout, mesh));
  for (const double one : {0.0, 0.1, 0.3, 1.0, 7.0, 1e30, std::numeric_limits<double>::infinity(), std::nan("")})
    for (const double largest : {0.1, 1.0, 3.0}) {
      CAPTURE(one);
      CHECK(clip_factor(torch::scalar_tensor(one, torch::kDouble), largest).item<double>() ==
            clip_factor(one, largest));
    }
}

}  // namespace
}  // namespace ditto
