// The promises of an encoder.
#include <torch/types.h>

#include <ditto/testing/checks.h>

#include "model/encoder_run.h"
#include "model/model_run.h"
#include "numbers.h"

namespace ditto::testing {

using torch::Tensor;

namespace {

class EncoderTest {
 public:
  EncoderTest(const std::string& path, const TensorSpecs& data, const OptionValues& options)
      : path_(path), data_(data), options_(options), batch_(encoder_batch(data, at::kFloat)) {}

  void run(Report& report) {
    report.check("it can be made", [&] { return encoder_ = made(), std::string(); });
    if (!encoder_) return;
    report.check("every parameter belongs to one unit", [&] { return encoder_->units(), std::string(); });
    report.check("it makes what makes() says", [&] { return encodes(); });
    report.check("two runs give the same bits", [&] { return repeated(); });
    report.check("a sample alone is encoded as in a batch, whatever the length of its text", [&] { return alone(); });
    report.check("equal encoders have equal fingerprints", [&] {
      const auto fingerprint = encoder_->fingerprint();
      return std::string(!fingerprint.empty() && made()->fingerprint() == fingerprint ? ""
                                                                                      : "they differ, or are empty");
    });
    if (encoder_->decodes())
      report.check("decode gives pictures of the same size", [&] { return decodes(); });
    else
      report.skip("decode gives pictures of the same size", "decodes() is false");
    layouts(report);
  }

 private:
  // With numbers other than its initial ones, which may hide what follows.
  std::shared_ptr<Encoder> made() const {
    auto encoder = make<Encoder>(path_, options_, {data_});
    fill(*encoder, at::kFloat);
    return encoder;
  }
  Batch encoded() const {
    const torch::NoGradGuard no_grad;
    auto ctx = in_evaluation();
    return encoder_->encode(batch_, ctx);
  }
  static Context in_evaluation() {
    auto ctx = context(at::kFloat);
    ctx.phase = Phase::evaluate;
    return ctx;
  }

  std::string encodes() const {
    const Batch out = encoded();
    if (out.ids != batch_.ids || out.weights != batch_.weights) return "it changes the samples' ids or weights";
    for (TensorSpec spec : encoder_->makes()) {
      if (!out.has(spec.name)) return "\"" + spec.name + "\" is missing";
      spec.shape.insert(spec.shape.begin(), batch_.size());
      spec.range.clear();
      if (const auto problem = misfit(out.at(spec.name), spec); !problem.empty()) return problem;
    }
    return {};
  }

  std::string repeated() const {
    const Batch first = encoded(), second = encoded();
    for (const TensorSpec& spec : encoder_->makes())
      if (const auto problem = difference(first.at(spec.name), second.at(spec.name), 0); !problem.empty())
        return "\"" + spec.name + "\" " + problem;
    return {};
  }

  std::string alone() const {
    const torch::NoGradGuard no_grad;
    auto ctx = in_evaluation();
    return encodes_alone(*encoder_, data_, batch_, ctx, 1e-5);
  }

  std::string decodes() const {
    const torch::NoGradGuard no_grad;
    auto ctx = in_evaluation();
    const Tensor picture = encoder_->decode(encoded().at("clean"), ctx);
    if (picture.sizes() != batch_.at("image").sizes()) return "it is " + shape_text(picture.sizes());
    return not_finite(picture);
  }

  void layouts(Report& report) const {
    const std::string promise = "ranks that share its parameters encode alike";
    if (encoder_->parameters().empty()) return report.skip(promise, "it has none");
    std::vector<Trial> trials;
    report.check(promise, [&] {
      trials = try_encoder_layouts({[this] { return make<Encoder>(path_, options_, {data_}); }});
      return std::string();
    });
    for (const auto& trial : trials)
      if (trial.outcome == Trial::Outcome::refused)
        report.skip(promise + ": " + trial.layout, "refused: " + trial.what);
      else
        report.check(promise + ": " + trial.layout, [&] { return trial.what; });
  }

  std::string path_;
  TensorSpecs data_;
  OptionValues options_;
  Batch batch_;
  std::shared_ptr<Encoder> encoder_;
};

}  // namespace

Report check_encoder(const std::string& path, const TensorSpecs& data, const OptionValues& options) {
  Report report("encoder " + path);
  report.guard([&] { EncoderTest(path, data, options).run(report); });
  return report;
}

}  // namespace ditto::testing
