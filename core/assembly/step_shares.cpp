#include "core/assembly/step_shares.h"

#include <algorithm>
#include <bit>

namespace ditto {

int64_t asked_micro_batch(const RunOptions& run, int64_t data_ranks) {
  return std::min(run.micro_batch > 0 ? run.micro_batch : (run.batch + data_ranks - 1) / data_ranks, run.batch);
}

namespace {

// Of one number a micro-batch is a node of the tree over the step's samples: 2^k of them, but for the last.
int64_t most_of_micro_batch(const RunOptions& run, int64_t ranks, Alone alone) {
  const int64_t asked = asked_micro_batch(run, ranks);
  if (run.numerics != "one") return asked;
  if (alone != Alone::no) return 1;
  return static_cast<int64_t>(std::bit_floor(static_cast<std::uint64_t>(asked)));
}

// Of one number micro-batches are runs of samples, whatever the plan; batch.tokens still says how large one may be.
BatchOptions plan_of(const RunOptions& run, BatchOptions batch) {
  if (run.numerics == "one") batch.plan = BatchOptions().plan;
  return batch;
}

}  // namespace

std::string micro_batch_report(const RunOptions& run, const Mesh& mesh, Alone alone, const std::string& plan) {
  const int64_t asked = asked_micro_batch(run, mesh.data_ranks());
  const int64_t made = most_of_micro_batch(run, mesh.data_ranks(), alone);
  const bool planned = plan != BatchOptions().plan;
  if (run.numerics != "one" || (asked == made && !planned)) return {};
  return ", micro-batches of " + std::to_string(made) + (made == 1 ? " sample where " : " samples where ") +
         (planned ? plan : std::to_string(asked)) + " were asked for (run.numerics = \"one\": " +
         (alone == Alone::sizes_differ        ? "samples of several sizes are computed one by one)"
          : alone == Alone::tokens_are_shared ? "ranks share a sample's tokens)"
                                              : "powers of two)");
}

StepShares::StepShares(const RunOptions& run, const BatchOptions& batch, const Mesh& mesh, BatchPlanner::Sizes sizes,
                       Alone alone)
    : batch_(run.batch),
      micro_batch_(most_of_micro_batch(run, mesh.data_ranks(), alone)),
      ranks_(mesh.data_ranks()),
      rank_(mesh.data_rank()),
      planner_(plan_of(run, batch), micro_batch_, std::move(sizes)) {}

StepShares::Step StepShares::step(int64_t number, int64_t first, Phase phase) const {
  Step step;
  auto made = planner_.plan({first, batch_});
  step.micro_batches = std::move(made.micro_batches);
  for (const auto& [place, size] : made.no_bucket) step.left_out.push_back(place);
  step.plan.step = number;
  step.plan.phase = phase;
  step.plan.micro_batches = static_cast<int64_t>(step.micro_batches.size());
  step.plan.accumulations = (step.plan.micro_batches + ranks_ - 1) / ranks_;
  step.plan.mine = (step.plan.micro_batches - rank_ + ranks_ - 1) / ranks_;
  return step;
}

const Places& StepShares::mine(const Step& step, int64_t accumulation) const {
  const auto* own = of(step, accumulation, rank_);
  return own ? *own : step.micro_batches.front();
}

const Places* StepShares::of(const Step& step, int64_t accumulation, int64_t rank) const {
  const auto j = static_cast<size_t>(accumulation * ranks_ + rank);
  return j < step.micro_batches.size() ? &step.micro_batches[j] : nullptr;
}

void StepShares::weigh(Batch& batch) const {
  for (size_t i = 0; i < batch.ids.size(); ++i) batch.weights[i] *= planner_.weight(batch.ids[i]);
}

double StepShares::weight(const Step& step, const std::vector<int64_t>& left_out) const {
  double sum = 0;
  for (const auto& one : step.micro_batches)
    for (const int64_t place : one.list)
      if (!std::binary_search(left_out.begin(), left_out.end(), place)) sum += planner_.weight(place);
  return sum;
}

Places StepShares::of_all(const Step& step, int64_t accumulation) const {
  Places all;
  const auto first = static_cast<size_t>(accumulation * ranks_);
  for (size_t j = first; j < std::min(first + static_cast<size_t>(ranks_), step.micro_batches.size()); ++j)
    all.list.insert(all.list.end(), step.micro_batches[j].list.begin(), step.micro_batches[j].list.end());
  return all;
}

}  // namespace ditto
