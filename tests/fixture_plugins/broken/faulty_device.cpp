// A strategy that reads, computes and waits as a program for a GPU must not, in the way that the option says; with
// `mended` as it should. On the CPU, where all is in order, it changes no number either way.
#include <ditto/parallel/strategy.h>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

namespace {

using namespace ditto;
using torch::Tensor;

struct FaultyDeviceOptions {
  std::string device_fault = "host_read";
  bool mended = false;
  void read(OptionReader& option) {
    option("device_fault", device_fault, "what it does wrongly at the end of each step")
        .one_of({"host_read", "two_devices", "no_wait", "overwritten", "no_event", "no_record"})
        .changes(Effect::nothing);
    option("mended", mended, "it does it rightly").changes(Effect::nothing);
  }
};

class FaultyDevice final : public ParallelStrategy {
 public:
  using Options = FaultyDeviceOptions;
  FaultyDevice(const Options& o, const Needs&) : options_(o) {}

  std::optional<Axis> axis() const override { return std::nullopt; }
  bool exact() const override { return true; }
  void shard(Layout& layout) override { layout_ = &layout; }

  // Weights end up as they were, where nothing goes wrong.
  void parameters_changed() override {
    torch::NoGradGuard no_grad;
    const auto weight = layout_->entries.front().tensor.detach();
    if (!weight.is_cuda()) return;
    if (options_.device_fault == "host_read") host_read(weight);
    if (options_.device_fault == "two_devices") two_devices(weight);
    if (options_.device_fault == "no_wait") no_wait(weight);
    if (options_.device_fault == "overwritten") overwritten(weight);
    if (options_.device_fault == "no_event") no_event(weight);
    if (options_.device_fault == "no_record") no_record(weight);
  }

 private:
  void host_read(const Tensor& weight) const {
    const Tensor from = options_.mended ? weight.cpu() : weight;
    first_byte_ = *static_cast<const volatile char*>(from.data_ptr());
  }

  // In an operation of which LibTorch itself does not look at devices before a GPU's kernel does.
  void two_devices(const Tensor& weight) const {
    const auto all = torch::ones(weight.sizes(), torch::kBool);
    weight.copy_(torch::where(options_.mended ? all.to(weight.device()) : all, weight, weight));
  }

  // The host computes with what has not arrived.
  void no_wait(const Tensor& weight) const {
    const auto pinned = torch::empty(weight.sizes(), pinned_as(weight)).copy_(weight, /*non_blocking=*/true);
    if (options_.mended) wait_for_here(weight);
    weight.copy_(pinned.clone());
  }

  // The host writes what has not left yet.
  void overwritten(const Tensor& weight) const {
    const auto pinned = torch::empty(weight.sizes(), pinned_as(weight)).copy_(weight);
    const auto copy = torch::empty_like(weight);
    copy.copy_(pinned, /*non_blocking=*/true);
    if (options_.mended) wait_for_here(weight);
    pinned.zero_();
    wait_for_here(weight);
    weight.copy_(copy);
  }

  // Another stream reads what this one has just written, and the other way round.
  void no_event(const Tensor& weight) const {
    weight.mul_(1);
    const auto other = beside(weight);
    if (options_.mended) comes_after(other, here(weight));
    Tensor same;
    {
      const c10::StreamGuard there(other);
      same = weight.mul(1);
    }
    if (options_.mended) comes_after(here(weight), other);
    weight.copy_(same);
  }

  // Memory of this stream is given back while another one reads it.
  void no_record(const Tensor& weight) const {
    auto temporary = weight.clone();
    const auto other = beside(weight);
    comes_after(other, here(weight));
    const c10::StreamGuard there(other);
    const auto sum = temporary.sum();
    if (options_.mended) temporary.record_stream(other);
    temporary.reset();
  }

  static torch::TensorOptions pinned_as(const Tensor& x) {
    return torch::TensorOptions(x.scalar_type()).pinned_memory(true);
  }
  static c10::impl::VirtualGuardImpl device_of(const Tensor& x) {
    return c10::impl::VirtualGuardImpl(x.device().type());
  }
  static c10::Stream here(const Tensor& x) { return device_of(x).getStream(x.device()); }
  static c10::Stream beside(const Tensor& x) { return device_of(x).getStreamFromGlobalPool(x.device()); }
  static void wait_for_here(const Tensor& x) { device_of(x).synchronizeStream(here(x)); }
  static void comes_after(const c10::Stream& later, const c10::Stream& earlier) {
    c10::Event event(earlier.device_type());
    event.record(earlier);
    event.block(later);
  }

  Options options_;
  Layout* layout_ = nullptr;
  mutable char first_byte_ = 0;
};

}  // namespace

DITTO_PLUGIN(ParallelStrategy, FaultyDevice, "faulty_device", "1.0.0", "Apache-2.0", "mistakes that a GPU shows")
