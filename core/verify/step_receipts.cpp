#include "core/verify/step_receipts.h"

#include <algorithm>
#include <utility>

#include <torch/types.h>

#include "core/assembly/run_notes.h"
#include "core/config/differences.h"
#include "core/config/numerics.h"
#include "core/formats/sha256.h"

namespace ditto {

using torch::Tensor;

namespace {

// Along these axes ranks have the same samples.
constexpr Axis kSharingSamples[] = {Axis::pipeline, Axis::tensor, Axis::context};

// The sums of all ranks, in their places.
void add_up(const Mesh& mesh, std::vector<HashSum*> sums) {
  auto all = torch::empty({static_cast<int64_t>(sums.size()), static_cast<int64_t>(kHashLanes)}, torch::kLong);
  auto* numbers = reinterpret_cast<std::uint64_t*>(all.data_ptr<int64_t>());
  for (size_t i = 0; i < sums.size(); ++i)
    std::copy(sums[i]->lanes.begin(), sums[i]->lanes.end(), numbers + i * kHashLanes);
  all = mesh.world().all_reduce(all);
  numbers = reinterpret_cast<std::uint64_t*>(all.data_ptr<int64_t>());
  for (size_t i = 0; i < sums.size(); ++i) std::copy_n(numbers + i * kHashLanes, kHashLanes, sums[i]->lanes.begin());
}

// Of the options that change what is learned, or its course.
std::string hash_of(const Recipe& recipe) {
  std::string text;
  for (const auto& [key, value] : flat(recipe.resolved())) {
    const auto effect = recipe.effects().of(key);
    const bool counts = effect == Effect::learning || effect == Effect::course;
    if (counts && !recipe.effects().is_place(key)) text += key + " = " + value + "\n";
  }
  return formats::sha256(text);
}

// Among what the bits of one number depend on is the precision of what is multiplied.
std::string numerics_of(const Recipe& recipe) {
  const auto& run = recipe.run;
  return is_one_number(recipe) && run.precision != "fp32" ? run.numerics + ", " + run.precision : run.numerics;
}

// What the bits of fast kernels depend on besides: options, how many samples a micro-batch has, and the machine.
void add_fast(const Recipe& recipe, const Mesh& mesh, torch::Device device, std::map<std::string, std::string>& into) {
  for (const auto& [key, value] : flat(recipe.resolved()))
    if (recipe.effects().of(key) == Effect::bits) into[key] = value;
  for (const auto& [key, value] : machine_record(device)) into[key] = value;
  into.erase("run.threads");  // as they are: "threads"
  const auto& run = recipe.run;
  const int64_t ranks = mesh.data_ranks();
  into["run.micro_batch"] = std::to_string(run.micro_batch > 0 ? run.micro_batch : (run.batch + ranks - 1) / ranks);
}

}  // namespace

void StepReceipts::has_read(const Batch& batch) {
  const auto& mesh = assembly_.mesh;
  for (const Axis axis : kSharingSamples)
    if (mesh.index(axis) > 0) return;
  const HashKey number("number");
  TensorHash hash;
  for (const auto& part : batch)
    for (size_t i = 0; i < part.ids.size(); ++i) {
      if (part.weights[i] == 0) continue;
      const auto place = part.ids[i];
      hash.add(number.of(place), torch::scalar_tensor(loader_.number_of(place), torch::kLong));
      for (const auto& [name, tensor] : part.tensors)
        hash.add(HashKey(name).of(place), tensor[static_cast<int64_t>(i)]);
    }
  samples_ += hash.sum();
}

// Of a checkpoint's step too: `ditto bisect` holds the checkpoint against its line.
void StepReceipts::begins(int64_t step, Program&) {
  const auto& recipe = assembly_.recipe;
  const auto every = [after = step + 1](int64_t steps) { return steps > 0 && after % steps == 0; };
  is_average_due_ =
      every(recipe.record.average_every) || every(recipe.checkpoint.every) || step + 1 == recipe.run.steps;
  weights_ = average_ = {};
}

void StepReceipts::has_gradients(const LossLedger&, const Tensor&) {
  const auto& learned = assembly_.networks->learned();
  TensorHash hash;
  hash.add(learned, assembly_.mesh, [&](size_t i) { return learned.entries[i].tensor.grad(); });
  gradient_ = hash.sum();
}

void StepReceipts::updates(Update& update) {
  if (update.skip.defined()) return;
  const auto count = assembly_.networks->learned().entries.size();
  weights_.tensors.assign(count, false);
  average_.tensors.assign(count, false);
  update.written = [this](size_t i, int64_t begin, int64_t end) {
    take(weights_, i, assembly_.networks->learned().entries[i].tensor, begin, end);
    if (is_average_due_) take(average_, i, ema_.tensors()[i], begin, end);
  };
}

void StepReceipts::take(Hashed& hashed, size_t i, const Tensor& tensor, int64_t begin, int64_t end) const {
  const auto& entry = assembly_.networks->learned().entries[i];
  hashed.tensors[i] = true;
  if (!TensorHash::counts(entry, assembly_.mesh)) return;
  TensorHash hash;
  hash.add(HashKey(entry.name), entry.full_shape, entry.slices(), tensor, begin, end);
  hashed.sum += hash.sum();
}

HashSum StepReceipts::whole(const Hashed& hashed, const std::function<Tensor(size_t)>& tensors) const {
  TensorHash hash;
  hash.add(assembly_.networks->learned(), assembly_.mesh,
           [&](size_t i) { return i < hashed.tensors.size() && hashed.tensors[i] ? Tensor() : tensors(i); });
  auto sum = hash.sum();
  return sum += hashed.sum;
}

Receipt StepReceipts::after(int64_t step, const StepResult& result) {
  Receipt receipt;
  receipt.step = step;
  receipt.skipped = result.skipped;
  auto samples = std::exchange(samples_, {});
  add_up(assembly_.mesh, {&samples, &gradient_});
  receipt.parts = {{"samples", samples.text()},
                   {"loss", bits_of(result.loss)},
                   {"gradient", gradient_.text()},
                   {"norm", bits_of(result.grad_norm)}};
  add_state(receipt, is_average_due_ || result.stop);
  return receipt;
}

void StepReceipts::add_state(Receipt& receipt, bool with_average) {
  with_average = with_average && ema_.enabled();
  const auto& learned = assembly_.networks->learned();
  auto weights = whole(weights_, [&](size_t i) { return learned.entries[i].tensor; });
  HashSum average;
  if (with_average) average = whole(average_, [&](size_t i) { return ema_.tensors()[i]; });
  add_up(assembly_.mesh, {&weights, &average});
  receipt.parts.emplace_back("weights", weights.text());
  if (with_average) receipt.parts.emplace_back(kAverage, average.text());
}

Receipt StepReceipts::beginning(int64_t step, const Registry& registry) {
  auto& recipe = assembly_.recipe;
  std::map<std::string, std::string> facts{{"recipe", hash_of(recipe)},
                                           {"numerics", numerics_of(recipe)},
                                           {"data", assembly_.train_data->fingerprint()},
                                           {"ditto", kVersion},
                                           {"numerics_epoch", std::to_string(kNumericsEpoch)}};
  for (const auto& [plugin, version] : plugin_record(recipe, registry)) facts["plugins." + plugin] = version;
  if (!is_one_number(recipe)) add_fast(recipe, assembly_.mesh, assembly_.main->ctx->device, facts);
  Receipt receipt;
  receipt.step = step;
  receipt.begins = std::move(facts);
  add_state(receipt, true);
  return receipt;
}

}  // namespace ditto
