// How fast this machine is at calls of one kind, each of several ways: measured once, and kept in the user's cache.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <string>

#include <torch/types.h>

namespace ditto {

// What is computed -> way -> calls a second, of one and the same call: forward and backward.
using Rates = std::map<std::string, std::map<std::string, double>>;

// The other way than the usual one has to be so much faster: what is chosen is not to hang on a measurement's noise.
inline constexpr double kClearlyFaster = 1.1;

// Seconds of the fastest call of each of two ways, called in turn for at most so many rounds: of a processor one
// thread's own time, whatever else the machine does meanwhile, of a GPU until it is done.
std::array<double, 2> fastest(const std::array<std::function<void()>, 2>& ways, int most_rounds,
                              torch::Device device = torch::kCPU);

// What was measured before on a machine and with libraries like these, in the user's cache.
class RatesFile {
 public:
  // `gpu`: the name of the GPU that was measured; empty: the processor was.
  explicit RatesFile(const std::string& gpu = "");
  Rates read() const;  // none where there is no file, or none that can be read: it is a cache
  void write(const Rates& rates) const;

 private:
  std::string machine_, path_;
};

}  // namespace ditto
