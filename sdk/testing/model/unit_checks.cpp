#include "model/unit_checks.h"

#include <cmath>
#include <exception>

#include <torch/types.h>

#include <ditto/parallel/program.h>

#include "model/model_run.h"
#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

constexpr double kRounding = 1e-9;  // in fp64, where only the order of sums may differ

Left outputs(Stream stream) {
  Left list;
  for (const Field& field : stream.fields())
    if (field.role != Role::constant) list.emplace_back(field.name, *field.tensor);
  return list;
}

}  // namespace

std::string through_units(Model& model, const Batch& in, Context& ctx,
                          const std::function<std::string(const Unit&, const std::function<Left()>& run)>& look) {
  Stream stream;
  const auto run = [&](const Unit& unit) {
    Stream made = stream;
    Outputs none;
    UnitCall call{in, made, none, ctx};
    run_model_unit(model, unit, call);
    return made;
  };
  std::vector<Unit> units{Unit{Unit::condition}, Unit{Unit::tokens}};
  for (int64_t i = 0; i < model.depth(); ++i) units.push_back(Unit{Unit::Kind::block, i});
  for (const Unit& unit : units) {
    const auto problem = look(unit, [&] { return outputs(run(unit)); });
    if (!problem.empty()) return problem;
    stream = run(unit);
  }
  return look(Unit{Unit::head}, [&] { return Left{{"prediction", model.head(stream, ctx)}}; });
}

// Strategies free the numbers of units that do not run: here they are NaN meanwhile.
std::string other_units_parameter(Model& model, const Batch& in, Context& ctx) {
  torch::NoGradGuard no_grad;
  auto parameters = model.named_parameters();
  const auto units = model.units();
  const auto is_seen = [&](const std::vector<std::string>& spoiled, const std::function<Left()>& run) {
    std::vector<Tensor> before;
    for (const auto& name : spoiled) before.push_back(parameters[name].clone()), parameters[name].fill_(NAN);
    bool seen = false;
    try {
      for (const auto& [name, tensor] : run())
        seen = seen || (at::isFloatingType(tensor.scalar_type()) && tensor.isnan().any().item<bool>());
    } catch (const std::exception&) {  // numbers that are none may lead anywhere
      seen = true;
    }
    for (size_t i = 0; i < spoiled.size(); ++i) parameters[spoiled[i]].copy_(before[i]);
    return seen;
  };
  return through_units(model, in, ctx, [&](const Unit& unit, const std::function<Left()>& run) -> std::string {
    std::vector<std::string> others;
    for (const auto& [name, owner] : units)
      if (owner != unit) others.push_back(name);
    if (!is_seen(others, run)) return {};
    for (const auto& name : others)
      if (is_seen({name}, run))
        return "unit " + to_text(unit) + " uses " + name + ", which is unit " + to_text(units.at(name)) + "'s";
    return "unit " + to_text(unit) + " uses another unit's parameters";
  });
}

std::string misplaced_constant(Model& model, const Batch& in, Context& ctx) {
  torch::NoGradGuard no_grad;
  Stream made = model.tokens(in, ctx);
  for (const Field& field : made.fields())
    if (field.role == Role::constant)
      return "tokens() sets the constant \"" + field.name + "\": set it in constants(), which every stage runs";
  Stream own;
  own.grid = made.grid, own.packing = made.packing;
  model.constants(in, own, ctx);
  for (const Field& field : own.fields())
    if (field.role != Role::constant) return "constants() sets \"" + field.name + "\", which is not constant";
  return {};
}

// Between two stages what is constant is made again, from the batch, the grid and the packing.
std::string other_on_a_later_stage(Model& model, const Batch& in, Context& ctx) {
  torch::NoGradGuard no_grad;
  Stream stream = begin(model, in, ctx);
  for (int64_t i = 0; i < model.depth(); ++i) {
    Stream own;
    own.grid = stream.grid, own.packing = stream.packing;
    model.constants(in, own, ctx);
    stream.rotary_TK = own.rotary_TK;
    std::erase_if(stream.extra, [](const auto& item) { return item.second.role == Role::constant; });
    for (auto& [name, field] : own.extra) stream.extra[name] = field;
    stream = model.run_block(i, std::move(stream), ctx);
  }
  return difference(model.head(stream, ctx), predict(model, in, ctx), 0);
}

