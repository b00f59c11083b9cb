// The guidance plugins against their formulas, on predictions that are given: c with conditions, u without, g of
// another network.
#include <ditto/guidance.h>

#include <doctest/doctest.h>

#include <limits>

#include <torch/types.h>

#include "tests/support/open_plugin.h"

using ditto::Evaluation;
using ditto::Guidance;
using ditto::OptionValue;
using torch::Tensor;

namespace {

using Options = std::map<std::string, OptionValue>;

Tensor numbers(const std::vector<int64_t>& shape, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn(shape, generator, torch::kDouble);
}

struct Setting {
  int64_t channels = 4, out_channels = 4;
  double noise = 1;  // sigma / alpha
};

// What was asked for, and what came of it.
struct Guided {
  std::vector<std::vector<Evaluation>> calls;
  Tensor c, u, g, result;

  bool is_plain() const { return calls.size() == 1 && calls[0].size() == 1 && result.equal(c); }
};

Guided guided(const Guidance& guidance, const Setting& setting = {}) {
  const std::vector<int64_t> shape{3, setting.channels, 5, 4};
  auto made_shape = shape;
  made_shape[1] = setting.out_channels;
  Guided all{{}, numbers(made_shape, 1), numbers(made_shape, 2), numbers(made_shape, 3), {}};
  const auto c = all.c.clone(), u = all.u.clone(), g = all.g.clone();
  const auto x_t = numbers(shape, 4);
  const ditto::Batch conditions;
  all.result = guidance.predict({x_t, 0.5, {1, setting.noise}, conditions, [&](const std::vector<Evaluation>& wanted) {
                                   all.calls.push_back(wanted);
                                   ditto::Tensors made;
                                   for (const auto& one : wanted)
                                     made.push_back(!one.network.empty() ? g : one.with_conditions ? c : u);
                                   return made;
                                 }});
  // Nobody writes to a prediction that the host may use again.
  CHECK(c.equal(all.c));
  CHECK(u.equal(all.u));
  CHECK(g.equal(all.g));
  return all;
}

std::shared_ptr<Guidance> make(const std::string& id, const Options& options = {},
                               const Guidance::Needs& needs = {[](const std::string&) {}}) {
  return ditto::test::make_plugin<Guidance>("guidance", id, options, needs);
}

Options with_scale(double scale, Options more = {}) {
  more["scale"] = scale;
  return more;
}

void near(const Tensor& found, const Tensor& expected) {
  REQUIRE(found.sizes() == expected.sizes());
  CHECK((found - expected).abs().max().item<double>() < 1e-13 * (1 + expected.abs().max().item<double>()));
}

// The standard deviation of each sample's numbers, [B, 1, 1, 1].
Tensor deviation(const Tensor& x) {
  const auto flat = x.flatten(1);
  const auto from_mean = flat - flat.mean(1, true);
  return (from_mean.square().sum(1) / static_cast<double>(flat.size(1) - 1)).sqrt().view({-1, 1, 1, 1});
}

// The guidance is at work at this level of noise.
bool works_at(const Guidance& guidance, double noise) {
  const auto all = guided(guidance, {.noise = noise});
  CHECK(all.is_plain() == (all.calls.at(0).size() == 1));
  return !all.is_plain();
}

}  // namespace

TEST_CASE("none is the model's own prediction") {
  const auto none = make("none");
  CHECK(guided(*none).is_plain());
  CHECK_FALSE(none->uses_negative());
}

TEST_CASE("cfg is u + s (c - u), both predictions asked for at once") {
  for (const double scale : {0.0, 0.5, 1.5, 4.0, 7.5}) {
    CAPTURE(scale);
    const auto cfg = make("cfg", with_scale(scale));
    const auto all = guided(*cfg);
    near(all.result, scale * all.c + (1 - scale) * all.u);
    CHECK(cfg->uses_negative());
    REQUIRE(all.calls.size() == 1);
    REQUIRE(all.calls[0].size() == 2);
    CHECK((all.calls[0][0].with_conditions && !all.calls[0][1].with_conditions));
    for (const auto& one : all.calls[0]) CHECK(one.network.empty());
  }
}

TEST_CASE("cfg with a scale of 1 evaluates the conditional prediction alone, and has no use for a negative one") {
  for (const auto& options : {Options{}, with_scale(1), with_scale(0, {{"form", std::string("weight")}})}) {
    const auto cfg = make("cfg", options);
    CHECK(guided(*cfg).is_plain());
    CHECK_FALSE(cfg->uses_negative());
  }
}

