// What context plugins send is under way while they compute: late passes and gathers, on real ranks.
#include <algorithm>

#include <doctest/doctest.h>

#include <ditto/parallel/ring_attention.h>

#include "tests/unit/context_cut.h"
#include "tests/unit/plugins/parallel/overlap.h"

namespace ditto {
namespace {

using namespace testing;  // of context_cut.h
using torch::Tensor;

// Attention in pieces that takes a while.
std::vector<KernelRow> slow_attention(const testing::Work& work) {
  std::vector<KernelRow> rows;
  for (const Op& op : ops()) {
    if (op.leader != "attention_partial") continue;
    const bool works = op.name == "attention_partial" || op.name == "attention_backward";
    const auto compute = [work, works, reference = op.reference](const OpInputs& in) {
      if (works && in.tensors[2].size(1) > 0) work();  // not of no key
      return reference(in);
    };
    rows.push_back({op.name, "slow", [](const OpCall&) { return 5; }, compute, {}});
    rows.back().knows = {"scale"};
  }
  return rows;
}

// Passes 5 ms late, each block 15 ms of work.
void late_ring(bool products) {
  const auto mesh = testing::mesh_of({{Axis::context, 4}});
  const auto& group = mesh.group(Axis::context);
  const OpTable table(slow_attention(products ? testing::products_of(15, group) : testing::sleep_of(15)));
  const auto op = plain_attention(table);
  const auto q = normal({1, 5, 2, 4}, mesh.rank()).requires_grad_();
  const auto step = [&] {
    const AttentionCall call{.parts = {{q, q, q, {{1, 4, 5}, nullptr}, {}}}};
    ring_attention(call, {{5, 5, 5, 5}}, group, op)[0].sum().backward();
  };
  const int64_t passes = testing::calls_of(mesh, step);
  CHECK(passes == 3 + 3 + 4);
  const auto longer = testing::lengthening(mesh, std::chrono::milliseconds(5), step);
  if (mesh.rank() == 0)
    MESSAGE("ring, " << std::string(products ? "products: " : "sleeps: ") << passes
                     << " passes that are 5 ms late lengthen " << longer.prompt << " ms by " << longer.by());
  CHECK(longer.by() < 5.0 * static_cast<double>(passes) / 3);
  if (!products) CHECK(longer.late >= 8 * 15 + 5);  // the last pass brings gradients home: nothing is left to compute
}

TEST_CASE("rank of: a ring's late passes behind sleeps" * doctest::skip()) { late_ring(false); }
TEST_CASE("rank of: a ring's late passes behind products" * doctest::skip()) { late_ring(true); }

TEST_CASE("quiet: a ring's passes are under way while blocks are computed: of late ones only the last is waited for") {
  if (!testing::on_quiet_machine()) return;
  CHECK(testing::as_ranks(4, "rank of: a ring's late passes behind sleeps") == 0);
  CHECK(testing::as_ranks(4, "rank of: a ring's late passes behind products") == 0);
}

// Ten forwards of a layer whose map of the tokens that are here takes 15 ms: so long has the gather of the others' time
// to arrive. The all-to-all has nothing to hide behind.
void late_fastseq(bool products) {
  const auto mesh = testing::mesh_of({{Axis::context, rank_info().world_size}});
  const auto work = products ? testing::products_of(15, mesh.world()) : testing::sleep_of(15);
  Runner runner(make("fastseq", needs_of(mesh)));
  const auto layers = filled<SubLayers>(torch::kDouble);
  auto& qkv = dynamic_cast<LinearModule&>(*layers->self->named_children()["qkv"]);
  const auto unit = runner.ctx->unit_runner;
  runner.ctx->unit_runner = [&](std::vector<AttentionUnitPart>& parts, const Context::RunUnit& run) {
    return unit(parts, [&](const Tensors& y) {
      qkv.after = [&, inner = qkv.after](const Tensor& z) {
        work();
        return inner(z);
      };
      return run(y);
    });
  };
  constexpr int kForwards = 10;
  const auto forwards = [&] {
    auto stream = stream_of({"", Pattern::full});
    stream.x_BTD = normal({2, 30, 48}, 1);
    runner.strategy->split(stream);
    const Batch none;
    Outputs outputs;
    UnitCall call{none, stream, outputs, *runner.ctx};
    const auto run = runner.strategy->wrap_unit([&](const Unit&, UnitCall& inner) {
      for (int i = 0; i < kForwards; ++i)
        layers->self->forward(inner.stream.x_BTD, Pattern::full, {}, inner.stream, *runner.ctx);
    });
    run(Unit{Unit::Kind::block, 0}, call);
  };
  const auto longer = testing::lengthening(mesh, std::chrono::milliseconds(5), forwards);
  if (mesh.rank() == 0)
    MESSAGE("fastseq, " << mesh.world_size() << " ranks, " << std::string(products ? "products: " : "sleeps: ")
                        << kForwards << " layers' gathers and all-to-alls that are 5 ms late lengthen " << longer.prompt
                        << " ms by " << longer.by());
  CHECK(longer.by() < 1.2 * 5 * kForwards);
  if (!products) CHECK(longer.late >= kForwards * (15 + 5));
}

TEST_CASE("rank of: fastseq's late gathers behind sleeps" * doctest::skip()) { late_fastseq(false); }
TEST_CASE("rank of: fastseq's late gathers behind products" * doctest::skip()) { late_fastseq(true); }

TEST_CASE("quiet: fastseq's gather is under way while the tokens that are here are mapped, at any degree") {
  if (!testing::on_quiet_machine()) return;
  for (const int ranks : {2, 4})
    for (const std::string work : {"sleeps", "products"})
      CHECK(testing::as_ranks(ranks, "rank of: fastseq's late gathers behind " + work) == 0);
}

}  // namespace
}  // namespace ditto