std::string impure_block(Model& model, const Batch& in, Context& ctx) {
  torch::NoGradGuard no_grad;
  Stream stream = begin(model, in, ctx);
  for (int64_t i = 0; i < model.depth(); ++i) {
    Stream given = stream;
    std::vector<Tensor> before;
    for (const Field& field : given.fields()) before.push_back(field.tensor->clone());
    Stream first = model.run_block(i, stream, ctx), second = model.run_block(i, stream, ctx);
    const auto after = given.fields();
    for (size_t f = 0; f < after.size(); ++f)
      if (!after[f].tensor->equal(before[f]))
        return "block " + std::to_string(i) + " writes to its input " + after[f].name;
    const auto a = first.fields(), b = second.fields();
    for (size_t f = 0; f < a.size(); ++f)
      if (!a[f].tensor->equal(*b[f].tensor)) return "block " + std::to_string(i) + ": two runs differ in " + a[f].name;
    stream = std::move(first);
  }
  return {};
}

std::string neighbours_seen(Model& model, const Batch& in, Context& ctx) {
  torch::NoGradGuard no_grad;
  const Tensor whole = predict(model, in, ctx);
  for (int64_t i = 0; i < in.size(); ++i) {
    const auto problem = difference(predict(model, in.slice(i, i + 1), ctx), whole.slice(0, i, i + 1), kRounding);
    if (!problem.empty()) return "sample " + std::to_string(i) + " " + problem;
  }
  return {};
}

TensorSpecs made_of_extra(const Model& model) {
  auto specs = model.makes();
  std::erase_if(specs, [](const TensorSpec& s) { return s.name == "features" || s.name == "modulated_input"; });
  return specs;
}

std::string otherwise_handed_out(Model& model, const Batch& in, Context& ctx) {
  torch::NoGradGuard no_grad;
  ModelProgram program(model, ctx);
  const auto of = [&](const Batch& samples) {
    Stream stream = program.begin(samples);
    program.blocks(0, model.depth(), stream);
    return program.head(stream, samples);
  };
  const Outputs all = of(in), one = of(in.slice(1, 2));
  for (const auto& spec : made_of_extra(model)) {
    const auto said = "\"" + spec.name + "\"";
    if (!all.count(spec.name)) return said + " is in no field of the stream's extra";
    const Tensor& found = all.at(spec.name);
    auto expected = spec.shape;
    expected.insert(expected.begin(), in.size());
    if (found.sizes() != at::IntArrayRef(expected))
      return said + " is " + shape_text(found.sizes()) + ", expected " + shape_text(expected);
    if (const auto problem = not_finite(found); !problem.empty()) return said + " " + problem;
    const auto problem = difference(one.at(spec.name), found.slice(0, 1, 2), kRounding);
    if (!problem.empty()) return "of a sample alone " + said + " " + problem;
  }
  return {};
}

std::string displaced_tokens(Model& model, const Batch& in, Context& ctx) {
  torch::NoGradGuard no_grad;
  const TokenRoute route{0, model.depth(), 0.5};
  Stream all = begin(model, in, ctx);
  const Grid grid = all.grid;
  const TokenRouter router(route, ctx.random);
  std::vector<Tensor> rows;
  for (const int64_t id : in.ids)
    rows.push_back(torch::zeros({all.tokens()}, torch::kBool).index_fill(0, router.kept(id, all.tokens()), true));
  const auto stays_BT = torch::stack(rows);
  const Tensor before = all.x_BTD;
  const auto attend = ctx.attention_op.run;
  ctx.attention_op.run = [&](AttentionCall call) {
    for (auto& part : call.parts)
      if (call.pattern != Pattern::cross && part.tokens.grid.rows == grid.rows &&
          part.tokens.grid.columns == grid.columns && part.tokens.grid.frames == grid.frames)
        part.key_mask_BS = part.key_mask_BS.defined() ? part.key_mask_BS.logical_and(stays_BT) : stays_BT;
    return attend(call);
  };
  for (int64_t i = 0; i < model.depth(); ++i) all = model.run_block(i, std::move(all), ctx);
  ctx.attention_op.run = attend;
  ModelProgram program(model, ctx);
  program.route(route);
  Stream routed = program.begin(in);
  program.blocks(0, model.depth(), routed);
  ctx.attention_op.run = attend;
  return difference(routed.x_BTD, torch::where(stays_BT.unsqueeze(-1), all.x_BTD, before), kRounding);
}

}  // namespace ditto::testing
