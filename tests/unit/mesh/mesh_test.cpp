// The mesh, the collectives and their transposes, on real ranks.
//
// Claim (layouts): Every collective is differentiated as its transpose; a lost or hanging peer is an error that
// names group and call.
#include "core/mesh/gloo_mesh.h"

#include <unistd.h>

#include <chrono>
#include <thread>

#include <doctest/doctest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ditto/error.h>
#include <ditto/parallel/transport.h>

#include "tests/unit/ranks.h"

namespace ditto {
namespace {

using testing::numbers;
using torch::Tensor;

TEST_CASE("replicate is what the other degrees leave") {
  const auto degrees = complete_degrees({{Axis::tensor, 2}, {Axis::context, 2}}, 12);
  CHECK(degrees.at(Axis::replicate) == 3);
  CHECK(degrees.at(Axis::tensor) == 2);
  CHECK(degrees.at(Axis::pipeline) == 1);
}

TEST_CASE("degrees whose product is not the world size are refused with the numbers") {
  CHECK_THROWS_WITH_AS(complete_degrees({{Axis::tensor, 4}}, 6),
                       doctest::Contains("tensor 4 = 4 do not divide the world size 6"), Error);
  CHECK_THROWS_WITH_AS(complete_degrees({{Axis::tensor, 4}}, 2), doctest::Contains("world size 2"), Error);
  CHECK_THROWS_WITH_AS(complete_degrees({{Axis::replicate, 3}, {Axis::tensor, 2}}, 4),
                       doctest::Contains("replicate 3 x tensor 2 = 6 are not the world size 4"), Error);
  CHECK_THROWS_WITH_AS(complete_degrees({{Axis::tensor, 0}}, 2), doctest::Contains("parallel.tensor"), Error);
}

TEST_CASE("one rank is a mesh of ones") {
  const GlooMesh mesh(RankInfo{}, {}, std::chrono::seconds(1));
  for (const Axis axis : kAxes) CHECK(mesh.size(axis) == 1);
  CHECK(mesh.world().size() == 1);
  CHECK(mesh.data_ranks() == 1);
}

// Of another device, and of the type that the CPU's own has.
struct OtherGloo : Transport {
  c10::DeviceType device() const override { return c10::DeviceType::Meta; }
  const char* backend() const override { return "gloo"; }
  c10::intrusive_ptr<c10d::Backend> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout) override {
    const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    made = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
    return made;
  }
  c10::intrusive_ptr<c10d::Backend> made;
};

TEST_CASE("each device has the backend of its own transport, of whatever type it is") {
  const auto other = std::make_shared<OtherGloo>();
  const GlooMesh mesh(std::chrono::seconds(60), {other});
  const auto& transport = mesh.world().transport();
  CHECK(transport->getBackend(c10::DeviceType::Meta) == other->made);
  CHECK(transport->getBackend(c10::DeviceType::CPU) != other->made);
}

class CoalescingGloo final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  bool supportsCoalescing() const override { return true; }
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(std::vector<Tensor>& out, std::vector<Tensor>& in,
                                                                 const c10d::AllgatherOptions& options) override {
    sizes.push_back(in.size());
    return ProcessGroupGloo::allgather_into_tensor_coalesced(out, in, options);
  }
  std::vector<size_t> sizes;  // of each call
};

struct Coalescing : Transport {
  c10::DeviceType device() const override { return c10::DeviceType::CPU; }
  const char* backend() const override { return "coalescing"; }
  c10::intrusive_ptr<c10d::Backend> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout) override {
    const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    return made = c10::make_intrusive<CoalescingGloo>(store, rank, size, options);
  }
  c10::intrusive_ptr<CoalescingGloo> made;
};

TEST_CASE("gathers that begin together are one call of a transport that can, where they have one dtype") {
  const auto transport = std::make_shared<Coalescing>();
  const GlooMesh mesh(std::chrono::seconds(30), {transport});
  const auto& group = mesh.group({Axis::shard});
  const std::vector<Tensor> list{numbers({3}, 1), numbers({7}, 2), numbers({5}, 3)};
  const auto arrivals = group.begin_all_gathers(list);
  REQUIRE(arrivals.size() == list.size());
  for (size_t i = list.size(); i-- > 0;) CHECK(arrivals[i]().equal(list[i]));
  CHECK(transport->made->sizes == std::vector<size_t>{3});
  for (const auto& arrival : group.begin_all_gathers({list[0], list[2].to(torch::kBFloat16)})) arrival();
  CHECK(group.begin_all_gathers({list[0]})[0]().equal(list[0]));
  CHECK(group.begin_all_gathers({}).empty());
  CHECK(transport->made->sizes.size() == 1);
}

