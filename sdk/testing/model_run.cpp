#include "model_run.h"

#include <cmath>
#include <stdexcept>

#include <ditto/parallel/program.h>

#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

constexpr int64_t kTextTokens = 6;

std::vector<int64_t> batched(int64_t samples, std::vector<int64_t> shape) {
  for (auto& size : shape)
    if (size < 0) size = kTextTokens;
  shape.insert(shape.begin(), samples);
  return shape;
}

// What one attention call of the uncut run was given, and gave.
struct Call {
  Tensor q, k, v, out;
};

// Contexts' all_tokens: of the uncut run, told back to halves, which must ask for their own share of the same.
struct Gathers {
  std::vector<Tensor> wholes;
  size_t number = 0;
};

Tensor piece(const Tensor& whole, const Tensor& like, int64_t first) {
  return whole.size(1) == like.size(1) ? whole : whole.slice(1, first, first + like.size(1));
}

void expect(const Tensor& found, const Tensor& expected, const std::string& what, size_t call) {
  const std::string problem = difference(found, expected, 1e-9);
  if (!problem.empty())
    throw std::runtime_error("attention call " + std::to_string(call) + ": " + what + " " + problem);
}

std::function<Tensor(const Tensor&, const Stream&)> record(Gathers& gathers) {
  return [&gathers](const Tensor& x, const Stream&) { return gathers.wholes.emplace_back(x); };
}

std::function<Tensor(const Tensor&, const Stream&)> replay(Gathers& gathers, int64_t first) {
  return [&gathers, first](const Tensor& x, const Stream&) {
    const Tensor& whole = gathers.wholes.at(gathers.number++);
    const std::string problem = difference(x, piece(whole, x, first), 1e-9);
    if (!problem.empty()) throw std::runtime_error("all_tokens was given other tokens than the whole has: " + problem);
    return whole;
  };
}

void run_blocks(Model& model, Stream& stream, Context& ctx) {
  ModelProgram(model, ctx).blocks(0, model.depth(), stream);
}

Tensor head(Model& model, Stream& stream, Context& ctx) {
  return ModelProgram(model, ctx).head(stream, {}).at("prediction");
}

Stream half(Stream whole, int64_t first, int64_t count) {
  for (Field& field : whole.fields())
    if (field.token_dim >= 0) *field.tensor = field.tensor->slice(field.token_dim, first, first + count);
  whole.first_token = first;
  return whole;
}

}  // namespace

Context context(at::ScalarType dtype) {
  Context ctx(std::make_shared<OpTable>(), Random(1));
  ctx.compute = dtype;
  return ctx;
}

void fill(Units& network, at::ScalarType dtype) {
  torch::NoGradGuard no_grad;
  network.to(dtype);
  for (auto& item : network.named_parameters()) {
    Tensor& tensor = item.value();
    const double scale = tensor.dim() > 1 ? 1 / std::sqrt(static_cast<double>(tensor.numel() / tensor.size(0))) : 0.3;
    tensor.copy_(normal(item.key(), tensor.sizes().vec()) * scale);
  }
}

Batch make_batch(const Model& model, int64_t samples, at::ScalarType dtype) {
  Batch batch;
  for (int64_t i = 0; i < samples; ++i) batch.ids.push_back(i), batch.weights.push_back(1);
  for (const TensorSpec& input : model.takes()) {
    const auto shape = batched(samples, input.shape);
    Tensor& tensor = batch[input.name];
    if (at::isFloatingType(input.dtype)) {
      tensor = normal("input " + input.name, shape, dtype);
      if (input.name == "t") tensor = tensor.abs() + 0.1;
    } else if (input.dtype == at::kBool) {
      tensor = torch::ones(shape, at::kBool);
      if (tensor.dim() > 1) tensor[0].slice(0, -2) = false;  // the first sample has a shorter text
    } else {
      tensor = torch::arange(samples, at::kLong)
                   .remainder(std::max<int64_t>(input.values, 1))
                   .reshape(batched(samples, std::vector<int64_t>(input.shape.size(), 1)))
                   .expand(shape)
                   .to(input.dtype)
                   .contiguous();
    }
  }
  return batch;
}

Stream begin(Model& model, const Batch& batch, Context& ctx) { return ModelProgram(model, ctx).begin(batch); }

Tensor predict(Model& model, const Batch& batch, Context& ctx) {
  Stream stream = begin(model, batch, ctx);
  run_blocks(model, stream, ctx);
  return head(model, stream, ctx);
}

Tensor predict_cut(Model& model, const Batch& batch, Context& ctx) {
  std::vector<Call> calls;
  const auto plain = ctx.attention_op.run;
  ctx.attention_op.run = [&](const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape) {
    calls.push_back({q, k, v, plain(q, k, v, shape)});
    return calls.back().out;
  };
  Gathers gathers;
  const auto plain_gather = ctx.token_gather;
  ctx.token_gather = record(gathers);
  const Stream start = begin(model, batch, ctx);
  Stream whole = start;
  run_blocks(model, whole, ctx);

  std::vector<Stream> halves;
  const int64_t tokens = start.x_BTD.size(1), middle = tokens / 2 + 1;  // halves of unequal length
  for (const auto& [first, count] : {std::pair(int64_t{0}, middle), std::pair(middle, tokens - middle)}) {
    size_t number = 0;
    ctx.attention_op.run = [&, first = first](const Tensor& q, const Tensor& k, const Tensor& v,
                                              const AttentionShape&) {
      const Call& call = calls.at(number++);
      expect(q, piece(call.q, q, first), "queries", number);
      expect(k, piece(call.k, k, first), "keys", number);
      expect(v, piece(call.v, v, first), "values", number);
      return piece(call.out, q, first);
    };
    gathers.number = 0;
    ctx.token_gather = replay(gathers, first);
    halves.push_back(half(start, first, count));
    run_blocks(model, halves.back(), ctx);
    if (number != calls.size()) throw std::runtime_error("a half of the tokens made another number of attention calls");
  }
  ctx.attention_op.run = plain;
  ctx.token_gather = plain_gather;

  Stream joined = halves[0];
  const auto first_fields = joined.fields(), second_fields = halves[1].fields();
  for (size_t i = 0; i < first_fields.size(); ++i)
    if (first_fields[i].token_dim >= 0)
      *first_fields[i].tensor =
          torch::cat({*first_fields[i].tensor, *second_fields[i].tensor}, first_fields[i].token_dim);
  joined.first_token = 0;
  return head(model, joined, ctx);
}

}  // namespace ditto::testing
