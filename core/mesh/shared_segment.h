// The memory that ranks of one machine share: of each rank a file without a name, mapped by all, and where its parts
// lie.
#pragma once

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

namespace ditto::shared_memory {

using Clock = std::chrono::steady_clock;
using Word = std::atomic<uint32_t>;
static_assert(Word::is_always_lock_free);

constexpr uint32_t kCalls = 64;   // of which a member may be ahead of the others
constexpr uint32_t kMails = 256;  // from one member to another, that have not been received
constexpr uint64_t kLine = 64;
constexpr auto kLook = std::chrono::milliseconds(100);  // whether who is waited for lives

inline uint64_t round_up(uint64_t x, uint64_t to) { return (x + to - 1) / to * to; }

// Numbers of calls are compared as what is newer; they may run over.
inline bool reached(uint32_t now, uint32_t what) { return static_cast<int32_t>(now - what) >= 0; }

[[noreturn]] inline void fail(const std::string& what) { C10_THROW_ERROR(DistBackendError, what); }

struct Place {
  uint64_t at = 0, bytes = 0;
};

// What a member tells the others. Only the bell's sleepers, and what has been received, are written by others.
struct Head {
  std::atomic<uint64_t> nonce;
  Word bell, sleepers;  // counts what has changed here; who waits for a change
  Word posted;          // the last call whose data are there
  Word summed;          // the last call whose sum, of this member's part, is there
  Word read;            // the last call whose data from others this member has read
  Word left;            // this member makes no more calls
};
struct Mail {
  Word number;
  int32_t tag;
  Place place;
};

// A member's memory as this process sees it. Places are offsets into it.
class Segment {
 public:
  Segment(int file, uint64_t bytes, int members) : bytes_(bytes), members_(static_cast<uint64_t>(members)) {
    void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (address == MAP_FAILED) fail("the memory that ranks share cannot be mapped");
    begin_ = static_cast<char*>(address);
    ::madvise(begin_, bytes, MADV_DONTDUMP);
  }
  ~Segment() { ::munmap(begin_, bytes_); }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  Head& head() const { return *reinterpret_cast<Head*>(begin_); }
  Place& place(uint32_t call, int reader) const {  // what a call has for a reader
    return reinterpret_cast<Place*>(begin_ + places())[call % kCalls * members_ + static_cast<uint64_t>(reader)];
  }
  Mail& mail(int to, uint32_t number) const {
    return reinterpret_cast<Mail*>(begin_ + mails())[static_cast<uint64_t>(to) * kMails + number % kMails];
  }
  Word& received(int from, uint32_t number) const {  // the last one that came to this slot
    return reinterpret_cast<Word*>(begin_ + receipts())[static_cast<uint64_t>(from) * kMails + number % kMails];
  }
  char* at(uint64_t place) const { return begin_ + place; }
  uint64_t bytes() const { return bytes_; }
  uint64_t data() const { return round_up(receipts() + members_ * kMails * sizeof(Word), 1 << 12); }

  void ring() const {
    head().bell.fetch_add(1);
    if (head().sleepers.load() > 0) ::syscall(SYS_futex, &head().bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  void sleep(uint32_t bell) const {
    const timespec time{0, std::chrono::nanoseconds(kLook).count()};
    ++head().sleepers;
    ::syscall(SYS_futex, &head().bell, FUTEX_WAIT, bell, &time, nullptr, 0);
    --head().sleepers;
  }

 private:
  static uint64_t places() { return round_up(sizeof(Head), kLine); }
  uint64_t mails() const { return places() + kCalls * members_ * sizeof(Place); }
  uint64_t receipts() const { return mails() + members_ * kMails * sizeof(Mail); }

  uint64_t bytes_, members_;
  char* begin_;
};

// Parts of this member's segment, the first that is free: so pages are used again while they are warm.
class Blocks {
 public:
  Blocks(uint64_t begin, uint64_t end) : begin_(begin), end_(end) {}
  // `is_read`: whether a block is needed no more. Nothing where no part is as long.
  std::optional<uint64_t> take(uint64_t bytes, std::function<bool()> is_read) {
    const std::lock_guard lock(mutex_);
    std::erase_if(used_, [](const Block& block) { return block.is_read(); });
    bytes = round_up(std::max<uint64_t>(bytes, 1), kLine);
    uint64_t at = begin_;
    auto next = used_.begin();
    while (next != used_.end() && next->at - at < bytes) at = (next++)->end;
    if (end_ - at < bytes) return {};
    used_.insert(next, {at, at + bytes, std::move(is_read)});
    return at;
  }

 private:
  struct Block {
    uint64_t at, end;
    std::function<bool()> is_read;
  };
  const uint64_t begin_, end_;
  std::mutex mutex_;
  std::vector<Block> used_;  // by place
};

struct File {
  int number = -1;
  explicit File(int n = -1) : number(n) {}
  File(File&& other) noexcept : number(std::exchange(other.number, -1)) {}
  ~File() {
    if (number >= 0) ::close(number);
  }
};

// Processes that have this in common can open one another's files, if they may.
inline std::string kernel_and_processes() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char names[64] = {};
  return boot.empty() || ::readlink("/proc/self/ns/pid", names, sizeof names - 1) < 0 ? "" : boot + " " + names;
}

// More than a run can need; no page of it is taken before it is used.
inline uint64_t largest_segment(int members) {
  constexpr uint64_t kAddresses = uint64_t{1} << 40;  // for the members' segments side by side
  uint64_t bytes = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0) bytes = std::min<uint64_t>(bytes, limit.rlim_cur);
  return std::min(bytes, kAddresses / static_cast<uint64_t>(members)) / 4096 * 4096;
}

}  // namespace ditto::shared_memory
