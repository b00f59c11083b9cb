#include "core/report/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>

namespace ditto::report {

struct MemoryMeter::Count final : c10::MemoryReportingInfoBase {
  std::atomic<int64_t> current{0}, peak{0};

  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    const int64_t now = current.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    int64_t before = peak.load(std::memory_order_relaxed);
    while (now > before && !peak.compare_exchange_weak(before, now, std::memory_order_relaxed)) continue;
  }
  bool memoryProfilingEnabled() const override { return true; }
};

MemoryMeter::MemoryMeter(torch::Device device) : device_(device), count_(std::make_shared<Count>()) {}
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
  return device_.is_cpu() ? count_->current.load() : device_bytes(device_).current;
}

int64_t MemoryMeter::peak() const { return device_.is_cpu() ? count_->peak.load() : device_bytes(device_).peak; }

void MemoryMeter::reset_peak() {
  if (device_.is_cpu()) {
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
  if (!meter.device_.is_cpu()) return;
  guard_.reset(new Guard{{c10::DebugInfoKind::PROFILER_STATE, meter.count_}});
}
MemoryMeter::Watch::~Watch() = default;

}  // namespace ditto::report
