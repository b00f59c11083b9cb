// AdamW: I. Loshchilov and F. Hutter, "Decoupled weight decay regularization", 2019 (arXiv:1711.05101), algorithm 2.
#include <algorithm>
#include <cmath>

#include <ditto/ditto.h>
#include <ditto/list_update.h>
#include <ditto/math/threads.h>

#include "one_pass.h"

namespace {

using torch::Tensor;

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
  bool decay_vectors = true;

  void read(ditto::OptionReader& option) {
    option("beta1", beta1, "decay of the first moment").between(0, 1);
    option("beta2", beta2, "decay of the second moment").between(0, 1);
    option("eps", eps, "added to the square root of the second moment").at_least(1e-37);
    option("weight_decay", weight_decay, "decoupled: weights lose lr * weight_decay of themselves a step").at_least(0);
    option("decay_vectors", decay_vectors, "decay biases and other one-dimensional parameters too");
    option.only_if(weight_decay > 0, {"decay_vectors"}, "says what weight_decay is of, and that is 0");
    for (const auto& [name, beta] : {std::pair("beta1", beta1), std::pair("beta2", beta2)})
      if (beta == 1) option.reject(name, "is 1, and its moment would stay 0", "set it below 1");
  }
};

// The fused kernel rounds the last numbers of a tensor, which do not fill a vector, in another way than the others. So
// that a slice is updated to the bits of the whole, all such rests are put together, padded, and updated as one.
constexpr int64_t kVector = 16;

struct Run {
  std::vector<Tensor> weights, grads, first, second;
  void add(const Tensor& w, const Tensor& g, const Tensor& m, const Tensor& v) {
    weights.push_back(w), grads.push_back(g), first.push_back(m), second.push_back(v);
  }
};

// One pass over weights, moments, average and compute copy where they are fp32 in a processor's memory, or a kernel of
// the run makes it (the op "adamw_all"); else LibTorch's fused kernel, or the op "adamw" where the update is to be
// exact, and average and copy after it.
struct AdamW final : ditto::Optimizer {
  using Options = AdamWOptions;

  AdamW(const Options& o, const Needs& needs)
      : options(o), parameters(needs.parameters), ops(needs.ops), exact_ops(needs.exact ? needs.ops : nullptr) {
    for (const auto& p : parameters) {
      exp_avg.push_back(torch::zeros_like(p.tensor, torch::TensorOptions().requires_grad(false)));
      exp_avg_sq.push_back(torch::zeros_like(exp_avg.back()));
    }
  }

  void step(const ditto::Update& update) override {
    if (!exact_ops && fits_one_pass()) return move_in_one_pass(update);
    if (ditto::in_one_call("adamw_all", ops, as_list(update),
                           {{"beta1", options.beta1},
                            {"beta2", options.beta2},
                            {"eps", options.eps},
                            {"weight_decay", options.weight_decay}})) {
      ++steps;
      return;
    }
    ditto::in_parts(update, parameters, [&] { move(update); });
  }

  std::optional<ditto::ListUpdate> as_list(const ditto::Update& update) const {
    auto list = ditto::ListUpdate::of(update, parameters, {exp_avg, exp_avg_sq});
    if (!list) return list;
    for (size_t i = 0; i < parameters.size(); ++i) list->parameters[i].decayed = is_decayed(parameters[i]);
    list->step = static_cast<double>(steps + 1);
    return list;
  }

  // The same on every rank and layout, so that all give a number the same bits.
  bool fits_one_pass() const {
    return std::all_of(parameters.begin(), parameters.end(),
                       [](const auto& p) { return p.tensor.is_cpu() && p.tensor.scalar_type() == torch::kFloat; });
  }

