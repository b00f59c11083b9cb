// zero1, zero2 and fsdp on real ranks, where the matrix does not look: forwards in flight, frozen and unused
// parameters, counts, bytes, overlap.
#include <doctest/doctest.h>

#include <torch/autograd.h>

#include <ditto/error.h>
#include <ditto/parallel/program.h>

#include "core/measure/memory.h"
#include "core/mesh/gradient_sum.h"
#include "core/plugin/registry.h"
#include "tests/support/files.h"
#include "tests/unit/plugins/parallel/overlap.h"
#include "tests/unit/small_model.h"

namespace ditto {
namespace {

using testing::SmallModel;
using torch::Tensor;

const std::vector<std::string> kStrategies{"zero1", "zero2", "fsdp"};

std::shared_ptr<ParallelStrategy> make_strategy(const std::string& id, const Mesh& mesh, at::ScalarType compute,
                                                const std::map<std::string, GivenOption>& given = {}) {
  Registry registry(std::vector<SearchFolder>{{test::plugin_folder(), "the test"}});
  OptionReader options(OptionMap{"parallel", "the test", given});
  return registry.factory<ParallelStrategy>(id, "the test").make(options, {&mesh, true, true, compute, 2});
}

struct Setup {
  int64_t width = 16, mlp = 32;
  bool has_unused = false, condition_without_gradient = false;
  std::vector<std::string> frozen;  // names' beginnings
  at::ScalarType compute = torch::kFloat;
  testing::Work work;     // of each unit, forward and again backward
  int64_t in_flight = 1;  // forwards before the first backward
  bool constant = false;  // all weights alike: quick to make
  std::map<std::string, GivenOption> options;
};

// Works in forward and again in backward.
struct Working : torch::autograd::Function<Working> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const testing::Work* work) {
    ctx->saved_data["work"] = reinterpret_cast<int64_t>(work);
    (*work)();
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grad) {
    (*reinterpret_cast<const testing::Work*>(ctx->saved_data["work"].toInt()))();
    return {grad[0], Tensor()};
  }
};

// Trains the small model, unit by unit as the host does; without a strategy on one rank.
class Training {
 public:
  Training(const Mesh& mesh, const std::string& id, Setup setup)
      : mesh_(mesh),
        setup_(std::move(setup)),
        model_(std::make_shared<SmallModel>(setup_.width, 4, setup_.mlp, setup_.has_unused)),
        ctx_(testing::small_context(setup_.compute)),
        units_(*model_, *ctx_, [this](const Unit& unit, UnitCall& call) { run_unit(unit, call); }) {
    if (setup_.constant)
      for (auto& tensor : model_->parameters()) tensor.detach().fill_(1e-3);
    else
      testing::fill(*model_, setup_.compute == torch::kDouble ? torch::kDouble : torch::kFloat);
    for (auto& item : model_->named_parameters())
      for (const auto& frozen : setup_.frozen)
        if (item.key().rfind(frozen, 0) == 0) item.value().requires_grad_(false);
    layout = Layout::of(*model_);
    if (!id.empty()) {
      strategy_ = make_strategy(id, mesh, setup_.compute, setup_.options);
      strategy_->shard(layout);
      units_.wrap(*strategy_);
      strategy_->parameters_changed();
    }
    sum_ = std::make_unique<GradientSum>(layout, mesh, true);
  }

  // Called after a step's last backward, and when gradients are shared out.
  std::function<void()> after_backward, after_step;

