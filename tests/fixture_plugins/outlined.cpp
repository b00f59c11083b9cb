// Nothing is wrong with it, where it says so: pictures, and of each an outline that lies where the picture's object
// does. Column 0 is 1 and the others 0, in both.
#include <torch/types.h>

#include <ditto/data.h>

namespace {

struct Options {
  bool says = true;
  int64_t height = 8, width = 8, share = 1, classes = 4;
  void read(ditto::OptionReader& option) {
    option("says", says, "that the outline turns with the picture");
    option("height", height, "of the picture");
    option("width", width, "of the picture");
    option("share", share, "the picture's sides are so many times the outline's");
    option("classes", classes, "number of classes");
  }
};

class Outlined final : public ditto::Source {
 public:
  using Options = ::Options;
  Outlined(const Options& options, const Needs&) : o_(options) {}
  int64_t size() const override { return 64; }
  ditto::TensorSpecs makes() const override {
    ditto::TensorSpec outline{"outline", at::kFloat, {1, o_.height / o_.share, o_.width / o_.share}, "0 … 1"};
    outline.turns_with_image = o_.says;
    return {
        {"image", at::kFloat, {1, o_.height, o_.width}, "-1 … 1"}, {"label", at::kLong, {}, "", o_.classes}, outline};
  }
  ditto::Sample read(int64_t index) const override {
    ditto::Sample sample;
    sample.place = "sample " + std::to_string(index);
    for (const auto& spec : makes())
      if (spec.dtype == at::kFloat) {
        auto& tensor = sample.tensors[spec.name] = torch::zeros(spec.shape);
        tensor.select(-1, 0).fill_(1);
      }
    sample.tensors["label"] = torch::scalar_tensor(index % o_.classes, torch::kLong);
    return sample;
  }
  std::string fingerprint() const override { return "outlined"; }

 private:
  Options o_;
};

}  // namespace

DITTO_PLUGIN(Source, Outlined, "outlined", "1.0.0", "Apache-2.0", "pictures with outlines")
