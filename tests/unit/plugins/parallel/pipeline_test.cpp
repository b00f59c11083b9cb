// The pipeline plugin against one rank, on real ranks: a model with long skips, constants and an auxiliary loss.
#include <doctest/doctest.h>

#include <ditto/error.h>
#include <ditto/parallel/parcel.h>
#include <ditto/parallel/program.h>

#include "core/mesh/gradient_sum.h"
#include "core/plugin/registry.h"
#include "tests/support/files.h"
#include "tests/unit/ranks.h"

namespace ditto {
namespace {

using torch::Tensor;

constexpr int64_t kWidth = 8, kSamples = 2;

struct SkipBlock : Layer {
  SkipBlock() : in(linear("in", kWidth, kWidth)), modulation(linear("modulation", kWidth, kWidth)) {}
  Tensor forward(const Tensor& x_BTD, const Tensor& cond_BD, const Tensor& rotary_TK, Context& ctx) {
    const auto angle = rotary_TK.to(x_BTD.scalar_type());
    const auto m = modulation(torch::silu(cond_BD), ctx).unsqueeze(1);
    return x_BTD + torch::tanh(in(x_BTD * angle.cos() * (1 + m), ctx));
  }
  Linear in, modulation;
};

// The first half of the blocks keeps its tokens for the second half (U-ViT).
struct SkipModel : Model {
  SkipModel(int64_t depth, bool has_skips) : has_skips_(has_skips) {
    embed_ = linear(Unit::tokens, "embed", 3, kWidth);
    condition_ = linear(Unit::condition, "condition", 1, kWidth);
    for (int64_t i = 0; i < depth; ++i) blocks_.push_back(add_block<SkipBlock>(i));
    head_ = linear(Unit::head, "head", kWidth, 3);
  }
  Conditioning condition(const Batch& batch, Context& ctx) override {
    return {torch::tanh(condition_(batch.at("t").unsqueeze(1), ctx)), {}, {}};
  }
  Stream tokens(const Batch& batch, Context& ctx) override {
    Stream stream;
    stream.x_BTD = embed_(batch.at("x"), ctx);
    stream.grid = {1, batch.at("x").size(1), 1};
    return stream;
  }
  void constants(const Batch&, Stream& stream, Context&) override {
    stream.rotary_TK = torch::arange(stream.grid.tokens(), torch::kDouble).unsqueeze(1);
  }
  int64_t depth() const override { return static_cast<int64_t>(blocks_.size()); }
  Stream run_block(int64_t i, Stream stream, Context& ctx) override {
    const int64_t half = has_skips_ ? depth() / 2 : 0;
    if (i >= depth() - half) {
      stream.x_BTD = stream.x_BTD + 0.5 * stream.skips_BTD.back();
      stream.skips_BTD.pop_back();
    }
    stream.x_BTD =
        blocks_[static_cast<size_t>(i)]->forward(stream.x_BTD, stream.condition.cond_BD, stream.rotary_TK, ctx);
    if (i < half) stream.skips_BTD.push_back(stream.x_BTD);
    auto& loss_B = stream.auxiliary_losses["square"];
    const auto more_B = stream.x_BTD.square().mean({1, 2});
    loss_B = loss_B.defined() ? loss_B + more_B : more_B;
    return stream;
  }
  Tensor head(const Stream& stream, Context& ctx) override {
    return head_(stream.x_BTD * (1 + stream.condition.cond_BD.unsqueeze(1)), ctx);
  }
  TensorSpecs takes() const override { return {}; }

