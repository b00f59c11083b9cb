// Groups of parameters: what a recipe says of them, who takes which, and several optimizers as one.
#include <doctest/doctest.h>

#include <torch/types.h>

#include <ditto/error.h>

#include "core/components/optimizers.h"
#include "core/config/differences.h"
#include "core/process/launch.h"
#include "tests/support/files.h"
#include "tests/unit/ranks.h"

namespace ditto {
namespace {

using torch::Tensor;

const std::string kRecipe = R"(
[optimizer]
plugin = "adamw"
weight_decay = 0.1
beta2 = 0.9
[[optimizer.group]]
match = "*.bias"
weight_decay = 0.0
[[optimizer.group]]
match = ["head.*", "table"]
plugin = "sgd"
momentum = 0.5
lr_scale = 0.5
)";

Recipe recipe(const std::vector<std::string>& sets = {}, const std::string& text = kRecipe) {
  return Recipe::parse(text, "groups.toml", sets);
}

std::string refused(const std::vector<std::string>& sets, const std::string& text = kRecipe) {
  return test::error_of(ErrorKind::config, [&] { recipe(sets, text); });
}

Registry& registry() {
  static Registry all(
      std::vector<SearchFolder>{{test::plugin_folder(), "the test"},
                                {test::build_folder() / "tests/fixture_plugins/faulty_optimizer.so", "the test"}});
  return all;
}

// Every tensor is whole.
struct OneRank final : WholeTensors {
  std::vector<Tensor> gather(const std::vector<Tensor>& local) const override { return local; }
  std::vector<Tensor> scatter(const std::vector<Tensor>& whole, const std::vector<Tensor>&) const override {
    return whole;
  }
  std::vector<bool> here(const std::vector<Tensor>& local) const override {
    std::vector<bool> all;
    for (const auto& one : local) all.push_back(one.defined());
    return all;
  }
};

// Weights with averages and copies, and the optimizer of a recipe.
struct World {
  explicit World(Recipe of_) : of(std::move(of_)) {
    const std::vector<std::pair<std::string, std::vector<int64_t>>> all{
        {"in.weight", {6, 4}}, {"in.bias", {6}}, {"table", {5, 3}}, {"head.weight", {3, 6}}, {"head.bias", {3}}};
    for (const auto& [name, shape] : all) {
      const auto seed = static_cast<int64_t>(parameters.size());
      parameters.push_back({name, testing::numbers(shape, seed).requires_grad_(), shape});
      average.push_back(parameters.back().tensor.detach().clone());
      copies.push_back(name == "table" ? Tensor() : torch::zeros(shape, at::kBFloat16));
    }
    Components components(of, registry());
    optimizer = make_optimizer(components, {parameters, &whole});
  }

  void step(int64_t number) {
    for (size_t i = 0; i < parameters.size(); ++i)
      parameters[i].tensor.mutable_grad() =
          testing::numbers(parameters[i].tensor.sizes(), 100 * (number + 1) + static_cast<int64_t>(i));
    optimizer->step({.lr = 0.02, .clip = 0.5, .average = average, .decay = 0.9, .copies = copies});
  }
  const Tensor& weight(size_t i) const { return parameters.at(i).tensor; }

