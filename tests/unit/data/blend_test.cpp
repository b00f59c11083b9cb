#include "core/data/blend.h"

#include <doctest/doctest.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <map>

#include <ditto/error.h>

#include "core/config/recipe.h"

namespace {

using ditto::Blend;
using ditto::Error;
using ditto::Order;
using ditto::Recipe;
using ditto::Shuffle;

class Plain final : public ditto::Source {
 public:
  Plain(int64_t samples, ditto::TensorSpecs specs) : samples_(samples), specs_(std::move(specs)) {}
  int64_t size() const override { return samples_; }
  ditto::TensorSpecs makes() const override { return specs_; }
  ditto::Sample read(int64_t index) const override {
    ditto::Sample sample;
    sample.place = "sample " + std::to_string(index) + " of " + std::to_string(samples_);
    return sample;
  }
  std::string fingerprint() const override { return "plain " + std::to_string(samples_); }

 private:
  int64_t samples_;
  ditto::TensorSpecs specs_;
};

ditto::TensorSpecs picture(int64_t side, int64_t classes = 10) {
  return {{"image", at::kFloat, {3, side, side}}, {"label", at::kLong, {}, "", classes}};
}

Blend::Part part(const std::string& name, int64_t samples, double weight, double epochs = 1, int64_t side = 8) {
  return {name, std::make_shared<Plain>(samples, picture(side)), weight, epochs};
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.kind() == ditto::ErrorKind::config);
    return error.what();
  }
  FAIL("nothing was refused");
  return {};
}

bool holds(const std::string& text, const std::string& what) {
  CAPTURE(text);
  CAPTURE(what);
  return text.find(what) != std::string::npos;
}

constexpr const char* kRecipe = R"(
[data]
plugin = "blend"
[[data.part]]
plugin = "synthetic"
weight = 2
samples = 40
[[data.part]]
plugin = "blend"
weight = 1
[[data.part.part]]
plugin = "synthetic"
epochs = 0.5
samples = 30
[[data.part.part]]
plugin = "webdataset"
shards = ["a.tar"]
)";

}  // namespace

TEST_CASE("a blend numbers its parts' samples one part after another, and knows whose a sample is") {
  const Blend blend({part("a", 5, 2), part("b", 3, 1)});
  CHECK(blend.size() == 8);
  CHECK(blend.read(4).place == "sample 4 of 5");
  CHECK(blend.read(5).place == "sample 0 of 3");
  CHECK(blend.read(7).place == "sample 2 of 3");
  CHECK_THROWS(blend.read(8));
  CHECK(blend.fingerprint() == "blend of 2 (plain 5), 1 (plain 3)");
}

TEST_CASE("weights are shares of the samples; epochs are of each part's own number") {
  const auto of_first = [](std::vector<Blend::Part> parts, int64_t places) {
    const int64_t first = parts.front().source->size();
    const Blend blend(std::move(parts));
    const Order order(ditto::ordered(blend), 1, Shuffle::on);
    int64_t count = 0;
    for (int64_t place = 0; place < places; ++place) count += order.index(place) < first ? 1 : 0;
    return count;
  };
  CHECK(of_first({part("a", 5, 2), part("b", 300, 1)}, 300) == 200);
  CHECK(of_first({part("a", 5, 0.7), part("b", 300, 0.3)}, 1000) == 700);
  CHECK(of_first({part("a", 100, 0, 2), part("b", 300, 0)}, 500) == 200);
  CHECK(of_first({part("a", 100, 0, 0.25), part("b", 300, 0)}, 325) == 25);
  CHECK(of_first({part("a", 100, 0), part("b", 300, 0)}, 400) == 100);  // each sample once: held-out data
}

TEST_CASE(
    "a blend's parts come by their weights in every stretch of places, and each sample of a part once an epoch of it") {
  const auto inner = std::make_shared<Blend>(std::vector<Blend::Part>{part("b", 33, 2), part("c", 44, 1)});
  const Blend blend({part("a", 40, 2), {"bc", inner, 1, 1}});
  const Order order(ditto::ordered(blend), 5, Shuffle::on);
  std::map<int64_t, std::vector<int64_t>> seen;  // of part 0 (a), 1 (b), 2 (c): samples in the order of places
  for (int64_t place = 0; place < 9 * 400; ++place) {
    const auto index = order.index(place);
    const int64_t of = index < 40 ? 0 : index < 73 ? 1 : 2;
    seen[of].push_back(index);
    const auto had = [&](int64_t which) { return static_cast<double>(seen[which].size()); };
    const double places = static_cast<double>(place + 1);
    CHECK(std::abs(had(0) - places * 2 / 3) <= 1);
    CHECK(std::abs(had(1) - places * 2 / 9) <= 2);
    CHECK(std::abs(had(2) - places * 1 / 9) <= 2);
  }
  const std::map<int64_t, size_t> sizes{{0, 40}, {1, 33}, {2, 44}};
  for (const auto& [of, list] : seen)
    for (size_t epoch = 0; (epoch + 1) * sizes.at(of) <= list.size(); ++epoch) {
      const auto begin = list.begin() + static_cast<std::ptrdiff_t>(epoch * sizes.at(of));
      std::vector<int64_t> one(begin, begin + static_cast<std::ptrdiff_t>(sizes.at(of)));
      std::sort(one.begin(), one.end());
      CHECK(std::adjacent_find(one.begin(), one.end()) == one.end());
    }
}

