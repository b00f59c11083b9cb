#include "tests/mock_gpu/memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include <ATen/core/CachingHostAllocator.h>

#include "tests/mock_gpu/counts.h"
#include "tests/mock_gpu/device.h"

namespace mock_gpu {

namespace {

constexpr std::size_t kPage = 4096;
std::size_t pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// By where they begin, and how long they are.
class Ranges {
 public:
  void add(const void* at, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    ranges_[at] = bytes;
  }
  void remove(const void* at) {
    const std::lock_guard lock(mutex_);
    ranges_.erase(at);
  }
  bool holds(const void* at) { return find(at) != nullptr; }
  // Where the range begins that holds it; null: none does.
  const void* find(const void* at) {
    const std::lock_guard lock(mutex_);
    auto next = ranges_.upper_bound(at);
    return next != ranges_.begin() &&
                   static_cast<const std::byte*>(at) < static_cast<const std::byte*>((--next)->first) + next->second
               ? next->first
               : nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<const void*, std::size_t> ranges_;
};

// --- who touches a GPU's memory ---

Ranges& of_gpus() {
  static auto* ranges = new Ranges;
  return *ranges;
}

struct sigaction before_mine {};

// Blocks that this thread's kernel has touched; null: it runs none.
thread_local std::vector<std::unique_ptr<Open>>* touched = nullptr;
Block* block_at(const void* begin);

// No thread holds a lock that this takes where it could come here: nobody reads a GPU's memory under one.
void on_fault(int signal, siginfo_t* info, void*) {
  if (touched)
    if (const void* begin = of_gpus().find(info->si_addr)) {
      touched->push_back(std::make_unique<Open>(block_at(begin)));
      return;  // and does it again
    }
  if (of_gpus().holds(info->si_addr)) {
    constexpr char kText[] = "mock_gpu: the host reads or writes memory of a GPU; copy it to the host first\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kText, sizeof kText - 1);
  }
  ::sigaction(signal, &before_mine, nullptr);  // faults again, and goes on as it would have
}

void watch_faults() {
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigaction(SIGSEGV, &action, &before_mine);
}

[[noreturn]] void end(const std::string& why) {
  const auto line = "mock_gpu: " + why + "\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  std::abort();
}

// --- the allocators ---

class Memory final : public c10::DeviceAllocator {
 public:
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    const std::lock_guard lock(mutex_);
    if (auto* block = static_cast<Block*>(data.get_context()))
      block->recorded.insert(stream.device_index() * kStreams + stream.id());
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex gpu) override {
    const std::lock_guard lock(mutex_);
    return stats_of(gpu);
  }
  void resetAccumulatedStats(c10::DeviceIndex gpu) override {
    const std::lock_guard lock(mutex_);
    stats_of(gpu).allocated_bytes[0].reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex gpu) override {
    const std::lock_guard lock(mutex_);
    stats_of(gpu).allocated_bytes[0].reset_peak();
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex gpu) override {
    const std::lock_guard lock(mutex_);
    return {kBytes - static_cast<std::size_t>(stats_of(gpu).allocated_bytes[0].current), kBytes};
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    const auto gpu = current_gpu();
    const c10::Device device(kDevice, gpu);
    if (bytes == 0) return {nullptr, nullptr, &free, device};
    const auto stream = current_stream(gpu);
    order().allocate(stream);
    [[maybe_unused]] static const bool watched = (watch_faults(), true);
    void* at = ::mmap(nullptr, pages(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    auto* block = new Block{static_cast<std::byte*>(at), bytes, gpu, stream};
    of_gpus().add(at, pages(bytes));
    const std::lock_guard lock(mutex_);
    blocks_[at] = block;
    stats_of(gpu).allocated_bytes[0].increase(bytes);
    return {at, block, &free, device};
  }
  Block* block_at(const void* begin) {
    const std::lock_guard lock(mutex_);
    return blocks_.at(begin);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }  // a pointer alone does not say its block
  void copy_data(void*, const void*, std::size_t) const override {
    throw ditto::Error(ditto::ErrorKind::plugin, "mock_gpu",
                       "a storage is to be cloned, which no GPU's allocator is asked for", "copy the tensor");
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{80} << 30;

  static void free(void* context);
  c10::CachingDeviceAllocator::DeviceStats& stats_of(c10::DeviceIndex gpu) {
    return stats_[gpu < 0 ? current_gpu() : gpu];
  }

  std::mutex mutex_;
  std::map<c10::DeviceIndex, c10::CachingDeviceAllocator::DeviceStats> stats_;
  std::map<const void*, Block*> blocks_;
};

Memory& the_memory() {
  static auto* one = new Memory;
  return *one;
}

void Memory::free(void* context) {
  auto* block = static_cast<Block*>(context);
  if (!block) return;
  order().free(block->uses, block->home, block->recorded);
  of_gpus().remove(block->at);
  {
    auto& own = the_memory();
    const std::lock_guard lock(own.mutex_);
    own.blocks_.erase(block->at);
    own.stats_of(block->gpu).allocated_bytes[0].decrease(block->bytes);
  }
  ::munmap(block->at, pages(block->bytes));  // what is made next may lie there
  delete block;
}

Block* block_at(const void* begin) { return the_memory().block_at(begin); }

Ranges& pinned_ranges() {
  static auto* ranges = new Ranges;
  return *ranges;
}

// What a GPU still reads or writes there is held by the copy that is under way.
class Pinned final : public at::HostAllocator {
 public:
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

  c10::DataPtr allocate(std::size_t bytes) override {
    void* at = std::aligned_alloc(64, (bytes / 64 + 1) * 64);
    if (!at) throw std::bad_alloc();
    pinned_ranges().add(at, bytes);
    return {at, at, &free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  static void free(void* at) {
    pinned_ranges().remove(at);
    std::free(at);
  }
};

Pinned& the_pinned_memory() {
  static auto* one = new Pinned;
  return *one;
}

REGISTER_ALLOCATOR(kDevice, &the_memory())
const at::HostAllocatorRegistry<kDevice> pinned_memory_of_the_device(&the_pinned_memory());

}  // namespace

c10::DeviceAllocator& memory() { return the_memory(); }
c10::Allocator& pinned_memory() { return the_pinned_memory(); }

bool is_pinned(const void* at) { return pinned_ranges().holds(at); }

Block* block_of(const at::Tensor& tensor) {
  if (tensor.device().type() != kDevice) return nullptr;
  return static_cast<Block*>(tensor.storage().data_ptr().get_context());
}

std::optional<Access> access(const at::Tensor& tensor, bool writes) {
  auto* block = block_of(tensor);
  if (!block || tensor.numel() == 0) return {};
  std::size_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d)
    last += static_cast<std::size_t>(tensor.stride(d)) * static_cast<std::size_t>(tensor.size(d) - 1);
  const auto begin = static_cast<std::size_t>(tensor.storage_offset()) * tensor.element_size();
  return Access{&block->uses, {begin, begin + (last + 1) * tensor.element_size(), writes}};
}

namespace {

std::mutex& doors() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

void set_protection(const Block& block, int protection) {
  if (::mprotect(block.at, pages(block.bytes), protection) != 0) end("a block's protection cannot be changed");
}

}  // namespace

Open::Open(Block* block) : block_(block) {
  if (!block_) return;
  const std::lock_guard lock(doors());
  if (block_->open++ == 0) set_protection(*block_, PROT_READ | PROT_WRITE);
}

Open::~Open() {
  if (!block_) return;
  const std::lock_guard lock(doors());
  if (--block_->open == 0) set_protection(*block_, PROT_NONE);
}

Kernel::Kernel(void* stream) {
  if (stream_of(stream) / kStreams != current_gpu())
    throw ditto::Error(ditto::ErrorKind::plugin, "mock_gpu",
                       "a kernel is launched in " + name(stream_of(stream)) + ", and GPU " +
                           std::to_string(current_gpu()) + " is the thread's",
                       "make the stream's GPU current first");
  ++counts().launches;
  order().launch(stream_of(stream), {}, "a kernel");
  touched = new std::vector<std::unique_ptr<Open>>;
}

Kernel::~Kernel() {
  delete touched;
  touched = nullptr;
}

}  // namespace mock_gpu
