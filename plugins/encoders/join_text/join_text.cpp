// Several texts' embeddings as one: side by side, place by place, as of SDXL's two encoders (D. Podell et al., 2023,
// arXiv:2307.01952), and one behind another, as Stable Diffusion 3 puts T5's behind them (P. Esser et al., 2024,
// arXiv:2403.03206).
//
// Legend: B samples, S places, E width.
#include <ditto/encoder.h>
#include <ditto/error.h>
#include <ditto/text_encoder.h>

#include <algorithm>

namespace {

using ditto::Batch;
using ditto::TensorSpec;
using ditto::TensorSpecs;
using torch::Tensor;
using Names = std::vector<std::string>;

constexpr const char *kMask = "_mask", *kPooled = "_pooled";

struct JoinOptions {
  std::string name = "text";
  Names wide, then, pooled;

  void read(ditto::OptionReader& option) {
    option("wide", wide, "texts that are put side by side: of each place their embeddings one after another");
    option("then", then,
           "texts whose places follow; the narrower of them and those side by side are filled with zeros");
    option("pooled", pooled, "texts whose pooled embeddings are put one after another; none: nothing is pooled");
    option("name", name, "of what is made: NAME, NAME_mask and NAME_pooled");
  }
};

Tensor of_width(const Tensor& text_BSE, int64_t width) {
  const int64_t more = width - text_BSE.size(2);
  return more == 0 ? text_BSE : torch::constant_pad_nd(text_BSE, {0, more});
}

Tensor cat(const std::vector<Tensor>& list, int64_t dim) { return list.size() == 1 ? list[0] : torch::cat(list, dim); }

class JoinText final : public ditto::Encoder {
 public:
  using Options = JoinOptions;

  JoinText(const Options& o, const Needs& needs) : options_(o) {
    if (o.wide.empty()) refuse("wide", "names no text");
    names_.name = o.name;
    for (const auto& list : {o.wide, o.then})
      for (const auto& name : list) add(needs.inputs, name, {"", kMask});
    for (const auto& name : o.pooled) add(needs.inputs, name, {kPooled});
    int64_t wide = 0;
    places_ = places_of(o.wide[0]);
    for (const auto& name : o.wide) {
      wide += width_of(name);
      if (places_of(name) != places_)
        refuse("wide", "puts \"" + name + "\" of " + std::to_string(places_of(name)) + " places beside \"" + o.wide[0] +
                           "\" of " + std::to_string(places_));
    }
    width_ = wide;
    for (const auto& name : o.then) places_ += places_of(name), width_ = std::max(width_, width_of(name));
    for (const auto& name : o.pooled) pooled_ += ditto::find(takes_, name + kPooled)->shape[0];
  }

  TensorSpecs takes() const override { return takes_; }
  TensorSpecs makes() const override { return names_.made(places_, width_, pooled_); }

  Batch precompute(Batch batch, ditto::Context&) const override {
    std::vector<Tensor> side_by_side, pooled;
    for (const auto& name : options_.wide) side_by_side.push_back(batch.at(name));
    std::vector<Tensor> texts{of_width(cat(side_by_side, 2), width_)}, masks{batch.at(options_.wide[0] + kMask)};
    for (const auto& name : options_.wide) masks[0] = masks[0].bitwise_or(batch.at(name + kMask));
    for (const auto& name : options_.then) {
      texts.push_back(of_width(batch.at(name), width_));
      masks.push_back(batch.at(name + kMask));
    }
    for (const auto& name : options_.pooled) pooled.push_back(batch.at(name + kPooled));
    auto lengths = lengths_of(batch);
    batch[names_.name] = cat(texts, 1);
    batch[names_.name + kMask] = cat(masks, 1);
    if (!pooled.empty()) batch[names_.name + kPooled] = cat(pooled, 1);
    if (!lengths.empty()) batch.lengths[names_.name] = std::move(lengths);
    return batch;
  }

  std::string fingerprint() const override {
    const auto list = [](const Names& names) {
      std::string text;
      for (const auto& name : names) text += " " + name;
      return text;
    };
    return "join_text 1, wide" + list(options_.wide) + ", then" + list(options_.then) + ", pooled" +
           list(options_.pooled);
  }

 private:
  [[noreturn]] static void refuse(const std::string& option, const std::string& what) {
    throw ditto::Error(ditto::ErrorKind::config, "encoder \"join_text\", " + option, what,
                       "name texts that encoders before it make, with \"tokens\" that fit together");
  }

  void add(const TensorSpecs& inputs, const std::string& name, const std::vector<const char*>& ends) {
    for (const std::string end : ends) {
      const auto* spec = ditto::find(inputs, name + end);
      const size_t dims = end.empty() ? 2 : 1;
      if (!spec || spec->shape.size() != dims || (end == kMask) != (spec->dtype == at::kBool)) {
        std::string there;
        for (const auto& input : inputs) there += (there.empty() ? "" : ", ") + ditto::to_text(input);
        refuse("\"" + name + "\"",
               "there is no \"" + name + end + "\" of a text, only: " + (there.empty() ? "nothing" : there));
      }
      if (std::any_of(spec->shape.begin(), spec->shape.end(), [](int64_t size) { return size < 1; }))
        refuse("\"" + name + "\"",
               "has as many places as a batch's longest text: a model would see other places in "
               "other batches");
      if (!ditto::find(takes_, spec->name)) takes_.push_back(*spec);
    }
  }

  int64_t places_of(const std::string& name) const { return ditto::find(takes_, name)->shape[0]; }
  int64_t width_of(const std::string& name) const { return ditto::find(takes_, name)->shape[1]; }

  // Up to the last place that the mask shows; empty: not known of every text.
  std::vector<int64_t> lengths_of(const Batch& batch) const {
    std::vector<int64_t> lengths(static_cast<size_t>(batch.size()));
    int64_t before = 0;
    const auto take = [&](const std::string& name) {
      const auto known = batch.lengths.find(name);
      if (known == batch.lengths.end()) return false;
      for (size_t i = 0; i < lengths.size(); ++i)
        if (known->second[i] > 0) lengths[i] = std::max(lengths[i], before + known->second[i]);
      return true;
    };
    for (const auto& name : options_.wide)
      if (!take(name)) return {};
    before = places_of(options_.wide[0]);
    for (const auto& name : options_.then) {
      if (!take(name)) return {};
      before += places_of(name);
    }
    return lengths;
  }

  Options options_;
  ditto::TextNames names_;
  TensorSpecs takes_;
  int64_t places_ = 0, width_ = 0, pooled_ = 0;
};

}  // namespace

DITTO_PLUGIN(Encoder, JoinText, "join_text", "1.0.0", "Apache-2.0",
             "several encoders' texts as one, as SDXL and SD3 have it")
