#include "core/plan/dry_run.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include "core/assembly/first_weights.h"
#include "core/components/strategies.h"
#include "core/config/numerics.h"
#include "core/data/batch_plan.h"
#include "core/data/names.h"
#include "core/measure/memory.h"
#include "core/mesh/paper_mesh.h"
#include "core/plan/paper.h"
#include "core/profile/trace.h"
#include "core/train/step.h"

namespace ditto {

namespace {

using Place = std::map<Axis, int>;

// Bytes that a forward leaves for its backward, by the units that leave them.
struct Left {
  int64_t begin = 0, head = 0;
  std::vector<int64_t> blocks;
  int64_t tokens = 0;  // of a sample
};

// One rank of the run, put together on shapes alone.
class PaperRank {
 public:
  PaperRank(const Recipe& recipe, Registry& registry, const Degrees& degrees, const Place& place)
      : watch_(meter_), recipe_(on_paper(recipe)), mesh_(degrees, place, PaperMesh::Peers::alike) {
    const ShapesAlone no_numbers;
    AssemblyParts parts;
    parts.data = parts.objective = parts.shapes_only = true;
    parts.weights = RunningModel::Weights::room;
    parts.frozen = FrozenWeights::room;
    assembly_.emplace(recipe_, registry, mesh_, parts, Log());
    assembly_->networks->table->meta_stands_for = torch::Device(recipe.run.device).type();
    networks().parameters_changed();
    const auto [sides, tokens_of_largest] = largest_size(*assembly_);
    const int64_t tokens = tokens_of_largest;
    sides_ = sides;
    const BatchPlanner::Sizes sizes{[&](int64_t) { return sides_; }, [&](const SampleSize&) { return tokens; }};
    const StepShares shares(recipe_.run, sides_.empty() ? BatchOptions() : recipe_.batch, mesh_, sizes,
                            each_alone(recipe_, *assembly_->train_data));
    const auto step = shares.step(0, 0, Phase::train);
    plan_ = step.plan;
    micro_batch_ = step.micro_batches.front().count();
  }

  RankCost held() {
    const auto optimizer = assembly_->make_optimizer();
    auto& learned = networks().learned();
    Ema ema(learned, recipe_.ema);
    make_copies(main());
    for (const auto& [name, network] : networks().others()) make_copies(network->running());
    for (const auto& encoder : networks().encoders) make_copies(*encoder);
    RankCost cost{mesh_.rank(), 0, {}};
    for (auto& entry : learned.entries) {
      cost.parameters += entry.tensor.numel();
      if (entry.tensor.requires_grad()) entry.tensor.mutable_grad() = torch::empty_like(entry.tensor.detach());
    }
    cost.bytes = held_bytes(networks(), *optimizer, ema);
    if (is_one_number(recipe_)) cost.bytes[kNodes] = bytes_of_nodes();
    for (auto& entry : learned.entries) entry.tensor.mutable_grad().reset();
    return cost;
  }

  // Of one micro-batch.
  Left forward(int64_t text_length) {
    auto& model = main();
    networks().set_phase(Phase::train);
    for (auto* strategy : networks().strategies()) strategy->begin_step(plan_);
    const auto program = model.program();
    Left left;
    int64_t before = meter_.current();
    const auto more = [&] { return meter_.current() - std::exchange(before, meter_.current()); };
    const auto batch = shapes_of_batch(*model.model, model.setting.needs, micro_batch_, text_length, sides_);
    auto stream = program.begin(batch);
    left.tokens = stream.grid.tokens();
    left.begin = more();
    for (int64_t i = 0; i < model.model->depth(); ++i) {
      program.blocks(i, i + 1, stream);
      left.blocks.push_back(more());
    }
    const auto outputs = program.head(stream, batch);
    const auto theirs = run_others(batch);
    left.head = more();
    return left;
  }