 private:
  const bool has_skips_;
  Linear embed_, condition_, head_;
  std::vector<std::shared_ptr<SkipBlock>> blocks_;
};

struct Setup {
  int64_t depth = 5, virtual_stages = 1;
  std::string conditioning = "carried";
  at::ScalarType dtype = torch::kFloat;
  bool has_skips = true;
  std::set<std::string> frozen = {};  // beginnings of names
};

// Micro-batch j of a step; the number of tokens differs from one to the next.
Batch micro_batch(int64_t step, int64_t j, at::ScalarType dtype) {
  const int64_t seed = 1000 * step + 10 * j, tokens = 3 + j % 3;
  Batch batch;
  batch["x"] = testing::numbers({kSamples, tokens, 3}, seed + 1, dtype);
  batch["t"] = testing::numbers({kSamples}, seed + 2, dtype);
  batch["target"] = testing::numbers({kSamples, tokens, 3}, seed + 3, dtype);
  return batch;
}

// One rank of a run; without a mesh, the one rank to compare with.
class Rank {
 public:
  Rank(const Setup& setup, const Mesh* mesh) : setup_(setup), mesh_(mesh) {
    model = std::make_shared<SkipModel>(setup.depth, setup.has_skips);
    model->to(setup.dtype);
    initialise(*model, Random(7));
    for (auto& item : model->named_parameters())
      for (const auto& beginning : setup.frozen)
        if (item.key().starts_with(beginning)) item.value().set_requires_grad(false);
    ctx_ = std::make_shared<Context>(std::make_shared<OpTable>(), Random(1));
    ctx_->compute = setup.dtype;
    layout = Layout::of(*model);
    units_ = std::make_unique<ModelProgram>(*model, *ctx_, [this](const Unit& unit, UnitCall& call) {
      if (unit.kind == Unit::condition) ++made;
      run_model_unit(*model, unit, call);
    });
    if (!mesh) return;
    sum_ = std::make_unique<GradientSum>(layout, *mesh, true);
    strategy = make(setup, *mesh);
    strategy->claim(layout);
    units_->wrap(*strategy);
  }

  static std::shared_ptr<ParallelStrategy> make(const Setup& setup, const Mesh& mesh) {
    Registry registry(std::vector<SearchFolder>{{test::plugin_folder(), "the test"}});
    OptionReader reader(OptionMap{
        "parallel",
        "the test",
        {{"virtual_stages", {setup.virtual_stages, "here"}}, {"pipeline_conditioning", {setup.conditioning, "here"}}}});
    return registry.factory<ParallelStrategy>("pipeline", "the test")
        .make(reader, {&mesh, true, true, setup.dtype, setup.depth});
  }

  // The step's gradients, by name.
  std::map<std::string, Tensor> step(int64_t step, int64_t micro_batches) {
    const int64_t n = mesh_ ? mesh_->data_ranks() : 1, r = mesh_ ? mesh_->data_rank() : 0;
    const StepPlan plan{step, micro_batches, (micro_batches + n - 1) / n, (micro_batches - r + n - 1) / n,
                        Phase::train};
    for (auto& entry : layout.entries) entry.parameter.leaf().mutable_grad().reset();
    std::vector<Batch> mine;
    for (int64_t accumulation = 0; accumulation < plan.mine; ++accumulation)
      mine.push_back(micro_batch(step, accumulation * n + r, setup_.dtype));
    auto program = make_program();
    losses.clear();
    accumulations.clear();
    program.accumulation_done = [&](int64_t accumulation) {
      accumulations.push_back(accumulation);
      if (sum_) sum_->after_micro_batch(accumulation, plan);
    };
    if (strategy) {
      CHECK(strategy->train_step(mine, program, plan));
      sum_->finish(plan);
    } else {
      for (const auto& batch : mine) {
        auto stream = program.begin(batch);
        program.blocks(0, setup_.depth, stream);
        const auto outputs = program.head(stream, batch);
        program.backward({program.loss(stream, outputs, batch)}, {Tensor()});
      }
    }
    std::map<std::string, Tensor> gradients;
    for (const auto& entry : layout.entries) gradients[entry.name] = entry.tensor.grad();
    return gradients;
  }

  Tensor predict(const Batch& batch) {
    torch::NoGradGuard no_grad;
    auto program = make_program();
    if (strategy) return *strategy->predict(batch, program);
    auto stream = program.begin(batch);
    program.blocks(0, setup_.depth, stream);
    return program.head(stream, batch).at("prediction");
  }

 private:
  Program make_program() {
    auto program = units_->program(mesh_ ? mesh_->traffic() : alone_);
    program.prepare = [](Batch batch) { return batch; };
    program.loss = [this](const Stream& stream, const Outputs& outputs, const Batch& batch) {
      const auto loss =
          (outputs.at("prediction") - batch.at("target")).square().mean() + stream.auxiliary_losses.at("square").sum();
      losses.push_back(loss.item<double>());
      return loss;
    };
    return program;
  }

