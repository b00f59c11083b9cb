// An encoder on layouts of ranks that share its parameters, against one rank.
#include <mutex>
#include <optional>

#include <torch/types.h>

#include <ditto/parallel/program.h>
#include <ditto/testing/checks.h>

#include "model/encoder_run.h"
#include "model/layer_flow.h"
#include "model/model_run.h"
#include "model/splits.h"
#include "numbers.h"
#include "parallel/local_mesh.h"
#include "parallel/parallel_run.h"
#include "trial/trial_parts.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

constexpr double kRounding = 1e-12;  // in fp64, of the largest number: only the order of sums may differ
constexpr const char* kAlone = "by itself";

struct EncoderLayout {
  std::string name;
  AxisDegrees degrees;
  std::vector<std::pair<std::string, OptionValues>> strategies;  // in the order of sharding
};

std::vector<EncoderLayout> layouts() {
  return {{"fsdp 2", {{Axis::shard, 2}}, {{"fsdp", {}}}},
          {"zero2 2", {{Axis::shard, 2}}, {{"zero2", {}}}},
          {"expert 2", {{Axis::expert, 2}}, {{"expert", {}}}},
          {"tensor 2", {{Axis::tensor, 2}}, {{"tensor", {}}}},
          {"tensor 4", {{Axis::tensor, 4}}, {{"tensor", {}}}},
          {"tensor 2, sequence", {{Axis::tensor, 2}}, {{"tensor", {{"sequence", true}}}}},
          {"tensor 2 x fsdp 2", {{Axis::tensor, 2}, {Axis::shard, 2}}, {{"tensor", {}}, {"fsdp", {}}}}};
}

// One rank of a run, as far as an encoder is concerned.
class EncoderRun {
 public:
  EncoderRun(const EncoderTrialParts& parts, const Mesh& mesh, const std::vector<MakeStrategy>& make)
      : encoder(parts.encoder()),
        ctx(parts.table ? parts.table : std::make_shared<OpTable>(), Random(1)),
        units_(ctx, [](const Unit&, UnitCall& call) { call.body(); }) {
    ctx.compute = at::kDouble;
    ctx.phase = Phase::evaluate;
    fill(*encoder, at::kDouble);
    for (auto& parameter : encoder->parameters()) parameter.set_requires_grad(false);
    layout_ = Layout::of(*encoder);
    int64_t depth = 0;
    for (const auto& entry : layout_.entries) depth = std::max(depth, entry.unit.block + 1);
    for (const auto& one : make)
      strategies_.push_back(one({&mesh, true, true, at::kDouble, depth, {}, /*streams=*/false}));
    for (auto it = strategies_.rbegin(); it != strategies_.rend(); ++it) (*it)->claim(layout_);
    for (auto& strategy : strategies_) strategy->shard(layout_);
    for (auto* strategy : in_order_of_wrapping(strategies_)) units_.wrap(*strategy);
    const torch::NoGradGuard no_grad;
    for (auto& strategy : strategies_) strategy->parameters_changed();
    ctx.unit_wrap = [this](const Unit& unit, const std::function<Tensor()>& body) {
      const Batch none;
      Stream stream;
      Outputs outputs;
      UnitCall call{none, stream, outputs, ctx, [&] { outputs["made"] = body(); }};
      units_.run(unit, call);
      return outputs.at("made");
    };
  }
  EncoderRun(const EncoderRun&) = delete;
  EncoderRun& operator=(const EncoderRun&) = delete;

  std::map<std::string, Tensor> made(const TensorSpecs& data) {
    const torch::NoGradGuard no_grad;
    const Batch out = encoded(*encoder, encoder_batch(data, at::kDouble), ctx);
    std::map<std::string, Tensor> all;
    for (const auto& spec : encoder->makes()) all[spec.name] = out.at(spec.name).clone();
    if (encoder->decodes()) all["its decoded pictures"] = encoder->decode(out.at("clean"), ctx).clone();
    return all;
  }

  const std::shared_ptr<Encoder> encoder;
  Context ctx;

 private:
  Layout layout_;
  std::vector<std::shared_ptr<ParallelStrategy>> strategies_;
  WrappedUnits units_;
};

