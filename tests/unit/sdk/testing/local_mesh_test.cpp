// Claim (failures): Ranks that are threads of one process: where one fails, the others end with it.
#include "sdk/testing/parallel/local_mesh.h"

#include <chrono>
#include <stdexcept>

#include <doctest/doctest.h>
#include <torch/types.h>

using namespace ditto;
using testing::on_ranks;

namespace {

const testing::AxisDegrees kFour{{Axis::context, 2}, {Axis::tensor, 2}};
const AxisSet kAll{Axis::context, Axis::tensor};

torch::Tensor one() { return torch::ones({1}, torch::kDouble); }

// Seconds until all ranks of `body` have ended, of which rank 3 says "stumbled".
double until_all_ended(const std::function<void(const Mesh&)>& body) {
  const auto began = std::chrono::steady_clock::now();
  const auto problem = on_ranks(kFour, [&](const Mesh& mesh) {
    body(mesh);
    return std::string();
  });
  CHECK_MESSAGE(problem == "rank 3: threw: stumbled", problem);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// Less than the timeout of what not all ranks join, a minute.
constexpr double kSoon = 45;

}  // namespace

TEST_CASE("ranks in threads talk along every axis") {
  const auto problem = on_ranks(kFour, [](const Mesh& mesh) {
    const auto sum = [&](const AxisSet& axes) { return mesh.group(axes).all_reduce(one()).item<double>(); };
    return sum({Axis::tensor}) == 2 && sum({Axis::context}) == 2 && sum(kAll) == 4 && sum({Axis::shard}) == 1
               ? std::string()
               : "another sum";
  });
  CHECK(problem.empty());
}

TEST_CASE("ranks in threads meet at a barrier, again and again") {  // LibTorch's own would end the process in it
  for (int time = 0; time < 200; ++time) {
    const auto problem = on_ranks({{Axis::tensor, 2}}, [](const Mesh& mesh) {
      for (int again = 0; again < 3; ++again) mesh.world().barrier();
      return std::string();
    });
    REQUIRE_MESSAGE(problem.empty(), problem);
  }
}

TEST_CASE("nobody waits for a rank that failed before it joined a group") {
  CHECK(until_all_ended([](const Mesh& mesh) {
          if (mesh.rank() == 3) throw std::runtime_error("stumbled");
          mesh.group(kAll).all_reduce(one());
        }) < kSoon);
}

TEST_CASE("a rank that fails once it has joined leaves nobody behind who still joins") {
  for (int time = 0; time < 50; ++time)
    CHECK(until_all_ended([](const Mesh& mesh) {
            const auto& group = mesh.group({Axis::tensor});
            if (mesh.rank() == 3) throw std::runtime_error("stumbled");
            group.all_reduce(one());
            mesh.group({Axis::context}).all_reduce(one());
          }) < kSoon);
}
