#include "core/network/cached_blocks.h"

#include <algorithm>

#include <fmt/format.h>
#include <torch/types.h>

#include <ditto/error.h>

#include "core/data/names.h"

namespace ditto {

using torch::Tensor;

namespace {

// The samples of these rows.
Batch rows_of(const Batch& batch, const std::vector<size_t>& rows) {
  std::vector<int64_t> index(rows.begin(), rows.end());
  Batch some;
  for (const auto& [name, tensor] : batch.tensors)
    some[name] = tensor.index_select(0, torch::tensor(index, torch::kLong).to(tensor.device()));
  for (const size_t row : rows) {
    some.ids.push_back(batch.ids[row]);
    some.weights.push_back(batch.weights[row]);
    for (const auto& [name, all] : batch.lengths) some.lengths[name].push_back(all[row]);
  }
  return some;
}

}  // namespace

CachedBlocks::CachedBlocks(RunningModel& model, std::shared_ptr<const Cache> cache, Component component)
    : model_(model),
      cache_(std::move(cache)),
      component_(std::move(component)),
      first_(cache_->signal() == Cache::Signal::first_residual ? 1 : 0) {
  const auto& mesh = model_.mesh();
  if (mesh.size(Axis::pipeline) > 1)
    refuse("does not go with parallel.pipeline = " + std::to_string(mesh.size(Axis::pipeline)) +
               ": stages run their blocks before it is known whether they are skipped",
           "sample without the pipeline (--set parallel.pipeline=1), or without a cache");
  if (model_.in_step())
    refuse("decides for each sample by itself, and here data ranks run the same blocks together",
           "sample with whole weights on each data rank (--set parallel.shard=1, or parallel.shard_plugin = \"zero1\"; "
           "parallel.expert = 1), or without a cache");
  if (first_ == 0 && !find(model_.model->makes(), names::kModulatedInput))
    refuse("watches the modulated input, which model \"" + model_.setting.component.plugin + "\" does not hand out",
           "choose cache.plugin = \"first_block\"; in a model of your own, override modulated_input() and name it in "
           "makes()");
  if (model_.model->depth() <= first_)
    refuse("has no block to skip: the model has " + std::to_string(model_.model->depth()), "sample without a cache");
}

void CachedBlocks::refuse(const std::string& what, const std::string& remedy) const {
  throw Error(ErrorKind::config, component_.where, "cache \"" + component_.plugin + "\" " + what, remedy);
}

void CachedBlocks::begin() {
  histories_.clear();
  decisions_.clear();
  evaluations_ = 0;
}

Tensor CachedBlocks::predict(const Batch& batch, const std::vector<int>& branches, bool is_last) {
  const auto samples = batch.size() / static_cast<int64_t>(branches.size());
  std::vector<History*> histories;
  for (const int branch : branches)
    for (int64_t i = 0; i < samples; ++i) histories.push_back(&histories_[{branch, i}]);
  auto whole = model_.program(), cached = whole;
  cached.blocks = [&](int64_t, int64_t, Stream& stream) { run(whole, batch, histories, is_last, stream); };
  return model_.predict(batch, cached);
}

std::map<std::string, Tensor*> CachedBlocks::evolving(Stream& stream, int64_t samples) const {
  stream.auxiliary_losses.clear();  // nobody minimises them here
  std::map<std::string, Tensor*> all;
  for (const auto& field : stream.fields()) {
    if (field.role != Role::evolving) continue;
    if (field.name.starts_with("skip.") || field.tensor->dim() == 0 || field.tensor->size(0) != samples)
      refuse("adds again what blocks of one sample added, and those of model \"" + model_.setting.component.plugin +
                 "\" hand one another more (" + field.name + "), as long skips are",
             "sample without a cache");
    all[field.name] = field.tensor;
  }
  return all;
}

// Those that are computed go through the blocks together. Where others are not, they begin again, so that nothing has
// to be known of what a model keeps beside its tokens.
void CachedBlocks::run(Program& program, const Batch& batch, const std::vector<History*>& histories, bool is_last,
                       Stream& stream) {
  const auto samples = histories.size();
  const auto signal_BTD = watched(program, batch, stream);
  const auto fields = evolving(stream, batch.size());
  const auto computed = decide(signal_BTD, stream, histories, is_last);
  count(computed.size(), samples);
  if (computed.size() == samples) return run_blocks(program, histories, stream);

  std::vector<bool> is_computed(samples);
  for (const size_t i : computed) is_computed[i] = true;
  std::map<std::string, Tensors> rows;
  for (const auto& [name, tensor] : fields)
    for (size_t i = 0; i < samples; ++i) {
      const auto here = (*tensor)[static_cast<int64_t>(i)];
      rows[name].push_back(is_computed[i] ? here : here + histories[i]->residual.at(name));
    }
  if (!computed.empty()) {
    const auto some = rows_of(batch, computed);
    std::vector<History*> theirs;
    for (const size_t i : computed) theirs.push_back(histories[i]);
    auto again = program.begin(some);
    if (first_ > 0) program.blocks(0, first_, again);
    run_blocks(program, theirs, again);
    for (const auto& [name, tensor] : evolving(again, some.size()))
      for (size_t j = 0; j < computed.size(); ++j) rows[name][computed[j]] = (*tensor)[static_cast<int64_t>(j)];
  }
  for (const auto& [name, tensor] : fields) *tensor = torch::stack(rows[name]);
}

// The blocks that may be skipped; what they add is kept.
void CachedBlocks::run_blocks(Program& program, const std::vector<History*>& histories, Stream& stream) const {
  const auto samples = static_cast<int64_t>(histories.size());
  std::map<std::string, Tensor> before;
  for (const auto& [name, tensor] : evolving(stream, samples)) before[name] = *tensor;
  program.blocks(first_, model_.model->depth(), stream);
  for (const auto& [name, tensor] : evolving(stream, samples)) {
    const auto from = before.find(name);
    if (from == before.end() || from->second.sizes() != tensor->sizes())
      refuse("adds again what blocks added, and those of model \"" + model_.setting.component.plugin +
                 "\" make another shape of " + name,
             "sample without a cache");
    const auto added = *tensor - from->second;
    for (size_t i = 0; i < histories.size(); ++i) histories[i]->residual[name] = added[static_cast<int64_t>(i)].clone();
  }
}

// In at least fp32: it is summed up.
Tensor CachedBlocks::watched(Program& program, const Batch& batch, Stream& stream) const {
  if (!stream.x_BTD.defined())
    refuse("watches tokens, and blocks of model \"" + model_.setting.component.plugin + "\" hand one another maps",
           "sample without a cache");
  Tensor signal_BTD;
  if (first_ > 0) {
    const auto before = stream.x_BTD;
    program.blocks(0, first_, stream);
    signal_BTD = stream.x_BTD - before;
  } else {
    Outputs none;
    model_.run_inside({Unit::Kind::block, 0}, batch, stream, none,
                      [&] { signal_BTD = model_.model->modulated_input(stream, *model_.ctx); });
    if (!signal_BTD.defined() || signal_BTD.sizes() != stream.x_BTD.sizes())
      throw Error(ErrorKind::plugin, "modulated_input of model \"" + model_.setting.component.plugin + "\"",
                  "gave " + (signal_BTD.defined() ? c10::str(signal_BTD.sizes()) : "nothing") + ", expected " +
                      c10::str(stream.x_BTD.sizes()) + " as the tokens",
                  "correct it, or do not name it in makes()");
  }
  return signal_BTD.to(signal_BTD.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat);
}

// The rows to compute.
std::vector<size_t> CachedBlocks::decide(const Tensor& signal_BTD, const Stream& stream,
                                         const std::vector<History*>& histories, bool is_last) const {
  const auto change = changes(signal_BTD, stream, histories);
  std::vector<size_t> computed;
  for (size_t i = 0; i < histories.size(); ++i) {
    auto& history = *histories[i];
    const bool computes = history.residual.empty() || cache_->computes({change[i], is_last, history.sum});
    if (computes) computed.push_back(i);
    if (computes || cache_->against() == Cache::Against::last)
      history.signal = signal_BTD[static_cast<int64_t>(i)].clone();
  }
  return computed;
}

// Of whole samples, however their tokens are cut, and as the first of the ranks that share them finds it: all decide
// alike.
std::vector<double> CachedBlocks::changes(const Tensor& signal_BTD, const Stream& stream,
                                          const std::vector<History*>& histories) const {
  Tensors numbers, others;
  for (size_t i = 0; i < histories.size(); ++i) {
    const auto now = signal_BTD[static_cast<int64_t>(i)];
    const auto& other = histories[i]->signal.defined() ? histories[i]->signal : now;
    numbers.push_back((now - other).abs());
    others.push_back(other.abs());
  }
  numbers.insert(numbers.end(), others.begin(), others.end());
  auto joined = stream;
  joined.x_BTD = torch::stack(numbers);
  for (auto* strategy : in_order_of_wrapping(model_.strategies)) strategy->join(joined);
  auto means = model_.ctx->ops.sample_mean(joined.x_BTD.contiguous()).to(torch::kCPU, torch::kDouble).contiguous();
  means = model_.mesh().group({Axis::tensor, Axis::context}).broadcast(means, 0);
  std::vector<double> change(histories.size());
  for (size_t i = 0; i < change.size(); ++i) {
    const auto *apart = means.data_ptr<double>() + i, *size = apart + change.size();
    change[i] = *apart == 0 ? 0 : *apart / *size;
  }
  return change;
}

void CachedBlocks::count(size_t computed, size_t samples) {
  const auto depth = model_.model->depth();
  const auto all = static_cast<double>(depth) * static_cast<double>(samples);
  const auto skipped = static_cast<double>(depth - first_) * static_cast<double>(samples - computed);
  decisions_["blocks computed"] += all - skipped;
  decisions_["blocks skipped"] += skipped;
  ++evaluations_;
  if (skipped > 0) decisions_[fmt::format("blocks skipped at evaluation {:03}", evaluations_)] += skipped;
}

std::unique_ptr<CachedBlocks> make_cache(Components& components, RunningModel& model, const Sampler& sampler,
                                         const Objective* objective) {
  const Recipe& recipe = components.recipe;
  const auto refuse = [&](const std::string& what, const std::string& remedy) {
    throw Error(ErrorKind::config, recipe.cache.where, "cache \"" + recipe.cache.plugin + "\" " + what, remedy);
  };
  if (sampler.adaptive())
    refuse("skips blocks, by whose answers sampler \"" + recipe.sampler.plugin + "\" estimates its own errors",
           "choose a sampler of fixed steps, or no cache");
  if (objective && !objective->features().empty())
    refuse("skips blocks, whose features objective \"" + recipe.objective.plugin + "\" reads",
           "leave [cache] out of the training, and sample with --cache " + recipe.cache.plugin);
  return std::make_unique<CachedBlocks>(model, components.make<Cache>("cache", recipe.cache, {}), recipe.cache);
}

}  // namespace ditto
