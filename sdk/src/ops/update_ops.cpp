// AdamW: I. Loshchilov and F. Hutter, 2019 (arXiv:1711.05101), algorithm 2; Lion: X. Chen et al., 2023
// (arXiv:2302.06675), algorithm 2; gradient descent with momentum as I. Sutskever et al., 2013, write it.
#include "ops/update_ops.h"

#include <cmath>

#include <torch/types.h>

#include <ditto/list_update.h>

namespace ditto {

using torch::Tensor;

namespace {

// `move` gives a parameter's new weight and states of its scaled gradient.
template <class Move>
Tensors moved(const OpInputs& in, const Move& move) {
  const torch::NoGradGuard no_grad;
  const auto all = ListUpdate::of(in);
  for (const auto& p : all.parameters) {
    auto g = p.gradient * all.clip;
    if (all.late_clip.defined()) g = g * all.late_clip.to(g.scalar_type());
    const Update update{.skip = all.skip};
    unless_skipped(update, {p.weight}, [&] {
      std::vector<Tensor> kept;
      for (const auto& tensor : {p.first, p.second, p.average})
        if (tensor.defined()) kept.push_back(tensor);
      unless_skipped(update, kept, [&] {
        move(all, p, g);
        if (p.average.defined()) Tensor(p.average).add_((p.weight - p.average) * (1 - all.decay));
      });
    });
    if (p.copy.defined()) Tensor(p.copy).copy_(p.weight);
  }
  return {all.parameters.front().weight};
}

double weight_decay(const OpInputs& in, const ListUpdate::Parameter& p) {
  return p.decayed ? in.number("weight_decay") : 0;
}

Tensors adamw_all(const OpInputs& in) {
  const double beta1 = in.number("beta1"), beta2 = in.number("beta2");
  return moved(in, [&](const ListUpdate& all, const ListUpdate::Parameter& p, const Tensor& g) {
    const Tensor w = p.weight, m = p.first, v = p.second;
    m.add_((g - m) * (1 - beta1));
    v.mul_(beta2).add_(g * g * (1 - beta2));
    const auto spread = (v.sqrt() / std::sqrt(1 - std::pow(beta2, all.step))).add_(in.number("eps"));
    w.mul_(1 - all.lr * weight_decay(in, p)).sub_(m / spread * (all.lr / (1 - std::pow(beta1, all.step))));
  });
}

Tensors lion_all(const OpInputs& in) {
  const double beta1 = in.number("beta1"), beta2 = in.number("beta2");
  return moved(in, [&](const ListUpdate& all, const ListUpdate::Parameter& p, const Tensor& g) {
    const Tensor w = p.weight, m = p.first;
    const auto direction = m * beta1 + g * (1 - beta1);
    w.mul_(1 - all.lr * weight_decay(in, p)).sub_(direction.sign() * all.lr);
    m.mul_(beta2).add_(g * (1 - beta2));
  });
}

Tensors sgd_all(const OpInputs& in) {
  const double momentum = in.number("momentum");
  return moved(in, [&](const ListUpdate& all, const ListUpdate::Parameter& p, const Tensor& g) {
    auto direction = p.weight * weight_decay(in, p) + g;
    if (momentum > 0) {
      Tensor(p.first).mul_(momentum).add_(direction);
      direction = in.flag("nesterov") ? p.first * momentum + direction : p.first;
    }
    Tensor(p.weight).sub_(direction * all.lr);
  });
}

Tensors square_sum(const OpInputs& in) {
  std::vector<Tensor> sums;
  for (const auto& x : in.tensors) sums.push_back(x.to(torch::kDouble).square().sum());
  return {torch::stack(sums).sum()};
}

using Attributes = std::map<std::string, Attribute>;

// Parameters that decay by turns; the first has no average, and with `late` the device knows more. Without copies,
// whose dtype tests of kernels would change.
Op::Case update_case(const MakeScaledNumbers& leaf, const std::string& name, bool late, size_t states,
                     const Attributes& attributes) {
  return {name, [=](at::ScalarType dtype) -> OpInputs {
            ListUpdate all;
            int64_t which = 0;
            for (const auto& shape : std::vector<std::vector<int64_t>>{{5, 7}, {37}, {8, 16}}) {
              const auto numbers = [&](double scale) { return leaf(shape, ++which, dtype, scale).detach(); };
              ListUpdate::Parameter p{numbers(1), numbers(0.1)};
              if (states > 0) p.first = numbers(0.1);
              if (states > 1) p.second = numbers(0.1).square();
              if (!all.parameters.empty()) p.average = numbers(1);
              p.decayed = which % 2 == 0;
              all.parameters.push_back(p);
            }
            all.lr = 1e-2, all.clip = 0.5, all.decay = 0.99, all.step = 3;
            if (late) {
              all.late_clip = torch::scalar_tensor(0.3, torch::kDouble);
              all.skip = torch::scalar_tensor(false, torch::kBool);
            }
            return all.inputs(attributes);
          }};
}

}  // namespace

std::vector<Op> update_ops(const MakeScaledNumbers& leaf, const std::function<double(at::ScalarType)>& tolerance) {
  std::vector<Op> list;
  const std::string of =
      ", average and copy of each parameter, late_clip and skip or none, {lr, clip, decay, step}; decayed, "
      "weight_decay, ";
  const auto add = [&](const char* name, const std::string& signature, Tensors (*reference)(const OpInputs&),
                       size_t states, Attributes attributes) {
    attributes["weight_decay"] = 0.1;
    list.push_back(
        {name,
         signature,
         {},
         reference,
         {update_case(leaf, "known", false, states, attributes), update_case(leaf, "late", true, states, attributes)},
         tolerance});
  };
  add("adamw_all", "w, g, m, v" + of + "beta1, beta2, eps -> the first w, all updated in place", adamw_all, 2,
      {{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}});
  add("lion_all", "w, g, m, none" + of + "beta1, beta2 -> the first w, all updated in place", lion_all, 1,
      {{"beta1", 0.9}, {"beta2", 0.99}});
  add("sgd_all", "w, g, m or none, none" + of + "momentum, nesterov -> the first w, all updated in place", sgd_all, 1,
      {{"momentum", 0.9}, {"nesterov", true}});
  list.push_back({"square_sum",
                  "x, ... of any shapes -> the sum of all numbers' squares, [] fp64",
                  {},
                  square_sum,
                  {{"several",
                    [leaf](at::ScalarType dtype) -> OpInputs {
                      return {{leaf({5, 7}, 1, dtype, 1).detach(), leaf({37}, 2, dtype, 1).detach(),
                               leaf({3, 5000}, 3, dtype, 1).detach()}};
                    }}},
                  tolerance});
  return list;
}

}  // namespace ditto