  void move_in_one_pass(const ditto::Update& update) {
    const torch::NoGradGuard no_grad;
    ++steps;
    if (ditto::is_skipped(update)) return;
    const auto clip = static_cast<float>(ditto::clip_of(update));
    const auto n = static_cast<double>(steps);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Tensor w = parameters[i].tensor.detach(), g = parameters[i].tensor.grad();
      const Tensor average = update.average.empty() ? Tensor() : update.average[i],
                   copy = update.copies.empty() ? Tensor() : update.copies[i];
      if (!g.defined()) {
        if (average.defined()) average.lerp_(w, 1 - update.decay);
        if (copy.defined()) copy.copy_(w);
        continue;
      }
      const auto flat = [](const Tensor& x) { return x.view(-1).data_ptr<float>(); };
      const bool in_bf16 = copy.defined() && copy.scalar_type() == torch::kBFloat16 && copy.is_contiguous();
      const Tensor gradient = g.contiguous();
      const ditto_adamw::Pass pass{
          .w = flat(w),
          .g = flat(gradient),
          .m = flat(exp_avg[i]),
          .v = flat(exp_avg_sq[i]),
          .average = average.defined() ? flat(average) : nullptr,
          .copy = in_bf16 ? static_cast<std::uint16_t*>(copy.data_ptr()) : nullptr,
          .clip = clip,
          .beta1 = static_cast<float>(options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .eps = static_cast<float>(options.eps),
          .keep = static_cast<float>(1 - update.lr * (is_decayed(parameters[i]) ? options.weight_decay : 0)),
          .rate = static_cast<float>(update.lr / (1 - std::pow(options.beta1, n))),
          .root = static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2, n))),
          .approach = static_cast<float>(1 - update.decay)};
      ditto::in_threads(w.numel(), 1 << 15, [&](int64_t begin, int64_t end) {
        ditto_adamw::run(pass, static_cast<size_t>(begin), static_cast<size_t>(end));
      });
      if (copy.defined() && !in_bf16) copy.copy_(w);
    }
  }

  bool exact() const override { return true; }
  bool skips() const override { return true; }

  void move(const ditto::Update& asked) {
    ++steps;
    if (exact_ops) return move_exactly(asked);
    // By whether they decay, and by the memory they are in: some may be offloaded.
    std::map<std::pair<bool, at::DeviceType>, std::pair<Run, Run>> runs;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& p = parameters[i];
      if (!p.tensor.grad().defined()) continue;
      const bool decayed = is_decayed(p);
      auto& [whole, rests] = runs[{decayed, p.tensor.device().type()}];
      const auto flat = [](const Tensor& x) { return x.detach().view(-1); };
      const Tensor w = flat(p.tensor), g = flat(p.tensor.grad()), m = flat(exp_avg[i]), v = flat(exp_avg_sq[i]);
      const int64_t rest = w.numel() % kVector, body = w.numel() - rest;
      const auto head = [body](const Tensor& x) { return x.narrow(0, 0, body); };
      const auto tail = [body, rest](const Tensor& x) { return x.narrow(0, body, rest); };
      if (body > 0) whole.add(head(w), head(g), head(m), head(v));
      if (rest > 0) rests.add(tail(w), tail(g), tail(m), tail(v));
    }
    for (auto& [key, run] : runs) {
      update(run.first, asked, key.first);
      update_rests(run.second, asked, key.first);
    }
  }

  bool is_decayed(const ditto::OptimizedParameter& p) const { return options.decay_vectors || p.full_shape.size() > 1; }

  // Every number by itself, so that slices have the bits of the whole.
  void move_exactly(const ditto::Update& update) const {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& p = parameters[i];
      if (!p.tensor.grad().defined() || p.tensor.numel() == 0) continue;
      ditto::unless_skipped(update, {p.tensor, exp_avg[i], exp_avg_sq[i]}, [&] {
        exact_ops->run("adamw", {{p.tensor.detach(), p.tensor.grad().detach(), exp_avg[i], exp_avg_sq[i]},
                                 {{"lr", update.lr},
                                  {"beta1", options.beta1},
                                  {"beta2", options.beta2},
                                  {"eps", options.eps},
                                  {"weight_decay", is_decayed(p) ? options.weight_decay : 0.0},
                                  {"step", static_cast<double>(steps)}}});
      });
    }
  }

  void update(Run& run, const ditto::Update& asked, bool decayed) const {
    if (run.weights.empty()) return;
    const auto on_device = torch::TensorOptions(torch::kFloat).device(run.weights[0].device());
    const std::vector<Tensor> counts(run.weights.size(), torch::scalar_tensor(static_cast<double>(steps), on_device));
    std::optional<Tensor> skip;
    if (asked.skip.defined()) skip = asked.skip.to(on_device);
    at::_fused_adamw_(run.weights, run.grads, run.first, run.second, {}, counts, asked.lr, options.beta1, options.beta2,
                      decayed ? options.weight_decay : 0.0, options.eps, /*amsgrad=*/false, /*maximize=*/false,
                      /*grad_scale=*/std::nullopt, /*found_inf=*/skip);
  }

  void update_rests(const Run& rests, const ditto::Update& asked, bool decayed) const {
    if (rests.weights.empty()) return;
    const auto padded = [](const std::vector<Tensor>& list) {
      const auto all = torch::cat(list);
      return torch::constant_pad_nd(all, {0, (kVector - all.numel() % kVector) % kVector});
    };
    Run run;
    run.add(padded(rests.weights), padded(rests.grads), padded(rests.first), padded(rests.second));
    update(run, asked, decayed);
    int64_t at = 0;
    for (size_t i = 0; i < rests.weights.size(); ++i) {
      const int64_t n = rests.weights[i].numel();
      rests.weights[i].copy_(run.weights[0].narrow(0, at, n));
      rests.first[i].copy_(run.first[0].narrow(0, at, n));
      rests.second[i].copy_(run.second[0].narrow(0, at, n));
      at += n;
    }
  }

  std::map<std::string, ditto::OptimizerState> state() override {
    return {{"exp_avg", {exp_avg}}, {"exp_avg_sq", {exp_avg_sq}}};
  }
  Counters counters() const override { return {{"steps", static_cast<double>(steps)}}; }
  void set_counters(const Counters& counters) override { steps = static_cast<int64_t>(counters.at("steps")); }

  Options options;
  std::vector<ditto::OptimizedParameter> parameters;
  const ditto::OpTable* ops;        // null: the host gives none
  const ditto::OpTable* exact_ops;  // null: not asked for
  std::vector<Tensor> exp_avg, exp_avg_sq;
  int64_t steps = 0;
};

}  // namespace

DITTO_PLUGIN(Optimizer, AdamW, "adamw", "1.0.0", "Apache-2.0", "AdamW with decoupled weight decay, one fused pass")
