#include <ditto/parallel/program.h>

#include <algorithm>

#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/parallel/pack.h>

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

WrappedUnits::WrappedUnits(Context& ctx, UnitRun innermost) : ctx_(ctx), run_(std::move(innermost)) {
  if (!ctx_.unit_runner)
    ctx_.unit_runner = [](std::vector<AttentionUnitPart>& parts, const Context::RunUnit& attend) {
      Tensors inputs;
      for (const auto& part : parts) inputs.push_back(part.x);
      return attend(inputs);
    };
  if (!ctx_.token_gather) ctx_.token_gather = [](const Tensor& x, const Stream&) { return x; };
}

void WrappedUnits::wrap(ParallelStrategy& strategy) {
  run_ = strategy.wrap_unit(std::move(run_));
  ctx_.attention_op = strategy.wrap_attention(std::move(ctx_.attention_op));
  ctx_.unit_runner = strategy.wrap_attention_unit(std::move(ctx_.unit_runner));
  ctx_.token_gather = strategy.wrap_token_gather(std::move(ctx_.token_gather));
}

ModelProgram::ModelProgram(Model& model, Context& ctx, UnitRun run)
    : model_(&model),
      ctx_(ctx),
      units_(
          ctx,
          run ? std::move(run) : [this](const Unit& unit, UnitCall& call) { run_model_unit(*model_, unit, call); }) {}

void ModelProgram::wrap(ParallelStrategy& strategy) {
  units_.wrap(strategy);
  wraps_.push_back(&strategy);
}

void ModelProgram::split(Stream& stream) const {
  for (auto it = wraps_.rbegin(); it != wraps_.rend(); ++it) (*it)->split(stream);
}

void ModelProgram::join(Stream& stream) const {
  for (auto* strategy : wraps_) strategy->join(stream);
}

void ModelProgram::route(const TokenRoute& route) {
  if (route.start < 0 || route.start >= route.end || route.end > model_->depth())
    throw Error(ErrorKind::config, "tread",
                "routes tokens around blocks " + std::to_string(route.start) + " to " + std::to_string(route.end - 1) +
                    ", and the model has " + std::to_string(model_->depth()),
                "choose a start and an end between them; a negative end counts from behind the last block");
  if (!model_->token_local())
    throw Error(
        ErrorKind::config, "tread",
        "takes tokens out of blocks, and this model does not say that they mix tokens through attention alone "
        "(token_local)",
        "leave [tread] out, or choose another model; in your own, return true from token_local() if its blocks do");
  router_.emplace(route, ctx_.random);
  ctx_.attention_op.run = [run = std::move(ctx_.attention_op.run), this](const AttentionCall& call) {
    if (is_routed_ && (call.pattern == Pattern::spatial || call.pattern == Pattern::temporal))
      throw Error(ErrorKind::config, "tread",
                  "takes tokens out of their frames, and these blocks attend in space or in time by themselves",
                  "choose a start and an end between which all blocks attend to all tokens, or leave [tread] out");
    return run(call);
  };
}

std::vector<std::string> ModelProgram::tapped(int64_t before) const {
  std::vector<std::string> fields;
  for (const int64_t block : taps_)
    if (block < before) fields.push_back("extra." + tap_name(block));
  return fields;
}

void ModelProgram::tap(const std::vector<int64_t>& blocks) { taps_ = blocks; }

Stream ModelProgram::begin(const Batch& batch) {
  Stream stream;
  Outputs none;
  UnitCall call{batch, stream, none, ctx_};
  if (batch.parts.empty()) {
    run(Unit{Unit::condition}, call);
    run(Unit{Unit::tokens}, call);
  } else {
    begin_parts(call);
  }
  if (router()) TokenRouter::remember_constants(stream);
  split(stream);
  return stream;
}

