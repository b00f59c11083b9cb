// In which order a stage runs its micro-batches.
#pragma once

#include <cstdint>
#include <vector>

namespace ditto {

// One micro-batch through one of a rank's chunks of blocks.
struct PipelineTurn {
  bool forward;
  int64_t chunk, micro_batch;
};

// 1F1B (D. Narayanan et al., "Memory-efficient pipeline-parallel DNN training", 2021, arXiv:2006.09503), and with
// several chunks a rank its interleaved form ("Efficient large-scale language model training on GPU clusters", 2021,
// arXiv:2104.04473, section 2.2), here for any number of micro-batches. Forwards and backwards of each chunk are in the
// order of micro-batches, and a micro-batch's last backward on a rank is that of chunk 0. Carried out by all ranks,
// each turn waiting for what it needs, with sends that do not wait, it comes to its end.
std::vector<PipelineTurn> pipeline_schedule(int64_t rank, int64_t ranks, int64_t chunks, int64_t micro_batches);

}  // namespace ditto
