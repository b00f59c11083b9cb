#include "model/encoder_run.h"

#include <algorithm>
#include <utility>

#include <torch/types.h>

#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

constexpr int64_t kOfText[] = {6, 3, 6};  // places of each sample's text
constexpr auto kSamples = static_cast<int64_t>(std::size(kOfText));
constexpr int64_t kMost = 6, kSide = 8;

bool is_padded(const TensorSpec& spec) { return !spec.shape.empty() && spec.shape[0] == -1; }
bool is_mask(const TensorSpec& spec) { return spec.dtype == at::kBool; }

Tensor numbers(const TensorSpec& spec, std::vector<int64_t> shape, at::ScalarType dtype) {
  shape.insert(shape.begin(), kSamples);
  if (at::isFloatingType(spec.dtype)) return normal("input " + spec.name, shape).tanh().to(dtype);
  if (is_mask(spec)) return torch::ones(shape, at::kBool);
  const auto places = torch::arange(c10::multiply_integers(shape), at::kLong).view(shape);
  if (spec.dtype == at::kByte) return places.mul(7).remainder(26).add('a').to(at::kByte);
  return places.mul(3).remainder(std::max<int64_t>(spec.values, 1)).to(spec.dtype);
}

// Of `one`, a sample by itself, and of its place in the batch: what is beyond its own length is masked there.
std::string compare(const TensorSpec& spec, const Tensor& one, Tensor of_batch, double tolerance) {
  if (is_padded(spec) && one.size(1) < of_batch.size(1)) {
    const auto rest = of_batch.slice(1, one.size(1));
    if (is_mask(spec) && rest.any().item<bool>())
      return "shows " + std::to_string(of_batch.size(1)) + " places of a text that has " + std::to_string(one.size(1));
    of_batch = of_batch.slice(1, 0, one.size(1));
  }
  if (one.sizes() == of_batch.sizes() && !one.is_floating_point() && one.equal(of_batch)) return {};
  return difference(one, of_batch, one.is_floating_point() ? tolerance : 0);
}

}  // namespace

Batch encoder_batch(const TensorSpecs& data, at::ScalarType dtype) {
  Batch batch;
  for (int64_t i = 0; i < kSamples; ++i) batch.ids.push_back(i), batch.weights.push_back(1);
  for (const TensorSpec& spec : data) {
    auto shape = spec.shape;
    for (auto& size : shape)
      if (size < 0) size = size == kOwnSide ? kSide : kMost;
    Tensor all = numbers(spec, shape, dtype);
    if (is_padded(spec))
      for (int64_t i = 0; i < kSamples; ++i) all[i].slice(0, kOfText[i]).zero_();
    batch[spec.name] = all;
    if (is_padded(spec) && !is_mask(spec)) batch.lengths[spec.name] = {std::begin(kOfText), std::end(kOfText)};
    if (!is_padded(spec) && find(data, spec.name + "_mask")) batch.lengths[spec.name].assign(kSamples, shape.at(0));
  }
  return batch;
}

Batch precomputed(const Encoder& encoder, Batch batch, Context& ctx) {
  const Phase phase = std::exchange(ctx.phase, Phase::evaluate);
  const Batch made = encoder.precompute(std::move(batch), ctx);
  ctx.phase = phase;
  Batch kept;
  kept.ids = made.ids;
  kept.weights = made.weights;
  for (const TensorSpec& spec : encoder.caches()) {
    kept[spec.name] = made.at(spec.name);
    if (const auto known = made.lengths.find(spec.name); known != made.lengths.end())
      kept.lengths[spec.name] = known->second;
  }
  return kept;
}

Batch encoded(const Encoder& encoder, Batch batch, Context& ctx) {
  return encoder.encode(precomputed(encoder, std::move(batch), ctx), ctx);
}

std::string encodes_alone(const Encoder& encoder, const TensorSpecs& data, const Batch& batch, Context& ctx,
                          double tolerance) {
  const Batch whole = encoded(encoder, batch, ctx);
  for (int64_t i = 0; i < kSamples; ++i) {
    Batch one = batch.slice(i, i + 1);
    for (const TensorSpec& spec : data)
      if (is_padded(spec)) {
        auto lengths = one.lengths;
        one[spec.name] = one.at(spec.name).slice(1, 0, kOfText[i]).clone();
        one.lengths = std::move(lengths);
      }
    const Batch made = encoded(encoder, std::move(one), ctx);
    for (const TensorSpec& spec : encoder.makes()) {
      const auto problem = compare(spec, made.at(spec.name), whole.at(spec.name).slice(0, i, i + 1), tolerance);
      if (!problem.empty()) return "of sample " + std::to_string(i) + " by itself \"" + spec.name + "\" " + problem;
    }
  }
  return {};
}

}  // namespace ditto::testing
