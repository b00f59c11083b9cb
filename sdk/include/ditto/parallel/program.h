// A model's units run in order, with what strategies put around, before and after them: the one place where this is
// done, in training, in sampling and in tests.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ditto/model.h>
#include <ditto/parallel/strategy.h>
#include <ditto/parallel/token_route.h>

namespace ditto {

// A unit of the model by itself, as a strategy finds it innermost; `call.body` in its place where there is one.
DITTO_API void run_model_unit(Model& model, const Unit& unit, UnitCall& call);

// Units as strategies wrap them, and a context's hooks likewise.
class DITTO_API WrappedUnits {
 public:
  WrappedUnits(Context& ctx, UnitRun innermost);  // the context outlives it

  // Puts the strategy around what is there: to be called innermost first (strategy.h says in which order).
  void wrap(ParallelStrategy& strategy);
  void run(const Unit& unit, UnitCall& call) const { run_(unit, call); }

 private:
  Context& ctx_;
  UnitRun run_;
};

class DITTO_API ModelProgram {
 public:
  // All of these outlive it. `run`: what is innermost; none: run_model_unit of the model.
  ModelProgram(Model& model, Context& ctx, UnitRun run = {});

  void wrap(ParallelStrategy& strategy);  // as WrappedUnits
  // Outputs "features.K": the tokens after these blocks.
  void tap(const std::vector<int64_t>& blocks);
  // In Phase::train from now on. After all strategies are wrapped. Throws Error(config) for blocks that are not there,
  // and for a model that is not token-local.
  void route(const TokenRoute& route);
  // Another model of the same parameters from now on.
  void replace(Model& model) { model_ = &model; }

  Stream begin(const Batch& batch);                          // condition, tokens, constants; then the splits
  void constants(const Batch& batch, Stream& stream);        // of a stream that came from a stage before, split
  void blocks(int64_t first, int64_t last, Stream& stream);  // [first, last)
  Outputs head(Stream& stream, const Batch& batch);          // the joins, then head
  void run(const Unit& unit, UnitCall& call) { units_.run(unit, call); }  // with all wraps

  // The parts as a strategy takes them; without prepare, loss and accumulation_done.
  Program program(Traffic& traffic);

 private:
  void begin_parts(UnitCall& call);
  void run_parts_head(UnitCall& call);
  void hand_out(const Stream& stream, Outputs& outputs) const;  // what was tapped, and what the model makes beside
  Stream constants_of(const Batch& batch, const Sequence& tokens) const;
  const TokenRouter* router() const { return router_ && ctx_.phase == Phase::train ? &*router_ : nullptr; }
  void split(Stream& stream) const;
  void join(Stream& stream) const;
  std::vector<std::string> tapped(int64_t before) const;  // the fields of taps of blocks before this one

  Model* model_;
  Context& ctx_;
  WrappedUnits units_;
  std::vector<ParallelStrategy*> wraps_;  // innermost first
  std::vector<int64_t> taps_;
  std::optional<TokenRouter> router_;
  bool is_routed_ = false;  // the block that runs
};

}  // namespace ditto
