#include <ditto/scheduler.h>

#include <algorithm>

#include <torch/types.h>

#include <ditto/kernels.h>
#include <ditto/upload.h>

namespace ditto {

Scheduler::~Scheduler() = default;

torch::Tensor Scheduler::weight(const torch::Tensor& t_B) const { return torch::ones_like(t_B); }
torch::Tensor Scheduler::c_in(const torch::Tensor& t_B) const { return torch::ones_like(t_B); }
torch::Tensor Scheduler::c_out(const torch::Tensor& t_B) const { return torch::ones_like(t_B); }
torch::Tensor Scheduler::c_skip(const torch::Tensor& t_B) const { return torch::zeros_like(t_B); }

torch::Tensor Scheduler::corrupt(const torch::Tensor& clean, const torch::Tensor& noise,
                                 const torch::Tensor& t_B) const {
  return spread(alpha(t_B), clean) * clean + spread(sigma(t_B), clean) * noise.to(clean.scalar_type());
}

namespace {

// Then multiplying by it changes no bit, and there is nothing to send to a device. Of numbers of the host's alone.
bool is_one(const torch::Tensor& numbers) {
  if (!numbers.is_cpu() || numbers.scalar_type() != at::kDouble) return false;
  const auto all = numbers.contiguous();
  const auto* from = all.const_data_ptr<double>();
  return std::all_of(from, from + all.numel(), [](double one) { return one == 1; });
}

// [B] or [B, F] of one term, and a sample's mean of it.
torch::Tensor weighed(const torch::Tensor& weight, const torch::Tensor& loss) {
  return is_one(weight) ? loss : uploaded(weight, loss.device()).to(loss.scalar_type()) * loss;
}

}  // namespace

std::vector<torch::Tensor> Scheduler::factors(const torch::Tensor& t_B) const {
  std::vector<torch::Tensor> all{alpha(t_B), sigma(t_B), c_skip(t_B), c_out(t_B)};
  for (const auto& one : {weight(t_B), c_in(t_B)})
    if (!is_one(one)) all.push_back(one);
  return all;
}

torch::Tensor Scheduler::model_input(const torch::Tensor& x_t, const torch::Tensor& t_B) const {
  const auto factor = c_in(t_B);
  return is_one(factor) ? x_t : x_t * spread(factor, x_t);
}

torch::Tensor Scheduler::precondition(const torch::Tensor& raw, const torch::Tensor& x_t,
                                      const torch::Tensor& t_B) const {
  const auto full = raw.to(x_t.scalar_type());
  const auto factors = uploaded({c_skip(t_B), c_out(t_B)}, x_t.device());
  auto skipped = x_t * spread(factors[0], x_t);
  if (full.size(1) > x_t.size(1)) {  // a learned variance
    auto shape = x_t.sizes().vec();
    shape[1] = full.size(1) - x_t.size(1);
    skipped = torch::cat({skipped, x_t.new_zeros(shape)}, 1);
  }
  return full * spread(factors[1], full) + skipped;
}

std::map<std::string, torch::Tensor> Scheduler::losses(const torch::Tensor& prediction, const torch::Tensor& clean,
                                                       const torch::Tensor& noise, const torch::Tensor& t_B,
                                                       const OpTable* ops) const {
  const auto wanted = target(clean, noise, t_B);
  if (prediction.sizes() != wanted.sizes())
    throw Error(ErrorKind::shape, "prediction",
                "has shape " + c10::str(prediction.sizes()) + ", and the training target " + c10::str(wanted.sizes()),
                "give the model as many output channels as its schedule asks for");
  const auto wide = at::promote_types(prediction.scalar_type(), at::kFloat);
  const auto squares = (prediction.to(wide) - wanted.to(wide)).square();
  if (t_B.dim() == 1) return {{"mse", weighed(weight(t_B), sample_mean(squares, ops))}};
  const auto by_frame_BF = sample_mean(squares.transpose(1, 2).flatten(0, 1), ops).view(t_B.sizes());
  return {{"mse", sample_mean(weighed(weight(t_B), by_frame_BF), ops)}};
}

double Scheduler::start_scale(double first_time) const {
  return sigma(torch::full({1}, first_time, at::kDouble)).item<double>();
}

Scheduler::Gaussian Scheduler::step_back(const torch::Tensor&, const torch::Tensor&, const std::vector<double>&,
                                         int64_t) const {
  throw Error(ErrorKind::config, "scheduler", "this schedule is no chain of Gaussian steps, and has no step back",
              "sample with euler, heun or ddim");
}

std::optional<Scheduler::Slope> Scheduler::slope(double) const { return std::nullopt; }

std::optional<double> Scheduler::time_at(double noise_level) const {
  const auto grid = time_grid(2);
  double noisy = grid.front(), clear = grid.back();
  if (!slope(grid[1])) return std::nullopt;
  const auto is_noisier = [&](double t) {
    const auto time = torch::full({1}, t, at::kDouble);
    return sigma(time).item<double>() >= noise_level * alpha(time).item<double>();
  };
  if (!is_noisier(noisy) || is_noisier(clear)) return std::nullopt;
  for (double middle = 0; (middle = noisy + (clear - noisy) / 2) != noisy && middle != clear;)
    (is_noisier(middle) ? noisy : clear) = middle;
  return noisy;
}

std::shared_ptr<const Scheduler> Scheduler::for_size(at::IntArrayRef) const { return nullptr; }

ForeignConfig Scheduler::foreign_config(const std::string&) const { return {}; }

torch::Tensor sample_mean(const torch::Tensor& x, const OpTable* ops) {
  return ops ? ops->run("sample_mean", {{x}}).at(0) : x.flatten(1).mean(1);
}

torch::Tensor spread(const torch::Tensor& per_sample_B, const torch::Tensor& x) {
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
  shape.at(0) = per_sample_B.size(0);
  if (per_sample_B.dim() == 2) shape.at(2) = per_sample_B.size(1);
  return uploaded(per_sample_B, x.device()).to(x.scalar_type()).view(shape);
}

}  // namespace ditto
