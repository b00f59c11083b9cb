// Ranks for tests of checkpoints: parameters cut along tensor and shard, EMA, an optimizer's state; no model behind
// them.
#pragma once

#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <torch/types.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "core/checkpoint/checkpoint.h"

namespace ditto::test {

// How many ranks along each axis; 1 where not given.
using Degrees = std::map<Axis, int>;

class FakeMesh : public Mesh {
 public:
  FakeMesh(Degrees degrees, int rank) : degrees_(std::move(degrees)), rank_(rank) {}
  int size(Axis axis) const override { return degrees_.count(axis) ? degrees_.at(axis) : 1; }
  int index(Axis axis) const override {
    int below = 1;  // ranks that differ along faster axes
    for (const Axis other : kAxes)
      if (other > axis) below *= size(other);
    return rank_ / below % size(axis);
  }
  int rank() const override { return rank_; }
  int world_size() const override {
    int all = 1;
    for (const Axis axis : kAxes) all *= size(axis);
    return all;
  }
  using Mesh::group;
  const Group& group(const AxisSet&) const override { return alone_; }
  Traffic& traffic() const override { return traffic_; }

 private:
  Degrees degrees_;
  int rank_;
  Group alone_;
  mutable Traffic traffic_;
};

class FakeOptimizer final : public Optimizer {
 public:
  void step(const Update&) override {}
  std::map<std::string, OptimizerState> state() override {
    std::map<std::string, OptimizerState> all;
    for (const auto& [kind, list] : tensors)
      all[kind] = {list, blocks.count(kind) ? blocks.at(kind) : 1, wholes.count(kind) > 0};
    return all;
  }
  Counters counters() const override { return numbers; }
  void set_counters(const Counters& counters) override { numbers = counters; }

  std::map<std::string, std::vector<torch::Tensor>> tensors;
  std::map<std::string, int64_t> blocks;  // of kinds that have one number for so many
  std::set<std::string> wholes;           // kinds that one rank has of a whole parameter
  Counters numbers;
};

// A parameter, and how it is cut where an axis has several ranks.
struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  std::map<Axis, Cut> cuts = {};  // dim, parts, multiple; without parts: what the cuts before have left of the dim
  int64_t stage = -1;             // the pipeline stage (modulo their number) that has it alone; -1: all have
  int64_t block = 1;              // > 1: the optimizer keeps bytes and a scale for so many of them
};

inline std::vector<ParameterSpec> small_model() {
  return {
      {"embed.weight", {6, 8}},
      {"blocks.0.qkv.weight", {24, 8}, at::kFloat, {{Axis::tensor, {0, {8, 8, 8}}}, {Axis::shard, {1, {8}}}}},
      {"blocks.0.qkv.bias", {24}, at::kFloat, {{Axis::tensor, {0, {8, 8, 8}}}}},
      {"blocks.0.proj.weight", {8, 16}, at::kDouble, {{Axis::tensor, {1, {16}}}, {Axis::shard, {0, {8}}}}},
      {"blocks.0.half.weight", {4, 5}, at::kBFloat16, {{Axis::tensor, {0, {4}}}}},
      {"empty", {0, 3}},
      {"scale", {}, at::kDouble},
  };
}

// Bits of any kind, infinities and not-a-numbers of every payload included: a checkpoint must not look at them.
inline torch::Tensor any_bits(const std::string& name, const ParameterSpec& spec, uint64_t salt) {
  auto generator = at::detail::createCPUGenerator(std::hash<std::string>()(name) ^ salt);
  const torch::Tensor whole = torch::empty(spec.shape, spec.dtype);
  const auto bytes = torch::randint(0, 256, {static_cast<int64_t>(whole.nbytes())}, generator, torch::kByte);
  if (whole.nbytes() > 0) std::memcpy(whole.mutable_data_ptr(), bytes.data_ptr(), whole.nbytes());
  return whole;
}

inline bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  const auto x = a.detach().contiguous(), y = b.detach().contiguous();
  if (x.sizes() != y.sizes() || x.scalar_type() != y.scalar_type()) return false;
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// What one rank of a world holds; its numbers are a function of `salt` and of the global tensor alone.
struct Rank {
  FakeMesh mesh;
  Layout layout;
  std::vector<torch::Tensor> ema;
  FakeOptimizer optimizer;
  uint64_t salt;

