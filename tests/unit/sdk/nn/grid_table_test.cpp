// Tables of a grid and host numbers on their way to a device, as far as the host's own memory goes.
#include <doctest/doctest.h>

#include <ditto/batch.h>
#include <ditto/nn/tables.h>
#include <ditto/upload.h>

#include "tests/unit/ranks.h"

namespace ditto {
namespace {

TEST_CASE("a table is of the grid that is asked for, in the dtype that is asked for") {
  GridTable table;
  int made = 0;
  const auto of = [&](const Grid& grid, at::ScalarType dtype) {
    return table.of(grid, torch::TensorOptions(dtype), [&] {
      ++made;
      return sincos_positions(grid, 8);
    });
  };
  for (const Grid grid : {Grid{1, 2, 3}, Grid{1, 3, 2}, Grid{2, 2, 3}})
    for (const auto dtype : {torch::kFloat, torch::kDouble}) {
      const auto found = of(grid, dtype);
      CHECK((found.scalar_type() == dtype));
      CHECK(testing::same_bits(found, sincos_positions(grid, 8).to(dtype)));
    }
  CHECK(made == 6);
}

TEST_CASE("shapes alone have a table of shapes alone") {
  GridTable table;
  const auto found = table.of({1, 2, 3}, torch::TensorOptions(torch::kFloat).device(torch::kMeta), [] {
    return sincos_positions({1, 2, 3}, 8);
  });
  CHECK(found.is_meta());
  CHECK((found.sizes() == at::IntArrayRef{6, 8}));
}

TEST_CASE("what lies in the host's memory stays there as it is, and what is undefined stays so") {
  const auto numbers = torch::rand({3, 4}).t();
  const auto sent = uploaded({numbers, torch::Tensor()}, torch::kCPU);
  CHECK(sent[0].is_same(numbers));
  CHECK(!sent[1].defined());
  CHECK((uploaded(numbers, torch::kMeta).sizes() == numbers.sizes()));
}

}  // namespace
}  // namespace ditto
