// Nothing is wrong with it: a transport for the CPU, Gloo's under a name of its own.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ditto/parallel/transport.h>

#include "tests/support/loopback.h"

namespace {

struct RelayGroup final : c10d::ProcessGroupGloo {
  using ProcessGroupGloo::ProcessGroupGloo;
  const std::string getBackendName() const override { return "relay"; }
};

class Relay final : public ditto::Transport {
 public:
  using Options = ditto::NoOptions;
  Relay(const Options&, const Needs&) {}

  c10::DeviceType device() const override { return c10::DeviceType::CPU; }
  const char* backend() const override { return "relay"; }
  c10::intrusive_ptr<c10d::Backend> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            std::chrono::milliseconds timeout) override {
    return c10::make_intrusive<RelayGroup>(store, rank, size, ditto::test::gloo_on_loopback(timeout));
  }
};

}  // namespace

DITTO_PLUGIN(Transport, Relay, "relay", "1.0.0", "Apache-2.0", "CPU tensors between ranks of one machine, by Gloo")
