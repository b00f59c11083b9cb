// Gloo on one machine, for transports of tests.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>

namespace ditto::test {

// Collectives run in the order of their calls.
inline c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> gloo_on_loopback(std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  options->threads = 1;
  return options;
}

}  // namespace ditto::test
