#include "core/mesh/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <torch/types.h>

#include "core/mesh/shared_calls.h"

namespace ditto {

using namespace shared_memory;
using torch::Tensor;

class SharedMemory::Impl final : public Calls {
 public:
  using Calls::Calls;
};

namespace {

using Impl = SharedMemory::Impl;

constexpr uint64_t kLeast = 1 << 20;         // bytes for data; with less, where a limit says so, it is not tried
constexpr uint64_t kEvenlySummed = 1 << 18;  // bytes: less is summed by every member, more by each a part

uint64_t bytes_of(const Tensor& x) { return x.nbytes(); }

const Tensor& checked(const Tensor& x) {
  TORCH_CHECK(x.is_cpu() && x.is_contiguous() && x.layout() == torch::kStrided,
              "shared memory carries contiguous CPU tensors");
  return x;
}
const Tensor& only(const std::vector<Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == 1, "one tensor a call");
  return checked(tensors[0]);
}
template <class Options>
void check_sum(const Options& options) {
  TORCH_CHECK(options.reduceOp == c10d::ReduceOp::SUM, "shared memory sums, and reduces by no other operation");
}

// What is left of a call is done by who waits for it.
class Waited final : public c10d::Work {
 public:
  Waited(c10d::OpType op, std::function<void()> rest, std::vector<Tensor> results)
      : Work(-1, op), rest_(std::move(rest)), results_(std::move(results)) {}
  bool isCompleted() override { return !rest_; }
  bool isSuccess() const override { return !rest_; }
  std::vector<Tensor> result() override { return results_; }
  bool wait(std::chrono::milliseconds) override {
    if (const auto rest = std::exchange(rest_, nullptr)) {
      RECORD_FUNCTION("shared memory: " + c10d::opTypeToString(retrieveOpType()), std::vector<c10::IValue>());
      rest();
    }
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    wait(kNoTimeout);
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(c10::IValue(results_));
    return future;
  }

 private:
  std::function<void()> rest_;
  std::vector<Tensor> results_;
};

SharedMemory::Work waited(c10d::OpType op, const std::shared_ptr<Impl>& impl, const std::shared_ptr<Call>& call,
                          std::vector<Tensor> results) {
  return c10::make_intrusive<Waited>(
      op,
      [impl, number = call->number] {
        torch::NoGradGuard no_grad;
        const std::lock_guard lock(impl->mutex);
        impl->finish(number);
      },
      std::move(results));
}

// Bytes of each member's rows.
std::vector<uint64_t> bytes_of_parts(const Tensor& x, const std::vector<int64_t>& counts, int size) {
  const auto members = static_cast<size_t>(size);
  TORCH_CHECK(counts.empty() ? x.dim() > 0 && x.size(0) % size == 0 : counts.size() == members,
              "rows are cut into a part a member");
  if (counts.empty()) return std::vector<uint64_t>(members, bytes_of(x) / members);
  TORCH_CHECK(std::accumulate(counts.begin(), counts.end(), int64_t{0}) == x.size(0), "rows of parts, and of all");
  const uint64_t row = x.size(0) == 0 ? 0 : bytes_of(x) / static_cast<uint64_t>(x.size(0));
  std::vector<uint64_t> bytes;
  for (const int64_t count : counts) bytes.push_back(row * static_cast<uint64_t>(count));
  return bytes;
}

char* data_of(const Tensor& x) { return static_cast<char*>(x.data_ptr()); }

}  // namespace

SharedMemory::SharedMemory(std::shared_ptr<Impl> impl) : Backend(impl->rank, impl->size), impl_(std::move(impl)) {}
SharedMemory::~SharedMemory() = default;

