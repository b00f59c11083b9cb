// Claim (again): Draws of a block have the bits of the whole draw.
#include <ditto/math/random.h>

#include <doctest/doctest.h>

#include <numeric>

#include <torch/types.h>

using ditto::Purpose;
using ditto::Random;
using torch::Tensor;

namespace {

struct Block {
  std::vector<int64_t> shape, start, size;
};

Tensor slice(Tensor of, const Block& block) {
  for (size_t dim = 0; dim < block.size.size(); ++dim)
    of = of.narrow(static_cast<int64_t>(dim), block.start[dim], block.size[dim]);
  return of;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && torch::equal(a.contiguous().view(torch::kLong), b.contiguous().view(torch::kLong));
}

void check(const Random& random, int64_t id, const Block& block) {
  CAPTURE(id);
  CAPTURE(block.shape);
  CAPTURE(block.start);
  CAPTURE(block.size);
  const int64_t ids[] = {id};
  const auto purpose = Purpose::initial_weights;
  CHECK(same_bits(random.uniform_block(purpose, id, block.shape, block.start, block.size),
                  slice(random.uniform(purpose, ids, block.shape)[0], block)));
  CHECK(same_bits(random.normal_block(purpose, id, block.shape, block.start, block.size),
                  slice(random.normal(purpose, ids, block.shape, torch::kDouble)[0], block)));
}

}  // namespace

TEST_CASE("a block has the bits of its place in the whole draw, whatever the shape and wherever it begins") {
  const std::vector<Block> blocks{{{}, {}, {}},                       // one number
                                  {{1}, {0}, {1}},                    //
                                  {{7}, {0}, {7}},                    // the whole
                                  {{7}, {3}, {2}},                    // within one draw of four, and over its end
                                  {{7}, {5}, {2}},                    //
                                  {{5, 3}, {1, 0}, {3, 3}},           // rows
                                  {{5, 3}, {0, 1}, {5, 1}},           // a column
                                  {{5, 3}, {4, 2}, {1, 1}},           // the last number
                                  {{3, 4, 5}, {1, 1, 0}, {2, 2, 5}},  //
                                  {{3, 4, 5}, {0, 1, 2}, {3, 3, 2}},  //
                                  {{2, 1, 3, 1, 7}, {1, 0, 1, 0, 2}, {1, 1, 2, 1, 5}},  // dims of one
                                  {{33, 65, 17}, {5, 60, 1}, {28, 5, 15}},              // many runs
                                  {{130, 1000}, {1, 0}, {129, 1000}},   // one long run, for several threads
                                  {{1000, 130}, {0, 7}, {1000, 100}}};  // many runs, for several threads
  const Random random(17);
  for (const auto& block : blocks)
    for (const int64_t id : {int64_t{0}, int64_t{-3}, int64_t{1} << 40}) check(random, id, block);
}

TEST_CASE("blocks that share no number are the whole together") {
  const Random random(3);
  const int64_t ids[] = {5};
  const auto whole = random.normal(Purpose::initial_weights, ids, {11, 6}, torch::kDouble)[0];
  torch::NoGradGuard no_grad;
  auto made = torch::empty_like(whole);
  for (int64_t row = 0; row < 11; row += 4)
    for (int64_t column = 0; column < 6; column += 5) {
      const std::vector<int64_t> start{row, column},
          size{std::min<int64_t>(4, 11 - row), std::min<int64_t>(5, 6 - column)};
      slice(made, {{}, start, size}).copy_(random.normal_block(Purpose::initial_weights, 5, {11, 6}, start, size));
    }
  CHECK(same_bits(made, whole));
}

TEST_CASE("an empty block has no numbers, and the shape that was asked for") {
  const Random random(3);
  for (const Block& block :
       {Block{{5, 3}, {2, 0}, {0, 3}}, Block{{5, 3}, {5, 1}, {0, 0}}, Block{{0, 3}, {0, 0}, {0, 3}}}) {
    CHECK(random.uniform_block(Purpose::order, 1, block.shape, block.start, block.size).sizes() ==
          at::IntArrayRef(block.size));
    CHECK(random.normal_block(Purpose::order, 1, block.shape, block.start, block.size).sizes() ==
          at::IntArrayRef(block.size));
  }
}

TEST_CASE("blocks of another purpose, seed or id are others") {
  const auto drawn = [](uint64_t seed, Purpose purpose, int64_t id) {
    return Random(seed).uniform_block(purpose, id, {9}, {2}, {5});
  };
  const auto one = drawn(1, Purpose::noise, 4);
  CHECK(one.equal(drawn(1, Purpose::noise, 4)));
  CHECK_FALSE(one.equal(drawn(2, Purpose::noise, 4)));
  CHECK_FALSE(one.equal(drawn(1, Purpose::time, 4)));
  CHECK_FALSE(one.equal(drawn(1, Purpose::noise, 5)));
}
