#include "core/components/rates.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <set>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <nlohmann/json.hpp>

#include <ditto/error.h>
#include <ditto/version.h>

#include "core/formats/text/json.h"
#include "core/measure/libtorch.h"
#include "core/measure/user_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ditto {

namespace {

constexpr double kEnough = 0.08;  // seconds of rounds
constexpr int kLeastRounds = 4;

class ByOneThread {
 public:
  ByOneThread() { at::set_num_threads(1); }
  ~ByOneThread() { at::set_num_threads(before_); }
  ByOneThread(const ByOneThread&) = delete;
  ByOneThread& operator=(const ByOneThread&) = delete;

 private:
  int before_ = at::get_num_threads();
};

// Of this thread alone, which computes: whatever else the machine does meanwhile.
double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_now(torch::Device device) {
  if (device.is_cpu()) return processor_seconds();
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What of the processor, GPU and libraries rates follow from.
std::string machine_of_rates(const std::string& gpu) {
  static const std::set<std::string> kKeys{"vendor_id", "cpu family",  "model",           "model name",
                                           "stepping",  "flags",       "Features",        "CPU implementer",
                                           "CPU part",  "CPU variant", "CPU architecture"};
  std::string text;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();)
    if (const auto end = line.find_first_of("\t:"); kKeys.count(line.substr(0, end))) text += line + "; ";
  for (const char* limit : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"})
    if (const char* value = std::getenv(limit)) text += std::string(limit) + " " + value + "; ";
  if (!gpu.empty()) text += "gpu " + gpu + "; ";
  return text + at::get_cpu_capability() + "; " + report::libtorch_build() + "; Ditto " + kVersion;
}

}  // namespace

std::array<double, 2> fastest(const std::array<std::function<void()>, 2>& ways, int most_rounds, torch::Device device) {
  const ByOneThread alone;
  std::array<double, 2> best;
  best.fill(std::numeric_limits<double>::infinity());
  // In turn, so that what slows the machine down slows both; what is made once is made in the first round.
  const double began = seconds_now(device);
  for (int round = 0; round < most_rounds && (round < kLeastRounds || seconds_now(device) - began < kEnough); ++round)
    for (size_t way = 0; way < ways.size(); ++way) {
      const double start = seconds_now(device);
      ways[way]();
      best[way] = std::min(best[way], seconds_now(device) - start);
    }
  return best;
}

RatesFile::RatesFile(const std::string& gpu) : machine_(machine_of_rates(gpu)) {
  const auto folder = report::user_cache("rates");
  const auto hash = XXH3_64bits(machine_.data(), machine_.size());
  if (!folder.empty()) path_ = (folder / (std::to_string(hash) + ".json")).string();
}

Rates RatesFile::read() const {
  std::ifstream file(path_, std::ios::binary);
  if (path_.empty() || !file) return {};
  try {
    const auto json =
        formats::parse_json(std::string(std::istreambuf_iterator<char>(file), {}), path_, ErrorKind::data);
    if (json.at("machine").get<std::string>() != machine_) return {};
    const auto rates = json.at("calls_per_s").get<Rates>();
    for (const auto& [op, variants] : rates)
      for (const auto& [variant, rate] : variants)
        if (!std::isfinite(rate) || rate <= 0) return {};
    return rates;
  } catch (const std::exception&) {  // it is no file, no JSON, or says other things
  }
  return {};
}

void RatesFile::write(const Rates& rates) const {
  if (path_.empty()) return;
  const nlohmann::json json{{"machine", machine_}, {"calls_per_s", rates}};
  report::write_cached(path_, formats::ascii_json(json) + "\n");
}

}  // namespace ditto