TEST_CASE("cfg with form = \"weight\" is (1 + w) c - w u") {
  for (const double weight : {0.25, 1.0, 3.0}) {
    const auto cfg = make("cfg", with_scale(weight, {{"form", std::string("weight")}}));
    const auto all = guided(*cfg);
    near(all.result, (1 + weight) * all.c - weight * all.u);
    CHECK(cfg->uses_negative());
  }
}

TEST_CASE(
    "cfg and autoguidance work within their interval of noise levels, ends included, and evaluate no more outside") {
  for (const char* id : {"cfg", "autoguidance"}) {
    CAPTURE(id);
    const auto some = make(id, with_scale(3, {{"from", 0.25}, {"to", 8.0}}));
    for (const double noise : {0.25, 1.0, 8.0}) CHECK(works_at(*some, noise));
    for (const double noise : {0.0, 0.2499, 8.001, 1e9}) CHECK_FALSE(works_at(*some, noise));
    const auto all = make(id, with_scale(3));
    for (const double noise : {0.0, 1.0, 1e300}) CHECK(works_at(*all, noise));
    // Where no data is left (alpha = 0) the noise level is infinite.
    CHECK(works_at(*all, std::numeric_limits<double>::infinity()));
    CHECK_FALSE(works_at(*some, std::numeric_limits<double>::infinity()));
    CHECK_THROWS_WITH_AS(make(id, with_scale(3, {{"from", 2.0}, {"to", 1.0}})), doctest::Contains("is not above"),
                         ditto::Error);
  }
}

TEST_CASE("cfg on three channels leaves the others, and a learned variance is always the model's own") {
  const auto three = make("cfg", with_scale(3, {{"channels", std::string("3")}})), all = make("cfg", with_scale(3));
  const auto check = [](const Guidance& guidance, const Setting& setting, int64_t channels) {
    const auto found = guided(guidance, setting);
    const auto expected = found.u + 3 * (found.c - found.u);
    near(found.result.narrow(1, 0, channels), expected.narrow(1, 0, channels));
    const int64_t others = setting.out_channels - channels;
    CHECK(found.result.narrow(1, channels, others).equal(found.c.narrow(1, channels, others)));
  };
  check(*three, {4, 4}, 3);
  check(*three, {4, 8}, 3);
  check(*three, {2, 4}, 2);
  check(*all, {4, 4}, 4);
  check(*all, {4, 8}, 4);
  check(*all, {1, 2}, 1);
}

TEST_CASE("a rescaled prediction has, as far as the share says, the spread of the conditional one, sample by sample") {
  for (const double share : {0.3, 1.0}) {
    CAPTURE(share);
    const auto all = guided(*make("cfg", with_scale(5, {{"rescale", share}})));
    const auto guided_alone = all.u + 5 * (all.c - all.u);
    near(all.result, share * guided_alone * deviation(all.c) / deviation(guided_alone) + (1 - share) * guided_alone);
    if (share == 1) near(deviation(all.result), deviation(all.c));
  }
  const auto none = guided(*make("cfg", with_scale(5, {{"rescale", 0.0}})));
  near(none.result, none.u + 5 * (none.c - none.u));
}

TEST_CASE("autoguidance is g + s (c - g) of another network, which is asked for when it is made") {
  std::vector<std::string> required;
  const ditto::Guidance::Needs needs{[&](const std::string& name) { required.push_back(name); }};
  for (const double scale : {0.0, 1.5, 2.5}) {
    CAPTURE(scale);
    required.clear();
    const auto made = make("autoguidance", with_scale(scale, {{"network", std::string("worse")}}), needs);
    CHECK(required == std::vector<std::string>{"worse"});
    const auto all = guided(*made, {4, 8});
    near(all.result.narrow(1, 0, 4), (scale * all.c + (1 - scale) * all.g).narrow(1, 0, 4));
    CHECK(all.result.narrow(1, 4, 4).equal(all.c.narrow(1, 4, 4)));
    REQUIRE(all.calls.size() == 1);
    REQUIRE(all.calls[0].size() == 2);
    CHECK((all.calls[0][0].network.empty() && all.calls[0][1].network == "worse"));
    for (const auto& one : all.calls[0]) CHECK(one.with_conditions);
    CHECK_FALSE(made->uses_negative());
  }
  CHECK(guided(*make("autoguidance", with_scale(1))).is_plain());
}

TEST_CASE("a network that is not there is refused where a guidance is made") {
  const ditto::Guidance::Needs none{[](const std::string& name) {
    throw ditto::Error(ditto::ErrorKind::config, "run.toml", "there is no network \"" + name + "\"", "");
  }};
  CHECK_THROWS_WITH_AS(make("autoguidance", {}, none), doctest::Contains("no network \"guide\""), ditto::Error);
}