  Recipe of;
  OneRank whole;
  std::vector<OptimizedParameter> parameters;
  std::vector<Tensor> average, copies;
  std::shared_ptr<Optimizer> optimizer;
};

TEST_CASE("a group without a plugin is of the section's, with its options and its own over them") {
  auto read = recipe();
  REQUIRE(read.optimizer_groups.size() == 2);
  const auto& bias = read.optimizer_groups[0];
  CHECK(bias.component.plugin == "adamw");
  CHECK(bias.match == std::vector<std::string>{"*.bias"});
  CHECK(std::get<double>(bias.component.options.given.at("weight_decay").value) == 0);
  CHECK(std::get<double>(bias.component.options.given.at("beta2").value) == 0.9);
  const auto& head = read.optimizer_groups[1];
  CHECK(head.component.plugin == "sgd");
  CHECK(head.lr_scale == 0.5);
  CHECK(head.component.options.given.count("beta2") == 0);
  CHECK(head.matches("head.weight"));
  CHECK(head.matches("table"));
  CHECK_FALSE(head.matches("label.table"));
}

TEST_CASE("a resolved recipe has all options of its groups, and is read back as the same") {
  auto read = recipe();
  declare_components(read, registry());
  const auto text = formats::render_toml(read.resolved());
  CHECK(text.find("[[optimizer.group]]\nmatch = [\"*.bias\"]\nlr_scale = 1.0\nplugin = \"adamw\"") !=
        std::string::npos);
  auto again = recipe({}, text);
  declare_components(again, registry());
  CHECK(formats::same_value(again.resolved(), read.resolved()));
  CHECK(flat(read.resolved()).at("optimizer.group.0.beta2") == "0.9");
  CHECK(read.effects().of("optimizer.group.1.momentum") == Effect::course);
  CHECK(read.effects().of("optimizer.group.1.lr_scale") == Effect::course);
}

TEST_CASE("what is set reaches into a group, and another plugin of the section keeps the groups") {
  auto read = recipe({"optimizer.group.0.weight_decay=0.25", "optimizer.group.1.plugin=lion"});
  CHECK(std::get<double>(read.optimizer_groups[0].component.options.given.at("weight_decay").value) == 0.25);
  CHECK(read.optimizer_groups[1].component.plugin == "lion");
  CHECK(read.optimizer_groups[1].component.options.given.empty());
  CHECK(read.optimizer_groups[1].lr_scale == 0.5);
  CHECK(recipe({"optimizer.plugin=lion"}).optimizer_groups.at(0).component.plugin == "lion");
  CHECK(recipe({"optimizer.group=[]"}).optimizer_groups.empty());
}

TEST_CASE("what is no group is refused with what is expected") {
  CHECK(refused({"optimizer.group=3"}).find("optimizer.group is integer; expected groups") != std::string::npos);
  CHECK(refused({"optimizer.group=[3]"}).find("optimizer.group.0 is integer; expected a table") != std::string::npos);
  CHECK(refused({"optimizer.group.2.x=3"}).find("group is a list of 2 and has no \"2\"") != std::string::npos);
  CHECK(refused({"optimizer.group.0.match=[]"}).find("optimizer.group.0 names no parameters") != std::string::npos);
  CHECK(refused({"optimizer.group.0.lr_scale=-1"}).find("expected at least 0") != std::string::npos);
  auto unknown = recipe({"optimizer.group.0.momentum=0.9"});
  CHECK(test::error_of(ErrorKind::config, [&] { declare_components(unknown, registry()); }).find("optimizer.group.0") !=
        std::string::npos);
}

TEST_CASE("a pattern that takes nothing is refused with the nearest one, or with who has taken it all") {
  const std::vector<std::string> names{"blocks.0.qkv.weight", "blocks.0.qkv.bias", "blocks.1.qkv.weight",
                                       "blocks.1.qkv.bias", "out.weight"};
  const auto said = [&](const std::string& first, const std::string& second) {
    const OptimizerGroup a{"optimizer.group.0", {first}, 1, {}}, b{"optimizer.group.1", {second}, 1, {}};
    return test::error_of(ErrorKind::config, [&] { refuse_idle({a, b}, names); });
  };
  CHECK_NOTHROW(refuse_idle({{"", {"*.bias"}, 1, {}}, {"", {"blocks.*", "out.weight"}, 1, {}}}, names));
  CHECK(said("*.bais", "*") ==
        "optimizer.group.0.match: \"*.bais\" matches no parameter that is trained; did you mean \"*.bias\"? there are "
        "blocks.*.qkv.weight, blocks.*.qkv.bias, out.weight");
  CHECK(said("block.*", "*").find("did you mean \"blocks.*\"?") != std::string::npos);
  CHECK(said("*.qkv.*", "*.bias") ==
        "optimizer.group.1.match: \"*.bias\" matches 2 parameters, and optimizer.group.0 has taken them all; the first "
        "group that matches a parameter takes it: put this one before, or leave it out");
}

TEST_CASE("groups move their parameters as their optimizers do alone, average and copies too") {
  World groups(recipe());
  const std::string adamw = "[optimizer]\nplugin = \"adamw\"\nbeta2 = 0.9\nweight_decay = ";
  World decayed(recipe({}, adamw + "0.1")), plain(recipe({}, adamw + "0.0"));
  World sgd(recipe({}, "[optimizer]\nplugin = \"sgd\"\nmomentum = 0.5\n"));
  for (int64_t number = 0; number < 3; ++number) {
    for (auto* world : {&groups, &decayed, &plain}) world->step(number);
    for (size_t i = 0; i < sgd.parameters.size(); ++i)
      sgd.parameters[i].tensor.mutable_grad() =
          testing::numbers(sgd.parameters[i].tensor.sizes(), 100 * (number + 1) + static_cast<int64_t>(i));
    sgd.optimizer->step({.lr = 0.01, .clip = 0.5, .average = sgd.average, .decay = 0.9, .copies = sgd.copies});
  }
  const std::vector<const World*> alone{&decayed, &plain, &sgd, &sgd, &plain};
  for (size_t i = 0; i < alone.size(); ++i) {
    CAPTURE(groups.parameters[i].name);
    CHECK(testing::same_bits(groups.weight(i).detach(), alone[i]->weight(i).detach()));
    CHECK(testing::same_bits(groups.average[i], alone[i]->average[i]));
    if (groups.copies[i].defined()) CHECK(groups.copies[i].equal(alone[i]->copies[i]));
  }
  CHECK_FALSE(groups.weight(1).equal(decayed.weight(1)));
}

TEST_CASE("states of groups run along all parameters under their own names, and training goes on from them") {
  World one(recipe()), other(recipe());
  for (int64_t number = 0; number < 3; ++number) one.step(number);
  auto states = one.optimizer->state();
  CHECK(one.optimizer->counters() == Optimizer::Counters{{"steps", 3.0}, {"group.0.steps", 3.0}});
  const auto here = [&](const std::string& kind) {
    std::vector<bool> all;
    for (const auto& tensor : states.at(kind).tensors) all.push_back(tensor.defined());
    return all;
  };
  CHECK(here("exp_avg") == std::vector<bool>{true, true, false, false, true});
  CHECK(here("momentum") == std::vector<bool>{false, false, true, true, false});
  {
    torch::NoGradGuard no_grad;
    auto into = other.optimizer->state();
    for (auto& [kind, state] : states)
      for (size_t i = 0; i < state.tensors.size(); ++i)
        if (state.tensors[i].defined()) into.at(kind).tensors.at(i).copy_(state.tensors[i]);
    for (size_t i = 0; i < one.parameters.size(); ++i) other.parameters[i].tensor.copy_(one.weight(i));
  }
  other.optimizer->set_counters(one.optimizer->counters());
  for (auto* world : {&one, &other}) world->step(3);
  for (size_t i = 0; i < one.parameters.size(); ++i)
    CHECK(testing::same_bits(one.weight(i).detach(), other.weight(i).detach()));
}

TEST_CASE("states of one name that lie in another way are kept apart") {
  World world(recipe({},
                     "[optimizer]\nplugin = \"sgd\"\nmomentum = 0.9\n[[optimizer.group]]\nmatch = \"table\"\n"
                     "plugin = \"faulty_optimizer\"\nfault = \"whole state\"\n"));
  const auto states = world.optimizer->state();
  CHECK_FALSE(states.at("momentum").whole);
  CHECK(states.at("group.0.momentum").whole);
  CHECK(states.at("group.0.momentum").tensors.at(2).defined());
  CHECK_FALSE(states.at("momentum").tensors.at(2).defined());
}

TEST_CASE("a group's optimizer may make its average, beside the others' moving one") {
  const std::string text =
      "[optimizer]\nplugin = \"adamw\"\n[[optimizer.group]]\nmatch = \"head.*\"\nplugin = \"schedule_free\"\n";
  World groups(recipe({}, text));
  World adamw(recipe({}, "[optimizer]\nplugin = \"adamw\"\n"));
  World schedule_free(recipe({}, "[optimizer]\nplugin = \"schedule_free\"\n"));
  for (auto* world : {&groups, &adamw, &schedule_free})
    for (int64_t number = 0; number < 3; ++number) world->step(number);
  CHECK(groups.optimizer->averages());
  for (size_t i = 0; i < groups.average.size(); ++i)
    CHECK(testing::same_bits(groups.average[i], (i < 3 ? adamw : schedule_free).average[i]));
  CHECK(test::error_of(ErrorKind::config, [&] {
          World(recipe({"ema.enabled=false"}, text));
        }).find("\"schedule_free\" makes the average") != std::string::npos);
}

}  // namespace
}  // namespace ditto
