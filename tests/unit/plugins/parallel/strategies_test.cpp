// The parallel plugins against one rank, on real ranks.
//
// Claim (layouts): `ddp`, summing while backward runs, gives those bits too; `tensor` gives one rank's outputs,
// gradients and norm to 1e-12 in fp64.
#include <doctest/doctest.h>

#include <ditto/error.h>
#include <ditto/parallel/strategy.h>

#include "core/mesh/gradient_sum.h"
#include "core/plugin/registry.h"
#include "tests/support/files.h"
#include "tests/unit/small_model.h"

namespace ditto {
namespace {

using testing::SmallModel;
using torch::Tensor;

std::shared_ptr<ParallelStrategy> make_strategy(const std::string& id, const Mesh& mesh, bool deterministic) {
  Registry registry(std::vector<SearchFolder>{{test::plugin_folder(), "the test"}});
  OptionReader none(OptionMap{"parallel", "the test", {}});
  return registry.factory<ParallelStrategy>(id, "the test").make(none, {&mesh, deterministic, true});
}

Tensor loss_of(SmallModel& model, const Batch& batch, Context& ctx) {
  return (model.predict(batch, ctx) - batch.at("target")).square().sum();
}

struct Shape {
  int64_t width = 16, heads = 4, mlp = 32;
  bool has_unused = false;
  std::shared_ptr<SmallModel> make(at::ScalarType dtype) const {
    auto model = std::make_shared<SmallModel>(width, heads, mlp, has_unused);
    testing::fill(*model, dtype);
    return model;
  }
};

// Gradients of micro-batches 0 … m - 1 accumulated on one rank.
std::map<std::string, Tensor> one_rank(const Shape& shape, at::ScalarType dtype, int64_t micro_batches, int64_t step) {
  const auto model = shape.make(dtype);
  const auto ctx = testing::small_context(dtype);
  for (int64_t j = 0; j < micro_batches; ++j)
    loss_of(*model, testing::small_batch(100 * step + j, 3, dtype), *ctx).backward();
  std::map<std::string, Tensor> gradients;
  for (const auto& item : model->named_parameters()) {
    const auto& grad = item.value().grad();
    gradients[item.key()] = grad.defined() ? grad : torch::zeros_like(item.value());
  }
  return gradients;
}

// One rank of a run with these strategies.
class Rank {
 public:
  Rank(const Mesh& mesh, const Shape& shape, at::ScalarType dtype, const std::vector<std::string>& ids,
       bool deterministic)
      : mesh_(mesh),
        dtype_(dtype),
        model(shape.make(dtype)),
        ctx_(testing::small_context(dtype)),
        layout(Layout::of(*model)),
        sum_(layout, mesh, deterministic) {
    for (const auto& id : ids) strategies_.push_back(make_strategy(id, mesh, deterministic));
    for (auto& strategy : strategies_) strategy->shard(layout);
  }
  void step(int64_t micro_batches, int64_t step) {
    const int64_t n = mesh_.data_ranks(), r = mesh_.data_rank();
    const StepPlan plan{step, micro_batches, (micro_batches + n - 1) / n, (micro_batches - r + n - 1) / n,
                        Phase::train};
    for (auto& entry : layout.entries) entry.tensor.mutable_grad().reset();
    sum_.begin_step(strategies_, plan);
    for (auto& strategy : strategies_) strategy->begin_step(plan);
    for (int64_t accumulation = 0; accumulation < plan.accumulations; ++accumulation) {
      if (accumulation < plan.mine)
        (loss_of(*model, testing::small_batch(100 * step + accumulation * n + r, 3, dtype_), *ctx_) /
         mesh_.size(Axis::tensor))
            .backward();
      sum_.after_micro_batch(accumulation, plan);
    }
    for (auto& strategy : strategies_) strategy->sync_gradients();
    sum_.finish(plan);
  }
  Tensor predict(const Batch& batch) {
    torch::NoGradGuard no_grad;
    return model->predict(batch, *ctx_);
  }

 private:
  const Mesh& mesh_;
  at::ScalarType dtype_;

 public:
  std::shared_ptr<SmallModel> model;

 private:
  std::shared_ptr<Context> ctx_;

 public:
  Layout layout;

