// How calls of a group follow one another in the memory that its ranks share: each is posted, with its data, by every
// member in the same order; who has to wait does meanwhile what others wait for.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "core/mesh/shared_segment.h"

namespace ditto::shared_memory {

constexpr int64_t kBlock = 1 << 16;                     // numbers of a sum that stay in a core's cache
constexpr auto kSpin = std::chrono::microseconds(300);  // before it sleeps: most peers are as far

inline torch::Tensor numbers(const char* at, int64_t count, at::ScalarType dtype) {
  return torch::from_blob(const_cast<char*>(at), {count}, torch::dtype(dtype));
}

// A call: its first half, if it has one, makes what others wait for; its second ends it.
struct Call {
  uint32_t number = 0;
  std::function<void()> first, second;
};

// The calls of one member, and what it knows of the others'.
class Calls {
 public:
  Calls(int rank, int size, std::chrono::milliseconds timeout, bool spin)
      : rank(rank), size(size), timeout_(timeout), spin_(spin) {}

  ~Calls() {
    if (!blocks) return;
    mine().head().left = 1;
    mine().ring();
  }

  const int rank, size;
  std::vector<std::shared_ptr<Segment>> segments;  // by member
  std::vector<File> processes;                     // pidfds, by member
  std::shared_ptr<Blocks> blocks;                  // of the own segment
  std::mutex mutex;                                // of collectives; sends and receives go beside them

  Segment& mine() const { return *segments[static_cast<size_t>(rank)]; }
  Segment& of(int member) const { return *segments[static_cast<size_t>(member)]; }