class EncoderTrial {
 public:
  explicit EncoderTrial(const EncoderTrialParts& parts) : parts_(parts) {
    if (!parts_.strategy) parts_.strategy = strategy_beside_the_sdk;
    if (!parts_.around) parts_.around = [](const std::string&, const std::function<void()>& body) { body(); };
  }

  std::vector<Trial> run() {
    Trial alone{kAlone};
    parts_.around(kAlone, [&] { alone.what = reference(); });
    if (!alone.what.empty()) alone.outcome = Trial::Outcome::wrong;
    std::vector<Trial> trials{alone};
    if (expected_.empty()) return trials;
    for (const auto& layout : layouts()) trials.push_back(tried(layout));
    if (!split_.empty() && !is_split_said_ && alone.what.empty()) {
      trials[0].outcome = Trial::Outcome::wrong;
      trials[0].what = "it has a missing or wrong Split: " + split_;
    }
    return trials;
  }

 private:
  // One rank's numbers; or what is wrong with them.
  std::string reference() {
    try {
      const LocalMesh mesh(0, {}, nullptr);
      EncoderRun run(parts_, mesh, {});
      data_ = run.encoder->takes();
      auto expected = run.made(data_);
      for (const auto& [name, tensor] : expected)
        if (tensor.is_floating_point())
          if (const auto problem = not_finite(tensor); !problem.empty()) return "\"" + name + "\" " + problem;
      expected_ = std::move(expected);
      split_ = find_wrong_split(*run.encoder, run.ctx);
      const torch::NoGradGuard no_grad;
      return encodes_alone(*run.encoder, data_, encoder_batch(data_, at::kDouble), run.ctx, 1e-9);
    } catch (const std::exception& error) {
      return "one rank threw: " + first_line(error);
    }
  }
  // Of what an encoder computes without gradients in any case nothing is seen.
  std::string find_wrong_split(Encoder& encoder, Context& ctx) const {
    try {
      for (auto& parameter : encoder.parameters()) parameter.set_requires_grad(true);
      const auto flow =
          layer_flow(encoder, ctx, [&] { (void)encoded(encoder, encoder_batch(data_, at::kDouble), ctx); });
      auto found = wrong_split(flow);
      for (auto& parameter : encoder.parameters()) parameter.set_requires_grad(false);
      return found;
    } catch (const std::exception&) {
      return {};
    }
  }

  Trial tried(const EncoderLayout& layout) {
    TrialFindings findings;
    on_ranks(layout.degrees, [&](const Mesh& mesh) {
      parts_.around(layout.name, [&] { rank(layout, mesh, findings); });
      return std::string();
    });
    Trial trial{layout.name};
    trial.what = findings.wrong.empty() && findings.refused.empty() ? findings.lost : findings.wrong;
    if (!trial.what.empty()) {
      trial.outcome = Trial::Outcome::wrong;
      if (!split_.empty() && layout.degrees.count(Axis::tensor) > 0) {
        trial.what += "; it looks like a missing or wrong Split: " + split_;
        is_split_said_ = true;
      }
    } else if (!findings.refused.empty()) {
      trial.outcome = Trial::Outcome::refused;
      trial.what = findings.refused;
    }
    return trial;
  }

  void rank(const EncoderLayout& layout, const Mesh& mesh, TrialFindings& findings) const {
    std::vector<MakeStrategy> make;
    for (const auto& [id, options] : layout.strategies)
      make.push_back([this, id = id, options = options](const ParallelStrategy::Needs& needs) {
        return parts_.strategy(id, options, needs);
      });
    bool is_made = false;
    findings.note(mesh, is_made, {}, [&]() -> std::string {
      EncoderRun run(parts_, mesh, make);
      is_made = true;
      for (const auto& [name, tensor] : run.made(data_))
        if (const auto problem = difference(tensor, expected_.at(name), tensor.is_floating_point() ? kRounding : 0);
            !problem.empty())
          return "\"" + name + "\" " + problem;
      return {};
    });
  }

  EncoderTrialParts parts_;
  TensorSpecs data_;
  std::map<std::string, Tensor> expected_;
  std::string split_;
  bool is_split_said_ = false;
};

}  // namespace

std::vector<Trial> try_encoder_layouts(const EncoderTrialParts& parts) {
  const OneThread one_thread;
  return EncoderTrial(parts).run();
}

}  // namespace ditto::testing