  const Setup setup_;
  const Mesh* mesh_;

 public:
  std::shared_ptr<SkipModel> model;
  Layout layout;
  std::shared_ptr<ParallelStrategy> strategy;
  std::vector<double> losses;
  std::vector<int64_t> accumulations;
  int64_t made = 0;  // times that conditioning was made

 private:
  std::shared_ptr<Context> ctx_;
  std::unique_ptr<ModelProgram> units_;
  Traffic alone_;  // of one rank, which sends nothing
  std::unique_ptr<GradientSum> sum_;
};

// Steps with several numbers of micro-batches: gradients, and losses where they are made, have the bits of one rank.
void check_bits(const Mesh& mesh, const Setup& setup) {
  Rank rank(setup, &mesh), alone(setup, nullptr);
  int64_t step = 0;
  for (const int64_t m : {1, 2, 3, 4, 5, 8}) {
    CAPTURE(m);
    const auto gradients = rank.step(++step, m), expected = alone.step(step, m);
    for (const auto& [name, gradient] : gradients) {
      CAPTURE(name);
      REQUIRE(gradient.defined() == expected.at(name).defined());
      if (!gradient.defined()) continue;  // frozen
      CHECK(gradient.abs().max().item<double>() > 0);
      CHECK(testing::same_bits(gradient, expected.at(name)));
    }
    const int64_t n = mesh.data_ranks(), r = mesh.data_rank();
    if (mesh.index(Axis::pipeline) + 1 == mesh.size(Axis::pipeline)) {
      CHECK(rank.losses.size() == static_cast<size_t>((m - r + n - 1) / n));
      for (size_t i = 0; i < rank.losses.size(); ++i)
        CHECK(rank.losses[i] == alone.losses[i * static_cast<size_t>(n) + static_cast<size_t>(r)]);
    } else {
      CHECK(rank.losses.empty());
    }
    std::vector<int64_t> all;
    for (int64_t accumulation = 0; accumulation < (m + n - 1) / n; ++accumulation) all.push_back(accumulation);
    CHECK(rank.accumulations == all);
  }
  const auto batch = micro_batch(99, 1, setup.dtype);
  CHECK(testing::same_bits(rank.predict(batch), alone.predict(batch)));
}

TEST_CASE("rank of: pipeline" * doctest::skip()) {
  const int ranks = rank_info().world_size;
  const auto mesh = testing::mesh_of({{Axis::pipeline, ranks}});
  check_bits(mesh, {5});
  check_bits(mesh, {4});
  check_bits(mesh, {9, 2});
  check_bits(mesh, {12, 3});
}

TEST_CASE("a pipeline of 2 and 4 ranks, plain and interleaved, has the bits of one rank, long skips and all") {
  CHECK(testing::as_ranks(2, "rank of: pipeline") == 0);
  CHECK(testing::as_ranks(4, "rank of: pipeline") == 0);
}

TEST_CASE("rank of: pipelines side by side" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::pipeline, 2}});
  check_bits(mesh, {5});
  check_bits(mesh, {5, 2});
}

TEST_CASE("pipelines with different micro-batches, plain and interleaved, have the bits of one rank") {
  CHECK(testing::as_ranks(4, "rank of: pipelines side by side") == 0);
}

TEST_CASE("rank of: frozen" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::pipeline, 2}});
  // A block among others; all of the first stage, to which no gradient comes back; all of the last.
  check_bits(mesh, {5, 2, "carried", torch::kFloat, true, {"blocks.2"}});
  check_bits(mesh, {5, 2, "carried", torch::kFloat, false, {"condition", "embed", "blocks.0"}});
  check_bits(mesh, {4, 1, "carried", torch::kFloat, false, {"blocks.2", "blocks.3", "head"}});
}

TEST_CASE("frozen parameters have no gradient, wherever they lie, and the others have the bits of one rank") {
  CHECK(testing::as_ranks(2, "rank of: frozen") == 0);
}