TEST_CASE("a group of one returns what it was given") {
  const Group group;
  const auto x = numbers({4, 3}, 1);
  CHECK(group.all_reduce(x).is_same(x));
  CHECK(torch::equal(group.all_gather(x, 0), x));
  CHECK(torch::equal(group.reduce_scatter(x, 1), x));
  CHECK(torch::equal(group.all_to_all(x, 0, 1), x));
  CHECK(group.all_gather_text("a") == std::vector<std::string>{"a"});
  group.barrier();
}

TEST_CASE("rank of: a grid of axes" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::tensor, 2}});
  const int rank = mesh.rank(), size = mesh.size(Axis::replicate);
  CHECK(mesh.index(Axis::tensor) == rank % 2);
  CHECK(mesh.index(Axis::replicate) == rank / 2);
  const auto& tensor = mesh.group(Axis::tensor);
  CHECK(tensor.label() == "tensor");
  CHECK(tensor.size() == 2);
  CHECK(tensor.rank() == rank % 2);
  CHECK(tensor.all_reduce(torch::tensor({rank})).item<int>() == 4 * (rank / 2) + 1);
  CHECK(mesh.group(Axis::replicate).all_reduce(torch::tensor({rank})).item<int>() ==
        size * (size - 1) + size * (rank % 2));
  CHECK(mesh.world().size() == 2 * size);
  CHECK(mesh.world().rank() == rank);
  CHECK(mesh.world().label() == "replicate+tensor");
  // Axes with one rank make no other group.
  CHECK(&mesh.group({Axis::shard, Axis::tensor}) == &tensor);
  CHECK(&mesh.data_group() == &mesh.group(Axis::replicate));
}

TEST_CASE("a mesh's groups hold the ranks that differ along their axes alone") {
  CHECK(testing::as_ranks(4, "rank of: a grid of axes") == 0);
}

Tensor mine(int rank, at::IntArrayRef shape) { return numbers(shape, 50 + rank, torch::kDouble); }

TEST_CASE("rank of: collectives" * doctest::skip()) {
  const auto mesh = testing::mesh_of({});
  const auto& group = mesh.world();
  const int n = group.size(), rank = group.rank();
  std::vector<Tensor> all;
  for (int r = 0; r < n; ++r) all.push_back(mine(r, {2, 2 * n, 3}));
  const Tensor x = all[rank];
  const auto close = [](const Tensor& a, const Tensor& b) {
    return a.sizes() == b.sizes() && torch::allclose(a, b, 1e-13, 1e-13);
  };
  const Tensor sum = torch::stack(all).sum(0);

  CHECK(close(group.all_reduce(x.clone()), sum));
  for (const int64_t dim : {0, 1, 2, -1}) CHECK(torch::equal(group.all_gather(x, dim), torch::cat(all, dim)));
  CHECK(torch::equal(group.all_gather(x.transpose(0, 2), 1), torch::cat(all, 1).transpose(0, 2)));
  CHECK(close(group.reduce_scatter(x, 1), sum.chunk(n, 1)[rank]));
  std::vector<Tensor> parts;
  for (const auto& t : all) parts.push_back(t.chunk(n, 1)[rank]);
  CHECK(torch::equal(group.all_to_all(x, 1, -1), torch::cat(parts, -1)));
  CHECK(torch::equal(group.all_to_all(group.all_to_all(x, 1, 2), 2, 1), x));

  auto word = torch::full({2}, rank);
  group.broadcast(word, n - 1);
  CHECK(word.eq(n - 1).all().item<bool>());
  std::vector<std::string> texts;
  for (int r = 0; r < n; ++r) texts.push_back(std::string(static_cast<size_t>(r), 'x'));
  CHECK(group.all_gather_text(texts[rank]) == texts);
  CHECK(group.all_gather_text("") == std::vector<std::string>(static_cast<size_t>(n)));
  group.barrier();

  // Rank r sends r + i numbers to rank i; rank 0 sends none to itself.
  std::vector<int64_t> send, receive;
  std::vector<Tensor> out, expected;
  for (int i = 0; i < n; ++i) {
    send.push_back(rank + i);
    receive.push_back(i + rank);
    out.push_back(torch::full({rank + i}, 10 * rank + i));
    expected.push_back(torch::full({i + rank}, 10 * i + rank));
  }
  CHECK(torch::equal(group.exchange(torch::cat(out), send, receive), torch::cat(expected)));
}

