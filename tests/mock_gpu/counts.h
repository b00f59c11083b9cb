// What a program asks of the mock GPU, counted.
#pragma once

#include <atomic>
#include <cstdint>

namespace mock_gpu {

// Written at the process's end as one JSON object to the file that MOCK_GPU_COUNTS names, of a rank with .RANK behind
// it. Nothing is written where nothing was launched.
struct Counts {
  std::atomic<std::int64_t> launches{0};  // kernels, and copies within a GPU
  std::atomic<std::int64_t> uploads{0}, uploaded_bytes{0}, downloads{0}, downloaded_bytes{0};
  std::atomic<std::int64_t> host_reads{0};       // numbers that the host asked for: .item()
  std::atomic<std::int64_t> attention_pairs{0};  // of a query and a key, in each head, by fused attention
  // Of the host, for any of these and for streams and events: of the process's first thread, which trains, and of
  // others.
  std::atomic<std::int64_t> waits{0}, waits_beside{0};
};
Counts& counts();

}  // namespace mock_gpu