  // Of all micro-batches of a step; and what encoders have beside what they make, at most. Encoders that cannot be run
  // on shapes alone, as a tokenizer's file would be read, throw Error.
  int64_t ahead(int64_t text_length) {
    const int64_t mine = networks().in_step() ? plan_.accumulations : plan_.mine;
    int64_t bytes = 0;
    for (const auto& spec : main().setting.needs.inputs)
      if (spec.name != names::kInput && spec.name != names::kInputTime &&
          !find(networks().empty_text_specs(), spec.name))
        bytes += mine * bytes_of(torch::empty(sizes_of(spec, text_length), dtype_of(spec)));
    return bytes;
  }
  int64_t encoding(int64_t text_length) {
    if (networks().encoders.empty()) return 0;
    const int64_t before = meter_.current();
    meter_.reset_peak();
    Batch batch;
    for (const auto& spec : networks().shapes().data) {
      const auto sizes = sizes_of(spec, text_length);
      batch[spec.name] = is_text(spec) ? torch::full(sizes, 'a', torch::dtype(spec.dtype).device(torch::kCPU))
                                       : torch::empty(sizes, dtype_of(spec));
    }
    for (int64_t i = 0; i < micro_batch_; ++i) batch.ids.push_back(i);
    batch.weights.assign(batch.ids.size(), 1.0);
    batch = networks().encode(std::move(batch), Phase::train);
    const int64_t peak = meter_.peak();
    int64_t made = 0;
    for (const auto& [name, tensor] : batch.tensors) made += bytes_of(tensor);
    return std::max<int64_t>(peak - before - made, 0);
  }

  RunningModel& main() { return *assembly_->main; }
  Networks& networks() { return *assembly_->networks; }
  Assembly& assembly() { return *assembly_; }
  const StepPlan& plan() const { return plan_; }
  int64_t micro_batch() const { return micro_batch_; }
  // Of every sample, where each has its own; empty: all have one size.
  const SampleSize& sides() const { return sides_; }

 private:
  // Sums of micro-batches that wait for their siblings (tree_sum.h): of the numbers that this rank sums.
  int64_t bytes_of_nodes() const {
    int64_t bytes = 0;
    for (const auto& entry : assembly_->networks->learned().entries) {
      int64_t owners = 1, open = 0, pieces = plan_.micro_batches;
      for (const Axis axis : kDataAxes)
        if (entry.is_copy(axis)) owners *= mesh_.size(axis);
      // An expert's gradient is of the micro-batches of all ranks that send it rows.
      if (!entry.is_copy(Axis::expert)) pieces = (pieces + mesh_.size(Axis::expert) - 1) / mesh_.size(Axis::expert);
      for (int64_t j = pieces; j > 1; j >>= 1) ++open;
      if (entry.tensor.requires_grad()) bytes += open * (static_cast<int64_t>(entry.tensor.nbytes()) / owners);
    }
    return bytes;
  }
  // Of a micro-batch.
  std::vector<int64_t> sizes_of(const TensorSpec& spec, int64_t text_length) const {
    auto sizes = spec.shape;
    auto side = sides_.begin();
    for (int64_t& size : sizes) {
      if (size == kOwnSide && side != sides_.end()) size = *side++;
      if (size < 0) size = text_length;
    }
    sizes.insert(sizes.begin(), micro_batch_);
    return sizes;
  }
  torch::TensorOptions dtype_of(const TensorSpec& spec) {
    const bool in_doubles = main().ctx->compute == torch::kDouble && at::isFloatingType(spec.dtype);
    return torch::dtype(in_doubles ? torch::kDouble : spec.dtype).device(torch::kMeta);
  }
  static int64_t bytes_of(const torch::Tensor& tensor) {
    return tensor.is_meta() ? static_cast<int64_t>(tensor.storage().nbytes()) : 0;
  }
  // As an objective that runs each of the others that train once. They see what the model sees.
  std::vector<Outputs> run_others(const Batch& batch) {
    std::vector<Outputs> made;
    for (auto* model : networks().training())
      if (model != &main()) made.push_back(model->run(batch));
    return made;
  }
  // As the first forward makes them; of what is gathered, by a strategy, there are none.
  static void make_copies(const RunningUnits& units) {
    torch::NoGradGuard no_grad;
    for (const auto& entry : units.layout.entries)
      if (!is_freed(entry.parameter.leaf())) entry.parameter(*units.ctx);
  }

