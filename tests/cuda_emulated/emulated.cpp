#include "emulated.h"

#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#if defined(EMULATED_TSAN)
#include <sanitizer/tsan_interface.h>
#elif defined(EMULATED_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulated {

namespace {

constexpr std::size_t kStack = 128 << 10, kMostShared = 227 << 10;
constexpr int kWarp = 32, kMostThreads = 1024;

// A stack that code runs on, and where it stands while another one runs.
struct Track {
  void* stands[5];     // __builtin_setjmp's
  void* known_as;      // to ThreadSanitizer; to AddressSanitizer what it keeps of the stack meanwhile
  const void* bottom;  // of the stack, as is its size
  std::size_t size;
};

// What sanitizers are told; elsewhere nothing.
#if defined(EMULATED_TSAN)
void* own_name() { return __tsan_get_current_fiber(); }
void* new_name() { return __tsan_create_fiber(0); }
void leaves(Track&, Track& to) { __tsan_switch_to_fiber(to.known_as, __tsan_switch_to_fiber_no_sync); }
void arrives(Track&, Track&) {}
void release(std::uint64_t* what) { __tsan_release(what); }
void acquire(std::uint64_t* what) { __tsan_acquire(what); }
#else
void* own_name() { return nullptr; }
void* new_name() { return nullptr; }
#if defined(EMULATED_ASAN)
void leaves(Track& own, Track& to) { __sanitizer_start_switch_fiber(&own.known_as, to.bottom, to.size); }
void arrives(Track& own, Track& from) { __sanitizer_finish_switch_fiber(own.known_as, &from.bottom, &from.size); }
#else
void leaves(Track&, Track&) {}
void arrives(Track&, Track&) {}
#endif
void release(std::uint64_t*) {}
void acquire(std::uint64_t*) {}
#endif

// GCC's own jumps: registers alone, where swapcontext asks the system for the signals' mask each time.
[[gnu::noinline]] void go_on(Track& to) { __builtin_longjmp(to.stands, 1); }
// Returns once something changes to `own`.
[[gnu::noinline]] void change(Track& own, Track& to) {
  leaves(own, to);
  if (__builtin_setjmp(own.stands) == 0) go_on(to);
  arrives(own, to);
}

// The same to a stack that nothing has run on yet.
[[gnu::noinline]] void begin(Track& own, Track& to, const ucontext_t& context) {
  leaves(own, to);
  if (__builtin_setjmp(own.stands) == 0) setcontext(&context);
  arrives(own, to);
}

enum class State { runs, waits_for_block, waits_for_warp, done };

// A thread of the block that runs. Kept from launch to launch, as its stack is dear to make.
struct Fiber {
  Track track{};
  Place place{};
  State state = State::done;
  std::uint32_t given[2] = {};  // to exchanges, in turn: who reads the first has left it when a second is over
  int turn = 0;
  std::unique_ptr<char[]> stack;
};

// Of the thread that launches: each GPU may have one.
struct Crew {
  Track scheduler{};
  std::vector<Fiber> fibers = std::vector<Fiber>(kMostThreads);
};
thread_local Crew crew;

[[noreturn]] void fail(const char* why) {
  std::fprintf(stderr, "emulated: %s\n", why);
  std::abort();
}

void begin_fiber();

// Lets a fiber run until it waits; its first time on a stack of its own.
void go_into(Fiber& fiber) {
  if (fiber.stack) return change(crew.scheduler, fiber.track);
  fiber.stack.reset(new char[kStack]);
  fiber.track = {{}, new_name(), fiber.stack.get(), kStack};
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.get();
  context.uc_stack.ss_size = kStack;
  makecontext(&context, begin_fiber, 0);
  begin(crew.scheduler, fiber.track, context);
}

class Machine {
 public:
  Machine(const Launch& launch, const std::function<void()>& body, unsigned order)
      : launch_(launch),
        body_(body),
        fibers_(crew.fibers.data(), static_cast<std::size_t>(launch.threads)),
        random_(order),
        shuffled_(order != 0),
        barriers_(static_cast<std::size_t>(launch.blocks_x * launch.blocks_y)),
        shared_(barriers_.size(), std::vector<char>(launch.shared, static_cast<char>(0xff))) {}

  void run() {
    crew.scheduler.known_as = own_name();
    release(&begun_);
    for (const auto block : in_order(barriers_.size())) {
      begin(block);
      while (step()) {
      }
    }
    acquire(&ended_);
  }

