#include "schedule.h"

#include <algorithm>

namespace ditto {

namespace {

// Forward turns: groups of as many micro-batches as there are ranks go through all chunks in turn.
std::vector<PipelineTurn> forwards(int64_t ranks, int64_t chunks, int64_t micro_batches) {
  std::vector<PipelineTurn> turns;
  for (int64_t first = 0; first < micro_batches; first += ranks)
    for (int64_t chunk = 0; chunk < chunks; ++chunk)
      for (int64_t j = first; j < first + ranks; ++j) turns.push_back({true, chunk, j});
  return turns;
}

}  // namespace

std::vector<PipelineTurn> pipeline_schedule(int64_t rank, int64_t ranks, int64_t chunks, int64_t micro_batches) {
  // Made for whole groups; leaving out what is not there keeps the others in an order that can be carried out.
  const auto all = forwards(ranks, chunks, micro_batches);
  const auto count = static_cast<int64_t>(all.size()), behind = ranks - 1 - rank;
  const int64_t ahead = std::min(count, chunks == 1 ? behind : 2 * behind + (chunks - 1) * ranks);
  std::vector<PipelineTurn> schedule;
  const auto add = [&](PipelineTurn turn) {
    if (turn.micro_batch < micro_batches) schedule.push_back(turn);
  };
  for (int64_t k = 0; k < count + ahead; ++k) {
    if (k < count) add(all[static_cast<size_t>(k)]);
    if (k < ahead) continue;
    const auto& turn = all[static_cast<size_t>(k - ahead)];
    add({false, chunks - 1 - turn.chunk, turn.micro_batch});
  }
  return schedule;
}

}  // namespace ditto