  void step(int64_t micro_batches, int64_t step) {
    const int64_t n = mesh_.data_ranks(), r = mesh_.data_rank();
    const StepPlan plan{step, micro_batches, (micro_batches + n - 1) / n, (micro_batches - r + n - 1) / n,
                        Phase::train};
    for (auto& entry : layout.entries) {
      entry.tensor.mutable_grad().reset();
      entry.parameter.leaf().mutable_grad().reset();
    }
    if (strategy_) sum_->begin_step({strategy_}, plan);
    if (strategy_) strategy_->begin_step(plan);
    const int64_t mine = strategy_ && strategy_->in_step() ? plan.accumulations : plan.mine;
    std::vector<Tensor> losses;
    const auto forward = [&](int64_t accumulation) {
      if (accumulation < mine) losses.push_back(loss(100 * step + accumulation * n + r, plan.runs(accumulation)));
    };
    for (int64_t accumulation = 0; accumulation < setup_.in_flight - 1; ++accumulation) forward(accumulation);
    for (int64_t accumulation = 0; accumulation < plan.accumulations; ++accumulation) {
      forward(accumulation + setup_.in_flight - 1);
      if (accumulation < mine) backward(std::exchange(losses[static_cast<size_t>(accumulation)], Tensor()));
      if (accumulation + 1 == plan.accumulations && after_backward) after_backward();
      if (strategy_) strategy_->end_accumulation(accumulation, plan);
      sum_->after_micro_batch(accumulation, plan);
    }
    if (strategy_) strategy_->sync_gradients();
    sum_->finish(plan);
    if (after_step) after_step();
  }

  void descend() {
    torch::NoGradGuard no_grad;
    for (auto& entry : layout.entries)
      if (entry.tensor.requires_grad()) entry.tensor.sub_(entry.tensor.grad(), 1e-3);
    if (strategy_) strategy_->parameters_changed();
  }

  Tensor predict(const Batch& batch) {
    const Traffic::Scope pass(mesh_.traffic(), Traffic::Pass::forward);
    auto stream = units_.begin(batch);
    units_.blocks(0, model_->depth(), stream);
    return units_.head(stream, batch).at("prediction");
  }

  Layout layout;

 private:
  void run_unit(const Unit& unit, UnitCall& call) {
    const auto worked = [&](Tensor& x) {
      if (setup_.work) x = Working::apply(x, &setup_.work);
    };
    {
      const bool is_cut_off = unit.kind == Unit::condition && setup_.condition_without_gradient;
      const torch::AutoGradMode grad(torch::GradMode::is_enabled() && !is_cut_off);
      run_model_unit(*model_, unit, call);
    }
    if (unit.kind == Unit::condition) return worked(call.stream.condition.cond_BD);
    worked(unit.kind == Unit::head ? call.outputs.at("prediction") : call.stream.x_BTD);
  }
  Tensor loss(int64_t seed, bool counts) {
    const auto dtype = setup_.compute == torch::kDouble ? torch::kDouble : torch::kFloat;
    const auto batch = testing::small_batch(seed, 3, dtype);
    const auto sum = (predict(batch) - batch.at("target")).square().sum();
    return counts ? sum : sum * 0;
  }
  void backward(Tensor loss) {
    const Traffic::Scope pass(mesh_.traffic(), Traffic::Pass::backward);
    loss.backward();
  }

  const Mesh& mesh_;
  const Setup setup_;
  std::shared_ptr<SmallModel> model_;
  std::shared_ptr<Context> ctx_;
  ModelProgram units_;
  std::shared_ptr<ParallelStrategy> strategy_;
  std::unique_ptr<GradientSum> sum_;
};

Tensor block(Tensor of, const std::vector<int64_t>& start, const std::vector<int64_t>& size) {
  for (size_t dim = 0; dim < size.size(); ++dim) of = of.narrow(static_cast<int64_t>(dim), start[dim], size[dim]);
  return of;
}

// Weights and gradients here have the bits of one rank's, slice by slice.
void check_bits(const Layout& layout, const Layout& whole) {
  for (const auto& entry : layout.entries) {
    CAPTURE(entry.name);
    const auto& reference = whole.at(entry.name);
    CHECK(entry.tensor.sizes().vec() == local_shape(entry));
    CHECK(entry.tensor.requires_grad() == reference.tensor.requires_grad());
    CHECK(entry.tensor.grad().defined() == entry.tensor.requires_grad());
    for (const auto& slice : entry.slices()) {
      const auto same = [&](const Tensor& here, const Tensor& there) {
        return testing::same_bits(block(here, slice.local_start, slice.size),
                                  block(there, slice.global_start, slice.size));
      };
      CHECK(same(entry.tensor, reference.tensor));
      if (entry.tensor.requires_grad()) CHECK(same(entry.tensor.grad(), reference.tensor.grad()));
    }
  }
}