  Fiber& now() { return *now_; }
  char* shared() { return shared_[block_].data(); }
  void barrier() {
    std::uint64_t* const own = &barriers_[block_];
    release(own);
    wait(State::waits_for_block);
    acquire(own);
  }
  // All of a warp have given, once it returns.
  int give(std::uint32_t mine) {
    const int turn = now_->turn;
    now_->turn ^= 1;
    now_->given[turn] = mine;
    wait(State::waits_for_warp);
    return turn;
  }
  std::uint32_t given(int lane, int turn) const {
    return fibers_[static_cast<std::size_t>((now_->place.thread & ~(kWarp - 1)) + lane)].given[turn];
  }
  // A thread of a block. It returns in another block's time, or another launch's, as one that begins.
  void work() {
    acquire(&begun_);
    body_();
    release(&ended_);
    wait(State::done);
  }

 private:
  void wait(State state) {
    now_->state = state;
    change(now_->track, crew.scheduler);
  }

  std::vector<std::size_t> in_order(std::size_t count) {
    std::vector<std::size_t> turns(count);
    std::iota(turns.begin(), turns.end(), std::size_t{0});
    if (shuffled_) std::shuffle(turns.begin(), turns.end(), random_);
    return turns;
  }

  void begin(std::size_t block) {
    block_ = block;
    const auto across = static_cast<std::size_t>(launch_.blocks_x);
    for (std::size_t i = 0; i < fibers_.size(); ++i) {
      Fiber& fiber = fibers_[i];
      fiber.place = {static_cast<int>(i), launch_.threads, static_cast<int>(block % across),
                     static_cast<int>(block / across), static_cast<int>(launch_.blocks_x)};
      fiber.state = State::runs;
      fiber.turn = 0;
    }
  }

  // Lets every fiber that can run do so once, and wakes those whose wait is over. False when all are done.
  bool step() {
    bool ran = false;
    for (const auto i : in_order(fibers_.size())) {
      if (fibers_[i].state != State::runs) continue;
      ran = true;
      now_ = &fibers_[i];
      go_into(*now_);
    }
    const auto all = [](auto first, auto last, State state) {
      return std::all_of(first, last, [state](const Fiber& f) { return f.state == state; });
    };
    if (all(fibers_.begin(), fibers_.end(), State::done)) return false;
    bool woken = false;
    const auto wake = [&woken](auto first, auto last) {
      std::for_each(first, last, [](Fiber& f) { f.state = State::runs; });
      woken = true;
    };
    for (auto warp = fibers_.begin(); warp != fibers_.end(); warp += kWarp)
      if (all(warp, warp + kWarp, State::waits_for_warp)) wake(warp, warp + kWarp);
    if (all(fibers_.begin(), fibers_.end(), State::waits_for_block)) wake(fibers_.begin(), fibers_.end());
    if (!ran && !woken) fail("threads wait for others that never come: not all reach a barrier or an exchange");
    return true;
  }

  const Launch& launch_;
  const std::function<void()>& body_;
  std::span<Fiber> fibers_;
  std::mt19937 random_;
  bool shuffled_;
  std::vector<std::uint64_t> barriers_;    // one a block, whose address ThreadSanitizer knows it by
  std::vector<std::vector<char>> shared_;  // all blocks', as none may see another's: nans, whatever they are read as
  std::size_t block_ = 0;
  std::uint64_t begun_ = 0, ended_ = 0;
  Fiber* now_ = nullptr;
};

thread_local Machine* machine = nullptr;
unsigned order_of_all = 0;
std::atomic<std::uint64_t> launched{0};

void begin_fiber() {
  arrives(machine->now().track, crew.scheduler);
  for (;;) machine->work();
}

}  // namespace

const Place& here() { return machine->now().place; }
char* shared() { return machine->shared(); }
void barrier() { machine->barrier(); }
std::uint32_t exchange(std::uint32_t mine, int from_lane) {
  const int turn = machine->give(mine);
  return machine->given(from_lane, turn);
}
std::uint32_t ballot(bool yes) {
  const int turn = machine->give(yes);
  std::uint32_t bits = 0;
  for (int lane = 0; lane < kWarp; ++lane) bits |= machine->given(lane, turn) << lane;
  return bits;
}

void set_order(unsigned order) { order_of_all = order; }
std::uint64_t launches() { return launched; }

void run(const Launch& launch, const std::function<void()>& body) {
  if (launch.threads <= 0 || launch.threads % kWarp != 0 || launch.threads > kMostThreads ||
      launch.shared > kMostShared || launch.blocks_x > INT32_MAX || launch.blocks_y > 65535)
    fail("no GPU launches this: its threads, its shared memory or its grid");
  ++launched;
  if (launch.blocks_x <= 0 || launch.blocks_y <= 0) return;
  const Memory memory(launch.stream);
  Machine one(launch, body, order_of_all);
  machine = &one;
  one.run();
  machine = nullptr;
}

}  // namespace emulated
