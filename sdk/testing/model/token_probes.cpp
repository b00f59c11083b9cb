#include "model/token_probes.h"

#include <exception>
#include <functional>

#include <torch/types.h>

#include "model/model_run.h"
#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

constexpr double kRounding = 1e-9;  // in fp64, where only the order of sums may differ

// While it lives, attention mixes no tokens but those of text, and all_tokens gives what it was given when `whole` was
// recorded.
class Local {
 public:
  explicit Local(Context& ctx) : ctx_(ctx), plain_(ctx.attention_op.run), gather_(ctx.token_gather), phase_(ctx.phase) {
    ctx_.phase = Phase::evaluate;  // dropout knows a token's place
    ctx_.attention_op.run = [this](const AttentionCall& call) {
      if (call.pattern == Pattern::cross) return plain_(call);
      Tensors outputs;
      for (const auto& part : call.parts) outputs.push_back(of_each_token(part));
      return outputs;
    };
    ctx_.token_gather = [this](const Tensor& x, const Stream&) {
      if (is_recording_) return gathered_.emplace_back(x);
      return change_(gathered_.at(next_++));
    };
  }
  ~Local() {
    ctx_.attention_op.run = plain_;
    ctx_.token_gather = gather_;
    ctx_.phase = phase_;
  }
  Local(const Local&) = delete;
  Local& operator=(const Local&) = delete;

  Stream record(Model& model, int64_t block, const Stream& stream) {
    is_recording_ = true;
    gathered_.clear();
    return model.run_block(block, stream, ctx_);
  }
  // `change`: of what all_tokens gave.
  Stream again(
      Model& model, int64_t block, const Stream& stream,
      std::function<Tensor(const Tensor&)> change = [](const Tensor& x) { return x; }) {
    is_recording_ = false;
    next_ = 0;
    change_ = std::move(change);
    return model.run_block(block, stream, ctx_);
  }

 private:
  static Tensor of_each_token(const AttentionPart& part) {
    const int64_t each = part.q.size(2) / part.k.size(2);
    return part.q + part.v.repeat_interleave(each, 2) + 0.5 * part.k.repeat_interleave(each, 2);
  }

  Context& ctx_;
  decltype(AttentionOp::run) plain_;
  decltype(Context::token_gather) gather_;
  Phase phase_;
  bool is_recording_ = true;
  std::vector<Tensor> gathered_;
  size_t next_ = 0;
  std::function<Tensor(const Tensor&)> change_;
};

bool has_tokens(const Field& field) { return field.token_dim >= 0; }
bool evolves(const Field& field) { return has_tokens(field) && field.role == Role::evolving; }

// Goes through the blocks; `look` gets each with the stream before it and what it leaves, and says what is wrong.
std::string through_blocks(
    Model& model, const Batch& in, Context& ctx,
    const std::function<std::string(int64_t block, const Stream& before, Stream left, Local& local)>& look) {
  torch::NoGradGuard no_grad;
  Local local(ctx);
  Stream stream = begin(model, in, ctx);
  for (int64_t i = 0; i < model.depth(); ++i) {
    Stream left = local.record(model, i, stream);
    const auto problem = look(i, stream, left, local);
    if (!problem.empty()) return problem;
    stream = std::move(left);
  }
  return {};
}

// The first evolving field with tokens in which two streams differ, by `change` of the second's.
std::string first_difference(Stream found, Stream expected,
                             const std::function<Tensor(const Tensor&, const Field&)>& change) {
  const auto a = found.fields(), b = expected.fields();
  for (size_t f = 0; f < a.size() && f < b.size(); ++f)
    if (evolves(a[f]) && !difference(*a[f].tensor, change(*b[f].tensor, b[f]), kRounding).empty()) return a[f].name;
  return {};
}

std::string of_block(int64_t block, const std::string& field) {
  return "block " + std::to_string(block) + " makes \"" + field + "\"";
}