TEST_CASE("collectives give what they promise") {
  CHECK(testing::as_ranks(2, "rank of: collectives") == 0);
  CHECK(testing::as_ranks(3, "rank of: collectives") == 0);
}

// Two threads of every rank make their groups, and use them, at the same time.
TEST_CASE("rank of: a mesh beside" * doctest::skip()) {
  const auto mesh = testing::mesh_of({{Axis::tensor, 2}});
  const auto beside = mesh_beside(mesh, "test"), another = mesh_beside(mesh, "test");
  REQUIRE(beside);
  const auto sums = [](const Mesh& of) {
    int64_t sum = 0;
    for (int i = 0; i < 50; ++i)
      for (const auto* group : {&of.group(Axis::tensor), &of.world()})
        sum += group->all_reduce(torch::tensor({of.rank() + i})).item<int64_t>();
    return sum;
  };
  int64_t there = 0, here = 0;
  std::thread other([&] { there = sums(*beside); });
  here = sums(mesh);
  other.join();
  CHECK(there == here);
  CHECK(sums(*another) == here);
  CHECK(beside->index(Axis::tensor) == mesh.index(Axis::tensor));
  CHECK(&beside->traffic() != &mesh.traffic());
  CHECK(beside->traffic().counts().begin()->second.calls % 50 == 0);
}

TEST_CASE("a mesh beside another has groups and counts of its own; one without peers needs none") {
  CHECK(testing::as_ranks(2, "rank of: a mesh beside") == 0);
  CHECK(testing::as_ranks(4, "rank of: a mesh beside") == 0);
  CHECK(mesh_beside(GlooMesh(RankInfo{}, {}, std::chrono::seconds(1)), "test") == nullptr);
}

// As mesh.h derives them, where each member sends the others their parts directly.
TEST_CASE("rank of: counted collectives" * doctest::skip()) {
  const auto mesh = testing::mesh_of({});
  const auto& group = mesh.world();
  const int64_t n = group.size(), rank = group.rank(), part = 8 * 6;
  const Tensor x = mine(group.rank(), {n, 6});
  mesh.traffic().clear();
  group.all_reduce(x.clone());
  group.all_gather(x[0], 0);
  group.begin_all_gather(x[0])();
  group.reduce_scatter(x, 0);
  group.all_to_all(x, 0, 1);
  std::vector<int64_t> send(static_cast<size_t>(n), 6 * rank), receive;  // rank r sends r rows to each
  for (int64_t from = 0; from < n; ++from) receive.push_back(6 * from);
  group.exchange(numbers({6 * rank * n}, 1, torch::kDouble), send, receive);
  group.broadcast(x.clone(), static_cast<int>(n) - 1);
  std::map<std::string, int64_t> bytes;
  for (const auto& [key, count] : mesh.traffic().counts()) bytes[key.op] = count.bytes;
  CHECK(bytes["all_reduce"] == 2 * part * (n - 1));
  CHECK(bytes["all_gather"] == 2 * part * (n - 1));
  CHECK(bytes["reduce_scatter"] == part * (n - 1));
  CHECK(bytes["all_to_all"] == part * (n - 1));
  CHECK(bytes["exchange"] == rank * part * (n - 1));
  CHECK(bytes["broadcast"] == (rank == n - 1 ? n * part * (n - 1) : 0));
}

TEST_CASE("bytes of collectives are counted as derived") {
  CHECK(testing::as_ranks(3, "rank of: counted collectives") == 0);
}

// For a linear map A over all ranks: sum over ranks of <A x, y> = sum over ranks of <x, A^T y>.
void check_transpose(const Group& group, const std::function<Tensor(const Tensor&)>& collective,
                     at::IntArrayRef shape) {
  auto x = mine(group.rank(), shape).requires_grad_();
  const Tensor out = collective(x);
  const Tensor y = numbers(out.sizes(), 900 + group.rank(), torch::kDouble);
  (out * y).sum().backward();
  const auto sums = group.all_reduce(torch::stack({(out * y).sum().detach(), (x.detach() * x.grad()).sum()}));
  const auto sizes = group.all_reduce((out * y).abs().sum().detach());
  CHECK(std::abs((sums[0] - sums[1]).item<double>()) < 1e-13 * sizes.item<double>());
}