void check_replicated(const Mesh& mesh, const Setup& setup) {
  Rank rank(setup, &mesh), alone(setup, nullptr);
  CHECK(rank.layout.at("condition.weight").is_copy(Axis::pipeline));
  for (const int64_t m : {1, 3, 4}) {
    CAPTURE(m);
    rank.made = 0;
    const auto gradients = rank.step(m, m), expected = alone.step(m, m);
    CHECK(rank.made == (m - mesh.data_rank() + mesh.data_ranks() - 1) / mesh.data_ranks());
    for (const auto& [name, gradient] : gradients) {
      CAPTURE(name);
      const auto& reference = expected.at(name);
      CHECK((gradient - reference).abs().max().item<double>() < 1e-13 * reference.abs().max().item<double>());
    }
    double squares = 0;
    for (const auto& [name, gradient] : expected) squares += gradient.square().sum().item<double>();
    CHECK(grad_norm(rank.layout, mesh) == doctest::Approx(std::sqrt(squares)).epsilon(1e-13));
  }
  const auto batch = micro_batch(99, 1, setup.dtype);
  CHECK(testing::same_bits(rank.predict(batch), alone.predict(batch)));
}

TEST_CASE("rank of: replicated conditioning" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::pipeline, rank_info().world_size}});
  check_replicated(mesh, {5, 1, "replicated", torch::kDouble});
  check_replicated(mesh, {7, 2, "replicated", torch::kDouble});
}

TEST_CASE("rank of: replicated conditioning side by side" * doctest::skip()) {
  check_replicated(testing::mesh_of({{Axis::pipeline, 2}}), {5, 2, "replicated", torch::kDouble});
}

TEST_CASE("replicated conditioning, made once a micro-batch, gives the gradients and the norm of one rank") {
  CHECK(testing::as_ranks(3, "rank of: replicated conditioning") == 0);
  CHECK(testing::as_ranks(4, "rank of: replicated conditioning side by side") == 0);
}

TEST_CASE("rank of: who holds what" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::pipeline, 2}});
  const Setup setup{5, 2};
  const auto whole = Layout::of(*std::make_shared<SkipModel>(setup.depth, true));
  Rank rank(setup, &mesh);
  std::set<std::string> units;
  for (const auto& entry : rank.layout.entries) {
    CHECK(!entry.is_copy(Axis::pipeline));
    CHECK(entry.cuts.empty());
    CHECK(entry.tensor.storage().nbytes() > 0);
    units.insert(to_text(entry.unit));
  }
  // Stages of 1, 1, 1 and 2 blocks.
  const std::set<std::string> first{"condition", "tokens", "block 0", "block 2"};
  const std::set<std::string> second{"head", "block 1", "block 3", "block 4"};
  CHECK(units == (mesh.index(Axis::pipeline) == 0 ? first : second));
  size_t freed = 0;
  for (const auto& item : rank.model->named_parameters()) freed += item.value().storage().nbytes() == 0;
  CHECK(freed + rank.layout.entries.size() == whole.entries.size());
}

TEST_CASE("a stage holds its own units, and the numbers of the others are freed") {
  CHECK(testing::as_ranks(2, "rank of: who holds what") == 0);
}

// The blocks of this rank, of a model whose blocks cost so much.
std::set<int64_t> blocks_here(const Mesh& mesh, const std::vector<double>& costs, const OptionMap& options) {
  SkipModel model(static_cast<int64_t>(costs.size()), false);
  auto layout = Layout::of(model);
  Registry registry(std::vector<SearchFolder>{{test::plugin_folder(), "the test"}});
  OptionReader reader(options);
  const auto strategy = registry.factory<ParallelStrategy>("pipeline", "the test")
                            .make(reader, {&mesh, true, true, torch::kFloat, static_cast<int64_t>(costs.size()),
                                           [&] { return costs.front() < 0 ? std::vector<double>() : costs; }});
  strategy->claim(layout);
  std::set<int64_t> blocks;
  for (const auto& entry : layout.entries)
    if (entry.unit.kind == Unit::Kind::block) blocks.insert(entry.unit.block);
  return blocks;
}

