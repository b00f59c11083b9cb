#include <ditto/parallel/layout.h>

#include <doctest/doctest.h>

#include <ditto/error.h>

#include "tests/unit/small_model.h"

namespace ditto {
namespace {

using torch::Tensor;

LayoutEntry entry_of(std::vector<int64_t> full_shape) {
  LayoutEntry entry{"w", torch::zeros(full_shape), full_shape, Unit{Unit::head, -1}};
  return entry;
}

// Puts the numbers of all ranks' local pieces where their slices say; a place that is filled twice, or never, shows.
Tensor assembled(const Tensor& full, const std::vector<LayoutEntry>& ranks) {
  auto result = torch::zeros_like(full);
  for (const auto& entry : ranks) {
    for (const auto& slice : entry.slices()) {
      Tensor there = result, here = entry.tensor;
      for (int64_t dim = 0; dim < full.dim(); ++dim) {
        there = there.narrow(dim, slice.global_start[dim], slice.size[dim]);
        here = here.narrow(dim, slice.local_start[dim], slice.size[dim]);
      }
      there.add_(here);
    }
  }
  return result;
}

TEST_CASE("an entry that is not cut has one slice, the whole") {
  const auto slices = entry_of({3, 4}).slices();
  REQUIRE(slices.size() == 1);
  CHECK(slices[0].global_start == std::vector<int64_t>{0, 0});
  CHECK(slices[0].local_start == std::vector<int64_t>{0, 0});
  CHECK(slices[0].size == std::vector<int64_t>{3, 4});
  CHECK(entry_of({}).slices().size() == 1);
}

TEST_CASE("the slices of all ranks put a tensor together that was cut in parts along two dims") {
  const auto full = torch::arange(1, 12 * 6 + 1, torch::kDouble).view({12, 6});
  std::vector<LayoutEntry> ranks;
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      auto entry = entry_of({12, 6});
      entry.cuts[Axis::tensor] = {0, {4, 2, 6}, i, 2};
      entry.cuts[Axis::shard] = {1, {6}, j, 3};
      entry.tensor = cut(cut(full, entry.cuts[Axis::tensor]), {1, {6}, j, 3});
      CHECK(entry.tensor.sizes().vec() == local_shape(entry));
      CHECK(entry.slices().size() == 3);
      ranks.push_back(entry);
    }
  }
  CHECK(torch::equal(assembled(full, ranks), full));
}

TEST_CASE("slices are ascending and none is empty") {
  auto entry = entry_of({8, 2});
  entry.cuts[Axis::tensor] = {0, {4, 0, 4}, 1, 2};
  const auto slices = entry.slices();
  REQUIRE(slices.size() == 2);
  CHECK(slices[0].global_start[0] == 2);
  CHECK(slices[1].global_start[0] == 6);
  CHECK(slices[1].local_start[0] == 2);
}

TEST_CASE("a piece is a copy, contiguous, and keeps nothing of the whole alive") {
  const auto full = torch::arange(8, torch::kDouble).view({2, 4});
  for (const int64_t dim : {0, 1}) {
    const auto piece = cut(full, {dim, {full.size(dim)}, 0, 2});
    CHECK(piece.is_contiguous());
    CHECK(piece.storage().nbytes() == 4 * sizeof(double));
  }
}

TEST_CASE("a part that is not divided is dealt out as evenly as whole multiples allow, and none is lost") {
  const auto full = torch::arange(10, torch::kDouble);
  for (const int64_t multiple : {1, 2, 4}) {
    std::vector<torch::Tensor> pieces;
    for (int64_t index = 0; index < 4; ++index) {
      auto entry = entry_of({10});
      entry.cuts[Axis::tensor] = {0, {10}, index, 4, multiple};
      pieces.push_back(cut(full, entry.cuts[Axis::tensor]));
      CHECK(pieces.back().numel() == local_shape(entry)[0]);
      const auto slices = entry.slices();
      CHECK(slices.empty() == (pieces.back().numel() == 0));
      if (!slices.empty()) CHECK(slices[0].global_start[0] % multiple == 0);
    }
    CHECK(torch::equal(torch::cat(pieces), full));
  }
}

