// Classifier-free guidance: J. Ho and T. Salimans, 2022 (arXiv:2207.12598).
#include "core/sample/generate.h"

#include <algorithm>

#include <torch/torch.h>

namespace ditto {

using torch::Tensor;

namespace {

// The model as a sampler sees it, for one batch of requests.
class GuidedModel {
 public:
  GuidedModel(Assembly& assembly, const GenerateOptions& options, Batch batch)
      : assembly_(assembly), options_(options), batch_(std::move(batch)) {
    if (options.guidance == 1) return;
    const auto count = batch_.size();
    const auto all = torch::ones({count}, torch::TensorOptions(torch::kBool).device(assembly.ctx->device));
    const auto null = assembly_.model->without_condition(batch_, all);
    for (auto& [name, tensor] : batch_.tensors) tensor = torch::cat({tensor, null.at(name)});
    batch_.ids.insert(batch_.ids.end(), null.ids.begin(), null.ids.end());
    batch_.weights.insert(batch_.weights.end(), null.weights.begin(), null.weights.end());
  }

  Tensor operator()(const Tensor& x_t, double t) {
    if (options_.watch) options_.watch->begin_step();
    const auto x = options_.guidance == 1 ? x_t : torch::cat({x_t, x_t});
    const auto time_B = torch::full({x.size(0)}, t, torch::kDouble);
    assembly_.set_input(batch_, x, time_B);
    const auto prediction = assembly_.scheduler->precondition(assembly_.predict(batch_), x, time_B);
    return options_.guidance == 1 ? prediction : guided(prediction, x.size(1));
  }

 private:
  // u + s (c - u) on the guided channels; the others, and a learned variance, are the conditional half's own.
  Tensor guided(const Tensor& prediction, int64_t channels) const {
    const auto halves = prediction.chunk(2);
    const int64_t guided = options_.guidance_channels == "3" ? std::min<int64_t>(3, channels) : channels;
    auto result = halves[0].clone();
    const auto c = halves[0].narrow(1, 0, guided), u = halves[1].narrow(1, 0, guided);
    result.narrow(1, 0, guided).copy_(u + (c - u) * options_.guidance);
    return result;
  }

  Assembly& assembly_;
  const GenerateOptions& options_;
  Batch batch_;
};

Batch batch_of(const Assembly& assembly, const std::vector<SampleRequest>& requests) {
  Batch batch;
  std::vector<int64_t> labels;
  for (const auto& request : requests) {
    batch.ids.push_back(request.seed);
    batch.weights.push_back(1);
    labels.push_back(request.label);
  }
  if (assembly.spec.classes > 0) batch["label"] = torch::tensor(labels, torch::kLong).to(assembly.ctx->device);
  return batch;
}

Tensor one_batch(Assembly& assembly, const std::vector<SampleRequest>& requests, const GenerateOptions& options,
                 Tensor noise) {
  const Random random(0);  // a seed means the same picture in every run of the same weights
  const auto dtype = assembly.ctx->compute == torch::kDouble ? torch::kDouble : torch::kFloat;
  auto batch = batch_of(assembly, requests);
  const std::vector<int64_t> seeds = batch.ids;
  if (!noise.defined()) noise = random.normal(Purpose::start_noise, seeds, assembly.spec.x, dtype);
  noise = noise.to(dtype).to(assembly.ctx->device);
  GuidedModel model(assembly, options, std::move(batch));
  SamplingRequest request{
      *assembly.scheduler,
      std::ref(model),
      noise * assembly.scheduler->start_scale(assembly.scheduler->time_grid(options.steps).front()),
      options.steps,
      [&](int64_t step) {
        return random.normal(Purpose::sampler_noise, seeds, assembly.spec.x, dtype, static_cast<uint32_t>(step))
            .to(assembly.ctx->device);
      },
      {}};
  return guarded("sampler '" + assembly.recipe.sampler.plugin + "'", [&] { return assembly.sampler->sample(request); });
}

}  // namespace

Tensor generate(Assembly& assembly, const std::vector<SampleRequest>& requests, const GenerateOptions& options) {
  torch::NoGradGuard no_grad;
  assembly.ctx->phase = Phase::sample;
  const auto count = static_cast<int64_t>(requests.size());
  const auto& mesh = assembly.mesh;
  auto shape = assembly.spec.x;
  shape.insert(shape.begin(), count);
  const auto dtype = assembly.ctx->compute == torch::kDouble ? torch::kDouble : torch::kFloat;
  auto result = torch::zeros(shape, torch::TensorOptions(dtype).device(assembly.ctx->device));
  int64_t done = 0;
  const int64_t batches = (count + options.batch - 1) / options.batch, ranks = mesh.data_ranks();
  for (int64_t round = 0; round * ranks < batches; ++round) {
    const int64_t k = std::min(round * ranks + mesh.data_rank(), batches - 1);
    const bool is_own = k == round * ranks + mesh.data_rank();
    if (!is_own && !assembly.in_step()) continue;
    const int64_t first = k * options.batch, mine = std::min(options.batch, count - first);
    std::vector<SampleRequest> padded(requests.begin() + first, requests.begin() + first + mine);
    padded.resize(static_cast<size_t>(options.batch), padded.back());
    Tensor noise;
    if (options.noise.defined()) {
      noise = options.noise.slice(0, first, first + mine);
      if (mine < options.batch)
        noise = torch::cat({noise, noise.slice(0, mine - 1, mine).repeat_interleave(options.batch - mine, 0)});
    }
    const auto samples = one_batch(assembly, padded, options, noise);
    if (!is_own) continue;  // the last batch again, for ranks that run in step
    result.slice(0, first, first + mine).copy_(samples.slice(0, 0, mine));
    done += mine;
    if (options.progress) options.progress(done, count);
  }
  return mesh.data_group().all_reduce(result);  // every sample was made by one rank, the others' are zero
}

}  // namespace ditto
