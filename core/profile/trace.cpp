#include "core/profile/trace.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ditto/error.h>
#include <ditto/text.h>

namespace ditto {

namespace {

// Bytes of the tensors' storages on a device, each storage once.
class Storages {
 public:
  explicit Storages(torch::Device device) : device_(device.type()) {}
  void add(const torch::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage() || tensor.device().type() != device_) return;
    if (seen_.insert(tensor.storage().unsafeGetStorageImpl()).second)
      bytes_ += static_cast<int64_t>(tensor.storage().nbytes());
  }
  int64_t bytes() const { return bytes_; }

 private:
  at::DeviceType device_;
  std::set<const void*> seen_;
  int64_t bytes_ = 0;
};

constexpr std::array kShares{"parameters", "copies", "gradients", "optimizer", "ema", "frozen", "activations", "ahead"};

// A line a rank: of those that are there, which are the same on all ranks.
template <class Text>
std::string memory_line(const std::map<std::string, int64_t>& memory, const Text& text) {
  std::string line;
  for (const char* share : kShares)
    if (const auto at = memory.find(share); at != memory.end()) line += fmt::format(" {:>13}", text(*at));
  return line;
}

}  // namespace

std::vector<report::CommCount> comm_counts(const Networks& networks, const Mesh& mesh) {
  auto counts = mesh.traffic().counts();
  if (const auto& own = networks.encoder_mesh().traffic(); &own != &mesh.traffic())
    for (const auto& [key, count] : own.counts()) {
      auto& sum = counts[key];
      sum.calls += count.calls, sum.bytes += count.bytes, sum.waited += count.waited;
    }
  std::vector<report::CommCount> list;
  for (const auto& [key, count] : counts)
    list.push_back({key.axes, key.op, name(key.pass), count.calls, count.bytes,
                    std::chrono::duration<double>(count.waited).count()});
  return list;
}

namespace {

// What lies elsewhere, by its tensor.
using Elsewhere = std::set<const at::TensorImpl*>;

bool is_here(const Elsewhere& elsewhere, const LayoutEntry& entry) {
  return elsewhere.count(entry.tensor.unsafeGetTensorImpl()) == 0;
}

// `leaves` first: what is a leaf and a copy is counted once, as the leaf. Of those that learn, and of those that do
// not.
void add_units(const RunningUnits& units, const Elsewhere& elsewhere, Storages& leaves, Storages& frozen,
               Storages& all) {
  for (const auto& entry : units.layout.entries)
    if (is_here(elsewhere, entry)) (entry.trains ? leaves : frozen).add(entry.tensor);
  for (const auto& entry : units.layout.entries) {
    if (is_here(elsewhere, entry)) all.add(entry.tensor);
    for (const auto& tensor : entry.parameter.held()) all.add(tensor);
  }
  for (const auto& strategy : units.strategies)
    for (const auto& tensor : strategy->held()) all.add(tensor);
}

// Along the entries.
void add_all(const std::vector<torch::Tensor>& tensors, const Layout& layout, const Elsewhere& elsewhere,
             Storages& all) {
  for (size_t i = 0; i < tensors.size(); ++i)
    if (is_here(elsewhere, layout.entries[i])) all.add(tensors[i]);
}

}  // namespace