  // Until `holds`, which a change of that member makes true.
  template <class Condition>
  void wait_for(int member, Condition holds) const {
    if (holds()) return;
    const Segment& there = of(member);
    const auto began = Clock::now();
    while (spin_ && Clock::now() - began < kSpin)
      for (int i = 0; i < 64; ++i) {
        if (holds()) return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
    auto looked = began;
    while (true) {
      const uint32_t bell = there.head().bell;
      const bool left = there.head().left;
      if (holds()) return;
      if (left) fail("rank " + std::to_string(member) + " of the group has left");
      const auto now = Clock::now();
      if (now - began > timeout_)
        fail("timed out after " + std::to_string(timeout_.count()) + " ms waiting for rank " + std::to_string(member) +
             " of the group");
      if (now - looked > kLook / 2) {
        looked = now;
        pollfd process{processes[static_cast<size_t>(member)].number, POLLIN, 0};
        if (::poll(&process, 1, 0) > 0 && !holds())
          fail("the process of rank " + std::to_string(member) + " of the group has ended");
      }
      there.sleep(bell);
    }
  }

  uint64_t take(uint64_t bytes, const std::function<bool()>& is_read, int reader) {
    std::optional<uint64_t> at;
    if (bytes > mine().bytes() - mine().data())
      fail(
          "a tensor is larger than the memory that ranks may share (this machine's, or the limit of a file: ulimit "
          "-f)");
    const auto is_there = [&] { return (at = blocks->take(bytes, is_read)).has_value(); };
    for (int member = 0; !is_there() && member < size; ++member)  // memory is full: they have to read
      if (member != rank && (reader < 0 || member == reader)) wait_for(member, is_there);
    if (!at) fail("the memory that ranks share is full");
    return *at;
  }

  // This one, too: of sums it reads its own data when the others may be further.
  bool all_have_read(uint32_t call) const {
    for (int member = 0; member < size; ++member)
      if (!reached(of(member).head().read, call)) return false;
    return true;
  }

  // Under `mutex`, as all that follows. The call's data at `places`, one a reader; the last one's is all readers'.
  std::shared_ptr<Call> post(const std::vector<Place>& places, std::function<void()> first,
                             std::function<void()> second) {
    const uint32_t number = next();
    for (int member = 0; member < size; ++member) {  // the place of the call that had this slot
      if (member == rank) continue;
      wait_for(member, [&] { return reached(of(member).head().read, number - kCalls); });
      mine().place(number, member) =
          places.empty() ? Place{} : places[std::min(places.size() - 1, static_cast<size_t>(member))];
    }
    auto call = std::make_shared<Call>(Call{number, std::move(first), std::move(second)});
    pending_.push_back(call);
    ++posted_;
    mine().head().posted = number;
    mine().ring();
    return call;
  }
  uint32_t next() {
    // Who is far ahead reads first, so that the others can go on.
    while (pending_.size() > kCalls / 2) finish(pending_.front()->number);
    return posted_ + 1;
  }
  // Room for the next call's data, until the others have read it.
  uint64_t room(uint64_t bytes) {
    return take(
        bytes, [this, number = next()] { return all_have_read(number); }, -1);
  }
  // The next call's data, the same for all others.
  uint64_t copy_in(const void* from, uint64_t bytes) {
    const uint64_t at = room(bytes);
    std::memcpy(mine().at(at), from, bytes);
    return at;
  }

  void halve(uint32_t number) {
    for (const auto& call : pending_) {
      if (!reached(number, call->number)) return;
      if (!call->first) continue;
      run(std::exchange(call->first, nullptr));
      mine().head().summed = call->number;
      mine().ring();
    }
  }
  void finish(uint32_t number) {
    halve(number);
    while (!pending_.empty() && reached(number, pending_.front()->number)) {
      const auto call = pending_.front();
      run(call->second);
      pending_.pop_front();
      mine().head().read = call->number;
      mine().ring();
    }
  }
  // What follows a half that failed has no data to go by.
  void run(const std::function<void()>& half) {
    if (failed_) fail("an earlier call of this group has failed");
    failed_ = true;
    half();
    failed_ = false;
  }

  const char* data(int member, const Place& place, uint64_t bytes) const {
    if (place.bytes != bytes || place.at > of(member).bytes() || bytes > of(member).bytes() - place.at)
      fail("rank " + std::to_string(member) + " of the group sends " + std::to_string(place.bytes) + " bytes where " +
           std::to_string(bytes) + " bytes are expected");
    return of(member).at(place.at);
  }
  // What that call of a member has for this one.
  const char* wait_for_data(int member, uint32_t number, uint64_t bytes) const {
    wait_for(member, [&] { return reached(of(member).head().posted, number); });
    return data(member, of(member).place(number, rank), bytes);
  }
  void wait_for_sum(int member, uint32_t number) const {
    wait_for(member, [&] { return reached(of(member).head().summed, number); });
  }

  // What that call of each member has for this one, which has `own` itself.
  std::vector<const char*> all_data(uint32_t number, uint64_t bytes, const char* own) const {
    std::vector<const char*> all;
    for (int member = 0; member < size; ++member)
      all.push_back(member == rank ? own : wait_for_data(member, number, bytes));
    return all;
  }

  // Bytes [begin, end) of the sum, as chunk `index` goes round a ring: from member index - 1 by falling rank to member
  // `index`. `out` is none of the parts.
  void sum_chunk(char* out, const std::vector<const char*>& parts, int index, uint64_t begin, uint64_t end,
                 at::ScalarType dtype) const {
    const auto width = static_cast<uint64_t>(c10::elementSize(dtype));
    const auto part = [&](int step) { return parts[static_cast<size_t>((index - 1 - step + 2 * size) % size)]; };
    for (uint64_t at = begin; at < end; at += kBlock * width) {
      const auto count = static_cast<int64_t>((std::min(end, at + kBlock * width) - at) / width);
      auto sum = numbers(out + at, count, dtype);
      torch::add_out(sum, numbers(part(0) + at, count, dtype), numbers(part(1) + at, count, dtype));
      for (int step = 2; step < size; ++step) sum.add_(numbers(part(step) + at, count, dtype));
    }
  }
  // How Gloo (gloo/allreduce.cc, ring) cuts numbers into a chunk a member: segments of at most 1 MiB, at least two of a
  // member.
  uint64_t chunk_bytes(uint64_t bytes, uint64_t width) const {
    constexpr uint64_t kSegment = 1 << 20;
    const auto members = static_cast<uint64_t>(size);
    const uint64_t longest = width * std::max<uint64_t>(1, kSegment / width);
    const uint64_t segments = round_up(std::max((bytes + longest - 1) / longest, 2 * members), members);
    return segments / members * round_up((bytes + segments - 1) / segments, width);
  }

  // Bytes [begin, end) in the order of members, into the own part.
  void sum_in_order(const std::vector<const char*>& parts, uint64_t begin, uint64_t end, at::ScalarType dtype) const {
    const auto width = static_cast<uint64_t>(c10::elementSize(dtype));
    const auto before = rank < 2 ? torch::Tensor() : torch::empty({kBlock}, dtype);
    for (uint64_t at = begin; at < end; at += kBlock * width) {
      const auto count = static_cast<int64_t>((std::min(end, at + kBlock * width) - at) / width);
      const auto part = [&](int member) { return numbers(parts[static_cast<size_t>(member)] + at, count, dtype); };
      auto own = part(rank);
      auto sum = rank < 2 ? own : before.narrow(0, 0, count);
      torch::add_out(sum, part(0), part(1));
      for (int member = 2; member < rank; ++member) sum.add_(part(member));
      if (rank >= 2) torch::add_out(own, sum, own);
      for (int member = std::max(rank + 1, 2); member < size; ++member) own.add_(part(member));
    }
  }

  std::mutex mails;                           // that are sent
  std::vector<uint32_t> sent, next_received;  // by member: the last number; the first that has not come

 private:
  const std::chrono::milliseconds timeout_;
  const bool spin_;
  std::deque<std::shared_ptr<Call>> pending_;
  uint32_t posted_ = 0;
  bool failed_ = false;
};

}  // namespace ditto::shared_memory