TEST_CASE("without shuffling a blend's parts take turns too, each in its own order") {
  const Blend blend({part("a", 4, 2), part("b", 3, 1)});
  const Order order(ditto::ordered(blend), 1, Shuffle::off);
  std::vector<int64_t> list;
  for (int64_t place = 0; place < 12; ++place) list.push_back(order.index(place));
  CHECK(list == std::vector<int64_t>{4, 0, 1, 5, 2, 3, 6, 0, 1, 4, 2, 3});
}

TEST_CASE("a side that parts do not share is each sample's own, and told without reading") {
  const Blend blend({part("a", 5, 2), part("b", 3, 1, 1, 16)});
  CHECK(blend.makes().at(0).shape == std::vector<int64_t>{3, ditto::kOwnSide, ditto::kOwnSide});
  CHECK(blend.info(0).at("image") == std::vector<int64_t>{3, 8, 8});
  CHECK(blend.info(5).at("image") == std::vector<int64_t>{3, 16, 16});
}

TEST_CASE("parts whose samples do not fit together are refused with both sides") {
  const auto blended = [](ditto::TensorSpecs other, double weight = 1) {
    return refusal([&] {
      Blend({part("data.part.0", 5, 1), {"data.part.1", std::make_shared<Plain>(3, other), weight, 1}});
    });
  };
  CHECK(holds(blended(picture(8, 12)), "data.part.1: it cannot be blended with data.part.0"));
  CHECK(holds(blended(picture(8, 12)), "0 … 11"));
  CHECK(holds(blended({picture(8).front()}), "nothing of that name"));
  auto grey = picture(8);
  grey.front().shape[0] = 1;
  CHECK(holds(blended(grey), "[1, 8, 8]"));
  auto more = picture(8);
  more.push_back({"caption", at::kByte, {-1}});
  CHECK(holds(blended(more), "nothing called \"caption\""));
  CHECK(holds(blended(picture(8), 0), "data.part.1.weight: is not there"));
}

TEST_CASE("a recipe's parts are read with their own options, nested") {
  auto recipe = Recipe::parse(kRecipe, "blend.toml");
  CHECK(recipe.data.plugin == "blend");
  REQUIRE(recipe.data_parts.size() == 2);
  CHECK(recipe.data_parts[0].weight == 2);
  CHECK(recipe.data_parts[1].parts.at(0).epochs == 0.5);
  std::vector<std::string> sections;
  for (const auto& [section, component] : recipe.components())
    if (section.starts_with("data")) sections.push_back(section + " " + component->plugin);
  CHECK(sections == std::vector<std::string>{"data.part.0 synthetic", "data.part.1.part.0 synthetic",
                                             "data.part.1.part.1 webdataset"});
  const auto text = ditto::formats::render_toml(recipe.resolved());
  for (const char* line : {"[[data.part]]", "[[data.part.part]]", "weight = 2.0", "epochs = 0.5"})
    CHECK(holds(text, line));
  const auto again = Recipe::parse(text, "run.toml");
  CHECK(ditto::formats::same_value(again.resolved(), recipe.resolved()));
  auto set = Recipe::parse(kRecipe, "blend.toml", {"data.part.0.weight=3", "data.part.1.part.0.samples=7"});
  CHECK(set.data_parts[0].weight == 3);
  CHECK(set.data_parts[1].parts[0].component.options.given.count("samples") == 1);
}

TEST_CASE("mistakes in a blend's sections are refused with their place") {
  const auto read = [](const std::string& text) { return refusal([&] { Recipe::parse(text, "x.toml"); }); };
  CHECK(holds(read("[data]\nplugin = \"blend\"\n"), "[data] is a blend without parts"));
  CHECK(holds(read("[data]\nplugin = \"synthetic\"\n[[data.part]]\nplugin = \"synthetic\"\n"),
              "its plugin is \"synthetic\""));
  CHECK(holds(read("[data]\nplugin = \"blend\"\nsamples = 3\n[[data.part]]\nplugin = \"synthetic\"\n"),
              "no option \"samples\""));
  CHECK(holds(read("[data]\nplugin = \"blend\"\npart = 3\n"), "data.part is integer"));
  CHECK(holds(read("[data]\nplugin = \"blend\"\n[[data.part]]\nweight = 1\n"), "names no plugin"));
  CHECK(holds(read("[data]\nplugin = \"blend\"\n[[data.part]]\nplugin = \"synthetic\"\nweight = 1\nepochs = 2\n"),
              "stands beside weight"));
  CHECK(holds(read("[data]\nplugin = \"blend\"\n[[data.part]]\nplugin = \"synthetic\"\nweight = -1\n"),
              "data.part.0.weight"));
}
