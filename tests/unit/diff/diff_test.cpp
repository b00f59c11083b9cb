// Where two runs part: prints that add up, events of ranks put together, and the first difference by pass.
#include <doctest/doctest.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

#include "core/diff/compare.h"
#include "tests/support/files.h"

namespace ditto::diff {
namespace {

using What = Difference::What;

Print whole_print(const torch::Tensor& x) {
  return print_of(x, x.sizes(), std::vector<int64_t>(static_cast<size_t>(x.dim()), 0));
}

TEST_CASE("prints of blocks add up to that of the whole, and tell numbers and places apart") {
  torch::manual_seed(1);
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf, torch::kLong, torch::kBool}) {
    CAPTURE(dtype);
    const auto x = (torch::randn({5, 4, 6}) * 10).to(dtype);
    const auto whole = whole_print(x);
    Print sum;
    for (int64_t i = 0; i < 5; ++i)
      for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {1, 3}})
        sum += print_of(x.select(0, i).narrow(0, first, count).unsqueeze(0), x.sizes(), {i, first, 0});
    CHECK(sum.hash == whole.hash);
    CHECK(relative_difference(sum, whole) == 0);
    CHECK(sum.squares == doctest::Approx(whole.squares));
    if (dtype == torch::kBool) continue;
    CHECK(whole_print(x.flip(2)).hash != whole.hash);
    CHECK(whole_print(x.transpose(0, 1).contiguous().view({5, 4, 6})).hash != whole.hash);
  }
  CHECK(whole_print(torch::zeros({3})).hash != whole_print(-torch::zeros({3})).hash);
  CHECK(whole_print(torch::zeros({3})).is_zero());
  CHECK(whole_print(torch::tensor({1.0}, torch::kDouble)).hash != whole_print(torch::tensor({1.0f})).hash);
  CHECK(whole_print(torch::scalar_tensor(3)).hash == whole_print(torch::scalar_tensor(3)).hash);
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(whole_print(torch::tensor({nan})).hash == whole_print(torch::tensor({-nan})).hash);
}

TEST_CASE("a relative difference is estimated to a factor of two, also of terms that are added") {
  torch::manual_seed(2);
  const auto x = torch::randn({50, 40}, torch::kDouble), other = torch::randn({50, 40}, torch::kDouble);
  for (const double share : {1e-9, 1e-4, 0.1, 1.0}) {
    const auto found = relative_difference(whole_print(x), whole_print(x + share * other));
    CHECK(found > share / 2.5);
    CHECK(found < share * 2.5);
  }
  auto terms = whole_print(0.3 * x);
  terms += whole_print(0.7 * x);
  CHECK(relative_difference(terms, whole_print(x)) < 1e-12);
  CHECK(std::isinf(relative_difference(whole_print(x), whole_print(x / 0))));
}

Key key(int64_t step, Pass pass, const std::string& unit, const std::string& tensor, const std::string& op = "makes") {
  return {step, pass, unit, op, tensor};
}

// As a rank that has rows [first, first + rows of x) of `whole` rows.
void add(Events& events, const Key& key, const torch::Tensor& x, int64_t rank = 0, int64_t first = 0, int64_t whole = 0,
         Event like = {}, Samples samples = {7, 1}) {
  like.dtype = c10::toString(x.scalar_type());
  const std::vector<int64_t> shape{whole > 0 ? whole : x.size(0)}, start{first};
  events.add(key, like, samples, shape, {rank, start, x.sizes().vec(), print_of(x, shape, start)});
}

TEST_CASE("events of ranks are written and read back as one, each piece once") {
  const test::TemporaryFolder folder;
  const auto x = torch::arange(6).to(torch::kFloat);
  Events first, second, both;
  Event like;
  like.order = {3, 4}, like.by = "op linear";
  add(first, key(1, Pass::forward, "head", "x"), x.narrow(0, 0, 4), 0, 0, 6, like);
  add(first, key(1, Pass::forward, "head", "x"), x.narrow(0, 0, 4), 0, 0, 6, like);
  add(second, key(1, Pass::forward, "head", "x"), x.narrow(0, 4, 2), 1, 4, 6, like);
  first.write(folder / "0"), second.write(folder / "1");
  both.merge(folder / "0"), both.merge(folder / "1");
  const auto& event = both.all().at(key(1, Pass::forward, "head", "x"));
  CHECK(event.order == Order{3, 4});
  CHECK(event.by == "op linear");
  CHECK(event.dtype == "Float");
  const auto& parts = event.parts.at({7, 1});
  CHECK(parts.shape == std::vector<int64_t>{6});
  CHECK(parts.pieces.size() == 2);
  CHECK(parts.pieces.at(1).print.hash == second.all().begin()->second.parts.begin()->second.pieces.front().print.hash);

  const auto bytes = test::read_text(folder / "0");
  test::write_text(folder / "cut", std::string_view(bytes).substr(0, bytes.size() - 3));
  CHECK(test::contains(test::error_of(ErrorKind::data, [&] { Events().merge(folder / "cut"); }), "was cut off"));
}