void check_as_one_rank(const Mesh& mesh, const Setup& setup) {
  const GlooMesh alone(RankInfo{}, {}, std::chrono::seconds(60));
  Setup one_by_one = setup;
  one_by_one.in_flight = 1;
  for (const auto& id : kStrategies) {
    CAPTURE(id);
    Training sharded(mesh, id, setup), whole(alone, "", one_by_one);
    int64_t step = 0;
    for (const int64_t micro_batches : {4, 1, 5}) {
      sharded.step(micro_batches, ++step);
      whole.step(micro_batches, step);
      sharded.descend();
      whole.descend();
      check_bits(sharded.layout, whole.layout);
    }
    torch::NoGradGuard no_grad;
    const auto batch = testing::small_batch(9, 2, torch::kFloat);
    CHECK(testing::same_bits(sharded.predict(batch), whole.predict(batch)));
  }
}

TEST_CASE("rank of: shards" * doctest::skip()) {
  check_as_one_rank(testing::mesh_of({{Axis::shard, rank_info().world_size}}), {});
}
TEST_CASE("rank of: shards and replicas" * doctest::skip()) {
  check_as_one_rank(testing::mesh_of({{Axis::shard, 2}}), {});
}
TEST_CASE("rank of: several forwards in flight" * doctest::skip()) {
  Setup setup;
  setup.in_flight = 2;
  check_as_one_rank(testing::mesh_of({{Axis::shard, 2}}), setup);
}
TEST_CASE("rank of: what does not train" * doctest::skip()) {
  Setup setup;
  setup.has_unused = true;
  setup.frozen = {"blocks.1.qkv", "blocks.0", "embed"};
  const auto mesh = testing::mesh_of({{Axis::shard, 2}});
  check_as_one_rank(mesh, setup);
  setup.frozen = {"blocks.1.out.bias"};
  setup.condition_without_gradient = true;
  check_as_one_rank(mesh, setup);
}

TEST_CASE("sharded gradients and weights have the bits of one rank, with any number of micro-batches") {
  for (const int ranks : {2, 3}) CHECK(testing::as_ranks(ranks, "rank of: shards") == 0);
}
TEST_CASE("replicas of shards have the bits of one rank") {
  CHECK(testing::as_ranks(4, "rank of: shards and replicas") == 0);
}
TEST_CASE("shards serve a pipeline: a forward may run before the backward of the one before it") {
  CHECK(testing::as_ranks(2, "rank of: several forwards in flight") == 0);
}
TEST_CASE("frozen, unused and cut-off parameters do not disturb shards") {
  CHECK(testing::as_ranks(2, "rank of: what does not train") == 0);
}

TEST_CASE("rank of: an escaping parameter" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::shard, 2}});
  SmallModel model;
  testing::fill(model, torch::kFloat);
  auto layout = Layout::of(model);
  const auto ctx = testing::small_context(torch::kFloat);
  const auto strategy = make_strategy("fsdp", mesh, torch::kFloat);
  strategy->shard(layout);
  strategy->parameters_changed();
  const auto& entry = layout.entries.front();
  const auto run = strategy->wrap_unit(
      [&](const Unit&, UnitCall& call) { call.stream.x_BTD = entry.parameter(call.ctx).unsqueeze(0); });
  const Batch batch;
  Stream stream;
  Outputs outputs;
  UnitCall call{batch, stream, outputs, *ctx};
  CHECK_THROWS_WITH_AS(run(entry.unit, call), doctest::Contains("hands out a parameter itself"), Error);
  CHECK_THROWS_WITH_AS(entry.parameter(*ctx) * 1, doctest::Contains("while its numbers are with other ranks"), Error);
}

