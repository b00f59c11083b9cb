// Tests on several ranks: this test program started again, as the ranks of a run, for one test case that is skipped
// otherwise.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "core/mesh/gloo_mesh.h"
#include "core/ranks/local_ranks.h"

namespace ditto::testing {

// The exit code of the ranks: 0 if the test case passed on all of them. Of none of that name it is 1
// (doctest_main.cpp).
inline int as_ranks(int count, const std::string& test_case) {
  std::string name;  // doctest takes a list with commas
  for (const char c : test_case) {
    if (c == ',' || c == '\\') name += '\\';
    name += c;
  }
  return run_local_ranks({count, {"--no-skip", "--no-intro", "--minimal", "--test-case=" + name}});
}

// What is timed, or counts memory while threads free it, proves nothing on a machine that is busy with other things.
inline bool on_quiet_machine() {
  if (std::getenv("DITTO_QUIET_MACHINE")) return true;
  std::puts("not run: overlap and bytes of strategies: they need a quiet machine (./dev test --all)");
  return false;
}

// Rank 0, which hosts the store, leaves last: others may still be forming a group there.
class RankMesh : public GlooMesh {
 public:
  explicit RankMesh(const Degrees& degrees) : GlooMesh(rank_info(), degrees, std::chrono::seconds(60)) {}
  ~RankMesh() override {
    if (!store()) return;
    try {
      store()->add("left", 1);
      for (int i = 0; i < 3000 && rank() == 0 && store()->add("left", 0) < world_size(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    } catch (const std::exception&) {  // it is gone: this rank has failed, or another
    }
  }
};

// In a rank that ends as all others do.
inline RankMesh mesh_of(const Degrees& degrees) { return RankMesh(degrees); }

// Numbers that depend on `seed` alone, of very different sizes, so that the order of a sum shows.
inline torch::Tensor numbers(at::IntArrayRef shape, int64_t seed, at::ScalarType dtype = torch::kFloat) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  const auto size = torch::randn(shape, generator, torch::kDouble) * 2;
  return (torch::randn(shape, generator, torch::kDouble) * size.exp()).to(dtype);
}

// Bit for bit: 0 and -0 differ.
inline bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  const auto type = a.element_size() == 8 ? torch::kLong : torch::kInt;
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         torch::equal(a.contiguous().view(type), b.contiguous().view(type));
}

}  // namespace ditto::testing
