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
    report.check("what is kept of a sample is what caches() says, and nothing in it is drawn", [&] { return keeps(); });
    report.check("two runs give the same bits", [&] { return repeated(); });
    report.check("a sample alone is encoded as in a batch, whatever the length of its text", [&] { return alone(); });
    report.check("lengths are said of every text that is made, and are those of its mask", [&] { return lengths(); });
    report.check("equal encoders have equal fingerprints", [&] {
      const auto fingerprint = encoder_->fingerprint();
      return std::string(!fingerprint.empty() && made()->fingerprint() == fingerprint ? ""
                                                                                      : "they differ, or are empty");
    });
    constexpr const char* kDecodes = "decode gives pictures, or parts of them, of the size that decoded() says";
    if (encoder_->decodes())
      report.check(kDecodes, [&] { return decodes(); });
    else
      report.skip(kDecodes, "decodes() is false");
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
    return testing::encoded(*encoder_, batch_, ctx);
  }
  static Context in_evaluation() {
    auto ctx = context(at::kFloat);
    ctx.phase = Phase::evaluate;
    return ctx;
  }

  std::string misfits(const Batch& made, const TensorSpecs& specs) const {
    if (made.ids != batch_.ids || made.weights != batch_.weights) return "it changes the samples' ids or weights";
    for (TensorSpec spec : specs) {
      if (!made.has(spec.name)) return "\"" + spec.name + "\" is missing";
      spec.shape.insert(spec.shape.begin(), batch_.size());
      spec.range.clear();
      if (const auto problem = misfit(made.at(spec.name), spec); !problem.empty()) return problem;
    }
    return {};
  }
  std::string encodes() const { return misfits(encoded(), encoder_->makes()); }

  // Neither of the run's seed nor of the samples' ids.
  std::string keeps() const {
    const torch::NoGradGuard no_grad;
    auto ctx = in_evaluation();
    const Batch kept = precomputed(*encoder_, batch_, ctx);
    if (auto problem = misfits(kept, encoder_->caches()); !problem.empty()) return problem;
    Batch others = batch_;
    for (auto& id : others.ids) id += 1000;
    ctx.random = Random(ctx.random.seed() + 1);
    const Batch again = precomputed(*encoder_, others, ctx);
    for (const TensorSpec& spec : encoder_->caches())
      if (const auto problem = difference(kept.at(spec.name), again.at(spec.name), 0); !problem.empty())
        return "of other ids, with another seed \"" + spec.name + "\" " + problem;
    return {};
  }

  std::string lengths() const {
    const Batch out = encoded();
    for (const TensorSpec& spec : encoder_->makes()) {
      const auto mask = out.tensors.find(spec.name + "_mask");
      if (mask == out.tensors.end()) continue;
      const auto said = out.lengths.find(spec.name);
      if (said == out.lengths.end()) return "of \"" + spec.name + "\" they are not";
      for (int64_t i = 0; i < batch_.size(); ++i) {
        const auto shown = mask->second[i].nonzero();
        const int64_t length = shown.numel() == 0 ? 0 : shown.max().item<int64_t>() + 1;
        if (said->second.at(static_cast<size_t>(i)) != length)
          return "of sample " + std::to_string(i) + " of \"" + spec.name + "\" it is " +
                 std::to_string(said->second[static_cast<size_t>(i)]) + ", and its mask shows " +
                 std::to_string(length);
      }
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
    const Tensor clean = encoded().at("clean"), picture = encoder_->decode(clean, ctx);
    const auto image = batch_.at("image").sizes();
    bool is_part = picture.dim() == static_cast<int64_t>(image.size());
    for (int64_t dim = 0; is_part && dim < picture.dim(); ++dim)  // an encoder may learn from parts of pictures
      is_part = dim < 2 ? picture.size(dim) == image[dim] : picture.size(dim) <= image[dim];
    if (!is_part) return "it is " + shape_text(picture.sizes());
    const auto said = encoder_->decoded(clean.sizes().slice(1).vec());
    if (picture.sizes().slice(1) != at::IntArrayRef(said)) return "decoded() says " + shape_text(said);
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
