#include "core/train/program.h"

#include <sstream>

#include <torch/torch.h>

namespace ditto {

using torch::Tensor;

void LossLedger::enter(const Batch& batch, const std::map<std::string, Tensor>& losses) {
  for (const auto& [name, tensor] : losses) {
    auto& row = losses_[name];
    row.resize(static_cast<size_t>(samples_), 0.0);
    const auto values = tensor.detach().to(torch::kDouble).to(torch::kCPU).contiguous();
    for (int64_t i = 0; i < batch.size(); ++i) {
      const auto at = static_cast<size_t>(batch.ids[static_cast<size_t>(i)] - first_id_);
      const double weight = batch.weights[static_cast<size_t>(i)];
      row[at] = weight == 0 ? 0 : weight * values.data_ptr<double>()[i];
      weights_[at] = weight;
    }
  }
}

// With fewer micro-batches than ranks, some rank ran none and has yet to hear what the losses are called.
void LossLedger::know_all_names(const Mesh& mesh) {
  if (micro_batches_ >= mesh.data_ranks()) return;
  std::string mine;
  for (const auto& [name, row] : losses_) mine += name + "\n";
  for (const auto& names : mesh.data_group().all_gather_text(mine)) {
    std::istringstream lines(names);
    for (std::string name; std::getline(lines, name);) losses_[name].resize(static_cast<size_t>(samples_), 0.0);
  }
}

LossLedger::Totals LossLedger::sum(const Mesh& mesh, bool stop) {
  know_all_names(mesh);
  // Each number is entered by one data rank alone: adding the others' zeros changes no bit.
  std::vector<double> all{stop ? 1.0 : 0.0};
  all.insert(all.end(), weights_.begin(), weights_.end());
  for (const auto& [name, row] : losses_) all.insert(all.end(), row.begin(), row.end());
  auto flat = torch::tensor(all, torch::kDouble);
  flat = mesh.data_group().all_reduce(flat);
  const auto* numbers = flat.data_ptr<double>();
  Totals totals;
  totals.stop = mesh.world().all_reduce(flat.slice(0, 0, 1).clone()).item<double>();
  const double* at = numbers + 1;
  for (int64_t i = 0; i < samples_; ++i) totals.samples += *at++;
  for (const auto& [name, row] : losses_) {
    double sum = 0;
    for (int64_t i = 0; i < samples_; ++i) sum += *at++;
    totals.parts[name] = totals.samples > 0 ? sum / totals.samples : 0;
    totals.loss += totals.parts[name];
  }
  return totals;
}

Program make_program(Assembly& assembly, LossLedger& ledger, double count) {
  const double shares = count * assembly.mesh.size(Axis::tensor) * assembly.mesh.size(Axis::context);
  Program program;
  program.prepare = [&assembly](Batch batch) { return assembly.objective->prepare(std::move(batch), *assembly.ctx); };
  program.begin = [&assembly](const Batch& batch) { return assembly.begin(batch); };
  program.blocks = [&assembly](int64_t first, int64_t last, Stream& stream) { assembly.blocks(first, last, stream); };
  program.finish = [&assembly, &ledger, shares](Stream& stream, const Batch& batch) {
    const auto prediction = assembly.finish(stream, batch);
    auto losses = assembly.objective->losses(prediction, batch, *assembly.ctx);
    for (const auto& [name, loss] : stream.auxiliary_losses) losses["auxiliary." + name] = loss;
    ledger.enter(batch, losses);
    Tensor sum_B;
    for (const auto& [name, loss] : losses) sum_B = sum_B.defined() ? sum_B + loss : loss;
    const auto weights = torch::tensor(batch.weights, torch::kDouble).to(sum_B.options());
    return torch::where(weights == 0, torch::zeros_like(sum_B), sum_B * weights).sum() / shares;
  };
  return program;
}

}  // namespace ditto
