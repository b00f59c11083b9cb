// Work of a known length, and how much longer late transfers make what works so.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <thread>

#include <ATen/Parallel.h>

#include "tests/unit/ranks.h"

namespace ditto::testing {

using Work = std::function<void()>;
using Milliseconds = std::chrono::duration<double, std::milli>;

inline double milliseconds_of(const Work& work) {
  const auto began = std::chrono::steady_clock::now();
  work();
  return Milliseconds(std::chrono::steady_clock::now() - began).count();
}

// Leaves the processor to other ranks, as work of a device of its own does: exact on any number of cores.
inline Work sleep_of(double milliseconds) {
  return [milliseconds] { std::this_thread::sleep_for(Milliseconds(milliseconds)); };
}

// Products of matrices on one core that take so long when nobody else computes. The same number on all ranks; called by
// all.
inline Work products_of(double milliseconds, const Group& world) {
  at::set_num_threads(1);
  const auto a = torch::full({256, 256}, 0.5);
  auto products = [a, out = torch::empty_like(a)](int64_t count) mutable {
    torch::NoGradGuard no_grad;
    for (int64_t i = 0; i < count; ++i) torch::mm_out(out, a, a);
  };
  double each = 1e9;
  if (world.rank() == 0)
    for (int i = 0; i < 10; ++i) each = std::min(each, milliseconds_of([&] { products(20); }) / 20);
  const auto agreed = world.broadcast(torch::tensor({each}, torch::kDouble), 0);  // the others wait here
  const auto count = static_cast<int64_t>(std::ceil(milliseconds / agreed.item<double>()));
  return [products, count]() mutable { products(count); };
}

struct Lengthening {
  double prompt = 1e9, late = 1e9;  // milliseconds of a run
  double by() const { return late - prompt; }
};

// Of `run`, by transfers that take `late` longer each. The shortest of some runs, taken in turns: other programs make a
// run longer, never shorter.
inline Lengthening lengthening(const Mesh& mesh, std::chrono::milliseconds late, const Work& run, int rounds = 8) {
  Lengthening found;
  const auto timed = [&](std::chrono::milliseconds delay) {
    mesh.world().barrier();
    mesh.traffic().delay = delay;
    const double time = milliseconds_of(run);
    mesh.traffic().delay = {};
    return time;
  };
  for (int i = 0; i < rounds; ++i) {
    found.prompt = std::min(found.prompt, timed({}));
    found.late = std::min(found.late, timed(late));
  }
  return found;
}

// What one run asks of other ranks.
inline int64_t calls_of(const Mesh& mesh, const Work& run) {
  mesh.traffic().clear();
  run();
  int64_t calls = 0;
  for (const auto& [key, count] : mesh.traffic().counts()) calls += count.calls;
  return calls;
}

}  // namespace ditto::testing