  report::MemoryMeter meter_{torch::Device(torch::kMeta)};
  report::MemoryMeter::Watch watch_;
  Recipe recipe_;
  PaperMesh mesh_;
  std::optional<Assembly> assembly_;
  StepPlan plan_;
  SampleSize sides_;
  int64_t micro_batch_ = 1;
};

// The same run without its pipeline: every rank then runs all units.
Recipe without_pipeline(Recipe recipe, Registry& registry) {
  const auto& factory = registry.factory<ParallelStrategy>(recipe.parallel.pipeline_plugin, recipe.name);
  for (const auto& [key, option] : strategy_options(recipe, factory).given) recipe.parallel.given.erase(key);
  recipe.parallel.pipeline = 1;
  return recipe;
}

// The stages of a pipeline and what they have under way, as its schedule has it (1F1B, interleaved where a rank has
// several chunks).
struct Stages {
  using Runs = std::vector<std::pair<int64_t, int64_t>>;  // blocks [first, last) of each of a rank's chunks
  int64_t ranks, chunks;
  Runs runs;

  // As its strategy has dealt them out: a rank's chunks are never neighbours. Blocks without parameters leave no trace;
  // then by number.
  static Runs runs_of(const Layout& layout, int64_t rank, int64_t ranks, int64_t chunks, int64_t depth) {
    std::set<int64_t> blocks;
    for (const auto& entry : layout.entries)
      if (entry.unit.kind == Unit::Kind::block) blocks.insert(entry.unit.block);
    Runs runs;
    for (const int64_t block : blocks)
      if (runs.empty() || runs.back().second != block)
        runs.emplace_back(block, block + 1);
      else
        ++runs.back().second;
    if (static_cast<int64_t>(runs.size()) == chunks) return runs;
    runs.clear();
    for (int64_t stage = rank; stage < ranks * chunks; stage += ranks)
      runs.emplace_back(depth * stage / (ranks * chunks), depth * (stage + 1) / (ranks * chunks));
    return runs;
  }

  // Forwards of each of a rank's chunks before its first backward.
  std::vector<int64_t> under_way(int64_t rank, int64_t micro_batches) const {
    std::vector<int64_t> counts(static_cast<size_t>(chunks));
    const int64_t behind = ranks - 1 - rank;
    int64_t left = 1 + (chunks == 1 ? behind : 2 * behind + (chunks - 1) * ranks);
    for (int64_t first = 0; first < micro_batches; first += ranks)
      for (auto& count : counts)
        for (int64_t j = first; j < first + ranks && left > 0; ++j, --left)
          if (j < micro_batches) ++count;
    return counts;
  }

  int64_t bytes(const Left& left, int64_t rank, int64_t micro_batches) const {
    int64_t sum = 0, chunk = 0;
    for (const int64_t count : under_way(rank, micro_batches)) {
      const auto [first, last] = runs.at(static_cast<size_t>(chunk));
      const int64_t stage = chunk++ * ranks + rank, all = ranks * chunks;
      sum += count * std::accumulate(left.blocks.begin() + first, left.blocks.begin() + last, int64_t{0});
      if (stage == 0) sum += count * left.begin;
      if (stage + 1 == all) sum += left.head;  // its backward follows at once
    }
    return sum;
  }
};

int64_t virtual_stages(const Recipe& recipe) {
  const auto given = recipe.parallel.given.find("virtual_stages");
  const auto* number = given == recipe.parallel.given.end() ? nullptr : std::get_if<int64_t>(&given->second.value);
  return number ? *number : 1;
}

// The last along every axis but the pipeline's: of what is not divided evenly it has the largest piece.
Place last_of(const Degrees& degrees, int stage) {
  Place place;
  for (const auto& [axis, degree] : degrees) place[axis] = static_cast<int>(degree) - 1;
  place[Axis::pipeline] = stage;
  return place;
}

class DryRunner {
 public:
  DryRunner(const Recipe& recipe, Registry& registry, int ranks, int64_t text_length)
      : recipe_(recipe),
        registry_(registry),
        degrees_(complete_degrees(degrees(recipe), ranks)),
        text_length_(text_length) {}

  DryRun run() {
    DryRun result;
    result.first = describe(result);
    for (int stage = 0; stage < degrees_.at(Axis::pipeline); ++stage) {
      const auto cost = cost_of(last_of(degrees_, stage), result.unknown);
      if (stage == 0 || cost.total() > result.largest.total()) result.largest = cost;
    }
    if (result.first.total() >= result.largest.total()) result.largest = result.first;
    result.unknown_encoding = unknown_encoding_;
    return result;
  }

