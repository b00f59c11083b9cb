// The promises of a model.
#include <algorithm>
#include <cstdlib>
#include <set>

#include <ditto/parallel/program.h>
#include <ditto/testing/checks.h>

#include "model/model_run.h"
#include "model/unit_checks.h"
#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

constexpr int64_t kSamples = 3;
constexpr double kRounding = 1e-9;  // in fp64, where only the order of sums may differ

class ModelTest {
 public:
  ModelTest(const std::string& path, const ModelNeeds& needs, const OptionValues& options, const ModelChecks& extra)
      : path_(path), needs_(needs), options_(options), extra_(extra) {}

  void run(Report& report) {
    report.check("it can be made", [&] { return model_ = make<Model>(path_, options_, needs_), std::string(); });
    if (!model_) return;
    report.check("every parameter belongs to one unit, and every block has some", [&] { return units(); });
    report.check("its initial values are finite and depend on the seed alone", [&] { return initial(); });
    report.check("a unit uses its own parameters alone", [&] { return own_parameters(); });
    report.check("the prediction is [B, out_channels, …] and finite", [&] { return shape(); });
    report.check("two runs give the same bits", [&] { return repeat(); });
    report.check("a block is a pure function", [&] { return pure(); });
    report.check("a later stage of a pipeline goes on from what it is sent", [&] { return stages(); });
    report.check("a sample alone gives what it gives in a batch", [&] { return slices(); });
    report.check("every parameter has a gradient that is not zero", [&] { return gradients(); });
    report.check("gradients are those of finite differences", [&] { return differences(); });
    report.check("bf16 stays near fp32, and its gradients are fp32", [&] { return half_precision(); });
    report.check("nothing is promoted to fp64", [&] { return promotions(); });
    if (model_->token_local())
      report.check("blocks mix tokens through ctx.attention alone", [&] { return token_local(); });
    else
      report.skip("blocks mix tokens through ctx.attention alone", "token_local() is false");
    routed(report);
    if (find(model_->makes(), "features"))
      report.check("a block's features are as makes() says", [&] { return features(); });
    else
      report.skip("a block's features are as makes() says", "makes() names none");
    if (!made_of_extra(*model_).empty())
      report.check("what it hands out of the stream is as makes() says, and a sample's own", [&] {
        auto ctx = context(at::kDouble);
        fill(*model_, at::kDouble);
        return otherwise_handed_out(*model_, batch(at::kDouble), ctx);
      });
    if (find(model_->makes(), "modulated_input"))
      report.check("its modulated input is as makes() says, and a sample's own", [&] { return modulated_input(); });
    report.check("without_condition changes conditions alone, and only where asked", [&] { return dropped(); });
    report.check("without condition, all conditions are equal", [&] { return null_condition(); });
    report.check("its forward can be counted on shapes alone, and grows with the batch", [&] { return counted(); });
    for (const auto& format : model_->foreign_formats())
      report.check("checkpoint format \"" + format + "\" covers every parameter", [&] { return foreign(format); });
  }

 private:
  Batch conditioned(at::ScalarType dtype, int64_t samples = kSamples) const {
    Batch made = make_batch(*model_, samples, dtype);
    if (extra_.adjust) extra_.adjust(made);
    return made;
  }
  // The last of several has the null condition, whose parameters have a part in the loss then.
  Batch batch(at::ScalarType dtype, int64_t samples = kSamples) const {
    Batch made = conditioned(dtype, samples);
    if (samples == 1) return made;
    return model_->without_condition(std::move(made), torch::arange(samples).eq(samples - 1));
  }

  std::string units() const {
    std::set<int64_t> blocks;
    for (const auto& [name, unit] : model_->units()) {
      if (unit.kind != Unit::Kind::block) continue;
      if (unit.block >= model_->depth())
        return name + " is in block " + std::to_string(unit.block) + ", depth() is less";
      blocks.insert(unit.block);
    }
    for (int64_t i = 0; i < model_->depth(); ++i)
      if (!blocks.count(i)) return "block " + std::to_string(i) + " has no parameters";
    return {};
  }

