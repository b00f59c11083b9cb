#include "tests/matrix/router.h"

#include <torch/types.h>

namespace ditto::matrix {

using torch::Tensor;

namespace {

class Watched final : public Objective {
 public:
  Watched(std::shared_ptr<Objective> inner, const Record* replayed) : inner_(std::move(inner)), replayed_(replayed) {}

  Batch prepare(Batch batch, Context& ctx) const override {
    batch = inner_->prepare(std::move(batch), ctx);
    rows_.push_back(torch::tensor(batch.ids, torch::kLong));
    if (replayed_)
      for (const auto& [name, picks] : replayed_->picks)
        batch[name] = picks.index_select(0, rows_.back()).to(ctx.device);
    return batch;
  }
  std::map<std::string, Tensor> losses(const Outputs& outputs, const Batch& batch, Context& ctx) const override {
    return inner_->losses(outputs, batch, ctx);
  }
  // Of the micro-batch that a block runs next: each takes them in the order in which they were prepared.
  const Tensor& next_rows(const std::string& block) const { return rows_.at(taken_[block]++); }

 private:
  std::shared_ptr<Objective> inner_;
  const Record* replayed_;
  mutable std::vector<Tensor> rows_;
  mutable std::map<std::string, size_t> taken_;
};

// This rank's tokens of whole samples: contiguous, and as many on every rank along context.
Tensor own_tokens(const Tensor& whole, int64_t tokens, const Mesh& mesh) {
  return whole.narrow(1, whole.size(1) == tokens ? 0 : mesh.index(Axis::context) * tokens, tokens);
}

}  // namespace

void watch_routers(Assembly& assembly, Record& record, const Record* given, bool replay, int64_t samples) {
  const auto watched = std::make_shared<Watched>(assembly.objective, replay ? given : nullptr);
  assembly.objective = watched;
  if (replay) return;
  assembly.main->ctx->observe = [&record, &mesh = assembly.mesh, given, watched, samples](const std::string& name,
                                                                                          const Tensor& told) {
    if (!name.starts_with("experts.") || mesh.traffic().pass() == Traffic::Pass::recompute) return;
    const auto value = told.cpu();
    const auto key = "picks." + name.substr(8);
    const auto& rows = watched->next_rows(key);
    if (!given) {
      auto& all = record.picks[key];
      auto shape = value.sizes().vec();
      shape[0] = samples;
      if (!all.defined()) all = torch::zeros(shape, value.options());
      all.index_copy_(0, rows, value);
      return;
    }
    const auto theirs = own_tokens(given->picks.at(key).index_select(0, rows), value.size(1), mesh);
    record.flips += value.ne(theirs).sum().item<int64_t>();
    record.choices += value.numel();
  };
}

}  // namespace ditto::matrix
