// Claim (one number): Updates under run.numerics = "one": single operations of IEEE arithmetic a number, written out
// here one by one.
#include <cmath>

#include <doctest/doctest.h>

#include <ditto/math/elementary.h>
#include <ditto/optimizer.h>

#include "tests/unit/exact_rows.h"

namespace ditto::exact {
namespace {

constexpr int64_t kNumbers = 1003;  // no multiple of a vector
constexpr double kLr = 3e-3;

// Of one number: the weight after two updates with its gradients.
using InWords = std::function<float(float w, float g1, float g2)>;

void check(const std::string& id, const testing::OptionValues& options, const InWords& meant) {
  CAPTURE(id);
  const auto weight = numbers({kNumbers}, 1), first = numbers({kNumbers}, 2) * 0.1,
             second = numbers({kNumbers}, 3) * 1e-3;
  const auto leaf = weight.clone().requires_grad_();
  const OpTable table(rows(), {}, nullptr, {}, /*exact=*/true);
  Optimizer::Needs needs{{{"w", leaf, {kNumbers}}}, nullptr};
  needs.ops = &table, needs.exact = true;
  const auto optimizer =
      testing::make<Optimizer>(test::plugin_folder() + "/optimizers/lib" + id + ".so", options, needs);
  REQUIRE(optimizer->exact());
  for (const auto& grad : {first, second}) {
    leaf.mutable_grad() = grad.clone();
    optimizer->step({.lr = kLr, .exact = true});
  }
  int64_t different = 0;
  for (int64_t i = 0; i < kNumbers; ++i)
    different +=
        leaf[i].item<float>() != meant(weight[i].item<float>(), first[i].item<float>(), second[i].item<float>());
  CHECK(different == 0);
}

// Results are rounded to fp32 after each operation: nothing is contracted here (-ffp-contract=off).
float number(double x) { return static_cast<float>(x); }

TEST_CASE("sgd: momentum, Nesterov's step and weight decay are single operations") {
  const float momentum = number(0.9), decay = number(0.1), lr = number(kLr);
  for (const bool nesterov : {false, true})
    check("sgd", {{"momentum", 0.9}, {"weight_decay", 0.1}, {"nesterov", nesterov}}, [&](float w, float g1, float g2) {
      float m = 0;
      for (const float g : {g1, g2}) {
        const float scaled = w * decay, direction = scaled + g, kept = m * momentum;
        m = kept + direction;
        const float further = m * momentum, step = (nesterov ? further + direction : m) * lr;
        w = w - step;
      }
      return w;
    });
  check("sgd", {{"momentum", 0.0}}, [&](float w, float g1, float g2) {
    const float step1 = g1 * lr, after = w - step1, step2 = g2 * lr;
    return after - step2;
  });
}

TEST_CASE("lion: the sign of a moment, and weight decay, are single operations") {
  const float beta1 = number(0.9), rest1 = number(1 - 0.9), beta2 = number(0.99), rest2 = number(1 - 0.99);
  const float kept_weight = number(1 - kLr * 0.1), lr = number(kLr);
  check("lion", {{"weight_decay", 0.1}}, [&](float w, float g1, float g2) {
    float m = 0;
    for (const float g : {g1, g2}) {
      const float old = m * beta1, fresh = g * rest1, direction = old + fresh;
      const float kept = w * kept_weight, step = static_cast<float>((direction > 0) - (direction < 0)) * lr;
      w = kept - step;
      const float first = m * beta2, second = g * rest2;
      m = first + second;
    }
    return w;
  });
}

TEST_CASE("adamw8bit: of parameters with few numbers the update is AdamW's, in single operations") {
  const float beta1 = number(0.9), rest1 = number(1 - 0.9), beta2 = number(0.999), rest2 = number(1 - 0.999);
  const float eps = number(1e-8);
  check("adamw8bit", {}, [&](float w, float g1, float g2) {
    float m = 0, v = 0;
    int64_t n = 0;
    for (const float g : {g1, g2}) {
      ++n;
      const float old_m = m * beta1, new_m = g * rest1, square = g * g, old_v = v * beta2, new_v = square * rest2;
      m = old_m + new_m, v = old_v + new_v;
      const float root = std::sqrt(v), even = number(std::sqrt(1 - elementary::power(0.999, n)));
      const float spread = root / even, beside = spread + eps, share = m / beside;
      const float step = share * number(kLr / (1 - elementary::power(0.9, n)));
      w = w - step;
    }
    return w;
  });
}

// Wholes that are here.
struct Here final : WholeTensors {
  std::vector<Tensor> gather(const std::vector<Tensor>& local) const override { return local; }
  std::vector<Tensor> scatter(const std::vector<Tensor>& whole, const std::vector<Tensor>&) const override {
    return whole;
  }
  std::vector<bool> here(const std::vector<Tensor>& local) const override {
    return std::vector<bool>(local.size(), true);
  }
};

TEST_CASE("muon: a matrix is made orthogonal with the same bits by every variant, on any number of threads") {
  const Here whole;
  const auto before = at::get_num_threads();
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{37, 20}, {24, 70}, {3, 16, 8}}) {
    Tensor expected;
    for (const auto& variant : variants())
      for (const int threads : {1, 3}) {
        at::set_num_threads(threads);
        const std::map<std::string, GivenOption> pins{{"linear", {variant, "the test"}},
                                                      {"sample_mean", {variant, "the test"}}};
        const OpTable table(rows(), pins, nullptr, {}, /*exact=*/true);
        const auto leaf = numbers(shape, 1).requires_grad_();
        Optimizer::Needs needs{{{"w", leaf, shape}}, &whole};
        needs.ops = &table, needs.exact = true;
        const auto muon = testing::make<Optimizer>(test::plugin_folder() + "/optimizers/libmuon.so", {}, needs);
        REQUIRE(muon->exact());
        for (const int64_t which : {2, 3}) {
          leaf.mutable_grad() = numbers(shape, which);
          muon->step({.lr = kLr, .exact = true});
        }
        if (!expected.defined()) expected = leaf.detach().clone();
        CHECK_MESSAGE(same_bits(leaf.detach(), expected), variant, ", ", threads, " threads");
      }
  }
  at::set_num_threads(before);
  Optimizer::Needs needs{{}, &whole};
  CHECK_FALSE(testing::make<Optimizer>(test::plugin_folder() + "/optimizers/libmuon.so",
                                       {{"precision", std::string("bf16")}}, needs)
                  ->exact());
}

TEST_CASE("a power is a product of its factors") {
  CHECK(elementary::power(0.9, 0) == 1);
  CHECK(elementary::power(0.5, 10) == 1.0 / 1024);
  CHECK(elementary::power(0.999, 1000) == doctest::Approx(std::pow(0.999, 1000)).epsilon(1e-13));
}

}  // namespace
}  // namespace ditto::exact