// The first or the second of unequal halves.
Tensor half_of(const Tensor& x, int64_t dim, bool second) {
  const int64_t tokens = x.size(dim), first = tokens / 2 + 1;
  return second ? x.narrow(dim, first, tokens - first) : x.narrow(dim, 0, first);
}

}  // namespace

std::string mixed_tokens(Model& model, const Batch& in, Context& ctx) {
  return through_blocks(model, in, ctx, [&](int64_t block, Stream before, Stream left, Local& local) -> std::string {
    for (const Field& field : before.fields()) {
      if (!evolves(field)) continue;
      const int64_t token = field.tensor->size(field.token_dim) / 2;
      const Tensor plain = *field.tensor;
      *field.tensor = plain.clone();
      Tensor changed = field.tensor->select(field.token_dim, token);
      changed.add_(normal("change", changed.sizes().vec()));
      const Stream other = local.again(model, block, before);
      *field.tensor = plain;
      // The changed token itself, and whatever lies at its place, may be another one.
      const auto without = [&](const Tensor& x, int64_t dim) {
        return torch::cat({x.narrow(dim, 0, token), x.narrow(dim, token + 1, x.size(dim) - token - 1)}, dim);
      };
      Stream a = other, b = left;
      for (Stream* stream : {&a, &b})
        for (const Field& one : stream->fields())
          if (evolves(one) && one.tensor->size(one.token_dim) == plain.size(field.token_dim))
            *one.tensor = without(*one.tensor, one.token_dim);
      const auto found = first_difference(a, b, [](const Tensor& x, const Field&) { return x; });
      if (!found.empty())
        return "tokens mixed outside of attention: " + of_block(block, found) +
               " of other tokens too (a mean, a convolution, a norm over tokens), of which a rank has a part: use "
               "ctx.attention, or ctx.all_tokens, or let token_local() return false";
    }
    return {};
  });
}

std::string own_positions(Model& model, const Batch& in, Context& ctx) {
  return through_blocks(model, in, ctx, [&](int64_t block, Stream before, Stream left, Local& local) -> std::string {
    const auto rolled = [](const Tensor& x, int64_t dim) { return torch::roll(x, 1, dim); };
    for (const Field& field : before.fields())
      if (has_tokens(field)) *field.tensor = rolled(*field.tensor, field.token_dim);
    const Stream other = local.again(model, block, before, [&](const Tensor& x) { return rolled(x, 1); });
    const auto found =
        first_difference(other, left, [&](const Tensor& x, const Field& field) { return rolled(x, field.token_dim); });
    if (found.empty()) return {};
    return "positions added after the cut: " + of_block(block, found) +
           " by the places that tokens have here, and a rank's first token is not the sample's: add positions in "
           "tokens(), or turn queries and keys by the stream's rotary_TK";
  });
}

std::string carried_count(Model& model, const Batch& in, Context& ctx) {
  return through_blocks(
      model, in, ctx, [&](int64_t block, const Stream& before, Stream left, Local& local) -> std::string {
        for (const bool second : {false, true}) {
          Stream part = before;
          for (const Field& field : part.fields()) {
            if (!has_tokens(field)) continue;
            field.sequence->first_token = second ? field.tensor->size(field.token_dim) / 2 + 1 : 0;
            *field.tensor = half_of(*field.tensor, field.token_dim, second);
          }
          std::string found, why;
          try {
            const Stream other = local.again(model, block, part);
            const auto field = first_difference(
                other, left, [&](const Tensor& x, const Field& one) { return half_of(x, one.token_dim, second); });
            if (!field.empty()) found = of_block(block, field) + " by the number of tokens that there are";
          } catch (const std::exception& error) {
            found =
                "block " + std::to_string(block) + " cannot run on a part of the tokens (" + first_line(error) + ")";
          }
          if (!found.empty())
            return "a carried token count: " + found +
                   ", and a rank has a part of them: flatten and unflatten the last dim alone, and take no count from "
                   "one call to another";
        }
        return {};
      });
}

}  // namespace ditto::testing