TEST_CASE("the first difference of each pass of the first step is found, in the order of the run") {
  const auto x = torch::ones({4});
  Events a, b;
  const auto put = [&](const Key& key, int64_t unit, const torch::Tensor& of_a, const torch::Tensor& of_b) {
    Event like;
    like.order = {unit, 0};
    add(a, key, of_a, 0, 0, 0, like), add(b, key, of_b, 0, 0, 0, like);
  };
  put(key(1, Pass::forward, "tokens", "x"), 2, x, x);
  put(key(1, Pass::forward, "block 9", "x"), 19, x, x + 1);
  put(key(1, Pass::forward, "block 10", "x"), 20, x, x + 2);
  put(key(1, Pass::backward, "block 9", "x"), -19, x, x * 3);
  put(key(1, Pass::backward, "block 10", "x"), -20, x, x);
  put(key(2, Pass::update, "tokens", "w"), 0, x, x + 1);
  add(a, key(1, Pass::forward, "block 11", "x"), x);
  const auto result = compare(a, b);
  REQUIRE(result.first.size() == 2);
  CHECK(to_text(result.first.at(0).key) == "step 1, forward, block 9, makes: x");
  CHECK(result.first.at(0).what == What::numbers);
  CHECK(result.first.at(0).a.hash == whole_print(x).hash);
  CHECK(result.first.at(0).b.hash == whole_print(x + 1).hash);
  CHECK(to_text(result.first.at(1).key) == "step 1, backward, block 9, makes: gradient of x");
  CHECK(result.compared == 6);
  CHECK(result.different == 4);
  CHECK(result.only_a == 1);
  CHECK(result.only_b == 0);
  CHECK(compare(a, a).is_same());
  CHECK(compare(b, b).is_same());
  CHECK(compare(a, b, 10).is_same());
}

TEST_CASE("pieces of ranks are compared as a whole, and copies that are not the same are a difference by themselves") {
  const auto x = torch::randn({6});
  const auto here = key(1, Pass::forward, "block 0", "x");
  Events whole, cut, gap, bad;
  add(whole, here, x);
  for (const int64_t rank : {0, 1}) {  // ranks 0 and 2 have the same rows
    add(cut, here, x.narrow(0, 3 * rank, 3), rank, 3 * rank, 6);
    add(cut, here, x.narrow(0, 3 * rank, 3), rank + 2, 3 * rank, 6);
  }
  CHECK(compare(whole, cut).is_same());
  CHECK(compare(whole, cut).compared == 1);
  add(gap, here, x.narrow(0, 0, 3), 0, 0, 6);
  CHECK(compare(whole, gap).is_same());
  CHECK(compare(whole, gap).in_parts == 1);
  add(bad, here, x, 0), add(bad, here, x + 1, 1);
  for (const auto& result : {compare(whole, bad), compare(bad, whole)}) {
    REQUIRE(result.first.size() == 1);
    CHECK(result.first.front().rank_b == 1);
    CHECK(result.first.front().b.hash == whole_print(x + 1).hash);
  }
  CHECK(compare(whole, bad).first.front().what == What::copies_of_b);
  CHECK(compare(bad, whole).first.front().what == What::copies_of_a);
  CHECK(test::contains(to_text(compare(whole, bad).first.front()), "copies in B: rank 0 "));

  // What an op makes on ranks may be parts of something: nobody says so.
  Event of_op;
  of_op.is_of_op = true;
  Events op_whole, op_parts, op_short;
  add(op_whole, here, x, 0, 0, 0, of_op);
  add(op_parts, here, x, 0, 0, 0, of_op), add(op_parts, here, x + 1, 1, 0, 0, of_op);
  add(op_short, here, x.narrow(0, 0, 3), 0, 0, 0, of_op);
  CHECK(compare(op_whole, op_parts).in_parts == 1);
  CHECK(compare(op_whole, op_short).in_parts == 1);
  CHECK(compare(op_whole, op_short).is_same());
  Events short_one;
  add(short_one, here, x.narrow(0, 0, 3));
  REQUIRE(!compare(whole, short_one).is_same());
  CHECK(compare(whole, short_one).first.front().what == What::shapes);
  CHECK(compare(whole, short_one).first.front().text_b == "Float [3]");
}

TEST_CASE("terms of a gradient are added, within rounding; what is nothing but zeros changes no bit") {
  const auto g = torch::randn({64});
  const auto here = key(1, Pass::backward, "condition", "cond");
  Event terms;
  terms.kind = Kind::terms;
  Events whole, two, twice, beside;
  add(whole, here, g, 0, 0, 0, terms);
  add(two, here, 0.25 * g, 0, 0, 0, terms), add(two, here, 0.75 * g, 1, 0, 0, terms);
  add(twice, here, g, 0, 0, 0, terms), add(twice, here, 1.001 * g, 1, 0, 0, terms);
  add(beside, here, g, 0, 0, 0, terms), add(beside, here, -torch::zeros({64}), 1, 0, 0, terms);
  CHECK(compare(whole, two).is_same());
  CHECK(compare(whole, two).rounded == 1);
  CHECK(!compare(whole, twice).is_same());
  CHECK(compare(whole, beside).is_same());
  CHECK(compare(whole, beside).rounded == 0);
  Events off;
  add(off, here, g * (1 + 1e-6), 0, 0, 0, terms), add(off, here, torch::zeros({64}), 1, 0, 0, terms);
  CHECK(!compare(whole, off).is_same());  // by its bits
}

TEST_CASE("samples are compared one by one, whichever run has more of them") {
  const auto x = torch::ones({2});
  const auto here = key(1, Pass::forward, "tokens", "x");
  Events a, b;
  for (int64_t id = 0; id < 4; ++id) add(a, here, x * (id + 1), 0, 0, 0, {}, {id, 1});
  for (int64_t id = 2; id < 6; ++id) add(b, here, id == 3 ? x : x * (id + 1), 0, 0, 0, {}, {id, 1});
  const auto result = compare(a, b);
  REQUIRE(result.first.size() == 1);
  CHECK(result.first.front().samples == Samples{3, 1});
  CHECK(result.first.front().places == 1);
  CHECK(result.first.front().among == 2);
  CHECK(result.compared == 2);
  CHECK(test::contains(to_text(result.first.front()), "of sample 3"));
  CHECK(test::contains(to_text(result.first.front()), "1 of 2 samples"));
}

}  // namespace
}  // namespace ditto::diff