TEST_CASE("rank of: stages by cost" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::pipeline, 2}});
  const bool first = mesh.index(Axis::pipeline) == 0;
  const auto check = [&](const std::vector<double>& costs, std::set<int64_t> on_first, const OptionMap& options = {}) {
    std::set<int64_t> expected;
    for (int64_t i = 0; i < static_cast<int64_t>(costs.size()); ++i)
      if (on_first.count(i) == first) expected.insert(i);
    CHECK(blocks_here(mesh, costs, options) == expected);
  };
  const OptionMap by_number{"parallel", "here", {{"pipeline_cut", {std::string("number"), "here"}}}};
  const OptionMap interleaved{"parallel", "here", {{"virtual_stages", {int64_t{2}, "here"}}}};
  check({8, 1, 1, 1, 1}, {0});
  check({1, 1, 1, 1, 8}, {0, 1, 2, 3});
  check({2, 2, 3, 1, 2}, {0, 1});  // 4 + 6, not 7 + 3
  check({1, 0, 0, 1}, {0});        // as early as may be; no stage is empty
  check({0, 0, 0, 1}, {0});
  check({8, 1, 1, 1, 1}, {0, 1}, by_number);
  check({3, 3, 3, 3, 3}, {0, 1});                     // alike: by number
  check({-1, 1, 1, 1, 8}, {0, 1});                    // not counted: by number
  check({6, 2, 2, 2, 6, 1, 1}, {0, 4}, interleaved);  // 6 | 2 2 2 | 6 | 1 1
  check({5, 5, 5, 5, 5, 5}, {0, 3}, interleaved);     // stages of 1, 2, 1, 2 blocks
}

TEST_CASE("a pipeline deals out blocks by what they cost, or by number where it is told to or they cost the same") {
  CHECK(testing::as_ranks(2, "rank of: stages by cost") == 0);
}

TEST_CASE("rank of: what is sent" * doctest::skip()) {
  const int ranks = rank_info().world_size;
  const auto mesh = testing::mesh_of({{Axis::pipeline, ranks}});
  for (const std::string conditioning : {"carried", "replicated"})
    for (const int64_t chunks : {1, 2}) {
      CAPTURE(conditioning);
      CAPTURE(chunks);
      Rank rank({6, chunks, conditioning, torch::kFloat, false}, &mesh);
      mesh.traffic().clear();
      const int64_t m = 3;
      rank.step(1, m);
      int64_t numbers = 0;
      for (int64_t j = 0; j < m; ++j) numbers += kSamples * (3 + j % 3) * kWidth + kSamples;  // tokens, auxiliary loss
      const bool carried = conditioning == "carried";
      if (carried) numbers += m * kSamples * kWidth;
      const int stage = mesh.index(Axis::pipeline);
      const auto check = [&](Traffic::Pass pass, int64_t borders) {
        const auto it = mesh.traffic().counts().find({"pipeline", "send", pass});
        const auto count = it == mesh.traffic().counts().end() ? Traffic::Count{} : it->second;
        CHECK(count.calls == borders * m * (carried ? 3 : 2));
        CHECK(count.bytes == borders * 4 * numbers);
      };
      check(Traffic::Pass::forward, stage + 1 < ranks ? chunks : chunks - 1);
      check(Traffic::Pass::backward, stage > 0 ? chunks : chunks - 1);
    }
}

TEST_CASE("each field goes once to the next stage and its gradient once back") {
  CHECK(testing::as_ranks(3, "rank of: what is sent") == 0);
}

TEST_CASE("rank of: more stages than blocks" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::pipeline, 2}});
  try {
    Rank::make({5, 3}, mesh);
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::config);
    const std::string text = error.what();
    CHECK(text.find("2 ranks x 3 virtual_stages = 6 stages are more than the model's 5 blocks") != std::string::npos);
  }
}

TEST_CASE("more stages than blocks are refused with the numbers") {
  CHECK(testing::as_ranks(2, "rank of: more stages than blocks") == 0);
}

