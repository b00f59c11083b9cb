// The hash of tensors, whatever cuts them, and the chain of receipts.
#include "core/receipts/receipt.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <random>

#include <doctest/doctest.h>

#include "core/formats/sha256.h"
#include "core/mesh/paper_mesh.h"
#include "core/receipts/receipt_file.h"
#include "core/receipts/tensor_hash.h"
#include "core/verify/replay.h"
#include "support/files.h"
#include "tests/unit/ranks.h"

namespace ditto {
namespace {

using test::contains;
using torch::Tensor;

HashSum hash_of(const Tensor& tensor, const char* name = "a") {
  TensorHash hash;
  hash.add(HashKey(name), tensor);
  return hash.sum();
}

// As its page defines it, a word at a time.
HashSum hash_by_definition(const std::vector<std::uint32_t>& words, const char* name) {
  HashSum sum;
  for (size_t lane = 0; lane < kHashLanes; ++lane)
    for (size_t i = 0; i < words.size(); ++i) {
      const std::uint64_t factor = splitmix64(lane, i % kHashBlock) >> 32;
      sum.lanes[lane] += (splitmix64(HashKey(name).seeds[lane], i / kHashBlock) | 1) * factor * words[i];
    }
  return sum;
}

TEST_CASE("the hash of a tensor is what its page says, for any number of words") {
  CHECK(splitmix64(0, 0) == 0xE220A8397B1DCDAFull);  // of the generator's own paper and code
  for (const int64_t count : {1, 2, 63, 64, 65, 1023, 1024, 1025, 5000, 200000}) {
    const auto numbers = testing::numbers({count}, count);
    const auto* words = static_cast<const std::uint32_t*>(numbers.const_data_ptr());
    CHECK(hash_of(numbers) == hash_by_definition({words, words + count}, "a"));
  }
  const auto wide = testing::numbers({700}, 5, torch::kDouble);
  const auto* words = static_cast<const std::uint32_t*>(wide.const_data_ptr());
  CHECK(hash_of(wide) == hash_by_definition({words, words + 1400}, "a"));
  CHECK(hash_of(torch::tensor({1, 255}, torch::kByte)) == hash_by_definition({1, 255}, "a"));
  CHECK(hash_of(torch::tensor({-1.0F}).to(torch::kBFloat16)) == hash_by_definition({0xBF80}, "a"));
  CHECK(hash_of(torch::scalar_tensor(1.0F)) == hash_by_definition({0x3F800000}, "a"));
  CHECK(hash_of(torch::empty({0, 3})) == HashSum{});
  CHECK(HashSum{{1, 0xABCDEFull}}.text() == "00000000000000010000000000abcdef");
}

TEST_CASE("every bit of every place changes the hash, in both lanes") {
  auto numbers = testing::numbers({2 * 1024 + 7}, 1);
  const auto bits = numbers.view(torch::kInt);
  const auto before = hash_of(numbers);
  for (int64_t i = 0; i < numbers.numel(); i += i < 1024 ? 1 : 13)
    for (int bit = 0; bit < 32; ++bit) {
      auto* word = bits.data_ptr<int32_t>() + i;
      *word ^= static_cast<int32_t>(1u << bit);
      const auto after = hash_of(numbers);
      *word ^= static_cast<int32_t>(1u << bit);
      if (after.lanes[0] == before.lanes[0] || after.lanes[1] == before.lanes[1]) FAIL_CHECK(i << " bit " << bit);
    }
  CHECK(hash_of(numbers) == before);
}

TEST_CASE("what is exchanged, of another sign, another zero, another nan or another name has another hash") {
  const auto numbers = testing::numbers({3000}, 2);
  const auto before = hash_of(numbers);
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    const int64_t a = random() % 3000, b = random() % 3000;
    if (a == b) continue;
    auto other = numbers.clone();
    other[a] = numbers[b];
    other[b] = numbers[a];
    const auto after = hash_of(other);
    CHECK_MESSAGE((after.lanes[0] != before.lanes[0] && after.lanes[1] != before.lanes[1]), a << " and " << b);
  }
  CHECK(hash_of(-numbers) != before);
  CHECK(hash_of(numbers.flip(0)) != before);
  CHECK(hash_of(numbers.roll(1)) != before);
  CHECK(hash_of(numbers.roll(1024)) != before);
  CHECK(hash_of(numbers, "b") != before);
  CHECK(hash_of(torch::tensor({-0.0F})) != hash_of(torch::tensor({0.0F})));
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  auto other_nan = torch::tensor({nan});
  *static_cast<std::uint32_t*>(other_nan.data_ptr()) ^= 1;
  CHECK(hash_of(torch::tensor({nan})) == hash_of(torch::tensor({nan})));
  CHECK(hash_of(other_nan) != hash_of(torch::tensor({nan})));
  // Of two tensors at once: what they exchange shows.
  TensorHash one, two;
  one.add(HashKey("a"), torch::tensor({1.0F, 2.0F}));
  one.add(HashKey("b"), torch::tensor({3.0F, 4.0F}));
  two.add(HashKey("a"), torch::tensor({3.0F, 4.0F}));
  two.add(HashKey("b"), torch::tensor({1.0F, 2.0F}));
  CHECK(one.sum() != two.sum());
}

// Of all places of a mesh, each with what it holds.
HashSum hash_of_ranks(const Degrees& degrees, const std::vector<Tensor>& full,
                      const std::function<std::map<Axis, Cut>(size_t, const Mesh&)>& cuts) {
  HashSum sum;
  for (int tensor = 0; tensor < degrees.at(Axis::tensor); ++tensor)
    for (int shard = 0; shard < degrees.at(Axis::shard); ++shard)
      for (int replicate = 0; replicate < degrees.at(Axis::replicate); ++replicate)
        for (int context = 0; context < degrees.at(Axis::context); ++context) {
          const PaperMesh mesh(
              degrees,
              {{Axis::tensor, tensor}, {Axis::shard, shard}, {Axis::replicate, replicate}, {Axis::context, context}},
              PaperMesh::Peers::silent);
          Layout layout;
          for (size_t i = 0; i < full.size(); ++i) {
            LayoutEntry entry{"p" + std::to_string(i), full[i], full[i].sizes().vec(), Unit{Unit::head, -1}};
            entry.cuts = cuts(i, mesh);
            for (const Axis axis : kCutOrder)
              if (entry.cuts.count(axis)) entry.tensor = cut(entry.tensor, entry.cuts.at(axis));
            layout.entries.push_back(std::move(entry));
          }
          TensorHash hash;
          hash.add(layout, mesh, [&](size_t i) { return layout.entries[i].tensor; });
          sum += hash.sum();
        }
  return sum;
}

TEST_CASE("the hash of parameters is the same however ranks cut them, and counts copies once") {
  const std::vector<Tensor> full{testing::numbers({48, 40}, 1), testing::numbers({2100}, 2), testing::numbers({5}, 3),
                                 testing::numbers({7, 3, 11, 2}, 4), testing::numbers({}, 5)};
  HashSum whole;
  for (size_t i = 0; i < full.size(); ++i) whole += hash_of(full[i], ("p" + std::to_string(i)).c_str());
  const auto degrees = [](int64_t tensor, int64_t shard, int64_t replicate, int64_t context) {
    Degrees all;
    for (const Axis axis : kAxes) all[axis] = 1;
    all[Axis::tensor] = tensor, all[Axis::shard] = shard, all[Axis::replicate] = replicate;
    all[Axis::context] = context;
    return all;
  };
  const auto piece = [](const Mesh& mesh, Axis axis, int64_t dim, std::vector<int64_t> parts, int64_t multiple = 1) {
    return std::pair(axis, Cut{dim, std::move(parts), mesh.index(axis), mesh.size(axis), multiple});
  };
  CHECK(hash_of_ranks(degrees(1, 1, 1, 1), full, [](size_t, const Mesh&) { return std::map<Axis, Cut>{}; }) == whole);
  CHECK(hash_of_ranks(degrees(1, 1, 3, 2), full, [](size_t, const Mesh&) { return std::map<Axis, Cut>{}; }) == whole);
  // Shards of rows, uneven, some empty.
  for (const int64_t shards : {2, 3, 4, 7})
    CHECK(hash_of_ranks(degrees(1, shards, 2, 1), full, [&](size_t i, const Mesh& mesh) {
            if (full[i].dim() == 0) return std::map<Axis, Cut>{};
            return std::map{piece(mesh, Axis::shard, 0, {full[i].size(0)})};
          }) == whole);
  // Rows or columns by tensor, in parts, with shards of what is left.
  for (const int64_t ranks : {2, 3, 4})
    CHECK(hash_of_ranks(degrees(ranks, 2, 1, 2), full, [&](size_t i, const Mesh& mesh) {
            if (full[i].dim() == 0) return std::map<Axis, Cut>{};
            if (i == 0) {
              const auto columns = piece(mesh, Axis::tensor, 1, {16, 24}, 4);
              return std::map{columns, piece(mesh, Axis::shard, 0, {48})};
            }
            if (i == 3) return std::map{piece(mesh, Axis::tensor, 2, {5, 6})};
            return std::map{piece(mesh, Axis::shard, 0, {full[i].size(0)})};
          }) == whole);
  // One that is missed shows.
  CHECK(hash_of_ranks(degrees(1, 2, 1, 1), full, [&](size_t i, const Mesh& mesh) {
          if (i != 0) return std::map<Axis, Cut>{};
          return std::map{std::pair(Axis::shard, Cut{0, {48}, 0, mesh.size(Axis::shard), 1})};  // the first half twice
        }) != whole);
}

TEST_CASE("a tensor that is hashed in pieces, of any cut, has the hash of the whole") {
  const auto full = testing::numbers({48, 40}, 1);
  const auto whole = hash_of(full);
  HashSum sum;
  for (int rank = 0; rank < 3; ++rank) {
    LayoutEntry entry{"a", full, full.sizes().vec(), Unit{Unit::head, -1}};
    entry.cuts[Axis::tensor] = Cut{1, {16, 24}, rank, 3, 1};
    const auto local = cut(full, entry.cuts[Axis::tensor]);
    int64_t begin = 0;
    for (const int64_t end : {int64_t{7}, int64_t{8}, int64_t{300}, local.numel()}) {
      TensorHash hash;
      hash.add(HashKey("a"), entry.full_shape, entry.slices(), local, begin, end);
      sum += hash.sum();
      begin = end;
    }
  }
  CHECK(sum == whole);
}

Receipt step_line(int64_t step, const std::string& gradient = "1") {
  Receipt receipt;
  receipt.step = step;
  receipt.parts = {{"samples", "5"}, {"loss", bits_of(0.1)}, {"gradient", gradient}, {"weights", std::to_string(step)}};
  return receipt;
}

Receipt first_line(int64_t step = 0, const std::string& recipe = "r") {
  Receipt receipt;
  receipt.step = step;
  receipt.begins = {{"recipe", recipe}};
  receipt.parts = {{"weights", std::to_string(step)}};
  return receipt;
}

std::string chain_of(const std::vector<Receipt>& receipts) {
  std::string text, before;
  for (const auto& receipt : receipts) {
    const auto line = chained(receipt, before);
    text += line.text + "\n";
    before = line.sha256;
  }
  return text;
}

TEST_CASE("a chain of receipts reads back, and each byte that is changed, each line that goes, breaks it there") {
  CHECK(formats::sha256("abc") ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");  // FIPS 180-2, B.1
  CHECK(bits_of(-0.0) == "8000000000000000");
  auto skipped = step_line(3);
  skipped.skipped = true;
  const auto text = chain_of({first_line(), step_line(1), step_line(2), skipped, first_line(3, "s"), step_line(4)});
  const auto read = parse_receipts(text);
  CHECK(read.broken.empty());
  REQUIRE(read.lines.size() == 6);
  CHECK(read.made(3)->skipped);
  CHECK(*read.made(2)->part("gradient") == "1");
  CHECK(read.state(3)->begins.has_value());
  CHECK(read.beginning(2)->begins->at("recipe") == "r");
  CHECK(read.beginning(3)->begins->at("recipe") == "s");
  CHECK(read.made(5) == nullptr);
  CHECK(text.find(read.sha256) != text.npos);

  std::vector<size_t> starts{0};
  for (size_t i = 0; i + 1 < text.size(); ++i)
    if (text[i] == '\n') starts.push_back(i + 1);
  for (size_t i = 0; i < text.size(); ++i) {
    auto other = text;
    other[i] = static_cast<char>(other[i] ^ 1);
    const auto found = parse_receipts(other);
    const auto line = static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), i) - starts.begin());
    CHECK_MESSAGE(found.broken.starts_with("line " + std::to_string(line)), "byte " << i << ": " << found.broken);
    CHECK(found.lines.size() == line - 1);
  }
  for (size_t gone = 0; gone + 1 < starts.size(); ++gone) {
    auto other = text;
    other.erase(starts[gone], starts[gone + 1] - starts[gone]);
    CHECK(parse_receipts(other).broken.starts_with("line " + std::to_string(gone + 1)));
  }
  CHECK(contains(parse_receipts(text.substr(0, text.size() - 1)).broken, "it is cut off"));
  CHECK(contains(parse_receipts(chain_of({first_line(), step_line(2)})).broken, "it follows step 0"));
  CHECK(contains(parse_receipts(chain_of({step_line(1)})).broken, "it says nothing of the run"));
}

