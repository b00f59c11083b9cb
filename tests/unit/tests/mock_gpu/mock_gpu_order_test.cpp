// The order of a mock GPU's streams: who runs into whom, and what the host sees when.
#include <doctest/doctest.h>

#include <array>
#include <string>
#include <vector>

#include <ditto/error.h>

#include "tests/mock_gpu/order.h"

namespace mock_gpu {
namespace {

constexpr StreamId kMain = 0, kSide = 1, kOther = kStreams;

Access reads(Uses& uses, std::size_t begin = 0, std::size_t end = 64) { return {&uses, {begin, end, false}}; }
Access writes(Uses& uses, std::size_t begin = 0, std::size_t end = 64) { return {&uses, {begin, end, true}}; }
Moment launch(Order& order, StreamId stream, Access access) {
  return order.launch(stream, std::span(&access, 1), "op");
}

TEST_CASE("a stream may use what it has used itself") {
  Order order;
  Uses uses;
  launch(order, kMain, writes(uses));
  launch(order, kMain, reads(uses));
  CHECK_NOTHROW(launch(order, kMain, writes(uses)));
}

TEST_CASE("a stream that does not wait runs into what another one has written, and says both") {
  Order order;
  Uses uses;
  launch(order, kMain, writes(uses));
  CHECK_THROWS_WITH_AS(launch(order, kSide, reads(uses)),
                       "mock_gpu: op reads in stream 1 of GPU 0 memory that stream 0 of GPU 0 wrote, and has not "
                       "waited for it; record an event "
                       "there, after that, and block this stream on it",
                       ditto::Error);
  order.wait(kSide, order.now(kMain));
  CHECK_NOTHROW(launch(order, kSide, reads(uses)));
}

TEST_CASE("an event stands for what was launched before it was recorded") {
  Order order;
  Uses uses;
  const auto event = order.now(kMain);
  launch(order, kMain, writes(uses));
  order.wait(kSide, event);
  CHECK_THROWS_AS(launch(order, kSide, reads(uses)), ditto::Error);
}

TEST_CASE("a writer waits for readers, and readers not for one another") {
  Order order;
  Uses uses;
  launch(order, kMain, reads(uses));
  CHECK_NOTHROW(launch(order, kSide, reads(uses)));
  CHECK_THROWS_WITH_AS(launch(order, kSide, writes(uses)), doctest::Contains("that stream 0 of GPU 0 reads"),
                       ditto::Error);
  order.wait(kSide, order.now(kMain));
  CHECK_NOTHROW(launch(order, kSide, writes(uses)));
}

TEST_CASE("streams may use parts of one piece of memory that do not overlap") {
  Order order;
  Uses uses;
  launch(order, kMain, writes(uses, 0, 32));
  CHECK_NOTHROW(launch(order, kSide, writes(uses, 32, 64)));
  CHECK_THROWS_AS(launch(order, kSide, writes(uses, 31, 32)), ditto::Error);
}

TEST_CASE("waiting is handed on from stream to stream, and from the host to all that is launched later") {
  Order order;
  Uses uses;
  launch(order, kMain, writes(uses));
  order.wait(kSide, order.now(kMain));
  order.wait(kOther, order.now(kSide));
  CHECK_NOTHROW(launch(order, kOther, reads(uses)));

  Uses others;
  launch(order, kSide, writes(others));
  CHECK_THROWS_AS(launch(order, kMain, reads(others)), ditto::Error);
  order.host_waits(order.now_of_gpu(0));
  CHECK_NOTHROW(launch(order, kMain, writes(others)));
  launch(order, kOther, writes(uses));
  order.host_waits(order.now_of_gpu(0));  // not for the other GPU
  CHECK_THROWS_AS(launch(order, kMain, reads(uses)), ditto::Error);
}

TEST_CASE("what the host may not have yet is done when it waits, in order, and not when it waits for less") {
  Order order;
  std::vector<std::string> done;
  Uses uses;
  const auto first = launch(order, kMain, writes(uses));
  order.hold_back(first, nullptr, [&] { done.push_back("first"); });
  const auto between = order.now(kMain);
  order.hold_back(launch(order, kMain, writes(uses)), nullptr, [&] { done.push_back("second"); });
  order.host_waits(order.now(kSide));
  CHECK(done.empty());
  order.host_waits(between);
  CHECK(done == std::vector<std::string>{"first"});
  order.host_waits(order.now(kMain));
  order.host_waits(order.now(kMain));
  CHECK(done == std::vector<std::string>{"first", "second"});
}

TEST_CASE("a launch that uses the host's memory finds there what its stream has brought, and no other's") {
  Order order;
  std::vector<std::string> done;
  Uses uses;
  const int here = 0, there = 0;
  order.hold_back(launch(order, kMain, reads(uses)), &here, [&] { done.push_back("here"); });
  order.hold_back(launch(order, kMain, reads(uses)), &there, [&] { done.push_back("there"); });
  order.hasten(kSide, &here);
  CHECK(done.empty());
  order.hasten(kMain, &here);
  CHECK(done == std::vector<std::string>{"here"});
  order.wait(kSide, order.now(kMain));
  order.hasten(kSide, &there);
  CHECK(done == std::vector<std::string>{"here", "there"});
}

TEST_CASE("memory is handed out again in its stream once no other one can still use it") {
  Order order;
  Uses uses;
  launch(order, kMain, writes(uses));
  order.wait(kSide, order.now(kMain));
  launch(order, kSide, reads(uses));
  order.free(uses, kMain, {kSide});  // as it was said
  CHECK_NOTHROW(order.allocate(kMain));
  order.free(uses, kMain, {});
  CHECK_NOTHROW(order.allocate(kSide));  // has memory of its own
  CHECK_THROWS_WITH_AS(order.allocate(kMain), doctest::Contains("and stream 1 of GPU 0 may still use it"),
                       ditto::Error);
  order.free(uses, kMain, {});
  order.wait(kMain, order.now(kSide));
  CHECK_NOTHROW(order.allocate(kMain));
}

}  // namespace
}  // namespace mock_gpu
