#include "tests/mock_gpu/device.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "tests/mock_gpu/counts.h"
#include "tests/mock_gpu/memory.h"

namespace mock_gpu {

namespace {

constexpr int kMostGpus = 16;
constexpr StreamId kPool = 32;  // 1 … 32, as many as LibTorch keeps; then those asked for as new
constexpr StreamId kCollectives = kStreams - 1;

thread_local c10::DeviceIndex this_threads_gpu = 0;
thread_local std::array<StreamId, kMostGpus> this_threads_streams{};  // their numbers on each GPU

c10::DeviceIndex index_of(c10::Device device) { return device.has_index() ? device.index() : this_threads_gpu; }
StreamId id_of(const c10::Stream& stream) { return stream.device_index() * kStreams + stream.id(); }
c10::Stream stream_of(c10::DeviceIndex gpu, StreamId number) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDevice, gpu), number);
}

void choose(c10::DeviceIndex gpu) {
  if (gpu < 0) return;
  if (gpu >= gpus())
    throw ditto::Error(ditto::ErrorKind::plugin, "mock_gpu",
                       "GPU " + std::to_string(gpu) + " is asked for, of " + std::to_string(gpus()),
                       "set MOCK_GPUS to as many as the test needs");
  this_threads_gpu = gpu;
}

void host_waits_for(const Clock& event) {
  ++(::gettid() == ::getpid() ? counts().waits : counts().waits_beside);
  order().host_waits(event);
}

void host_waits_for_gpu(c10::DeviceIndex gpu) { host_waits_for(order().now_of_gpu(gpu < 0 ? this_threads_gpu : gpu)); }

// A device's events: what their streams had done when they were recorded.
struct Event {
  Clock clock;
  bool asked = false;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }
  c10::Device getDevice() const override { return {kDevice, this_threads_gpu}; }
  void setDevice(c10::Device device) const override { choose(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) this_threads_gpu = device.index();
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    choose(device.index());
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(gpus()); }

  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(index_of(device), 0); }
  c10::Stream getStream(c10::Device device) const override {
    const auto gpu = index_of(device);
    return stream_of(gpu, this_threads_streams.at(static_cast<std::size_t>(gpu)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    static std::atomic<StreamId> next{0};
    return stream_of(index_of(device), 1 + next++ % kPool);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<StreamId> next{kPool + 1};
    TORCH_CHECK(next < kCollectives, "mock_gpu: more than ", kCollectives - 1, " streams");
    return stream_of(index_of(device), next++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    this_threads_streams.at(static_cast<std::size_t>(stream.device_index())) = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return handle_of(id_of(stream)); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    memory().recordStream(data, stream);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Event;
    *static_cast<Event*>(*event) = {order().now(id_of(stream))};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) order().wait(id_of(stream), static_cast<Event*>(event)->clock);
  }
  // No by the first look, as of work that is under way, and yes by the next one: it was waited for.
  bool queryEvent(void* event) const override {
    auto* known = static_cast<Event*>(event);
    if (!known) return true;
    if (!std::exchange(known->asked, true)) return false;
    order().host_waits(known->clock);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event) host_waits_for(static_cast<Event*>(event)->clock);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  bool queryStream(const c10::Stream& stream) const override { return synchronizeStream(stream), true; }
  void synchronizeStream(const c10::Stream& stream) const override { wait_for(id_of(stream)); }
  void synchronizeDevice(const c10::DeviceIndex gpu) const override { host_waits_for_gpu(gpu); }
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return gpus() > 0; }
  bool hasCUDA() const override { return gpus() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return gpus(); }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(gpus()); }
  c10::DeviceIndex current_device() const override { return this_threads_gpu; }
  c10::DeviceIndex getCurrentDevice() const override { return this_threads_gpu; }
  void setCurrentDevice(c10::DeviceIndex gpu) const override { choose(gpu); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex gpu) const override {
    const auto before = this_threads_gpu;
    choose(gpu);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex gpu) const override { return exchangeDevice(gpu); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  at::Allocator* getCUDADeviceAllocator() const override { return &memory(); }
  bool isPinnedPtr(const void* at) const override { return is_pinned(at); }
  void deviceSynchronize(c10::DeviceIndex gpu) const override { host_waits_for_gpu(gpu); }
};

}  // namespace

Order& order() {
  static auto* one = new Order;
  return *one;
}

int gpus() {
  static const int count = [] {
    const char* text = std::getenv("MOCK_GPUS");
    return text ? std::clamp(std::atoi(text), 0, kMostGpus) : 8;
  }();
  return count;
}

c10::DeviceIndex current_gpu() { return this_threads_gpu; }

StreamId current_stream(c10::DeviceIndex gpu) {
  return gpu * kStreams + this_threads_streams.at(static_cast<std::size_t>(gpu));
}

void* handle_of(StreamId stream) { return reinterpret_cast<void*>(static_cast<std::intptr_t>(stream + 1)); }
StreamId stream_of(void* handle) {
  return handle ? static_cast<StreamId>(reinterpret_cast<std::intptr_t>(handle)) - 1 : current_stream(this_threads_gpu);
}

StreamId stream_of_collectives(c10::DeviceIndex gpu) { return gpu * kStreams + kCollectives; }

OnGpu::OnGpu(c10::DeviceIndex gpu) : before_(this_threads_gpu) { choose(gpu); }
OnGpu::~OnGpu() { this_threads_gpu = before_; }

void wait_for(StreamId stream) { host_waits_for(order().now(stream)); }

}  // namespace mock_gpu

namespace at {
using CUDAHooks = mock_gpu::Hooks;  // LibTorch asks for them by this name
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

using MockGpuGuard = mock_gpu::Guard;
C10_REGISTER_GUARD_IMPL(CUDA, MockGpuGuard)
