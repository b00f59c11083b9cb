// An embedded text as a model sees it that was trained on a fixed number of places: cut to so many, zeros beyond the
// text. Some texts are zeros in training (classifier-free guidance, J. Ho, T. Salimans, 2022, arXiv:2207.12598), in
// NeMo Imagen's way: the mask still shows where they were.
//
// Legend: B samples, S places of a text as it comes, T of those that are made, E width.
#include <ditto/encoder.h>
#include <ditto/error.h>
#include <ditto/math/sizes.h>
#include <ditto/text_encoder.h>

#include <algorithm>

namespace {

using ditto::Batch;
using ditto::TensorSpec;
using ditto::TensorSpecs;
using torch::Tensor;

constexpr const char* kMask = "_mask";

struct FitOptions {
  ditto::TextNames names{"text", "text"};
  int64_t tokens = 128;
  double drop = 0;

  void read(ditto::OptionReader& option) {
    option("takes", names.takes, "the embedded text, of the data or of an encoder before; with its mask, NAME_mask");
    option("name", names.name, "of what it makes: NAME and NAME_mask");
    option("tokens", tokens, "places of every text: a longer one is cut, a shorter one has zeros behind it")
        .between(1, ditto::most::kSide);
    option("drop", drop, "share of the texts that are zeros in training, by the sample's id; their masks stay")
        .between(0.0, 1.0);
    if (names.name.empty()) option.reject("name", "is empty", "name what it makes, as \"text\"");
  }
};

class FitText final : public ditto::Encoder {
 public:
  using Options = FitOptions;

  FitText(const Options& o, const Needs& needs)
      : options_(o), text_(given(needs.inputs, "", 2)), mask_(given(needs.inputs, kMask, 1)) {}

  TensorSpecs takes() const override { return {text_, mask_}; }
  TensorSpecs makes() const override { return options_.names.made(options_.tokens, text_.shape[1]); }

  Batch precompute(Batch batch, ditto::Context&) const override {
    const auto known = batch.lengths.find(text_.name);
    auto lengths = known == batch.lengths.end() ? std::vector<int64_t>() : known->second;
    for (int64_t& length : lengths) length = std::min(length, options_.tokens);
    const auto mask_BT = fitted(batch.at(mask_.name), 1);
    const auto text_BTE = fitted(batch.at(text_.name), 2).masked_fill(mask_BT.bitwise_not().unsqueeze(-1), 0);
    const auto& name = options_.names.name;
    batch[name] = text_BTE;
    batch[name + kMask] = mask_BT;
    if (!lengths.empty()) batch.lengths[name] = std::move(lengths);
    return batch;
  }

  Batch encode(Batch batch, ditto::Context& ctx) const override {
    if (ctx.phase != ditto::Phase::train || options_.drop == 0) return batch;
    auto& text_BTE = batch.tensors.at(options_.names.name);
    const auto dropped_B11 = ctx.random.uniform(ditto::Purpose::encoding, batch.ids, {1, 1}).lt(options_.drop);
    text_BTE = text_BTE.masked_fill(dropped_B11.to(text_BTE.device()), 0);
    return batch;
  }

  std::string fingerprint() const override {
    return "fit_text 1, " + options_.names.takes + " as " + options_.names.name + ", " +
           std::to_string(options_.tokens) + " tokens";
  }

 private:
  TensorSpec given(const TensorSpecs& inputs, const std::string& end, size_t dims) const {
    const auto name = options_.names.takes + end;
    const auto* spec = ditto::find(inputs, name);
    if (spec && spec->shape.size() == dims && (spec->dtype == at::kBool) == (dims == 1)) return *spec;
    std::string there;
    for (const auto& input : inputs) there += (there.empty() ? "" : ", ") + ditto::to_text(input);
    throw ditto::Error(ditto::ErrorKind::config, "encoder \"fit_text\", takes = \"" + options_.names.takes + "\"",
                       "there is no \"" + name + "\" of an embedded text, only: " + (there.empty() ? "nothing" : there),
                       "name a text that data hold or an encoder before this one makes");
  }

  // [B, S, …] -> [B, T, …]; zeros, or false, in the places that are new.
  Tensor fitted(const Tensor& x, int64_t dims) const {
    const int64_t more = options_.tokens - x.size(1);
    if (more <= 0) return x.narrow(1, 0, options_.tokens);
    return dims == 1 ? torch::constant_pad_nd(x, {0, more}) : torch::constant_pad_nd(x, {0, 0, 0, more});
  }

  const Options options_;
  const TensorSpec text_, mask_;
};

}  // namespace

DITTO_PLUGIN(Encoder, FitText, "fit_text", "1.0.0", "Apache-2.0",
             "an embedded text in a fixed number of places, zeros behind it; NeMo Imagen's dropping of texts")