  Rank(const Degrees& degrees, int rank, uint64_t salt, const std::vector<ParameterSpec>& specs = small_model())
      : mesh(degrees, rank), salt(salt) {
    optimizer.blocks["scales"] = 1;
    for (const ParameterSpec& spec : specs)
      optimizer.blocks["scales"] = std::max(optimizer.blocks["scales"], spec.block);
    for (const ParameterSpec& spec : specs) {
      LayoutEntry entry;
      entry.name = spec.name;
      entry.full_shape = spec.shape;
      entry.unit = Unit{Unit::head};
      if (spec.stage >= 0 && mesh.size(Axis::pipeline) > 1) {
        if (spec.stage % mesh.size(Axis::pipeline) != mesh.index(Axis::pipeline)) continue;
        entry.absent = {Axis::pipeline};
      }
      set_cuts(entry, spec);
      entry.tensor = local(spec.name, entry, spec).requires_grad_(true);
      ema.push_back(local("ema/" + spec.name, entry, spec));
      keep_states(entry, spec);
      layout.entries.push_back(std::move(entry));
    }
    optimizer.numbers = {{"step", static_cast<double>(salt) * 7}};
  }
  Rank(const Rank&) = delete;

  void set_cuts(LayoutEntry& entry, const ParameterSpec& spec) {
    auto shape = spec.shape;
    for (const Axis axis : kCutOrder) {
      if (spec.cuts.count(axis) == 0 || mesh.size(axis) == 1) continue;
      Cut cut = spec.cuts.at(axis);
      auto& length = shape[static_cast<size_t>(cut.dim)];
      if (cut.parts.empty()) cut.parts = {length};
      cut.index = mesh.index(axis);
      cut.count = mesh.size(axis);
      length = ditto::cut(torch::empty(shape), cut).size(cut.dim);
      entry.cuts[axis] = cut;
    }
  }
  torch::Tensor local(const std::string& name, const LayoutEntry& entry, ParameterSpec spec) const {
    spec.shape = entry.full_shape;
    torch::Tensor value = any_bits(name, spec, salt);
    for (const Axis axis : kCutOrder)
      if (entry.cuts.count(axis)) value = cut(value, entry.cuts.at(axis));
    return value;
  }
  // Two moments; or bytes and scales.
  void keep_states(const LayoutEntry& entry, ParameterSpec spec) {
    const bool coded = spec.block > 1;
    auto& tensors = optimizer.tensors;
    for (const std::string kind : {"exp_avg", "exp_avg_sq"})
      tensors[kind].push_back(coded ? torch::Tensor() : local(kind + "/" + spec.name, entry, spec));
    if (optimizer.blocks.at("scales") == 1) return;
    tensors["scales"].push_back(coded ? local("scales/" + spec.name, entry.in_blocks(spec.block), spec)
                                      : torch::Tensor());
    spec.dtype = at::kByte;
    tensors["codes"].push_back(coded ? local("codes/" + spec.name, entry, spec) : torch::Tensor());
  }

  checkpoint::TrainState state(int64_t step = 0) {
    return {&layout,
            &ema,
            &optimizer,
            step,
            step * 16,
            0xFFFFFFFFFFFFFFF5ull ^ salt,
            {{"note", "salt " + std::to_string(salt)}},
            "[run]\nname = \"x\"\n"};
  }
  bool same_as(const Rank& other) const {
    bool same = optimizer.numbers == other.optimizer.numbers;
    for (size_t i = 0; i < layout.entries.size(); ++i)
      same = same && same_bits(layout.entries[i].tensor, other.layout.entries[i].tensor) &&
             same_bits(ema[i], other.ema[i]);
    for (const auto& [kind, list] : optimizer.tensors)
      for (size_t i = 0; i < list.size(); ++i)
        same = same && (!list[i].defined() || same_bits(list[i], other.optimizer.tensors.at(kind)[i]));
    return same;
  }
};

inline Group gloo_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  const auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(30));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  options->threads = 1;
  const auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
  auto transport = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  transport->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  transport->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, backend);
  return Group(rank, size, "world", std::move(transport));
}

// Runs `work(rank's number, its group)` as so many ranks, each a thread, and returns what each threw, "" if nothing.
template <class Work>
std::vector<std::string> as_ranks(int count, const Work& work) {
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1);  // it is one for all of a process, and not made for ranks in threads
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank)
    threads.emplace_back([&, rank] {
      try {
        work(rank, count == 1 ? Group() : gloo_group(store, rank, count));
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

// One save by all ranks of a world.
inline void save_world(const std::string& folder, const Degrees& degrees, uint64_t salt, int64_t step,
                       const std::vector<ParameterSpec>& specs = small_model()) {
  const int count = FakeMesh(degrees, 0).world_size();
  const auto errors = as_ranks(count, [&](int number, const Group& group) {
    Rank rank(degrees, number, salt, specs);
    checkpoint::Saver saver(folder, {}, rank.mesh, group);
    saver.save(rank.state(step));
    saver.wait();
  });
  for (const auto& error : errors)
    if (!error.empty()) throw std::runtime_error(error);
}

}  // namespace ditto::test