std::map<std::string, int64_t> held_bytes(Networks& networks, Optimizer& optimizer, Ema& ema) {
  const auto& main = *networks.main;
  const auto device = main.ctx->device;
  Storages leaves(device), own_frozen(device), all(device), gradients(device), states(device), average(device),
      frozen(device);
  // Tensors of a real run say themselves where they are; on paper all are of one device.
  Elsewhere elsewhere;
  if (device.is_meta() && networks.table->meta_stands_for != torch::kCPU)
    for (const size_t i : main.on_host) elsewhere.insert(main.layout.entries[i].tensor.unsafeGetTensorImpl());
  for (const auto* model : networks.training()) add_units(*model, elsewhere, leaves, own_frozen, all);
  const auto& learned = networks.learned();
  std::vector<torch::Tensor> sums;
  for (const auto& entry : learned.entries) {
    sums.push_back(entry.tensor.grad());
    gradients.add(entry.parameter.leaf().grad());
  }
  add_all(sums, learned, elsewhere, gradients);
  for (const auto& [kind, state] : optimizer.state()) add_all(state.tensors, learned, elsewhere, states);
  add_all(ema.tensors(), learned, elsewhere, average);
  for (const auto& [name, network] : networks.others())
    if (!network->trains()) add_units(network->running(), {}, frozen, frozen, frozen);
  for (const auto& encoder : networks.encoders) add_units(*encoder, {}, frozen, frozen, frozen);
  return {{"parameters", leaves.bytes()},   {"copies", all.bytes() - leaves.bytes() - own_frozen.bytes()},
          {"gradients", gradients.bytes()}, {"optimizer", states.bytes()},
          {"ema", average.bytes()},         {"frozen", own_frozen.bytes() + frozen.bytes()}};
}

std::string comm_table(const Mesh& mesh, const std::vector<report::CommCount>& counts,
                       const std::map<std::string, int64_t>& memory) {
  const auto& all = mesh.world().transport();
  std::string text = fmt::format("the last step's calls on other ranks, of rank 0{}:\n",
                                 all ? " (" + all->getBackend(torch::kCPU)->getBackendName() + ")" : "");
  text += fmt::format("  {:24} {:16} {:9} {:>7} {:>14} {:>10}\n", "axes", "call", "pass", "calls", "bytes sent",
                      "waited ms");
  for (const auto& count : counts)
    text += fmt::format("  {:24} {:16} {:9} {:>7} {:>14} {:>10.1f}\n", count.axes, count.op, count.pass, count.calls,
                        count.bytes, 1e3 * count.waited_s);
  if (counts.empty()) text += "  none\n";
  text += "bytes of tensors after it:\n  rank" + memory_line(memory, [](const auto& share) { return share.first; });
  int rank = 0;
  for (const auto& line :
       mesh.world().all_gather_text(memory_line(memory, [](const auto& share) { return share.second; })))
    text += fmt::format("\n  {:4}{}", rank++, line);
  return text;
}

std::vector<report::KernelCount> kernel_counts(const StepBreakdown::Found& found) {
  std::vector<report::KernelCount> counts;
  for (const auto& [call, calls] : found.kernels) counts.push_back({call.phase, call.name, call.variant, calls});
  return counts;
}

std::string kernel_table(const Mesh& mesh, const std::vector<report::KernelCount>& counts) {
  using Calls = std::map<std::array<std::string, 3>, int64_t>;
  Calls here, all;
  for (const auto& count : counts) here[{count.phase, count.op, count.variant}] = count.calls;
  for (const auto& rank : mesh.world().all_gather_text(nlohmann::json(here).dump()))
    for (const auto& [call, calls] : nlohmann::json::parse(rank).get<Calls>()) all[call] += calls;
  std::string text = "the last step's ops, of all ranks together:\n";
  text += fmt::format("  {:10} {:30} {:20} {:>7}", "phase", "op", "computed by", "calls");
  for (const auto& [call, calls] : all)
    text += fmt::format("\n  {:10} {:30} {:20} {:>7}", call[0], call[1], call[2], calls);
  return text;
}

TraceOptions trace_options(const std::vector<std::string>& asked) {
  TraceOptions options;
  for (const auto& one : asked) {
    if (one == "comm")
      options.comm = true;
    else if (one == "kernels")
      options.kernels = true;
    else if (one.ends_with(".json") && options.file.empty())
      options.file = one;
    else
      throw Error(ErrorKind::config, "--trace", "is \"" + shown(one) + "\"",
                  "expected comm, kernels, or a file whose name ends in .json, for a Chrome trace");
  }
  return options;
}

std::string trace_file(const std::string& asked) {
  if (asked.empty() || asked.ends_with(".json")) return asked;
  throw Error(
      ErrorKind::config, "--trace", "is \"" + shown(asked) + "\"",
      "expected a file whose name ends in .json, for a Chrome trace; `ditto train --trace` counts comm and kernels");
}

}  // namespace ditto