TEST_CASE("a stream that was packed and unpacked is the stream, and one tensor in two places stays one") {
  Stream stream;
  stream.x_BTD = torch::randn({1, 6, 4}).requires_grad_();
  stream.skips_BTD = {torch::randn({1, 6, 4}), stream.x_BTD};
  stream.condition = {torch::randn({2, 4}), torch::randn({2, 3, 4}), torch::ones({2, 3}, torch::kBool), {3, 1}};
  stream.rotary_TK = torch::randn({6, 2});
  stream.extra["memory"] = {torch::randn({6, 3}, torch::kDouble), 0, Role::evolving};
  stream.auxiliary_losses["balance"] = torch::randn({2});
  stream.grid = {2, 1, 3};
  stream.packing = std::make_shared<const Packing>(Packing{{2, 4}, torch::tensor({0, 0, 1, 1, 1, 1}, torch::kLong)});
  stream.first_token = 3;
  stream.region_offset = 2;

  auto sent = StreamParcel::of(stream, [](const Field& field) { return field.role != Role::constant; });
  CHECK(sent.tensors.size() == 7);
  StreamParcel parcel{sent.header, StreamParcel::room(sent.header, torch::kCPU)};
  for (size_t i = 0; i < sent.tensors.size(); ++i) parcel.tensors[i].copy_(sent.tensors[i].detach());
  CHECK(parcel.differentiable() == std::vector<size_t>{0});
  Stream arrived;
  parcel.unpack(arrived);

  CHECK(arrived.skips_BTD.at(1).is_same(arrived.x_BTD));
  CHECK(!arrived.rotary_TK.defined());
  stream.rotary_TK = Tensor();
  const auto before = stream.fields(), after = arrived.fields();
  REQUIRE(before.size() == after.size());
  for (size_t i = 0; i < before.size(); ++i) {
    CHECK(before[i].name == after[i].name);
    CHECK(before[i].token_dim == after[i].token_dim);
    CHECK(before[i].role == after[i].role);
    CHECK(torch::equal(*before[i].tensor, *after[i].tensor));
  }
  CHECK(arrived.grid.frames == 2);
  CHECK(arrived.grid.columns == 3);
  CHECK(arrived.packing->lengths == stream.packing->lengths);
  CHECK(torch::equal(arrived.packing->sample_T, stream.packing->sample_T));
  CHECK(arrived.first_token == 3);
  CHECK(arrived.region_offset == 2);
  CHECK(arrived.condition.text_lengths == std::vector<int64_t>{3, 1});
}

TEST_CASE("a model's own fields may be called as the stream's are, and arrive as what they were") {
  const std::vector<std::string> names{"x",      "cond",   "text",    "text_mask",         "rotary",
                                       "skip.0", "skip.7", "balance", "auxiliary.balance", "extra.text"};
  Stream stream;
  stream.x_BTD = torch::full({1, 6, 4}, -1.0);
  stream.skips_BTD = {torch::full({1, 6, 4}, -2.0)};
  stream.condition = {torch::full({1, 4}, -3.0), torch::full({1, 2, 4}, -4.0), torch::ones({1, 2}, torch::kBool)};
  stream.auxiliary_losses["balance"] = torch::full({1}, -5.0);
  for (size_t i = 0; i < names.size(); ++i)
    stream.extra[names[i]] = {torch::full({1, 3}, static_cast<double>(i)), -1, Role::carried};
  std::set<std::string> seen;
  for (const auto& field : stream.fields()) CHECK(seen.insert(field.name).second);

  Stream arrived;
  StreamParcel::of(stream, [](const Field&) { return true; }).unpack(arrived);
  CHECK(arrived.x_BTD.equal(stream.x_BTD));
  CHECK(arrived.skips_BTD.size() == 1);
  CHECK(arrived.condition.cond_BD.equal(stream.condition.cond_BD));
  CHECK(arrived.condition.text_BSE.equal(stream.condition.text_BSE));
  CHECK(arrived.condition.text_mask_BS.equal(stream.condition.text_mask_BS));
  CHECK(!arrived.rotary_TK.defined());
  CHECK(arrived.auxiliary_losses.size() == 1);
  REQUIRE(arrived.extra.size() == names.size());
  for (const auto& name : names) CHECK(arrived.extra.at(name).tensor.equal(stream.extra.at(name).tensor));
}

}  // namespace
}  // namespace ditto
