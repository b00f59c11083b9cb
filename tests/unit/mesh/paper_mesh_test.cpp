// One rank of a mesh of any size, whose peers all say what it says itself.
#include <doctest/doctest.h>

#include <torch/types.h>

#include <ditto/error.h>

#include "core/measure/memory.h"
#include "core/mesh/paper_mesh.h"

namespace ditto {

namespace {

PaperMesh mesh(PaperMesh::Peers peers = PaperMesh::Peers::alike) {
  return {
      complete_degrees({{Axis::shard, 3}, {Axis::tensor, 2}}, 12), {{Axis::replicate, 1}, {Axis::tensor, 1}}, peers};
}

}  // namespace

TEST_CASE("a rank on paper has the place that a real one has") {
  const auto paper = mesh();
  CHECK(paper.world_size() == 12);
  CHECK(paper.rank() == 7);  // replicate 1, shard 0, tensor 1
  CHECK(paper.group(Axis::tensor).rank() == 1);
  CHECK(paper.data_group().size() == 6);
  CHECK(paper.data_group().rank() == 3);
  CHECK(paper.group(Axis::context).transport() == nullptr);
}

TEST_CASE("peers on paper are copies of this rank") {
  const auto paper = mesh();
  const auto& group = paper.group(Axis::shard);
  const auto x = torch::arange(6, torch::kFloat).view({3, 2});
  CHECK(group.all_reduce(x.clone()).equal(3 * x));
  CHECK(group.all_gather(x, 0).equal(torch::cat({x, x, x})));
  CHECK(group.reduce_scatter(x, 0).equal(3 * x.slice(0, 0, 1)));
  CHECK(group.all_gather_text("alike") == std::vector<std::string>(3, "alike"));
  CHECK(group.exchange(x.view(-1), {2, 2, 2}, {4, 4, 4}).numel() == 12);
}

TEST_CASE("what has no numbers keeps its shape on paper") {
  const auto paper = mesh();
  const auto& group = paper.group(Axis::shard);
  const auto x = torch::empty({3, 5}, torch::kMeta);
  CHECK(group.all_gather(x, 1).sizes() == at::IntArrayRef({3, 15}));
  CHECK(group.reduce_scatter(x, 0).sizes() == at::IntArrayRef({1, 5}));
  CHECK(group.all_to_all(x, 0, 1).sizes() == at::IntArrayRef({1, 15}));
}

TEST_CASE("silent peers fail a call") {
  const auto paper = mesh(PaperMesh::Peers::silent);
  CHECK_THROWS_AS(paper.group(Axis::shard).all_reduce(torch::ones({2})), Error);
}

TEST_CASE("tensors without numbers are counted as if they had them") {
  const report::MemoryMeter meter{torch::Device(torch::kMeta)};
  const report::MemoryMeter::Watch watch(meter);
  auto x = torch::empty({10, 10}, torch::TensorOptions(torch::kFloat).device(torch::kMeta));
  CHECK(meter.current() == 400);
  {
    const auto y = torch::matmul(x, x);
    CHECK(meter.current() == 800);
    CHECK(y.t().is_meta());
  }
  CHECK(meter.current() == 400);
  CHECK(meter.peak() == 800);
  x.reset();
  CHECK(meter.current() == 0);
}

}  // namespace ditto
