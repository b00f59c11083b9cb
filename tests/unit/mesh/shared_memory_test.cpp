// Claim (layouts): The transport of ranks on one machine, beside Gloo's: the same results, to the bit.
#include "core/mesh/shared_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <numeric>

#include <doctest/doctest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "tests/unit/ranks.h"

namespace ditto {
namespace {

using testing::numbers;
using torch::Tensor;
using Backend = c10::intrusive_ptr<c10d::Backend>;

c10::intrusive_ptr<SharedMemory> shared(const GlooMesh& mesh, const std::string& name,
                                        std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>(name, mesh.store());
  return SharedMemory::connect(store, mesh.rank(), mesh.world_size(), timeout, false);
}

Backend gloo(const GlooMesh& mesh) {
  const auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(30));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  options->threads = 1;
  const auto store = c10::make_intrusive<c10d::PrefixStore>("gloo", mesh.store());
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, mesh.rank(), mesh.world_size(), options);
}

bool equal_bits(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         torch::equal(a.contiguous().view(-1).view(torch::kByte), b.contiguous().view(-1).view(torch::kByte));
}

// What each call gives on this rank.
std::vector<Tensor> results(c10d::Backend& backend, int64_t numel, at::ScalarType dtype) {
  const int rank = backend.getRank(), n = backend.getSize();
  const auto mine = [&](int64_t count, int seed) { return numbers({count}, 100 * seed + rank, dtype); };
  std::vector<Tensor> all;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  std::vector<Tensor> sum{mine(numel, 1)};
  works.push_back(backend.allreduce(sum));
  all.push_back(sum[0]);

  Tensor in = mine(numel * n, 2), out = torch::empty({numel}, dtype);
  works.push_back(backend._reduce_scatter_base(out, in));
  all.push_back(out);

  Tensor part = mine(numel, 3), gathered = torch::empty({numel * n}, dtype);
  works.push_back(backend._allgather_base(gathered, part));
  all.push_back(gathered);

  // Rank r sends r + i rows to member i, and none from 0 to itself.
  std::vector<int64_t> counts;
  for (int i = 0; i < n; ++i) counts.push_back(rank + i);
  const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  Tensor given = mine(rows * numel, 4).view({rows, numel}), received = torch::empty_like(given);
  auto send = counts, receive = counts;
  works.push_back(backend.alltoall_base(received, given, receive, send));
  all.push_back(received);
  std::vector<int64_t> even;
  Tensor rows_in = mine(n * numel, 5).view({n, numel}), rows_out = torch::empty_like(rows_in);
  works.push_back(backend.alltoall_base(rows_out, rows_in, even, even));
  all.push_back(rows_out);

  for (int root = 0; root < n; ++root) {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<Tensor> word{mine(numel, 6 + root)};
    works.push_back(backend.broadcast(word, options));
    all.push_back(word[0]);
  }
  // Waited for in another order than asked for, and the first of them twice.
  for (auto work = works.rbegin(); work != works.rend(); ++work) (*work)->wait();
  works[0]->wait();

  // Round a ring; the second comes first.
  std::vector<Tensor> first{mine(numel, 20)}, second{mine(numel + 1, 21)}, one{torch::empty({numel}, dtype)},
      other{torch::empty({numel + 1}, dtype)};
  const int to = (rank + 1) % n, from = (rank + n - 1) % n;
  const auto sent = backend.send(first, to, 7), sent_too = backend.send(second, to, 8);
  backend.recv(other, from, 8)->wait();
  backend.recv(one, from, 7)->wait();
  sent->wait();
  sent_too->wait();
  all.push_back(one[0]);
  all.push_back(other[0]);
  backend.barrier()->wait();
  return all;
}

void check_against_gloo(const GlooMesh& mesh) {
  const auto other = gloo(mesh);
  const auto memory = shared(mesh, "shared");
  REQUIRE(memory);
  // Of up to 1000 numbers every rank sums all, of 70,001 each of three a part.
  for (const int64_t numel : {1, 3, 1000, 70001})
    for (const auto dtype :
         {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf, torch::kLong, torch::kByte}) {
      if (numel > 1000 && dtype != torch::kFloat) continue;
      const auto expected = results(*other, numel, dtype), found = results(*memory, numel, dtype);
      for (size_t i = 0; i < expected.size(); ++i) {
        CAPTURE(i);
        CAPTURE(numel);
        CAPTURE(dtype);
        CHECK(equal_bits(expected[i], found[i]));
      }
    }
  // Gloo cuts these into more segments than two a rank.
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(mesh.rank()));
  std::vector<Tensor> expected{torch::rand({2300003}, generator)}, found{expected[0].clone()};
  other->allreduce(expected)->wait();
  memory->allreduce(found)->wait();
  CHECK(equal_bits(expected[0], found[0]));
}