TEST_CASE("what differs between two receipts is named, in the order in which a step makes it") {
  CHECK(different_parts(step_line(1), step_line(1)).empty());
  CHECK(different_parts(step_line(1), step_line(1, "2")) == std::vector<std::string>{"gradient"});
  CHECK(different_parts(step_line(1), step_line(2, "2")) == std::vector<std::string>{"gradient", "weights"});
  CHECK(different_parts(step_line(1), first_line(1)).empty());
  CHECK(different_parts(step_line(1), first_line(2)) == std::vector<std::string>{"weights"});
  auto skipped = step_line(1);
  skipped.skipped = true;
  CHECK(different_parts(step_line(1), skipped).size() == 1);
  auto averaged = step_line(1), other = averaged;
  averaged.parts.emplace_back("average", "7"), other.parts.emplace_back("average", "8");
  CHECK(different_parts(step_line(1), averaged).empty());  // not every line has one
  CHECK(different_parts(averaged, other).front() == "average");
  other.parts.back().first = "another part";
  CHECK(different_parts(step_line(1), other).front() == "another part");
}

TEST_CASE("a resume goes on with the chain that leads to its checkpoint, and else begins one that says why") {
  const test::TemporaryFolder folder;
  const auto path = folder / kReceipts;
  std::vector<std::string> said;
  const auto say = [&](const std::string& line) { said.push_back(line); };
  const auto write = [&](int64_t from, int64_t to, const std::string& recipe = "r") {
    ReceiptFile file(folder.path().string());
    file.begin(first_line(from, recipe), say);
    for (int64_t step = from + 1; step <= to; ++step) file.append(step_line(step));
    file.sync();
  };
  write(0, 6);
  const auto whole = test::read_text(path);
  write(4, 6);  // lines 5 and 6 are made again
  CHECK(test::read_text(path) == whole);
  write(0, 6);  // it starts over
  CHECK(test::read_text(path) == whole);
  CHECK(said.empty());
  write(4, 6, "s");  // with another recipe: the chain says so, and goes on
  auto read = read_receipts(path);
  CHECK(read.broken.empty());
  CHECK(read.lines.size() == 8);
  CHECK(read.beginning(5)->begins->at("recipe") == "s");
  CHECK(said.empty());

  write(7, 8);
  CHECK(contains(said.back(), "receipts begin anew after step 7: the receipts before end after step 6"));
  read = read_receipts(path);
  CHECK(read.lines.front().step == 7);
  CHECK(contains(read.lines.front().why, "end after step 6"));
  CHECK(read_receipts(folder / "receipts.before-00000007.jsonl").lines.size() == 8);

  auto text = test::read_text(path);
  text[text.find("samples")] = 'S';
  test::write_text(path, text);
  write(8, 9);
  CHECK(contains(said.back(), "the chain before is broken at line 2, after step 7"));

  std::filesystem::remove(path);
  write(3, 4);
  CHECK(contains(said.back(), "there are no receipts of the steps before"));

  ReceiptFile file(folder.path().string());
  auto changed = first_line(4);
  changed.parts = {{"weights", "another"}};
  file.begin(changed, say);
  CHECK(contains(said.back(), "what was saved has other weights than the receipt of its step"));
}