  std::string initial() const {
    const auto other = make<Model>(path_, options_, needs_);
    initialise(*model_, Random(7));
    initialise(*other, Random(7));
    const auto theirs = other->named_parameters();
    for (const auto& item : model_->named_parameters()) {
      if (const auto problem = not_finite(item.value()); !problem.empty()) return item.key() + " " + problem;
      if (!item.value().equal(theirs[item.key()])) return item.key() + " differs between two models of one seed";
    }
    return {};
  }

  std::string shape() const {
    fill(*model_, at::kFloat);
    auto ctx = context(at::kFloat);
    const Tensor found = predict(*model_, batch(at::kFloat), ctx);
    std::vector<int64_t> expected = needs_.shape("x");
    expected[0] = needs_.out_channels;
    expected.insert(expected.begin(), kSamples);
    if (found.sizes() != at::IntArrayRef(expected))
      return "it is " + shape_text(found.sizes()) + ", expected " + shape_text(expected);
    return not_finite(found);
  }

  std::string features() const {
    torch::NoGradGuard no_grad;
    fill(*model_, at::kFloat);
    auto ctx = context(at::kFloat);
    ModelProgram program(*model_, ctx);
    program.tap({0});
    const Batch in = batch(at::kFloat);
    Stream stream = program.begin(in);
    program.blocks(0, model_->depth(), stream);
    const Tensor found = program.head(stream, in).at("features.0");
    auto expected = find(model_->makes(), "features")->shape;
    expected.insert(expected.begin(), kSamples);
    if (found.sizes() != at::IntArrayRef(expected))
      return "they are " + shape_text(found.sizes()) + ", expected " + shape_text(expected);
    return not_finite(found);
  }

  std::string modulated_input() const {
    torch::NoGradGuard no_grad;
    fill(*model_, at::kDouble);
    auto ctx = context(at::kDouble);
    ModelProgram program(*model_, ctx);
    const auto of = [&](const Batch& in) { return model_->modulated_input(program.begin(in), ctx); };
    const Batch in = batch(at::kDouble);
    const Tensor found = of(in);
    auto expected = find(model_->makes(), "modulated_input")->shape;
    expected.insert(expected.begin(), kSamples);
    if (!found.defined()) return "there is none";
    if (found.sizes() != at::IntArrayRef(expected))
      return "it is " + shape_text(found.sizes()) + ", expected " + shape_text(expected);
    const auto alone = difference(of(in.slice(1, 2)), found.slice(0, 1, 2), 1e-12);
    return alone.empty() ? not_finite(found) : "of a sample alone it " + alone;
  }

  std::string repeat() const {
    fill(*model_, at::kFloat);
    auto ctx = context(at::kFloat);
    const Batch in = batch(at::kFloat);
    return difference(predict(*model_, in, ctx), predict(*model_, in, ctx), 0);
  }

  std::string pure() const {
    fill(*model_, at::kDouble);
    auto ctx = context(at::kDouble);
    return impure_block(*model_, batch(at::kDouble), ctx);
  }

  std::string own_parameters() const {
    fill(*model_, at::kDouble);
    auto ctx = context(at::kDouble);
    return other_units_parameter(*model_, batch(at::kDouble), ctx);
  }

  std::string stages() const {
    fill(*model_, at::kDouble);
    auto ctx = context(at::kDouble);
    const Batch in = batch(at::kDouble);
    const auto problem = misplaced_constant(*model_, in, ctx);
    return problem.empty() ? other_on_a_later_stage(*model_, in, ctx) : problem;
  }