TEST_CASE("a parameter used outside of its unit is refused under fsdp") {
  CHECK(testing::as_ranks(2, "rank of: an escaping parameter") == 0);
}

// Calls and bytes, by pass, against docs/layout_derivations.md: a gather brings the longest shard of each other rank,
// an exchange takes each other rank its piece.
TEST_CASE("rank of: counts" * doctest::skip()) {
  const int n = rank_info().world_size;
  const auto mesh = testing::mesh_of({{Axis::shard, n}});
  Training training(mesh, "fsdp", {});
  constexpr int64_t kUnits = 5, kRounds = 3;
  std::map<Unit, std::vector<int64_t>> shards;  // numbers by unit and rank
  int64_t all = 0;
  for (auto entry : training.layout.entries) {
    auto& lengths = shards[entry.unit];
    lengths.resize(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
      entry.cuts[Axis::shard].index = i;
      lengths[static_cast<size_t>(i)] += c10::multiply_integers(local_shape(entry));
    }
    all += c10::multiply_integers(entry.full_shape);
  }
  CHECK(shards.size() == kUnits);
  int64_t gathered = 0, own = 0;
  for (const auto& [unit, lengths] : shards) {
    gathered += (n - 1) * *std::max_element(lengths.begin(), lengths.end());
    own += lengths[static_cast<size_t>(mesh.index(Axis::shard))];
  }
  mesh.traffic().clear();
  training.step(kRounds * n, 1);
  std::map<Traffic::Pass, Traffic::Count> gathers, sums;
  for (const auto& [key, count] : mesh.traffic().counts()) {
    CHECK(key.axes == "shard");
    CHECK((key.op == "all_gather" || key.op == "reduce_scatter"));
    (key.op == "all_gather" ? gathers : sums)[key.pass] = count;
  }
  for (const auto pass : {Traffic::Pass::forward, Traffic::Pass::backward}) {
    CHECK(gathers[pass].calls == kRounds * kUnits);
    CHECK(gathers[pass].bytes == kRounds * 4 * gathered);
  }
  CHECK(sums.size() == 1);
  CHECK(sums[Traffic::Pass::backward].calls == kRounds * kUnits);
  CHECK(sums[Traffic::Pass::backward].bytes == kRounds * 4 * (all - own));
}

TEST_CASE("fsdp gathers a unit twice and sums its gradients once a micro-batch, and nothing more") {
  for (const int ranks : {2, 3}) CHECK(testing::as_ranks(ranks, "rank of: counts") == 0);
}

// AdamW's states and the average, as the host keeps them beside the masters.
struct States {
  explicit States(const Layout& layout) {
    for (const auto& entry : layout.entries)
      for (int i = 0; i < 3; ++i) tensors.push_back(torch::zeros_like(entry.tensor.detach()));
  }
  std::vector<Tensor> tensors;
};

// Bytes a parameter on each of n ranks, in bf16 over fp32 masters, one micro-batch a rank.
double bytes_expected(const std::string& id, double n) {
  return id == "zero1" ? 2 + 4 + 16 / n : id == "zero2" ? 2 + 20 / n : 22 / n;
}
// What a step needs besides at its peak, where the largest unit has the share u of all parameters. zero1: a unit's
// gradients in the order of their owners, and the owners' sums. zero2 and fsdp: those and what arrives of one unit, and
// the gradients of the next. fsdp: weights of a unit, as they were gathered too, and those of the next on their way.
double bytes_besides(const std::string& id, double n, double u) {
  return id == "zero1" ? 4 * u + 4 / n : id == "zero2" ? 12 * u : 18 * u;
}

