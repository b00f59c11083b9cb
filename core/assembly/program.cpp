#include "core/assembly/program.h"

#include <memory>
#include <sstream>
#include <utility>

#include <torch/types.h>

#include <ditto/upload.h>

#include "core/assembly/one_number_guard.h"
#include "core/config/numerics.h"
#include "core/data/names.h"

namespace ditto {

using torch::Tensor;

// fp64 holds both.
Tensor LossLedger::weights_and_places(const Batch& batch) const {
  std::vector<double> numbers = batch.weights;
  for (const int64_t id : batch.ids) numbers.push_back(static_cast<double>(id - first_id_));
  return torch::tensor(numbers, torch::kDouble);
}

Tensor LossLedger::enter(const Batch& batch, const std::map<std::string, Tensor>& losses,
                         const std::map<std::string, Tensor>& measures) {
  const auto device = losses.empty() ? torch::Device(torch::kCPU) : losses.begin()->second.device();
  const auto sent = uploaded(weights_and_places(batch), device).view({2, -1});
  auto& entry = entries_.emplace_back(Entry{sent[0], sent[1].to(torch::kLong), {}, {}});
  for (const auto& [name, tensor] : losses) {
    losses_.insert(name);
    entry.losses[name] = tensor.detach().to(torch::kDouble);
  }
  for (const auto& [name, tensor] : measures) {
    measures_.insert(name);
    entry.measures[name] = tensor.detach().to(torch::kDouble);
  }
  return entry.weights_B;
}

// As entered here; zero elsewhere. What counts nothing may be no number.
Tensor LossLedger::rows(torch::Device device) const {
  const auto all = torch::zeros({static_cast<int64_t>(1 + losses_.size() + measures_.size()), samples_},
                                torch::TensorOptions(torch::kDouble).device(device));
  for (const auto& entry : entries_) {
    const auto weights_B = entry.weights_B.to(device), place_B = entry.place_B.to(device);
    int64_t row = 0;
    all[row++].index_copy_(0, place_B, weights_B);
    const auto put = [&](const std::set<std::string>& names, const std::map<std::string, Tensor>& from) {
      for (const auto& name : names) {
        const auto it = from.find(name);
        auto into = all[row++];
        if (it == from.end()) continue;
        const auto x_B = it->second.to(device);
        into.index_copy_(0, place_B, torch::where(weights_B == 0, torch::zeros_like(x_B), weights_B * x_B));
      }
    };
    put(losses_, entry.losses);
    put(measures_, entry.measures);
  }
  return all;
}

const Group& loss_group(const Mesh& mesh) {
  AxisSet axes(kDataAxes.begin(), kDataAxes.end());
  axes.insert(Axis::pipeline);
  return mesh.group(axes);
}

// A stage before the last, or a rank without a micro-batch, has yet to hear what the losses and measures are called.
void LossLedger::know_all_names(const Mesh& mesh, const Group& group) {
  if (micro_batches_ >= mesh.data_ranks() && mesh.size(Axis::pipeline) == 1) return;
  constexpr char kLoss = 'l', kMeasure = 'm';
  std::string mine;
  for (const auto& name : losses_) mine += kLoss + name + "\n";
  for (const auto& name : measures_) mine += kMeasure + name + "\n";
  for (const auto& names : group.all_gather_text(mine)) {
    std::istringstream lines(names);
    for (std::string line; std::getline(lines, line);) (line[0] == kLoss ? losses_ : measures_).insert(line.substr(1));
  }
}

Tensor LossLedger::gather(const Mesh& mesh, torch::Device device) {
  const torch::NoGradGuard no_grad;
  const Group& group = loss_group(mesh);
  know_all_names(mesh, group);
  // Each number is entered by one rank of the group alone: adding the others' zeros changes no bit.
  return group.all_reduce(rows(device));
}

Tensor LossLedger::losses_of(const Tensor& gathered) const {
  return gathered.narrow(0, 1, static_cast<int64_t>(losses_.size()));
}

std::map<std::string, std::vector<double>> LossLedger::entered() const {
  const auto losses = losses_of(rows(torch::kCPU));
  std::map<std::string, std::vector<double>> all;
  const auto* at = losses.const_data_ptr<double>();
  for (const auto& name : losses_) {
    const auto* begin = std::exchange(at, at + samples_);
    all[name] = {begin, at};
  }
  return all;
}

LossLedger::Totals LossLedger::totals(const Tensor& gathered) const {
  Totals totals;
  const auto* at = gathered.const_data_ptr<double>();
  const auto take_row = [&] {
    const auto* begin = std::exchange(at, at + samples_);
    return std::vector<double>(begin, at);
  };
  totals.weights = take_row();
  double weight = 0;
  for (const double one : totals.weights) {
    weight += one;
    totals.samples += one != 0;
  }
  const auto mean = [&](const std::vector<double>& row) {
    double sum = 0;
    for (const double one : row) sum += one;
    return weight > 0 ? sum / weight : 0;
  };
  for (const auto& name : losses_) {
    totals.parts[name] = mean(totals.weighed[name] = take_row());
    totals.loss += totals.parts[name];
  }
  for (const auto& name : measures_) totals.measures[name] = mean(take_row());
  return totals;
}

namespace {

std::string objective_of(const Assembly& assembly) { return "objective \"" + assembly.recipe.objective.plugin + "\""; }

// What is summed, weighed and noted of a batch stands by its samples' places.
void require_same_samples(const Assembly& assembly, const std::vector<int64_t>& ids, const Batch& prepared) {
  const auto refuse = [&](const std::string& what) {
    throw Error(
        ErrorKind::plugin, objective_of(assembly),
        "prepare() was given " + std::to_string(ids.size()) + " samples, and " + what,
        "Objective::prepare keeps a batch's samples, their ids and weights, and gives every tensor a row for each");
  };
  if (prepared.size() != static_cast<int64_t>(ids.size())) refuse("gives " + std::to_string(prepared.size()));
  if (prepared.ids != ids) refuse("gives others, or in another order");
  if (prepared.weights.size() != ids.size()) refuse("gives " + std::to_string(prepared.weights.size()) + " weights");
  for (const auto& [name, tensor] : prepared.tensors)
    if (!tensor.defined() || tensor.dim() == 0 || tensor.size(0) != prepared.size())
      refuse("gives \"" + name + "\" " + (tensor.defined() ? "as " + c10::str(tensor.sizes()) : "undefined"));
}

// The objective's draws, and what the model sees of them.
Batch prepare(const Assembly& assembly, Batch batch) {
  const auto ids = batch.ids;
  batch = assembly.objective->prepare(std::move(batch), *assembly.main->ctx);
  require_same_samples(assembly, ids, batch);
  if (!assembly.networks->scheduler) return batch;
  const auto place = objective_of(assembly);
  for (const char* name : {names::kInput, names::kInputTime})
    if (batch.has(name))
      throw Error(ErrorKind::plugin, place, "makes \"" + std::string(name) + "\" itself",
                  "with a scheduler it makes \"x_t\" and \"time\", and the host what the model sees of them");
  for (const char* name : {names::kNoisy, names::kTime})
    if (!batch.has(name))
      throw Error(ErrorKind::plugin, place, "makes no \"" + std::string(name) + "\"",
                  "with a scheduler, Objective::prepare adds \"x_t\" and \"time\"");
  assembly.networks->set_input(batch, batch.at(names::kNoisy), batch.at(names::kTime));
  return batch;
}

// What blocks of other networks that train have added, in the objective's run of them.
void add_auxiliary(const Assembly& assembly, const Batch& batch, std::map<std::string, Tensor>& losses) {
  for (const auto& [name, network] : assembly.networks->others())
    for (const auto& [of, loss] : network->take_auxiliary_losses()) {
      if (loss.numel() != batch.size())
        throw Error(ErrorKind::plugin, objective_of(assembly),
                    "runs network \"" + name + "\" on " + std::to_string(loss.numel()) + " samples of " +
                        std::to_string(batch.size()) + ", and its blocks add \"" + of + "\" to each one's loss",
                    "run it on the batch's samples, or choose a network without such a loss");
      losses["auxiliary." + name + "." + of] = loss;
    }
}

struct Judged {
  std::map<std::string, Tensor> losses, measures;  // [B]
};

// `all`: the function that gives each `one`.
void require_of_samples(const Assembly& assembly, const std::string& one, const std::string& all,
                        const std::map<std::string, Tensor>& of, const Batch& batch) {
  for (const auto& [name, values] : of)
    if (!values.defined() || values.sizes() != at::IntArrayRef{batch.size()})
      throw Error(ErrorKind::plugin, objective_of(assembly),
                  "its " + one + " \"" + name + "\" of " + std::to_string(batch.size()) + " samples is " +
                      (values.defined() ? c10::str(values.sizes()) : "undefined"),
                  "Objective::" + all + " gives one number a sample, [B]");
}

// An objective's own parameters may be cut: they are whole inside of its unit.
Judged judge(Assembly& assembly, Outputs& outputs, const Batch& batch) {
  auto& prediction = outputs.at(names::kPrediction);
  if (const auto& schedule = assembly.networks->scheduler)
    prediction = schedule->precondition(prediction, batch.at(names::kNoisy), batch.at(names::kTime));
  Judged judged;
  Stream none;
  Outputs seen;
  auto& ctx = *assembly.main->ctx;
  assembly.main->run_inside(Unit{Unit::objective}, batch, none, seen, [&] {
    judged.losses = assembly.objective->losses(outputs, batch, ctx);
    if (ctx.phase == Phase::evaluate) judged.measures = assembly.objective->measures(outputs, batch, ctx);
    for (const auto& [name, loss] : judged.losses) seen["loss." + name] = loss;
  });
  require_of_samples(assembly, "loss", "losses", judged.losses, batch);
  require_of_samples(assembly, "measure", "measures", judged.measures, batch);
  add_auxiliary(assembly, batch, judged.losses);
  return judged;
}

// Along all samples, whatever their sizes.
Judged judge_parts(Assembly& assembly, const Outputs& made, const Batch& batch) {
  std::map<std::string, std::vector<Tensor>> losses, measures;
  size_t i = 0;
  for (const auto& part : batch) {
    auto outputs = of_part(made, batch, i++);
    const auto judged = judge(assembly, outputs, part);
    for (const auto& [name, loss] : judged.losses) losses[name].push_back(loss);
    for (const auto& [name, measure] : judged.measures) measures[name].push_back(measure);
  }
  const auto joined = [](const std::map<std::string, std::vector<Tensor>>& parts) {
    std::map<std::string, Tensor> all;
    for (const auto& [name, of_sizes] : parts)
      all[name] = of_sizes.size() == 1 ? of_sizes.front() : torch::cat(of_sizes);
    return all;
  };
  return {joined(losses), joined(measures)};
}

}  // namespace

Program make_program(Assembly& assembly, LossLedger& ledger, double weight, const Tensor& scale) {
  // By the rule of transposition ranks that compute the same share it; of one number a whole gradient is whole on each.
  const int copies = assembly.mesh.size(Axis::tensor) * assembly.mesh.size(Axis::context);
  const double shares = is_one_number(assembly.recipe) ? weight : weight * copies;
  auto program = assembly.main->program();
  // With what the objective draws go up the samples' weights, as soon as it sends anything.
  const auto device = assembly.main->ctx->device;
  const auto ahead = device.is_cpu() || device.is_meta() ? nullptr : std::make_shared<SentAhead>();
  program.prepare = [&assembly, &ledger, ahead](Batch batch) {
    if (ahead) {
      ahead->forget();
      ahead->add(ledger.weights_and_places(batch));
    }
    return std::move(batch).changed([&](Batch part) { return prepare(assembly, std::move(part)); });
  };
  program.loss = [&assembly, &ledger, shares, scale](const Stream& stream, const Outputs& made, const Batch& batch) {
    auto [losses, measures] = judge_parts(assembly, made, batch);
    for (const auto& [name, loss] : stream.auxiliary_losses) losses["auxiliary." + name] = loss;
    const auto weights_B = ledger.enter(batch, losses, measures);
    Tensor sum_B;
    for (const auto& [name, loss] : losses) sum_B = sum_B.defined() ? sum_B + loss : loss;
    const auto weights = weights_B.to(sum_B.scalar_type());
    // The sum itself is read by nobody: what is reported is the ledger's, and backward of it copies.
    const OneNumberGuard::Pause unread;
    const auto share = torch::where(weights == 0, torch::zeros_like(sum_B), sum_B * weights).sum() / shares;
    return scale.defined() ? share * scale.to(share.scalar_type()) : share;
  };
  return program;
}

}  // namespace ditto
