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
#include <vector>

#if defined(EMULATED_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace emulated {

namespace {

constexpr std::size_t kStack = 128 << 10, kMostShared = 227 << 10;
constexpr int kWarp = 32, kMostThreads = 1024;

// What ThreadSanitizer is told; elsewhere nothing.
#if defined(EMULATED_TSAN)
void* own_fiber() { return __tsan_get_current_fiber(); }
void* new_fiber() { return __tsan_create_fiber(0); }
void switch_to(void* fiber) { __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync); }
void release(std::uint64_t* what) { __tsan_release(what); }
void acquire(std::uint64_t* what) { __tsan_acquire(what); }
#else
void* own_fiber() { return nullptr; }
void* new_fiber() { return nullptr; }
void switch_to(void*) {}
void release(std::uint64_t*) {}
void acquire(std::uint64_t*) {}
#endif

enum class State { runs, waits_for_block, waits_for_warp, done };

struct Fiber {
  ucontext_t context;
  Place place;
  State state;
  std::uint32_t given[2];  // to exchanges, in turn: who reads the first has left it when a second is over
  int turn;
  void* known_as;
};

// What a fiber runs on: kept from launch to launch, as it is dear to make.
struct Seat {
  std::unique_ptr<char[]> stack{new char[kStack]};
  void* known_as = new_fiber();
};
Seat& seat_of(std::size_t thread) {
  thread_local std::vector<std::unique_ptr<Seat>> seats(kMostThreads);
  if (!seats[thread]) seats[thread] = std::make_unique<Seat>();
  return *seats[thread];
}

[[noreturn]] void fail(const char* why) {
  std::fprintf(stderr, "emulated: %s\n", why);
  std::abort();
}

class Machine {
 public:
  Machine(const Launch& launch, const std::function<void()>& body, unsigned order)
      : launch_(launch),
        body_(body),
        fibers_(static_cast<std::size_t>(launch.threads)),
        random_(order),
        shuffled_(order != 0),
        barriers_(static_cast<std::size_t>(launch.blocks_x * launch.blocks_y)),
        shared_(barriers_.size(), std::vector<char>(launch.shared, static_cast<char>(0xff))) {}

  void run() {
    own_ = own_fiber();
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
  void wait(State state) {
    now_->state = state;
    switch_to(own_);
    swapcontext(&now_->context, &scheduler_);
  }
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
  void work() {
    acquire(&begun_);
    body_();
    release(&ended_);
    wait(State::done);
  }

 private:
  std::vector<std::size_t> in_order(std::size_t count) {
    std::vector<std::size_t> turns(count);
    std::iota(turns.begin(), turns.end(), std::size_t{0});
    if (shuffled_) std::shuffle(turns.begin(), turns.end(), random_);
    return turns;
  }

  void begin(std::size_t block);

  // Lets every fiber that can run do so once, and wakes those whose wait is over. False when all are done.
  bool step() {
    bool ran = false;
    for (const auto i : in_order(fibers_.size())) {
      if (fibers_[i].state != State::runs) continue;
      ran = true;
      now_ = &fibers_[i];
      switch_to(now_->known_as);
      swapcontext(&scheduler_, &now_->context);
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
  std::vector<Fiber> fibers_;
  std::mt19937 random_;
  bool shuffled_;
  std::vector<std::uint64_t> barriers_;    // one a block, whose address ThreadSanitizer knows it by
  std::vector<std::vector<char>> shared_;  // all blocks', as none may see another's: nans, whatever they are read as
  std::size_t block_ = 0;
  std::uint64_t begun_ = 0, ended_ = 0;
  ucontext_t scheduler_;
  void* own_ = nullptr;
  Fiber* now_ = nullptr;
};

thread_local Machine* machine = nullptr;  // of the thread that launched: each GPU may have one
unsigned order_of_all = 0;
std::atomic<std::uint64_t> launched{0};

void begin_fiber() { machine->work(); }

void Machine::begin(std::size_t block) {
  block_ = block;
  const auto across = static_cast<std::size_t>(launch_.blocks_x);
  for (std::size_t i = 0; i < fibers_.size(); ++i) {
    Fiber& fiber = fibers_[i];
    fiber.place = {static_cast<int>(i), launch_.threads, static_cast<int>(block % across),
                   static_cast<int>(block / across), static_cast<int>(launch_.blocks_x)};
    fiber.state = State::runs;
    fiber.turn = 0;
    fiber.known_as = seat_of(i).known_as;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = seat_of(i).stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, begin_fiber, 0);
  }
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