// Each unit is entered once, whatever the number of sizes: what a strategy does around it is done once.
void ModelProgram::begin_parts(UnitCall& call) {
  const auto each = [&](const Unit& unit) {
    std::vector<Stream> parts(call.batch.parts.size());
    Outputs none;
    for (size_t i = 0; i < parts.size(); ++i) {
      UnitCall of_part{call.batch.parts[i], parts[i], none, ctx_};
      run_model_unit(*model_, unit, of_part);
    }
    return parts;
  };
  call.body = [&] {
    std::vector<Conditioning> conditions;
    for (auto& part : each(Unit{Unit::condition})) conditions.push_back(std::move(part.condition));
    call.stream.condition = pack(std::move(conditions), call.batch);
  };
  run(Unit{Unit::condition}, call);
  call.body = [&] {
    auto whole = pack(each(Unit{Unit::tokens}));
    if (!model_->token_local())
      throw Error(
          ErrorKind::config, "batch.plan",
          "puts samples of several sizes into one row of tokens, and this model does not say that its blocks mix "
          "them through attention alone (token_local)",
          "set batch.plan = \"buckets\", or choose another model; in your own, return true from token_local() if "
          "its blocks do");
    whole.condition = std::move(call.stream.condition);
    whole.ids = call.batch.ids;
    call.stream = std::move(whole);
  };
  run(Unit{Unit::tokens}, call);
}

Stream ModelProgram::constants_of(const Batch& batch, const Sequence& tokens) const {
  const auto of = [&](const Batch& samples, const Grid& grid, std::shared_ptr<const Packing> packing) {
    Stream own;
    own.grid = grid;
    own.packing = std::move(packing);
    model_->constants(samples, own, ctx_);
    return own;
  };
  if (batch.parts.empty()) return of(batch, tokens.grid, tokens.packing);
  std::vector<Stream> parts;
  int64_t first = 0;
  for (const auto& part : batch.parts) {
    parts.push_back(of(part, tokens.packing->grids.at(static_cast<size_t>(first)), nullptr));
    first += part.size();
  }
  auto whole = pack_constants(std::move(parts), batch);
  whole.grid = tokens.grid;
  whole.packing = tokens.packing;
  return whole;
}

void ModelProgram::constants(const Batch& batch, Stream& stream) {
  const Sequence* whole = TokenRouter::whole_of(stream);
  Stream own = constants_of(batch, whole ? *whole : stream);
  own.ids = stream.ids = batch.ids;
  if (router()) TokenRouter::remember_constants(own);
  if (whole) router_->enter(own);
  split(own);
  stream.rotary_TK = own.rotary_TK;
  for (auto& [name, field] : own.extra) stream.extra[name] = std::move(field);
}

void ModelProgram::blocks(int64_t first, int64_t last, Stream& stream) {
  const Batch batch;  // blocks read the stream alone
  Outputs none;
  UnitCall call{batch, stream, none, ctx_};
  const auto* router = this->router();
  const auto while_whole = [&](const std::function<void()>& body) {
    join(stream);
    body();
    split(stream);
  };
  for (int64_t i = first; i < last; ++i) {
    if (router && i == router->route().start) while_whole([&] { router->enter(stream, tapped(i)); });
    is_routed_ = router && TokenRouter::whole_of(stream);
    run(Unit{Unit::Kind::block, i}, call);
    if (is_routed_) TokenRouter::after_block(stream);
    if (router && i + 1 == router->route().end) while_whole([&] { router->leave(stream); });
    if (std::find(taps_.begin(), taps_.end(), i) != taps_.end())
      stream.extra[tap_name(i)] = {stream.x_BTD, 1, Role::evolving};
  }
  is_routed_ = false;
}

void ModelProgram::hand_out(const Stream& stream, Outputs& outputs) const {
  for (const int64_t block : taps_) outputs[tap_name(block)] = stream.extra.at(tap_name(block)).tensor;
  for (const auto& made : model_->makes())
    if (const auto field = stream.extra.find(made.name); field != stream.extra.end())
      outputs[made.name] = field->second.tensor;
}

Outputs ModelProgram::head(Stream& stream, const Batch& batch) {
  join(stream);
  Outputs outputs;
  UnitCall call{batch, stream, outputs, ctx_};
  if (!batch.parts.empty()) {
    run_parts_head(call);
    return outputs;
  }
  run(Unit{Unit::head}, call);
  hand_out(stream, outputs);
  return outputs;
}

void ModelProgram::run_parts_head(UnitCall& call) {
  call.body = [&] {
    for (size_t i = 0; i < call.batch.parts.size(); ++i) {
      auto own = part_of_pack(call.stream, call.batch, i);
      model_->constants(call.batch.parts[i], own, ctx_);
      Outputs made;
      UnitCall of_part{call.batch.parts[i], own, made, ctx_};
      run_model_unit(*model_, Unit{Unit::head}, of_part);
      hand_out(own, made);
      for (auto& [name, tensor] : made) call.outputs[of_part_name(i, name)] = tensor;
    }
  };
  run(Unit{Unit::head}, call);
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