TEST_CASE("rank of: transposes" * doctest::skip()) {
  const auto mesh = testing::mesh_of({});
  const auto& group = mesh.world();
  const int64_t n = group.size();
  check_transpose(group, [&](const Tensor& x) { return transposed::all_reduce(x, group); }, {3, 4});
  for (const int64_t dim : {0, -1}) {
    check_transpose(group, [&](const Tensor& x) { return transposed::all_gather(x, group, dim); }, {3, 4});
    check_transpose(group, [&](const Tensor& x) { return transposed::reduce_scatter(x, group, dim); }, {2 * n, 3 * n});
  }
  check_transpose(group, [&](const Tensor& x) { return transposed::all_to_all(x, group, 1, 2); }, {2, 2 * n, 3});
  check_transpose(group, [&](const Tensor& x) { return transposed::all_to_all(x.transpose(0, 2), group, -1, 0); },
                  {2 * n, 2, 3});
}

TEST_CASE("every collective is differentiated as its transpose") {
  CHECK(testing::as_ranks(2, "rank of: transposes") == 0);
  CHECK(testing::as_ranks(3, "rank of: transposes") == 0);
}

TEST_CASE("rank of: an uneven scatter" * doctest::skip()) {
  const auto mesh = testing::mesh_of({});
  CHECK_THROWS_WITH_AS(mesh.world().reduce_scatter(torch::ones({3, 5}), 1),
                       doctest::Contains("5 is not divided by 2 ranks"), Error);
}

TEST_CASE("a length that the ranks do not divide is refused with both numbers") {
  CHECK(testing::as_ranks(2, "rank of: an uneven scatter") == 0);
}

TEST_CASE("rank of: other lengths than agreed" * doctest::skip()) {
  const auto mesh = testing::mesh_of({});
  const auto& group = mesh.world();
  const auto refused = [&](const auto& call) {
    try {
      call();
      FAIL("not refused");
    } catch (const Error& error) {
      CHECK((error.kind() == ErrorKind::plugin));
      const std::string text = error.what();
      CHECK(text.find("of 2 along replicate") != std::string::npos);
    }
  };
  refused([&] { group.all_gather(torch::ones({2, 5}), 1, {3, 4}); });
  refused([&] { group.reduce_scatter(torch::ones({2, 5}), 1, {3, 4}); });
  refused([&] { group.all_to_all(torch::ones({4, 5}), 0, {1, 1}, 1, {5, 5}); });
  refused([&] { group.all_to_all(torch::ones({4, 5}), 0, {2, 2}, 1, {3, 4}); });
  refused([&] { group.exchange(torch::ones({5}), {2, 2}, {2, 2}); });
  refused([&] { group.all_reduce(torch::ones({4, 5}).t()); });
}

TEST_CASE("what a rank would send in other lengths than agreed is its own mistake, found before it is sent") {
  CHECK(testing::as_ranks(2, "rank of: other lengths than agreed") == 0);
}

TEST_CASE("rank of: a lost peer" * doctest::skip()) {
  const GlooMesh mesh(rank_info(), {}, std::chrono::seconds(60));
  const auto& group = mesh.world();
  group.barrier();
  if (mesh.rank() == 1) ::_exit(0);
  const auto start = std::chrono::steady_clock::now();
  try {
    for (int i = 0; i < 3; ++i) group.all_reduce(torch::ones({1000}));
    FAIL("the loss was not noticed");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::distributed);
    const std::string text = error.what();
    CHECK(text.find("of 2 along replicate") != std::string::npos);
    CHECK(text.find("all_reduce of Float [1000]") != std::string::npos);
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("a lost peer is an error that names the group and the call") {
  CHECK(testing::as_ranks(2, "rank of: a lost peer") == 0);
}

TEST_CASE("rank of: a peer that hangs" * doctest::skip()) {
  const GlooMesh mesh(rank_info(), {}, std::chrono::seconds(2));
  mesh.world().barrier();
  if (mesh.rank() == 1) {
    ::sleep(6);
    ::_exit(0);
  }
  const auto start = std::chrono::steady_clock::now();
  try {
    mesh.world().all_reduce(torch::ones({10}));
    FAIL("the peer that hangs was not noticed");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::distributed);
    const std::string text = error.what();
    CHECK_MESSAGE(text.find("of 2 along replicate") != std::string::npos, text);
    CHECK_MESSAGE(text.find("all_reduce of Float [10]") != std::string::npos, text);
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
}

TEST_CASE("a peer that hangs is an error after the timeout that names the group and the call") {
  CHECK(testing::as_ranks(2, "rank of: a peer that hangs") == 0);
}

}  // namespace
}  // namespace ditto
