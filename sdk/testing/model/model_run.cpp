#include "model/model_run.h"

#include <cmath>
#include <stdexcept>

#include <ditto/parallel/program.h>

#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

constexpr int64_t kTextTokens = 6, kSide = 8;  // where a sample has its own

std::vector<int64_t> batched(int64_t samples, std::vector<int64_t> shape) {
  for (auto& size : shape)
    if (size < 0) size = size == kOwnSide ? kSide : kTextTokens;
  shape.insert(shape.begin(), samples);
  return shape;
}

// What one attention call of the uncut run was given, and gave.
struct Call {
  AttentionCall given;
  Tensors outputs;
};

// The first or the second of unequal halves, of every sequence.
struct Half {
  bool second;
  int64_t first(int64_t tokens) const { return second ? tokens / 2 + 1 : 0; }
  int64_t count(int64_t tokens) const { return second ? tokens - first(tokens) : tokens / 2 + 1; }

  Stream of(Stream whole) const {
    for (Field& field : whole.fields()) {
      if (field.token_dim < 0) continue;
      const int64_t tokens = field.tensor->size(field.token_dim);
      *field.tensor = field.tensor->narrow(field.token_dim, first(tokens), count(tokens));
      field.sequence->first_token = first(tokens);
    }
    return whole;
  }
  // Of what the whole gave or was given. Keys of text are the same for both.
  Tensor piece(const Tensor& whole, const Tensor& like) const {
    return whole.size(1) == like.size(1) ? whole : whole.narrow(1, first(whole.size(1)), count(whole.size(1)));
  }
};

// Contexts' all_tokens: of the uncut run, told back to halves, which must ask for their own share of the same.
struct Gathers {
  std::vector<Tensor> wholes;
  size_t number = 0;
};

void expect(const Tensor& found, const Tensor& expected, const std::string& what, size_t call) {
  const std::string problem = difference(found, expected, 1e-9);
  if (!problem.empty())
    throw std::runtime_error("attention call " + std::to_string(call) + ": " + what + " " + problem);
}

std::function<Tensor(const Tensor&, const Stream&)> record(Gathers& gathers) {
  return [&gathers](const Tensor& x, const Stream&) { return gathers.wholes.emplace_back(x); };
}

std::function<Tensor(const Tensor&, const Stream&)> replay(Gathers& gathers, Half half) {
  return [&gathers, half](const Tensor& x, const Stream&) {
    const Tensor& whole = gathers.wholes.at(gathers.number++);
    const std::string problem = difference(x, half.piece(whole, x), 1e-9);
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

Batch make_batch(const Model& model, int64_t samples, at::ScalarType dtype, int64_t number) {
  Batch batch;
  for (int64_t i = 0; i < samples; ++i) batch.ids.push_back(number * samples + i), batch.weights.push_back(1);
  const std::string suffix = number == 0 ? "" : " " + std::to_string(number);
  for (const TensorSpec& input : model.takes()) {
    const auto shape = batched(samples, input.shape);
    Tensor& tensor = batch[input.name];
    if (at::isFloatingType(input.dtype)) {
      tensor = normal("input " + input.name + suffix, shape, dtype);
      if (input.name == "t") tensor = tensor.abs() + 0.1;
    } else if (input.dtype == at::kBool) {
      tensor = torch::ones(shape, at::kBool);
      if (tensor.dim() > 1) tensor[0].slice(0, -2) = false;  // the first sample has a shorter text
    } else {
      tensor = torch::arange(number, number + samples, at::kLong)
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
  ctx.attention_op.run = [&](const AttentionCall& call) {
    calls.push_back({call, plain(call)});
    return calls.back().outputs;
  };
  Gathers gathers;
  const auto plain_gather = ctx.token_gather;
  ctx.token_gather = record(gathers);
  const Stream start = begin(model, batch, ctx);
  Stream whole = start;
  run_blocks(model, whole, ctx);

  std::vector<Stream> halves;
  for (const Half half : {Half{false}, Half{true}}) {
    size_t number = 0;
    ctx.attention_op.run = [&](const AttentionCall& asked) {
      const Call& call = calls.at(number++);
      Tensors outputs;
      for (size_t i = 0; i < asked.parts.size(); ++i) {
        const auto &part = asked.parts[i], &whole_part = call.given.parts.at(i);
        expect(part.q, half.piece(whole_part.q, part.q), "queries", number);
        expect(part.k, half.piece(whole_part.k, part.k), "keys", number);
        expect(part.v, half.piece(whole_part.v, part.v), "values", number);
        outputs.push_back(half.piece(call.outputs[i], part.q));
      }
      return outputs;
    };
    gathers.number = 0;
    ctx.token_gather = replay(gathers, half);
    halves.push_back(half.of(start));
    run_blocks(model, halves.back(), ctx);
    if (number != calls.size()) throw std::runtime_error("a half of the tokens made another number of attention calls");
  }
  ctx.attention_op.run = plain;
  ctx.token_gather = plain_gather;

  Stream joined = halves[0];
  const auto first_fields = joined.fields(), second_fields = halves[1].fields();
  for (size_t i = 0; i < first_fields.size(); ++i)
    if (first_fields[i].token_dim >= 0) {
      *first_fields[i].tensor =
          torch::cat({*first_fields[i].tensor, *second_fields[i].tensor}, first_fields[i].token_dim);
      first_fields[i].sequence->first_token = 0;
    }
  return head(model, joined, ctx);
}

}  // namespace ditto::testing
