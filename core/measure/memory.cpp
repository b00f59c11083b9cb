#include "core/measure/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <new>

namespace ditto::report {

namespace {

bool counts_itself(torch::Device device) { return device.is_cpu() || device.is_meta(); }

// Hands out no memory, as the library's own for the meta device, and says how much it would be.
struct MetaAllocator final : c10::Allocator {
  static void report(int64_t bytes) {
    c10::reportMemoryUsageToProfiler(nullptr, bytes, 0, 0, torch::Device(c10::kMeta));
  }
  static void forget(void* bytes) { report(-reinterpret_cast<int64_t>(bytes)); }
  c10::DataPtr allocate(size_t bytes) override {
    report(static_cast<int64_t>(bytes));
    return {nullptr, reinterpret_cast<void*>(bytes), &forget, torch::Device(c10::kMeta)};
  }
  void copy_data(void*, const void*, size_t) const override {}
};

}  // namespace

struct MemoryMeter::Count final : c10::MemoryReportingInfoBase, std::enable_shared_from_this<Count> {
  explicit Count(at::DeviceType device) : of(device) {}
  const at::DeviceType of;
  std::atomic<int64_t> current{0}, peak{0};

  void add(int64_t bytes) {
    const int64_t now = current.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t before = peak.load(std::memory_order_relaxed);
    while (now > before && !peak.compare_exchange_weak(before, now, std::memory_order_relaxed)) continue;
  }
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (device.type() == of) add(bytes);
  }
  bool memoryProfilingEnabled() const override { return of == at::kMeta; }  // the CPU's own report goes by threads

  struct Allocator;
};

// LibTorch's own for the CPU, with the owner of each block before its numbers: the count of the thread that asked for
// it, which is told when the block is freed, by whichever thread.
struct MemoryMeter::Count::Allocator final : c10::Allocator {
  struct Header {
    std::shared_ptr<Count> owner;  // none: nobody watched
    int64_t bytes;
  };
  static constexpr size_t kBefore = 64;  // the header's room: LibTorch's alignment, kept
  static_assert(sizeof(Header) <= kBefore);

  static void free(void* numbers) {
    if (!numbers) return;
    auto* header = reinterpret_cast<Header*>(static_cast<char*>(numbers) - kBefore);
    if (header->owner) header->owner->add(-header->bytes);
    header->~Header();
    c10::GetDefaultCPUAllocator()->raw_deallocate(header);
  }
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free, at::kCPU};
    auto* block = static_cast<char*>(c10::GetDefaultCPUAllocator()->raw_allocate(kBefore + bytes));
    auto* count = dynamic_cast<Count*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE));
    if (count && count->of != at::kCPU) count = nullptr;
    auto* header = new (block) Header{count ? count->shared_from_this() : nullptr, static_cast<int64_t>(bytes)};
    if (count) count->add(header->bytes);
    return {block + kBefore, block + kBefore, &free, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

MemoryMeter::MemoryMeter(torch::Device device) : device_(device), count_(std::make_shared<Count>(device.type())) {
  static MetaAllocator meta;
  static Count::Allocator cpu;
  if (device.is_meta()) [[maybe_unused]]
    static const bool installed = (c10::SetAllocator(c10::kMeta, &meta, 1), true);
  if (device.is_cpu()) [[maybe_unused]]
    static const bool installed = (c10::SetAllocator(c10::kCPU, &cpu, 1), true);
}
MemoryMeter::~MemoryMeter() = default;

namespace {

c10::CachingDeviceAllocator::Stat device_bytes(torch::Device device) {
  auto* allocator = c10::getDeviceAllocator(device.type());
  if (!allocator->initialized()) return {};
  const auto index = device.has_index() ? device.index() : c10::DeviceIndex(0);
  return allocator->getDeviceStats(index).allocated_bytes[0];
}

}  // namespace

int64_t MemoryMeter::current() const {
  return counts_itself(device_) ? count_->current.load() : device_bytes(device_).current;
}

int64_t MemoryMeter::peak() const { return counts_itself(device_) ? count_->peak.load() : device_bytes(device_).peak; }

void MemoryMeter::reset_peak() {
  if (counts_itself(device_)) {
    count_->peak = count_->current.load();
    return;
  }
  auto* allocator = c10::getDeviceAllocator(device_.type());
  if (allocator->initialized()) allocator->resetPeakStats(device_.has_index() ? device_.index() : c10::DeviceIndex(0));
}

struct MemoryMeter::Watch::Guard {
  c10::DebugInfoGuard info;
};

MemoryMeter::Watch::Watch(const MemoryMeter& meter) {
  if (!counts_itself(meter.device_)) return;
  guard_.reset(new Guard{{c10::DebugInfoKind::PROFILER_STATE, meter.count_}});
}
MemoryMeter::Watch::~Watch() = default;

}  // namespace ditto::report