TEST_CASE("rank of: bytes" * doctest::skip()) {
  setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 0);  // some processors announce matrix tiles and die of them
  const int n = rank_info().world_size;
  const auto mesh = testing::mesh_of({{Axis::shard, n}});
  Setup setup;
  setup.width = 640, setup.mlp = 2560, setup.compute = torch::kBFloat16, setup.constant = true;
  for (const auto& id : kStrategies) {
    report::MemoryMeter meter;
    const report::MemoryMeter::Watch watch(meter);
    Training training(mesh, id, setup);
    const States states(training.layout);
    double numbers = 0;
    std::map<Unit, double> units;
    for (const auto& entry : training.layout.entries) {
      const auto more = static_cast<double>(c10::multiply_integers(entry.full_shape));
      numbers += more;
      units[entry.unit] += more;
    }
    CHECK(numbers > 1e7);
    int64_t bytes = 0;
    // zero1's whole gradients live from backward until they are handed to their owners.
    (id == "zero1" ? training.after_backward : training.after_step) = [&] { bytes = meter.current(); };
    meter.reset_peak();
    training.step(n, 1);
    const double each = static_cast<double>(bytes) / numbers, expected = bytes_expected(id, n);
    const double peak = static_cast<double>(meter.peak()) / numbers;
    const double bound = expected + bytes_besides(id, n, units.at(Unit{Unit::Kind::block, 0}) / numbers);
    if (mesh.rank() == 0)
      MESSAGE(id << ", " << n << " ranks, " << numbers << " parameters: " << each << " bytes each, expected "
                 << expected << "; at most " << peak << " in the step, expected " << bound);
    CHECK(each == doctest::Approx(expected).epsilon(0.001));
    CHECK(peak < 1.02 * bound);
  }
}

TEST_CASE("quiet: after the last backward zero1, zero2 and fsdp hold 2P + 4P + 16P/n, 2P + 20P/n and 22P/n bytes") {
  if (!testing::on_quiet_machine()) return;
  for (const int ranks : {2, 4, 8}) CHECK(testing::as_ranks(ranks, "rank of: bytes") == 0);
}

// A step's transfers 5 ms late, each unit 15 ms of work forward and again backward.
void late_transfers(bool products, bool prefetch) {
  const int n = rank_info().world_size;
  const auto mesh = testing::mesh_of({{Axis::shard, n}});
  Setup setup;
  setup.options["prefetch"] = {prefetch, "the test"};
  setup.work = products ? testing::products_of(15, mesh.world()) : testing::sleep_of(15);
  Training training(mesh, "fsdp", setup);
  const auto step = [&] { training.step(n, 1); };
  step();
  const int64_t transfers = testing::calls_of(mesh, step);
  const auto longer = testing::lengthening(mesh, std::chrono::milliseconds(5), step);
  if (mesh.rank() == 0)
    MESSAGE(n << " ranks, " << std::string(products ? "products" : "sleeps")
              << std::string(prefetch ? ": " : ", no prefetch: ") << transfers
              << " transfers that are 5 ms late lengthen a step of " << longer.prompt << " ms by " << longer.by());
  CHECK(transfers == 15);
  const double third = 5.0 * static_cast<double>(transfers) / 3;
  if (prefetch)
    CHECK(longer.by() < third);
  else
    CHECK(longer.by() > third);
}

TEST_CASE("rank of: late transfers behind sleeps" * doctest::skip()) { late_transfers(false, true); }
TEST_CASE("rank of: late transfers behind products" * doctest::skip()) { late_transfers(true, true); }
TEST_CASE("rank of: late transfers without prefetch" * doctest::skip()) { late_transfers(true, false); }

TEST_CASE("quiet: fsdp's transfers hide behind its units' work, and would show if they did not overlap with it") {
  if (!testing::on_quiet_machine()) return;
  CHECK(testing::as_ranks(4, "rank of: late transfers behind sleeps") == 0);
  for (const int ranks : {2, 4}) CHECK(testing::as_ranks(ranks, "rank of: late transfers behind products") == 0);
  CHECK(testing::as_ranks(2, "rank of: late transfers without prefetch") == 0);
}

}  // namespace
}  // namespace ditto
