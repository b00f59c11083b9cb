#include "core/process/side_thread.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ditto {

namespace {

c10::Stream stream_here(c10::DeviceType type) {
  const c10::impl::VirtualGuardImpl device(type);
  return device.getStream(device.getDevice());
}

}  // namespace

struct SideThread::State {
  explicit State(torch::Device device) {
    if (device.is_cpu() || device.is_meta()) return;
    const c10::impl::VirtualGuardImpl impl(device.type());
    stream = impl.getStreamFromGlobalPool(impl.getDevice(), /*isHighPriority=*/false);
    made.emplace(device.type());
  }

  std::function<void()> in_stream(std::function<void()> inner);
  void run(const std::stop_token& stop);

  std::optional<c10::Stream> stream;  // none: the device has none
  std::optional<c10::Event> made;     // of the last work's end, there
  std::mutex mutex;
  std::condition_variable_any changed;
  std::function<void()> work;  // under way; none: nothing is
  std::exception_ptr thrown;   // by the last one
  std::jthread thread;         // last: it ends before the rest
};

// A device's queue and its current stream are the thread's own.
std::function<void()> SideThread::State::in_stream(std::function<void()> inner) {
  if (!stream) return inner;
  const auto before = std::make_shared<c10::Event>(stream->device_type());
  before->record(stream_here(stream->device_type()));
  return [this, before, inner = std::move(inner)] {
    const c10::StreamGuard guard(*stream);
    before->block(*stream);
    inner();
    made->record(*stream);
  };
}

void SideThread::State::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex);
  while (changed.wait(lock, stop, [this] { return work != nullptr; })) {
    lock.unlock();
    std::exception_ptr caught;
    try {
      work();  // nobody else touches it while it is there
    } catch (...) {
      caught = std::current_exception();
    }
    lock.lock();
    thrown = caught;
    work = nullptr;
    changed.notify_all();
  }
}

SideThread::SideThread(torch::Device device) : state_(std::make_unique<State>(device)) {
  auto& state = *state_;
  state.thread = std::jthread([&state](const std::stop_token& stop) { state.run(stop); });
}

SideThread::~SideThread() = default;

void SideThread::begin(std::function<void()> work) {
  wait();
  auto as_here = [threads = at::get_num_threads(), modes = at::ThreadLocalState(),
                  work = state_->in_stream(std::move(work))] {
    if (at::get_num_threads() != threads) at::set_num_threads(threads);
    const at::ThreadLocalStateGuard here(modes);
    work();
  };
  {
    const std::lock_guard lock(state_->mutex);
    state_->thrown = nullptr;
    state_->work = std::move(as_here);
  }
  state_->changed.notify_all();
}

bool SideThread::is_at_work() const {
  const std::lock_guard lock(state_->mutex);
  return state_->work != nullptr;
}

void SideThread::wait() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->work == nullptr; });
  if (state_->made && state_->made->was_marked_for_recording())
    state_->made->block(stream_here(state_->stream->device_type()));
}

void SideThread::finish() {
  wait();
  if (const auto thrown = std::exchange(state_->thrown, nullptr)) std::rethrow_exception(thrown);
}

void SideThread::take_over(const torch::Tensor& tensor) const {
  if (state_->stream && tensor.device().type() == state_->stream->device_type())
    tensor.record_stream(stream_here(tensor.device().type()));
}

}  // namespace ditto
