#include "core/report/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>

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

void install_meta_allocator() {
  static MetaAllocator allocator;
  static const bool installed = (c10::SetAllocator(c10::kMeta, &allocator, 1), true);
  (void)installed;
}

}  // namespace

struct MemoryMeter::Count final : c10::MemoryReportingInfoBase {
  explicit Count(at::DeviceType device) : of(device) {}
  const at::DeviceType of;
  std::atomic<int64_t> current{0}, peak{0};

  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (device.type() != of) return;
    const int64_t now = current.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t before = peak.load(std::memory_order_relaxed);
    while (now > before && !peak.compare_exchange_weak(before, now, std::memory_order_relaxed)) continue;
  }
  bool memoryProfilingEnabled() const override { return true; }
};

MemoryMeter::MemoryMeter(torch::Device device) : device_(device), count_(std::make_shared<Count>(device.type())) {}
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
  if (meter.device_.is_meta()) install_meta_allocator();
  guard_.reset(new Guard{{c10::DebugInfoKind::PROFILER_STATE, meter.count_}});
}
MemoryMeter::Watch::~Watch() = default;

}  // namespace ditto::report