c10::intrusive_ptr<SharedMemory> SharedMemory::connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                       std::chrono::milliseconds timeout, bool spin) {
  auto impl = std::make_shared<Impl>(rank, size, timeout, spin);
  const auto key = [](const char* what, int member) { return std::string(what) + std::to_string(member); };
  const std::string here = kernel_and_processes();
  const uint64_t nonce = 1 + std::random_device()();  // not 0, as memory begins
  const uint64_t bytes = largest_segment(size);
  const File own(::memfd_create("ditto ranks", MFD_CLOEXEC));
  std::string said = "none";
  std::shared_ptr<Segment> mine;
  if (!here.empty() && own.number >= 0 && ::ftruncate(own.number, static_cast<off_t>(bytes)) == 0) try {
      mine = std::make_shared<Segment>(own.number, bytes, size);
      if (mine->bytes() < mine->data() + kLeast) fail("the memory that ranks may share is too little");
      mine->head().nonce = nonce;
      said = std::to_string(::getpid()) + " " + std::to_string(own.number) + " " + std::to_string(bytes) + " " +
             std::to_string(nonce) + " " + here;
    } catch (const c10::DistError&) {
    }
  store->set(key("memory of ", rank), said);
  bool is_one = true;
  for (int member = 0; member < size; ++member) {
    std::istringstream there(store->get_to_str(key("memory of ", member)));
    int process = 0, file = 0;
    uint64_t its_bytes = 0, its_nonce = 0;
    std::string boot, processes;
    is_one = is_one && there >> process >> file >> its_bytes >> its_nonce >> boot >> processes &&
             boot + " " + processes == here;
    if (!is_one) continue;
    const File opened(
        ::open(("/proc/" + std::to_string(process) + "/fd/" + std::to_string(file)).c_str(), O_RDWR | O_CLOEXEC));
    impl->processes.emplace_back(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
    is_one = opened.number >= 0 && impl->processes.back().number >= 0;
    if (is_one) try {
        impl->segments.push_back(member == rank ? mine : std::make_shared<Segment>(opened.number, its_bytes, size));
        is_one = impl->segments.back()->head().nonce == its_nonce;
      } catch (const c10::DistError&) {
        is_one = false;
      }
  }
  // Files are open until all have said what they found.
  store->set(key("found by ", rank), is_one ? "all" : "not all");
  for (int member = 0; member < size; ++member) is_one = store->get_to_str(key("found by ", member)) == "all" && is_one;
  if (!is_one) return {};
  impl->blocks = std::make_shared<Blocks>(mine->data(), mine->bytes());
  impl->sent.assign(static_cast<size_t>(size), 0);
  impl->next_received.assign(static_cast<size_t>(size), 1);
  return c10::intrusive_ptr<SharedMemory>::unsafe_steal_from_new(new SharedMemory(std::move(impl)));
}

SharedMemory::Work SharedMemory::allreduce(std::vector<Tensor>& tensors, const c10d::AllreduceOptions& options) {
  check_sum(options);
  const Tensor x = only(tensors);
  auto& me = *impl_;
  const std::lock_guard lock(me.mutex);
  const uint64_t bytes = bytes_of(x), chunk = me.chunk_bytes(bytes, x.element_size());
  const auto begin = [=](int index) { return std::min(bytes, chunk * static_cast<uint64_t>(index)); };
  const uint64_t at = me.copy_in(x.data_ptr(), bytes);
  const uint32_t number = me.next();
  const bool each_all = me.size == 2 || bytes < kEvenlySummed;
  std::function<void()> first, second;
  if (each_all)
    second = [=, &me] {
      const auto parts = me.all_data(number, bytes, me.mine().at(at));
      for (int i = 0; i < me.size; ++i) me.sum_chunk(data_of(x), parts, i, begin(i), begin(i + 1), x.scalar_type());
    };
  else {
    // Members read of one another's data the chunk that is theirs; their own, which they alone read, becomes the sum.
    first = [=, &me] {
      me.sum_chunk(me.mine().at(at), me.all_data(number, bytes, data_of(x)), me.rank, begin(me.rank),
                   begin(me.rank + 1), x.scalar_type());
    };
    second = [=, &me] {
      for (int i = 0; i < me.size; ++i) {
        if (i != me.rank) me.wait_for_sum(i, number);
        const char* const sum = i == me.rank ? me.mine().at(at) : me.wait_for_data(i, number, bytes);
        std::memcpy(data_of(x) + begin(i), sum + begin(i), begin(i + 1) - begin(i));
      }
    };
  }
  const auto call = me.post({Place{at, bytes}}, std::move(first), std::move(second));
  return waited(c10d::OpType::ALLREDUCE, impl_, call, {x});
}

SharedMemory::Work SharedMemory::_reduce_scatter_base(Tensor& out, Tensor& in,
                                                      const c10d::ReduceScatterOptions& options) {
  check_sum(options);
  const Tensor to = checked(out), from = checked(in);
  auto& me = *impl_;
  TORCH_CHECK(to.scalar_type() == from.scalar_type() && to.numel() * me.size == from.numel(), "a part a member");
  const std::lock_guard lock(me.mutex);
  const uint64_t bytes = bytes_of(from), part = bytes_of(to), chunk = me.chunk_bytes(bytes, from.element_size());
  const uint64_t at = me.copy_in(from.data_ptr(), bytes);
  const uint32_t number = me.next();
  const auto call = me.post({Place{at, bytes}}, nullptr, [=, &me] {
    // As an all-reduce of which a part is taken.
    const auto parts = me.all_data(number, bytes, me.mine().at(at));
    const uint64_t begin = part * static_cast<uint64_t>(me.rank), end = begin + part;
    for (uint64_t i = begin / std::max<uint64_t>(chunk, 1); i * chunk < end; ++i)
      me.sum_chunk(data_of(to) - begin, parts, static_cast<int>(i), std::max(begin, i * chunk),
                   std::min(end, (i + 1) * chunk), to.scalar_type());
  });
  return waited(c10d::OpType::_REDUCE_SCATTER_BASE, impl_, call, {to});
}

SharedMemory::Work SharedMemory::_allgather_base(Tensor& out, Tensor& in, const c10d::AllgatherOptions&) {
  const Tensor to = checked(out), from = checked(in);
  auto& me = *impl_;
  TORCH_CHECK(to.scalar_type() == from.scalar_type() && from.numel() * me.size == to.numel(), "a part a member");
  const std::lock_guard lock(me.mutex);
  const uint64_t bytes = bytes_of(from), at = me.copy_in(from.data_ptr(), bytes);
  const uint32_t number = me.next();
  std::memmove(data_of(to) + bytes * static_cast<uint64_t>(me.rank), from.data_ptr(), bytes);
  const auto call = me.post({Place{at, bytes}}, nullptr, [=, &me] {
    for (int i = 0; i < me.size; ++i)
      if (i != me.rank)
        std::memcpy(data_of(to) + bytes * static_cast<uint64_t>(i), me.wait_for_data(i, number, bytes), bytes);
  });
  return waited(c10d::OpType::_ALLGATHER_BASE, impl_, call, {to});
}

SharedMemory::Work SharedMemory::alltoall_base(Tensor& out, Tensor& in, std::vector<int64_t>& out_counts,
                                               std::vector<int64_t>& in_counts, const c10d::AllToAllOptions&) {
  const Tensor to = checked(out), from = checked(in);
  auto& me = *impl_;
  const auto send = bytes_of_parts(from, in_counts, me.size), receive = bytes_of_parts(to, out_counts, me.size);
  const auto self = static_cast<size_t>(me.rank);
  TORCH_CHECK(to.scalar_type() == from.scalar_type() && send[self] == receive[self], "a part a member");
  const std::lock_guard lock(me.mutex);
  uint64_t at = me.room(bytes_of(from) - send[self]);
  const uint32_t number = me.next();
  std::vector<Place> places;
  const char* part = data_of(from);
  for (int i = 0; i < me.size; part += send[static_cast<size_t>(i++)]) {
    const uint64_t bytes = send[static_cast<size_t>(i)];
    places.push_back({at, bytes});
    if (i == me.rank) {
      std::memcpy(data_of(to) + std::accumulate(receive.begin(), receive.begin() + me.rank, uint64_t{0}), part, bytes);
      continue;
    }
    std::memcpy(me.mine().at(at), part, bytes);
    at += bytes;
  }
  const auto call = me.post(places, nullptr, [=, &me] {
    char* place = data_of(to);
    for (int i = 0; i < me.size; place += receive[static_cast<size_t>(i++)])
      if (i != me.rank)
        std::memcpy(place, me.wait_for_data(i, number, receive[static_cast<size_t>(i)]),
                    receive[static_cast<size_t>(i)]);
  });
  return waited(c10d::OpType::ALLTOALL_BASE, impl_, call, {to});
}

SharedMemory::Work SharedMemory::broadcast(std::vector<Tensor>& tensors, const c10d::BroadcastOptions& options) {
  const Tensor x = only(tensors);
  const int root = static_cast<int>(options.rootRank);
  auto& me = *impl_;
  const std::lock_guard lock(me.mutex);
  const uint64_t bytes = bytes_of(x);
  const auto places =
      me.rank == root ? std::vector<Place>{{me.copy_in(x.data_ptr(), bytes), bytes}} : std::vector<Place>();
  const uint32_t number = me.next();
  const auto call = me.post(places, nullptr, [=, &me] {
    if (me.rank != root) std::memcpy(data_of(x), me.wait_for_data(root, number, bytes), bytes);
  });
  return waited(c10d::OpType::BROADCAST, impl_, call, {x});
}

SharedMemory::Work SharedMemory::barrier(const c10d::BarrierOptions&) {
  auto& me = *impl_;
  const std::lock_guard lock(me.mutex);
  const uint32_t number = me.next();
  const auto call = me.post({}, nullptr, [=, &me] { me.all_data(number, 0, nullptr); });
  return waited(c10d::OpType::BARRIER, impl_, call, {});
}

SharedMemory::Work SharedMemory::send(std::vector<Tensor>& tensors, int to, int tag) {
  const Tensor x = only(tensors);
  auto& me = *impl_;
  const std::lock_guard lock(me.mails);
  const uint32_t number = ++me.sent[static_cast<size_t>(to)];
  Word& received = me.of(to).received(me.rank, number);
  me.wait_for(to, [&] { return reached(received, number - kMails); });
  const uint64_t bytes = bytes_of(x);
  const uint64_t at = me.take(
      bytes, [&received, number] { return reached(received, number); }, to);
  std::memcpy(me.mine().at(at), x.data_ptr(), bytes);
  Mail& mail = me.mine().mail(to, number);
  mail.tag = tag;
  mail.place = {at, bytes};
  mail.number = number;
  me.mine().ring();
  return c10::make_intrusive<Waited>(c10d::OpType::SEND, nullptr, std::vector<Tensor>{x});
}

SharedMemory::Work SharedMemory::recv(std::vector<Tensor>& tensors, int from, int tag) {
  const Tensor x = only(tensors);
  return c10::make_intrusive<Waited>(
      c10d::OpType::RECV,
      [impl = impl_, x, from, tag] {
        auto& me = *impl;
        uint32_t& next = me.next_received[static_cast<size_t>(from)];
        const auto is_received = [&](uint32_t number) { return me.mine().received(from, number) == number; };
        const Mail* mail = nullptr;
        me.wait_for(from, [&] {
          for (uint32_t number = next; !mail && me.of(from).mail(me.rank, number).number == number; ++number)
            if (const Mail& one = me.of(from).mail(me.rank, number); one.tag == tag && !is_received(number))
              mail = &one;
          return mail != nullptr;
        });
        std::memcpy(x.data_ptr(), me.data(from, mail->place, bytes_of(x)), bytes_of(x));
        me.mine().received(from, mail->number) = mail->number.load();
        me.mine().ring();
        while (is_received(next)) ++next;
      },
      std::vector<Tensor>{x});
}

Tensor SharedMemory::allocateTensor(long numel, at::TensorOptions options) {
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  const auto is_freed = std::make_shared<std::atomic<bool>>(false);
  const uint64_t bytes = static_cast<uint64_t>(numel) * c10::elementSize(dtype);
  const uint64_t at = impl_->take(
      bytes, [is_freed] { return is_freed->load(); }, -1);
  c10::reportMemoryUsageToProfiler(impl_->mine().at(at), static_cast<int64_t>(bytes), 0, 0, at::kCPU);
  // The memory is there as long as the tensor, whatever becomes of the group.
  const auto segment = impl_->segments[static_cast<size_t>(impl_->rank)];
  return torch::from_blob(
      segment->at(at), {numel}, [segment, is_freed](void*) { *is_freed = true; }, options);
}

namespace {

class Summed final : public InPlaceSum {
 public:
  Summed(std::shared_ptr<Impl> impl, const Tensor& x) : impl_(std::move(impl)), x_(x) {
    auto& me = *impl_;
    const std::lock_guard lock(me.mutex);
    const uint64_t bytes = bytes_of(x_), width = x_.element_size(), members = static_cast<uint64_t>(me.size);
    const uint64_t piece = width * ((bytes / width + members - 1) / members);
    const auto begin = [=](int member) { return std::min(bytes, piece * static_cast<uint64_t>(member)); };
    const auto offset = data_of(x_) - me.mine().at(0);
    TORCH_CHECK(offset > 0 && static_cast<uint64_t>(offset) < me.mine().bytes(), "memory of allocateTensor");
    number_ = me.next();
    const auto parts = std::make_shared<std::vector<const char*>>();
    me.post(
        {Place{static_cast<uint64_t>(offset), bytes}},
        [=, &me, number = number_, x = x_] {
          *parts = me.all_data(number, bytes, data_of(x));
          me.sum_in_order(*parts, begin(me.rank), begin(me.rank + 1), x.scalar_type());
        },
        [=, &me, number = number_, x = x_] {
          for (int i = 0; i < me.size; ++i) {
            if (i == me.rank) continue;
            me.wait_for_sum(i, number);
            std::memcpy(data_of(x) + begin(i), (*parts)[static_cast<size_t>(i)] + begin(i), begin(i + 1) - begin(i));
          }
        });
  }
  void sum() override {
    locked([this] { impl_->halve(number_); });
  }
  void gather() override {
    locked([this] { impl_->finish(number_); });
  }
  void settle() override {
    for (int i = 0; i < impl_->size; ++i)
      if (i != impl_->rank) impl_->wait_for(i, [&] { return reached(impl_->of(i).head().read, number_); });
  }

 private:
  template <class Step>
  void locked(Step step) {
    RECORD_FUNCTION("shared memory: in-place sum", std::vector<c10::IValue>());
    torch::NoGradGuard no_grad;
    const std::lock_guard lock(impl_->mutex);
    step();
  }
  const std::shared_ptr<Impl> impl_;
  const Tensor x_;
  uint32_t number_ = 0;
};

}  // namespace

std::unique_ptr<InPlaceSum> SharedMemory::begin_sum(const Tensor& x) {
  return std::make_unique<Summed>(impl_, checked(x));
}

}  // namespace ditto
