// Updates of lists of parameters, and the sum of all gradients' squares, in one pass over memory each.
#include <cmath>
#include <cstring>

#include <ditto/list_update.h>
#include <ditto/upload.h>

#include "rows.h"

namespace ditto_cuda {

namespace {

using ditto::ListUpdate;

// Parameters as kernels take them, on the GPU: the table goes up in one copy.
class Table {
 public:
  explicit Table(const std::vector<Parameter>& list, const Tensor& like) {
    std::vector<int> firsts{0};
    for (const auto& one : list) firsts.push_back(firsts.back() + static_cast<int>(pieces_of(one.count)));
    const auto bytes = torch::empty({static_cast<int64_t>(list.size() * sizeof(Parameter))}, torch::kByte);
    std::memcpy(bytes.data_ptr(), list.data(), list.size() * sizeof(Parameter));
    sent_ = ditto::uploaded({bytes, torch::tensor(firsts, torch::kInt)}, like.device());
    p_ = {static_cast<const Parameter*>(sent_[0].const_data_ptr()), sent_[1].const_data_ptr<int>(),
          static_cast<Index>(list.size()), firsts.back()};
  }
  const Parameters& all() const { return p_; }

 private:
  Tensors sent_;
  Parameters p_;
};

// In one piece, and as kernels store it.
bool is_plain(const Tensor& x, at::ScalarType dtype) {
  return !x.defined() || (x.is_cuda() && x.scalar_type() == dtype && x.is_contiguous());
}

bool takes(const OpCall& call) {
  if (call.device != torch::kCUDA || call.dtype != torch::kFloat) return false;
  const auto list = call.inputs.list("decayed").size();
  for (size_t i = 0; i < list; ++i) {
    const auto* own = &call.inputs.tensors[6 * i];  // weight, gradient, first, second, average, copy
    for (const size_t of : {0, 2, 3, 4})
      if (!is_plain(own[of], torch::kFloat)) return false;
    if (own[1].scalar_type() != torch::kFloat || !own[1].is_cuda() || !is_plain(own[5], torch::kBFloat16)) return false;
  }
  return true;
}

// What the host knows of all gradients, and what the device alone.
Tensor gradients_of(const ListUpdate& update) {
  const auto& weight = update.parameters.front().weight;
  const Tensor one = room({static_cast<int64_t>(sizeof(Gradients))}, weight, torch::kByte);
  const auto field = [&](size_t at, at::ScalarType dtype) {
    return one.narrow(0, static_cast<int64_t>(at), 4).view(dtype).squeeze(0);
  };
  auto clip = field(offsetof(Gradients, clip), torch::kFloat), finite = field(offsetof(Gradients, finite), torch::kInt);
  if (update.late_clip.defined())
    clip.copy_(update.late_clip * update.clip);
  else
    clip.fill_(update.clip);
  if (update.skip.defined())
    finite.copy_(update.skip.logical_not());
  else
    finite.fill_(1);
  return one;
}

// `decay` of a parameter that decays, and of one that does not.
template <class Rule>
Tensors updated(const OpInputs& in, const char* name,
                Status (*kernel)(const Parameters&, const Rule&, const Gradients*, Stream), float decay, float none,
                const Rule& rule) {
  const auto update = ListUpdate::of(in);
  const torch::NoGradGuard no_grad;
  std::vector<Parameter> list;
  Tensors gradients;  // live until the kernel is launched
  for (const auto& p : update.parameters) {
    gradients.push_back(p.gradient.contiguous());
    list.push_back({floats(p.weight), floats(p.first), floats(p.second), floats(p.average), floats(gradients.back()),
                    static_cast<std::uint16_t*>(place(p.copy)), p.weight.numel(), p.decayed ? decay : none});
  }
  const auto& weight = update.parameters.front().weight;
  const Table table(list, weight);
  const Tensor known = gradients_of(update);
  if (table.all().pieces > 0)
    launched(kernel(table.all(), rule, static_cast<const Gradients*>(known.const_data_ptr()), stream_of(weight)), name);
  return {weight};
}

float keep(const OpInputs& in, const ListUpdate& update) {
  return static_cast<float>(1 - update.lr * in.number("weight_decay"));
}

float approach(const ListUpdate& update) { return static_cast<float>(1 - update.decay); }

KernelRow of_list(const char* op, Tensors (*forward)(const OpInputs&)) {
  KernelRow row{op, "cuda"};
  row.score = [](const OpCall& call) { return takes(call) ? kScore : 0; };
  row.forward = forward;
  return row;
}

}  // namespace

KernelRow adamw_all() {
  return of_list("adamw_all", [](const OpInputs& in) {
    const auto update = ListUpdate::of(in);
    const double beta1 = in.number("beta1"), beta2 = in.number("beta2");
    const AdamW rule{static_cast<float>(beta1),
                     static_cast<float>(beta2),
                     static_cast<float>(in.number("eps")),
                     static_cast<float>(update.lr / (1 - std::pow(beta1, update.step))),
                     static_cast<float>(1 / std::sqrt(1 - std::pow(beta2, update.step))),
                     approach(update)};
    return updated<AdamW>(in, "adamw", adamw, keep(in, update), 1, rule);
  });
}

KernelRow lion_all() {
  return of_list("lion_all", [](const OpInputs& in) {
    const auto update = ListUpdate::of(in);
    const double beta1 = in.number("beta1"), beta2 = in.number("beta2");
    const Lion rule{static_cast<float>(beta1),     static_cast<float>(1 - beta1), static_cast<float>(beta2),
                    static_cast<float>(1 - beta2), static_cast<float>(update.lr), approach(update)};
    return updated<Lion>(in, "lion", lion, keep(in, update), 1, rule);
  });
}

KernelRow sgd_all() {
  return of_list("sgd_all", [](const OpInputs& in) {
    const auto update = ListUpdate::of(in);
    const Sgd rule{static_cast<float>(in.number("momentum")), static_cast<float>(update.lr), approach(update),
                   in.flag("nesterov")};
    return updated<Sgd>(in, "sgd", sgd, static_cast<float>(in.number("weight_decay")), 0, rule);
  });
}

KernelRow square_sum() {
  KernelRow row{"square_sum", "cuda"};
  row.score = [](const OpCall& call) { return fits(call) && call.dtype == torch::kFloat ? kScore : 0; };
  row.forward = [](const OpInputs& in) -> Tensors {
    std::vector<Parameter> list;
    Tensors kept;
    for (const auto& x : in.tensors) {
      kept.push_back(x.detach().contiguous());
      Parameter one{};
      one.g = floats(kept.back()), one.count = x.numel();
      list.push_back(one);
    }
    const Tensor& like = in.tensor(0);
    const Table table(list, like);
    if (table.all().pieces == 0) return {torch::zeros({}, torch::TensorOptions(torch::kDouble).device(like.device()))};
    const Tensor sums = room({table.all().pieces}, like, torch::kDouble),
                 found = room({static_cast<int64_t>(sizeof(Gradients))}, like, torch::kByte);
    launched(gradient_norm(table.all(), sums.data_ptr<double>(), 1, 0, static_cast<Gradients*>(place(found)),
                           stream_of(like)),
             "gradient_norm");
    return {found.narrow(0, offsetof(Gradients, norm), sizeof(double)).view(torch::kDouble).squeeze(0).square()};
  };
  return row;
}

}  // namespace ditto_cuda