  std::string promotions() const {
    torch::NoGradGuard no_grad;
    fill(*model_, at::kFloat);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      auto ctx = context(dtype);
      std::string attended;
      const auto plain = ctx.attention_op.run;
      ctx.attention_op.run = [&](const AttentionCall& call) {
        for (const auto& part : call.parts)
          for (const Tensor& x : {part.q, part.k, part.v})
            if (x.scalar_type() == at::kDouble) attended = "hands doubles to attention";
        return plain(call);
      };
      const auto look = [&](const Unit& unit, const std::function<Left()>& run) -> std::string {
        const auto left = run();
        if (!attended.empty()) return to_text(unit) + " " + attended;
        for (const auto& [name, tensor] : left)
          if (tensor.scalar_type() == at::kDouble) return to_text(unit) + " leaves \"" + name + "\" in double";
        return {};
      };
      const auto problem = through_units(*model_, batch(at::kFloat), ctx, look);
      if (!problem.empty()) return std::string("in ") + c10::toString(dtype) + " " + problem;
    }
    return {};
  }

  std::string slices() const {
    fill(*model_, at::kDouble);
    auto ctx = context(at::kDouble);
    return neighbours_seen(*model_, batch(at::kDouble), ctx);
  }

  // sum(prediction * some numbers): a loss with a gradient everywhere.
  Tensor loss(const Batch& in, Context& ctx) const {
    const Tensor prediction = predict(*model_, in, ctx);
    return (prediction.to(at::kDouble) * normal("gradient", prediction.sizes().vec())).sum();
  }

  std::string gradients() const {
    fill(*model_, at::kDouble);
    auto ctx = context(at::kDouble);
    model_->zero_grad();
    loss(batch(at::kDouble), ctx).backward();
    const auto& without = extra_.without_gradient;
    for (const auto& item : model_->named_parameters()) {
      if (!item.value().requires_grad()) continue;
      if (std::find(without.begin(), without.end(), item.key()) != without.end()) continue;
      const Tensor grad = item.value().grad();
      if (const auto problem = not_finite(grad); !problem.empty())
        return "the gradient of " + item.key() + " " + problem;
      if (grad.abs().max().item<double>() == 0) return "the gradient of " + item.key() + " is zero";
    }
    return {};
  }

  // The steepest number of each of some parameters, spread over the whole model.
  std::string differences() const {
    const Batch in = batch(at::kDouble);
    auto ctx = context(at::kDouble);
    const auto parameters = model_->named_parameters().pairs();
    const size_t stride = std::max<size_t>(1, parameters.size() / 16);
    for (size_t i = 0; i < parameters.size(); i += stride) {
      const auto& [name, tensor] = parameters[i];
      if (!tensor.requires_grad() || !tensor.grad().defined()) continue;
      const int64_t at = tensor.grad().abs().argmax().item<int64_t>();
      const double expected = tensor.grad().view({-1})[at].item<double>();
      const double found = slope(tensor, at, in, ctx);
      if (std::abs(found - expected) > 1e-6 + 1e-4 * std::abs(expected))
        return name + " at " + std::to_string(at) + ": the difference quotient is " + text(found) + ", the gradient " +
               text(expected);
    }
    return {};
  }

  double slope(const Tensor& tensor, int64_t at, const Batch& in, Context& ctx) const {
    torch::NoGradGuard no_grad;
    constexpr double kStep = 1e-5;
    Tensor number = tensor.view({-1})[at];
    const double value = number.item<double>();
    number.fill_(value + kStep);
    const double above = loss(in, ctx).item<double>();
    number.fill_(value - kStep);
    const double below = loss(in, ctx).item<double>();
    number.fill_(value);
    return (above - below) / (2 * kStep);
  }

  std::string half_precision() const {
    fill(*model_, at::kFloat);
    auto full = context(at::kFloat), half = context(at::kBFloat16);
    const Batch in = batch(at::kFloat);
    const Tensor expected = predict(*model_, in, full);
    const Tensor found = predict(*model_, in, half);
    if (const double error = error_of(found, expected); !(error <= extra_.bf16_tolerance))
      return "it differs by " + text(error) + " of the largest number, allowed are " + text(extra_.bf16_tolerance);
    model_->zero_grad();
    loss(in, half).backward();
    for (const auto& item : model_->named_parameters())
      if (item.value().grad().defined() && item.value().grad().scalar_type() != at::kFloat)
        return "the gradient of " + item.key() + " is " + c10::toString(item.value().grad().scalar_type());
    return {};
  }

  std::string token_local() const {
    torch::NoGradGuard no_grad;
    fill(*model_, at::kDouble);
    auto ctx = context(at::kDouble);
    const Batch in = batch(at::kDouble);
    const Tensor whole = predict(*model_, in, ctx);
    return difference(predict_cut(*model_, in, ctx), whole, kRounding);
  }

  // [tread] of a recipe.
  void routed(Report& report) const {
    const std::string promise = "tokens that others go around keep their places";
    if (!model_->token_local()) return report.skip(promise, "token_local() is false");
    fill(*model_, at::kDouble);
    auto ctx = context(at::kDouble);
    bool sees_all = false;
    ctx.token_gather = [&](const Tensor& x, const Stream&) { return sees_all = true, x; };
    std::string problem;
    try {
      problem = displaced_tokens(*model_, batch(at::kDouble), ctx);
    } catch (const Error& error) {
      if (std::string(error.what()).starts_with("tread: ")) return report.skip(promise, error.what());
      problem = error.what();
    }
    if (sees_all) return report.skip(promise, "its blocks look at all of a sample's tokens at once");
    report.check(promise, [&] { return problem; });
  }

  std::string dropped() const {
    const Batch in = conditioned(at::kFloat);
    Tensor which = torch::zeros({kSamples}, at::kBool);
    which[1] = true;
    const Batch out = model_->without_condition(in, which);
    for (const auto& [name, before] : in.tensors) {
      if (!out.has(name)) return "\"" + name + "\" is gone";
      const Tensor& after = out.at(name);
      if (after.sizes() != before.sizes() || after.scalar_type() != before.scalar_type())
        return "\"" + name + "\" has another shape or dtype";
      if ((name == "x" || name == "t") && !after.equal(before))
        return "\"" + name + "\" is no condition, and was changed";
      for (const int64_t kept : {0, 2})
        if (!after[kept].equal(before[kept]))
          return "\"" + name + "\" was changed for a sample that keeps its condition";
    }
    return {};
  }

  std::string null_condition() const {
    torch::NoGradGuard no_grad;
    fill(*model_, at::kDouble);
    auto ctx = context(at::kDouble);
    Batch in = conditioned(at::kDouble);
    for (const char* name : {"x", "t"})
      if (in.has(name)) in[name] = in.at(name).slice(0, 0, 1).expand_as(in.at(name)).contiguous();
    const Tensor out = predict(*model_, model_->without_condition(in, torch::ones({kSamples}, at::kBool)), ctx);
    return difference(out.slice(0, 1, 2), out.slice(0, 0, 1), kRounding);
  }

  std::string counted() const {
    torch::NoGradGuard no_grad;
    const ShapesAlone no_numbers;
    const auto shapes = make<Model>(path_, options_, needs_);
    const auto operations = [&](int64_t samples) {
      std::map<std::string, double> parts;
      auto ctx = context(at::kFloat);
      ctx.device = at::kMeta;
      ctx.flops = &parts;
      predict(*shapes, conditioned(at::kFloat, samples).to(at::kMeta), ctx);
      double sum = 0;
      for (const auto& [part, count] : parts) sum += count;
      return sum;
    };
    const double one = operations(1), three = operations(3);
    if (!(one > 0)) return "one sample has " + text(one) + " operations";
    return three >= 2 * one ? "" : "one sample has " + text(one) + " operations, three have " + text(three);
  }

  using Rows = std::map<std::string, std::set<int64_t>>;
  // Takes out of `left`, by their name, the rows that are of `ours`.
  static std::string take_rows(const ForeignTensor& entry, const Tensor& ours, Rows& left) {
    const auto parts = static_cast<int64_t>(entry.theirs.size());
    const int64_t row = ours.numel() / ours.size(0),
                  each = entry.shape.empty() ? ours.size(0) / parts : c10::multiply_integers(entry.shape) / row;
    if (static_cast<int64_t>(entry.rows.size()) != ours.size(0))
      return entry.ours + " has " + std::to_string(ours.size(0)) + " rows, and the map names " +
             std::to_string(entry.rows.size());
    for (const auto& name : entry.theirs)
      if (const auto [rows, is_new] = left.try_emplace(name); is_new)
        for (int64_t i = 0; i < each; ++i) rows->second.insert(i);
    for (const int64_t from : entry.rows)
      if (from < 0 || from >= each * parts ||
          left.at(entry.theirs[static_cast<size_t>(from / each)]).erase(from % each) == 0)
        return entry.ours + " asks for row " + std::to_string(from) + " of " + entry.theirs[0] +
               ", which is not there or another's";
    return {};
  }

  std::string foreign(const std::string& format) const {
    const ForeignFormat names = model_->foreign(format);
    auto parameters = model_->named_parameters();
    std::set<std::string> ours;
    std::map<std::string, int64_t> theirs;  // how often they are named
    Rows rows;                              // of those that are named row by row, which are left
    for (const auto& entry : names.tensors) {
      const Tensor* tensor = parameters.find(entry.ours);
      if (!tensor) return "there is no parameter " + entry.ours;
      if (!ours.insert(entry.ours).second) return entry.ours + " is there twice";
      if (entry.theirs.empty()) return entry.ours + " comes from nothing";
      for (const auto& name : entry.theirs)
        if (++theirs[name] > 1 && entry.rows.empty()) return "their " + name + " is there twice";
      if (!entry.rows.empty()) {
        if (const auto why = take_rows(entry, *tensor, rows); !why.empty()) return why;
        continue;
      }
      const auto count = static_cast<int64_t>(entry.theirs.size());
      if (!entry.shape.empty() && c10::multiply_integers(entry.shape) * count != tensor->numel())
        return "their " + entry.theirs[0] + " has another number of values than " + entry.ours;
      if (tensor->size(0) % count != 0)
        return "the rows of " + entry.ours + " are not divided by " + std::to_string(count);
    }
    for (const auto& item : parameters)
      if (!ours.count(item.key())) return item.key() + " is not in it";
    for (const auto& [name, left] : rows)
      if (!left.empty()) return "not every row of their " + name + " is one of ours";
    for (const auto& [copy, original] : names.copies)
      if (!theirs.count(original)) return "copy " + copy + " is of " + original + ", which is not in it";
    return {};
  }

  std::string path_;
  ModelNeeds needs_;
  OptionValues options_;
  ModelChecks extra_;
  std::shared_ptr<Model> model_;
};

}  // namespace

ModelNeeds model_needs(const std::vector<int64_t>& x, int64_t out_channels, int64_t classes, int64_t text_width) {
  ModelNeeds needs{{{"x", at::kFloat, x, "the noisy sample"}, {"t", at::kFloat, {}, "its time"}}, out_channels};
  if (classes > 0) needs.inputs.push_back({"label", at::kLong, {}, "a class", classes});
  if (text_width > 0) {
    needs.inputs.push_back({"text", at::kFloat, {-1, text_width}, "an embedded text"});
    needs.inputs.push_back({"text_mask", at::kBool, {-1}, "where it is"});
  }
  return needs;
}

Report check_model(const std::string& path, const ModelNeeds& needs, const OptionValues& options,
                   const ModelChecks& extra) {
  // Some virtual machines announce AMX and end a program that uses it. Must be said before the first product in bf16.
  setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16", 0);
  Report report("model " + path);
  report.guard([&] { ModelTest(path, needs, options, extra).run(report); });
  return report;
}

}  // namespace ditto::testing