void check_sums_in_place(const GlooMesh& mesh) {
  const auto memory = shared(mesh, "in place");
  REQUIRE(memory);
  const int rank = mesh.rank(), n = mesh.world_size();
  for (const int64_t numel : {1, 5, 200003}) {
    std::vector<Tensor> mine;
    std::vector<std::unique_ptr<InPlaceSum>> sums;
    for (int step = 0; step < 2; ++step) mine.push_back(memory->allocateTensor(numel, torch::kFloat));
    for (int round = 0; round < 3; ++round) {  // in the same memory
      for (int step = 0; step < 2; ++step) {
        mine[step].copy_(numbers({numel}, 100 * round + 10 * step + rank));
        sums.push_back(memory->begin_sum(mine[step]));
        if (step > 0) sums[step - 1]->sum();
      }
      sums.back()->sum();
      for (const auto& sum : sums) sum->gather();
      sums.back()->settle();
      sums.clear();
      for (int step = 0; step < 2; ++step) {
        Tensor expected = numbers({numel}, 100 * round + 10 * step);
        for (int i = 1; i < n; ++i) expected = expected + numbers({numel}, 100 * round + 10 * step + i);
        CHECK(testing::same_bits(mine[step], expected));
      }
    }
  }
}

// A rank that is ahead waits for nobody, until it would write over what others have not read.
void check_ahead(const GlooMesh& mesh) {
  const auto memory = shared(mesh, "ahead");
  REQUIRE(memory);
  const int rank = mesh.rank(), n = mesh.world_size(), to = (rank + 1) % n, from = (rank + n - 1) % n;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  std::vector<Tensor> sums;
  for (int i = 0; i < 200; ++i) {
    sums.push_back(torch::full({5}, rank + i));
    std::vector<Tensor> list{sums.back()};
    works.push_back(memory->allreduce(list));
    std::vector<Tensor> mail{torch::full({3}, 10 * rank + i)};
    memory->send(mail, to, i);
  }
  for (const auto& work : works) work->wait();
  for (int i = 0; i < 200; ++i) {
    CHECK(sums[i].eq(n * i + n * (n - 1) / 2).all().item<bool>());
    std::vector<Tensor> mail{torch::zeros({3}, torch::kLong)};
    memory->recv(mail, from, i)->wait();
    CHECK(mail[0].eq(10 * from + i).all().item<bool>());
  }
}

TEST_CASE("rank of: shared memory" * doctest::skip()) {
  const auto mesh = testing::mesh_of({});
  CHECK(mesh.world().transport()->getBackend(torch::kCPU)->getBackendName() == "shared memory");
  check_against_gloo(mesh);
  check_sums_in_place(mesh);
  check_ahead(mesh);
}

TEST_CASE("shared memory gives Gloo's bits, sums in place in the order of ranks, and lets ranks be ahead") {
  for (const int ranks : {2, 3, 4}) CHECK(testing::as_ranks(ranks, "rank of: shared memory") == 0);
}

// A file that may not grow so far would end who writes to it: all ranks go another way.
TEST_CASE("rank of: a limit of files" * doctest::skip()) {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto mesh = testing::mesh_of({});
  for (const rlim_t limit : {rlim_t{4} << 10, rlim_t{16} << 10, rlim_t{128} << 10}) {
    if (mesh.rank() == 1) {
      const rlimit little{limit, before.rlim_max};
      REQUIRE(::setrlimit(RLIMIT_FSIZE, &little) == 0);
    }
    CHECK_FALSE(shared(mesh, "little" + std::to_string(limit)));
  }
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(shared(mesh, "enough"));
}

TEST_CASE("ranks of which one may write only small files share no memory") {
  CHECK(testing::as_ranks(2, "rank of: a limit of files") == 0);
}

std::string failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::DistBackendError& error) {
    return error.what_without_backtrace();
  }
  return "no failure";
}

TEST_CASE("rank of: peers that do not answer" * doctest::skip()) {
  const auto mesh = testing::mesh_of({});
  const auto patient = shared(mesh, "patient"), hasty = shared(mesh, "hasty", std::chrono::milliseconds(300));
  auto closed = shared(mesh, "closed");
  REQUIRE((patient && hasty && closed));
  if (mesh.rank() == 0) {  // the others do not join in
    CHECK(failure_of([&] { hasty->barrier()->wait(); }) == "timed out after 300 ms waiting for rank 1 of the group");
    mesh.store()->set("waited", "");
    CHECK(failure_of([&] { closed->barrier()->wait(); }).find("has left") != std::string::npos);
    mesh.store()->set("seen", "");
    std::vector<Tensor> sum{torch::ones({1000})};
    const auto began = std::chrono::steady_clock::now();
    CHECK(failure_of([&] { patient->allreduce(sum)->wait(); }) == "the process of rank 1 of the group has ended");
    CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(5));
    return;
  }
  mesh.store()->wait({"waited"});
  closed.reset();
  mesh.store()->wait({"seen"});
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  mesh.store()->add("left", 1);
  ::_exit(0);
}

TEST_CASE("a peer that hangs, has left or died is found") {
  CHECK(testing::as_ranks(2, "rank of: peers that do not answer") == 0);
}

TEST_CASE("rank of: an all-reduce of other lengths" * doctest::skip()) {
  const auto mesh = testing::mesh_of({});
  const auto memory = shared(mesh, "shared");
  REQUIRE(memory);
  std::vector<Tensor> x{torch::ones({mesh.rank() + 1})};
  CHECK(failure_of([&] { memory->allreduce(x)->wait(); }).find("bytes are expected") != std::string::npos);
}

TEST_CASE("a member that sends another length than the others is an error") {
  CHECK(testing::as_ranks(2, "rank of: an all-reduce of other lengths") == 0);
}

}  // namespace
}  // namespace ditto
