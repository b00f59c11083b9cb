#include <ditto/parallel/program.h>

#include <algorithm>

#include <torch/torch.h>

namespace ditto {

using torch::Tensor;

namespace {

std::string tap_name(int64_t block) { return "features." + std::to_string(block); }

}  // namespace

void run_model_unit(Model& model, const Unit& unit, UnitCall& call) {
  if (call.body) return call.body();
  switch (unit.kind) {
    case Unit::condition: call.stream.condition = model.condition(call.batch, call.ctx); break;
    case Unit::tokens: {
      auto stream = model.tokens(call.batch, call.ctx);
      stream.condition = std::move(call.stream.condition);
      call.stream = std::move(stream);
      call.stream.ids = call.batch.ids;
      model.constants(call.batch, call.stream, call.ctx);
      break;
    }
    case Unit::Kind::block: call.stream = model.run_block(unit.block, std::move(call.stream), call.ctx); break;
    case Unit::head: call.outputs["prediction"] = model.head(call.stream, call.ctx); break;
    case Unit::objective: break;
  }
}

ModelProgram::ModelProgram(Model& model, Context& ctx, UnitRun run) : model_(&model), ctx_(ctx), run_(std::move(run)) {
  if (!run_) run_ = [this](const Unit& unit, UnitCall& call) { run_model_unit(*model_, unit, call); };
  if (!ctx_.unit_runner)
    ctx_.unit_runner = [](std::vector<AttentionUnitPart>& parts, const Context::RunUnit& attend) {
      Tensors inputs;
      for (const auto& part : parts) inputs.push_back(part.x);
      return attend(inputs);
    };
  if (!ctx_.token_gather) ctx_.token_gather = [](const Tensor& x, const Stream&) { return x; };
}

void ModelProgram::wrap(ParallelStrategy& strategy) {
  run_ = strategy.wrap_unit(std::move(run_));
  ctx_.attention_op = strategy.wrap_attention(std::move(ctx_.attention_op));
  ctx_.unit_runner = strategy.wrap_attention_unit(std::move(ctx_.unit_runner));
  ctx_.token_gather = strategy.wrap_token_gather(std::move(ctx_.token_gather));
  wraps_.push_back(&strategy);
}

void ModelProgram::tap(const std::vector<int64_t>& blocks) { taps_ = blocks; }

Stream ModelProgram::begin(const Batch& batch) {
  Stream stream;
  Outputs none;
  UnitCall call{batch, stream, none, ctx_};
  run_(Unit{Unit::condition}, call);
  run_(Unit{Unit::tokens}, call);
  for (auto it = wraps_.rbegin(); it != wraps_.rend(); ++it) (*it)->split(stream);
  return stream;
}

void ModelProgram::constants(const Batch& batch, Stream& stream) {
  Stream own;
  own.grid = stream.grid;
  own.packing = stream.packing;
  stream.ids = batch.ids;
  model_->constants(batch, own, ctx_);
  for (auto it = wraps_.rbegin(); it != wraps_.rend(); ++it) (*it)->split(own);
  stream.rotary_TK = own.rotary_TK;
  for (auto& [name, field] : own.extra) stream.extra[name] = std::move(field);
}

void ModelProgram::blocks(int64_t first, int64_t last, Stream& stream) {
  const Batch batch;  // blocks read the stream alone
  Outputs none;
  UnitCall call{batch, stream, none, ctx_};
  for (int64_t i = first; i < last; ++i) {
    run_(Unit{Unit::Kind::block, i}, call);
    if (std::find(taps_.begin(), taps_.end(), i) != taps_.end())
      stream.extra[tap_name(i)] = {stream.x_BTD, 1, Role::evolving};
  }
}

Outputs ModelProgram::head(Stream& stream, const Batch& batch) {
  for (auto* strategy : wraps_) strategy->join(stream);
  Outputs outputs;
  UnitCall call{batch, stream, outputs, ctx_};
  run_(Unit{Unit::head}, call);
  for (const int64_t block : taps_) outputs[tap_name(block)] = stream.extra.at(tap_name(block)).tensor;
  return outputs;
}

Program ModelProgram::program(Traffic& traffic) {
  Program program;
  program.begin = [this](const Batch& batch) { return begin(batch); };
  program.constants = [this](const Batch& batch, Stream& stream) { constants(batch, stream); };
  program.blocks = [this](int64_t first, int64_t last, Stream& stream) { blocks(first, last, stream); };
  program.head = [this](Stream& stream, const Batch& batch) { return head(stream, batch); };
  program.backward = [&traffic](const Tensors& roots, const Tensors& gradients) {
    const Traffic::Scope pass(traffic, Traffic::Pass::backward);
    torch::autograd::backward(roots, gradients);
  };
  return program;
}

}  // namespace ditto
