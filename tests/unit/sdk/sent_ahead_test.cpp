// What is noted for the next copy to a device. The copies themselves are held by tests/integration/layouts/mock_gpu.py.
#include <memory>
#include <thread>

#include <doctest/doctest.h>

#include <ditto/upload.h>

namespace ditto {
namespace {

TEST_CASE("what is added is not there before it was sent, and the host's own memory needs no copy") {
  SentAhead ahead;
  const auto times = torch::tensor({0.25, 0.5}, torch::kDouble), weights = torch::tensor({1.0, 2.0}, torch::kDouble);
  ahead.add(weights);
  ahead.add("twice", times, 2 * times);
  CHECK(!ahead.find("", weights).defined());
  CHECK(!ahead.find("twice", times).defined());
  const auto here = uploaded(weights, torch::kCPU);
  CHECK(here.is_same(weights));
  CHECK(!ahead.find("", weights).defined());
}

TEST_CASE("the youngest of a thread is asked, whichever ends first") {
  CHECK(SentAhead::here() == nullptr);
  auto first = std::make_unique<SentAhead>(), second = std::make_unique<SentAhead>();
  CHECK(SentAhead::here() == second.get());
  std::thread([] { CHECK(SentAhead::here() == nullptr); }).join();
  first.reset();
  CHECK(SentAhead::here() == second.get());
  second.reset();
  CHECK(SentAhead::here() == nullptr);
}

}  // namespace
}  // namespace ditto