 private:
  std::vector<std::shared_ptr<ParallelStrategy>> strategies_;
  GradientSum sum_;
};

Tensor block(const Tensor& tensor, const std::vector<int64_t>& start, const std::vector<int64_t>& size) {
  Tensor view = tensor;
  for (size_t dim = 0; dim < start.size(); ++dim) view = view.narrow(static_cast<int64_t>(dim), start[dim], size[dim]);
  return view;
}

void check_ddp(bool has_unused) {
  const auto mesh = testing::mesh_of({});
  const Shape shape{16, 4, 32, has_unused};
  Rank rank(mesh, shape, torch::kFloat, {"ddp"}, true);
  int64_t step = 0;
  for (const int64_t m : {mesh.world_size(), mesh.world_size() + 1, mesh.world_size(), 1, mesh.world_size()}) {
    CAPTURE(m);
    rank.step(m, ++step);
    const bool reduced_early = rank.layout.entries[0].summed.count(Axis::replicate) != 0;
    CHECK(reduced_early == (m == mesh.world_size()));
    const auto expected = one_rank(shape, torch::kFloat, m, step);
    for (const auto& entry : rank.layout.entries) {
      CAPTURE(entry.name);
      if (entry.name.rfind("unused", 0) == 0)
        CHECK(entry.tensor.grad().eq(0).all().item<bool>());
      else
        CHECK(testing::same_bits(entry.tensor.grad(), expected.at(entry.name)));
    }
  }
}

TEST_CASE("rank of: ddp" * doctest::skip()) { check_ddp(false); }
TEST_CASE("rank of: ddp with leaves that take no part" * doctest::skip()) { check_ddp(true); }

TEST_CASE("ddp's gradients have the bits of one rank, with one micro-batch a rank and with other counts") {
  for (const int ranks : {2, 3, 4}) CHECK(testing::as_ranks(ranks, "rank of: ddp") == 0);
}

TEST_CASE("under ddp a leaf that takes no part in the loss gets a gradient of zero") {
  CHECK(testing::as_ranks(2, "rank of: ddp with leaves that take no part") == 0);
}

TEST_CASE("rank of: ddp with the library's sum" * doctest::skip()) {
  const auto mesh = testing::mesh_of({});
  Rank rank(mesh, {}, torch::kDouble, {"ddp"}, false);
  for (const int64_t m : {3, 5, 3}) {
    rank.step(m, m);
    const auto expected = one_rank({}, torch::kDouble, m, m);
    for (const auto& entry : rank.layout.entries)
      CHECK(torch::allclose(entry.tensor.grad(), expected.at(entry.name), 1e-12, 1e-12));
  }
}

TEST_CASE("ddp without determinism gives the same up to rounding") {
  CHECK(testing::as_ranks(3, "rank of: ddp with the library's sum") == 0);
}

// Every gradient of the cut model, slice by slice, against one rank's; and that the slices of all ranks cover each
// tensor.
void check_cut(const Mesh& mesh, const std::vector<std::string>& strategies, int64_t micro_batches) {
  const Shape shape;
  Rank rank(mesh, shape, torch::kDouble, strategies, true);
  const auto whole = shape.make(torch::kDouble);
  const auto ctx = testing::small_context(torch::kDouble);
  const auto batch = testing::small_batch(7, 4, torch::kDouble);
  CHECK((rank.predict(batch) - whole->predict(batch, *ctx)).abs().max().item<double>() < 1e-12);

  rank.step(micro_batches, 1);
  const auto expected = one_rank(shape, torch::kDouble, micro_batches, 1);
  int64_t cut = 0;
  for (const auto& entry : rank.layout.entries) {
    CAPTURE(entry.name);
    const Tensor& reference = expected.at(entry.name);
    CHECK(reference.sizes().vec() == entry.full_shape);
    CHECK(entry.tensor.sizes().vec() == local_shape(entry));
    CHECK(reference.abs().max().item<double>() > 1e-6);
    auto covered = torch::zeros_like(reference);
    for (const auto& slice : entry.slices()) {
      const auto there = block(reference, slice.global_start, slice.size);
      const auto here = block(entry.tensor.grad(), slice.local_start, slice.size);
      CHECK((there - here).abs().max().item<double>() < 1e-12 * reference.abs().max().item<double>());
      block(covered, slice.global_start, slice.size).add_(1);
    }
    mesh.group(Axis::tensor).all_reduce(covered);
    CHECK(covered.eq(entry.is_copy(Axis::tensor) ? mesh.size(Axis::tensor) : 1).all().item<bool>());
    cut += !entry.is_copy(Axis::tensor);
  }
  CHECK(cut == 2 * 8);  // of each block: weight and bias of modulation, qkv and up; weight of out and down

  double squares = 0;
  for (const auto& [name, gradient] : expected) squares += gradient.square().sum().item<double>();
  CHECK(grad_norm(rank.layout, mesh) == doctest::Approx(std::sqrt(squares)).epsilon(1e-13));
}

TEST_CASE("rank of: tensor" * doctest::skip()) {
  check_cut(testing::mesh_of({{Axis::tensor, rank_info().world_size}}), {"tensor"}, 2);
}
TEST_CASE("rank of: tensor and ddp" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::tensor, 2}});
  check_cut(mesh, {"tensor", "ddp"}, 2);  // by the reducer
  check_cut(mesh, {"tensor", "ddp"}, 3);  // by the host
}

TEST_CASE("a model cut along tensor computes what one rank does, in outputs, every gradient and the norm") {
  CHECK(testing::as_ranks(2, "rank of: tensor") == 0);
  CHECK(testing::as_ranks(4, "rank of: tensor") == 0);
}

TEST_CASE("tensor beside ddp computes what one rank does") {
  CHECK(testing::as_ranks(4, "rank of: tensor and ddp") == 0);
}

TEST_CASE("rank of: heads that are not divided" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::tensor, 3}});
  SmallModel model(24, 4, 96);  // 3 divides the width and the MLP
  auto layout = Layout::of(model);
  const auto strategy = make_strategy("tensor", mesh, true);
  try {
    strategy->shard(layout);
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::config);
    const std::string text = error.what();
    CHECK(text.find("3 does not divide the 4 attention heads of width 6 of \"blocks.0.qkv\"") != std::string::npos);
    CHECK(text.find("use 1, 2 or 4") != std::string::npos);
  }
  for (const auto& entry : layout.entries) CHECK(entry.cuts.empty());  // refused before anything was cut
}

TEST_CASE("heads that a degree does not divide are refused with the numbers and what would do") {
  CHECK(testing::as_ranks(3, "rank of: heads that are not divided") == 0);
}

}  // namespace
}  // namespace ditto
