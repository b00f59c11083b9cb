// A source that cannot decode some of its samples on the ranks that the environment says: one machine's copy of the
// data is damaged. FAULTY_SAMPLES="3 7" names them.
#include <array>
#include <cstdlib>
#include <set>
#include <sstream>

#include <torch/types.h>

#include <ditto/data.h>
#include <ditto/math/random.h>

namespace {

struct Options {
  int64_t samples = 64, classes = 4;
  int64_t text_tokens = 0;
  std::string name = "faulty", fault = "none";
  void read(ditto::OptionReader& option) {
    option("samples", samples, "samples in one pass");
    option("classes", classes, "number of classes; 0: no labels");
    option("text_tokens", text_tokens, "sample i has a text of 1 + i modulo this tokens; 0: no texts");
    option("name", name, "names the data");
    option("fault", fault, "the promise to break");
  }
};

class Faulty final : public ditto::Source {
 public:
  using Options = ::Options;
  Faulty(const Options& options, const Needs&) : options_(options) {
    const char* bad = std::getenv("FAULTY_SAMPLES");
    std::istringstream numbers(bad ? bad : "");
    for (int64_t index = 0; numbers >> index;) bad_.insert(index);
  }

  int64_t size() const override { return options_.samples; }
  ditto::TensorSpecs makes() const override {
    ditto::TensorSpecs specs{{"image", at::kFloat, {3, 8, 8}, "any"}};
    if (options_.classes > 0) specs.push_back({"label", at::kLong, {}, "", options_.classes});
    if (options_.text_tokens > 0) {
      specs.push_back({"text", at::kFloat, {-1, 16}, "any"});
      specs.push_back({"text_mask", at::kBool, {-1}, ""});
    }
    return specs;
  }
  ditto::Sample read(int64_t index) const override {
    ditto::Sample sample;
    sample.place = "sample " + std::to_string(index);
    if (bad_.count(index)) throw ditto::Error(ditto::ErrorKind::data, sample.place, "is damaged");
    const ditto::Random random(7);
    sample.tensors["image"] =
        random.normal(ditto::Purpose::augmentation, std::array{index}, {3, 8, 8}, torch::kFloat)[0];
    if (options_.classes > 0) sample.tensors["label"] = torch::scalar_tensor(index % options_.classes, torch::kLong);
    if (options_.text_tokens > 0) {
      const int64_t length = 1 + index % options_.text_tokens;
      sample.tensors["text"] =
          random.normal(ditto::Purpose::augmentation, std::array{1000 + index}, {length, 16}, torch::kFloat)[0];
      sample.tensors["text_mask"] = torch::ones({length}, torch::kBool);
    }
    return sample;
  }
  ditto::SampleInfo info(int64_t index) const override {
    if (options_.fault == "tells nothing") return {};
    if (options_.fault == "tells another size") return {{"image", {3, 8, 8 + index % 2}}};
    if (options_.fault == "tells of what is not there") return {{"depth", {8, 8}}};
    return {{"image", {3, 8, 8}}};
  }
  std::string fingerprint() const override { return options_.name; }

 private:
  Options options_;
  std::set<int64_t> bad_;
};

}  // namespace

DITTO_PLUGIN(Source, Faulty, "faulty_source", "1.0.0", "Apache-2.0", "cannot decode what the environment names")