TEST_CASE("a replay begins at a checkpoint or where the run began, not where the receipts begin later") {
  for (const int64_t first : {0, 1, 4}) {
    Receipts receipts;
    receipts.lines.resize(1);
    receipts.lines[0].step = first;
    const auto begin = [&] { return checkpoint_before("no such run", receipts, 5); };
    if (first == 0)
      CHECK(begin().empty());
    else
      CHECK_THROWS_WITH_AS(
          begin(), doctest::Contains(("the receipts begin after step " + std::to_string(first)).c_str()), Error);
  }
}

TEST_CASE("what a replay has otherwise, and may have, is told beside what it finds") {
  Receipt begins, made;
  begins.begins = {{"recipe", "a"}, {"numerics", "one"}, {"ditto", "1"}};
  begins.parts = {{"weights", "0"}};
  made.step = 1;
  made.parts = {{"loss", "1"}, {"weights", "2"}};
  Receipts run;
  run.lines = {begins, made};
  for (const char* version : {"1", "2"}) {
    ReceiptCheck check(run, 1);
    auto now = begins;
    (*now.begins)["ditto"] = version;
    check.begins(now);
    CHECK(check.made(made));
    const bool told = check.verdict().find("(ditto was 1 in the run, and is 2 now)") != std::string::npos;
    CHECK(told == (std::string(version) == "2"));
  }
  ReceiptCheck check(run, 1);
  auto other = begins;
  (*other.begins)["recipe"] = "b";
  CHECK_THROWS_WITH_AS(check.begins(other), doctest::Contains("the run had another recipe"), Error);
}

}  // namespace
}  // namespace ditto