 private:
  RankCost describe(DryRun& result) {
    PaperRank rank(recipe_, registry_, degrees_, {});
    check_first_weights(rank.assembly());
    result.model = recipe_.model.plugin;
    result.precision = recipe_.run.precision;
    result.parameters = rank.networks().parameters();
    for (const auto& encoder : rank.networks().encoders)
      if (encoder->frozen() > 0) result.frozen[encoder->section] = encoder->frozen();
    for (const auto& [name, network] : rank.networks().others())
      if (!network->trains()) result.frozen["network." + name] = network->running().frozen();
    if (rank.main().frozen() > 0) result.frozen["model"] = rank.main().frozen();
    result.batch = recipe_.run.batch;
    result.audit = recipe_.run.audit;
    result.micro_batch = rank.micro_batch();
    if (!rank.sides().empty()) result.size = to_text(rank.sides());
    result.ranks = rank.main().mesh().world_size();
    for (const auto& input : rank.main().model->takes()) {
      const auto* offered = find(rank.main().setting.needs.inputs, input.name);
      const auto& shape = offered ? offered->shape : input.shape;
      if (std::any_of(shape.begin(), shape.end(), [](int64_t size) { return size < 0; }))
        result.text_length = text_length_;
    }
    try {
      FlopCounter counter(rank.assembly().components, rank.main());
      result.flops = counter.forward(1, text_length_, rank.sides());
      for (auto& [unit, parts] : result.flops)
        for (auto& [part, operations] : parts) operations *= 3 * static_cast<double>(result.batch);  // backward: twice
    } catch (const Error& error) {
      result.unknown = error.what();
    }
    return cost_of({}, result.unknown, &result.tokens_per_sample);
  }

  RankCost cost_of(const Place& place, std::string& unknown, int64_t* tokens = nullptr) {
    PaperRank rank(recipe_, registry_, degrees_, place);
    auto cost = rank.held();
    if (unknown.empty()) count_activations(rank, place, cost, unknown, tokens);
    count_encoding(rank, cost);
    return cost;
  }

  void count_activations(PaperRank& rank, const Place& place, RankCost& cost, std::string& unknown, int64_t* tokens) {
    try {
      const auto& left = left_by(rank, place);
      const auto at = place.find(Axis::pipeline);
      const int64_t stage = at == place.end() ? 0 : at->second, ranks = degrees_.at(Axis::pipeline),
                    chunks = virtual_stages(recipe_);
      const auto runs = Stages::runs_of(rank.main().layout, stage, ranks, chunks, rank.main().model->depth());
      cost.bytes[kActivations] = Stages{ranks, chunks, runs}.bytes(left, stage, rank.plan().mine);
      if (tokens) *tokens = left.tokens;
    } catch (const Error& error) {
      unknown = error.what();
    }
  }

  // Of a step that encodes its own first, what it takes for that is beside no activations.
  void count_encoding(PaperRank& rank, RankCost& cost) {
    const bool is_ahead = recipe_.loader.encode_ahead > 0;
    if (is_ahead) cost.bytes[kAhead] = rank.ahead(text_length_);
    try {
      const auto left = cost.bytes.find(kActivations);
      const int64_t beside = is_ahead || left == cost.bytes.end() ? 0 : left->second;
      const int64_t bytes = rank.encoding(text_length_) - beside;
      if (is_ahead || bytes > 0) cost.bytes[kEncoding] = bytes;
    } catch (const Error& error) {
      unknown_encoding_ = error.what();
    }
  }

  // Ranks that differ along the pipeline alone leave the same of a unit.
  const Left& left_by(PaperRank& rank, Place place) {
    place.erase(Axis::pipeline);
    if (const auto at = left_.find(place); at != left_.end()) return at->second;
    if (degrees_.at(Axis::pipeline) == 1) return left_[place] = rank.forward(text_length_);
    auto degrees = degrees_;
    degrees[Axis::pipeline] = 1;
    return left_[place] =
               PaperRank(without_pipeline(recipe_, registry_), registry_, degrees, place).forward(text_length_);
  }

  const Recipe& recipe_;
  Registry& registry_;
  const Degrees degrees_;
  const int64_t text_length_;
  std::map<Place, Left> left_;
  std::string unknown_encoding_;
};

}  // namespace

DryRun dry_run(const Recipe& recipe, Registry& registry, int ranks, int64_t text_length) {
  return DryRunner(recipe, registry, ranks, text_length).run();
}

}  // namespace ditto