TEST_CASE("cuts of one dim along two axes follow one another") {
  // Two parts of 8 rows, halved by tensor; what is left, 4 + 4 rows, in three by shard.
  const auto full = torch::arange(16, torch::kDouble);
  std::vector<torch::Tensor> found(16);
  for (int64_t t = 0; t < 2; ++t) {
    for (int64_t s = 0; s < 3; ++s) {
      auto entry = entry_of({16});
      entry.cuts[Axis::tensor] = {0, {8, 8}, t, 2};
      entry.cuts[Axis::shard] = {0, {8}, s, 3};
      const auto local = cut(cut(full, entry.cuts[Axis::tensor]), entry.cuts[Axis::shard]);
      CHECK(local_shape(entry) == local.sizes().vec());
      for (const auto& piece : entry.slices())
        for (int64_t i = 0; i < piece.size[0]; ++i)
          found[static_cast<size_t>(piece.global_start[0] + i)] = local[piece.local_start[0] + i];
    }
  }
  CHECK(torch::equal(torch::stack(found), full));
}

TEST_CASE("a parameter seen in blocks is cut where the parameter is, and refused where a cut goes through a block") {
  auto entry = entry_of({6, 256});
  entry.cuts[Axis::tensor] = {1, {256}, 1, 2};
  entry.cuts[Axis::shard] = {0, {6}, 0, 2};
  const auto blocks = entry.in_blocks(64);
  CHECK(blocks.full_shape == std::vector<int64_t>{6, 4});
  CHECK(local_shape(blocks) == std::vector<int64_t>{3, 2});
  CHECK(blocks.slices()[0].global_start == std::vector<int64_t>{0, 2});
  CHECK_THROWS_WITH_AS(entry.in_blocks(256), doctest::Contains("goes through a block of 256"), Error);
}

TEST_CASE("a model's layout lists every parameter in order with its unit and what its layer declares") {
  testing::SmallModel model;
  const auto layout = Layout::of(model);
  const auto named = model.named_parameters();
  REQUIRE(layout.entries.size() == named.size());
  for (size_t i = 0; i < layout.entries.size(); ++i) {
    CHECK(layout.entries[i].name == named[i].key());
    CHECK(layout.entries[i].tensor.is_same(named[i].value()));
  }
  const auto& weight = layout.at("blocks.1.qkv.weight");
  CHECK(weight.unit == Unit{Unit::Kind::block, 1});
  REQUIRE(weight.layer);
  CHECK(weight.layer->cut(Axis::tensor)->are_heads);
  CHECK(weight.declared(Axis::tensor)->unit == 4);
  CHECK(weight.declared(Axis::tensor)->parts == std::vector<int64_t>{16, 16, 16});
  CHECK(!weight.declared(Axis::expert));
  CHECK(layout.at("blocks.1.qkv.bias").layer == weight.layer);
  CHECK(layout.at("blocks.1.out.weight").declared(Axis::tensor)->dim == 1);
  CHECK(!layout.at("blocks.1.out.bias").declared(Axis::tensor));
  CHECK(!layout.at("blocks.0.scale").layer);
  CHECK(weight.layer_name() == "blocks.1.qkv");
  CHECK(layout.at("head.bias").unit == Unit{Unit::head, -1});
  CHECK(weight.is_copy(Axis::tensor));
}

TEST_CASE("a name that is not in the layout is answered with the nearest") {
  testing::SmallModel model;
  const auto layout = Layout::of(model);
  CHECK_THROWS_WITH_AS(layout.at("blocks.1.qkv.wieght"), doctest::Contains("blocks.1.qkv.weight"), Error);
}

}  // namespace
}  // namespace ditto
