// How convolutions lay maps, as the host asks: what is computed with, and that the numbers are the same.
#include <doctest/doctest.h>

#include <ditto/nn/maps.h>

#include "tests/unit/small_model.h"

namespace ditto {
namespace {

using torch::Tensor;

bool is_last(const Tensor& map) { return !map.is_contiguous() && map.movedim(1, -1).is_contiguous(); }

// What a convolution, a norm and another one make of a map that lies as it is given, and how their inputs lay.
struct Ran {
  std::vector<bool> last;  // the convolutions'
  bool norm_last = false;
  Tensor y, dx, dweight;
};

template <class Conv>
Ran run(at::MemoryFormat format, const Tensor& map) {
  auto table = std::make_shared<OpTable>();
  Context ctx(table, Random(0));
  ctx.compute = torch::kDouble;
  ctx.maps = format;
  Ran ran;
  table->watch([&](const std::string& op, const OpInputs& inputs, const Tensors&) {
    if (op == "conv") ran.last.push_back(is_last(inputs.tensor(0)));
    if (op == "group_norm") ran.norm_last = is_last(inputs.tensor(0));
  });
  Conv one({4, 8}), other({8, 4});
  GroupNorm norm(2, 8);
  int64_t seed = 0;
  for (torch::nn::Module* layer : {static_cast<torch::nn::Module*>(&one), static_cast<torch::nn::Module*>(&norm),
                                   static_cast<torch::nn::Module*>(&other)}) {
    layer->to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    for (auto& leaf : layer->parameters()) leaf.copy_(testing::numbers(leaf.sizes(), ++seed, torch::kDouble));
  }
  const Tensor x = map.detach().requires_grad_();
  ran.y = other.forward(norm.forward(one.forward(x, ctx), ctx, {.silu = true}), ctx);
  ran.y.square().sum().backward();
  ran.dx = x.grad(), ran.dweight = one.weight.leaf().grad();
  return ran;
}

template <class Conv>
void check_layouts(const Tensor& map) {
  const auto last_map = map.movedim(1, -1).contiguous().movedim(-1, 1);
  const auto plain = run<Conv>(at::MemoryFormat::Preserve, map);
  CHECK(plain.last == std::vector<bool>(2, false));
  CHECK(run<Conv>(at::MemoryFormat::Preserve, last_map).last.front());
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast})
    for (const auto& given : {map, last_map}) {
      const auto ran = run<Conv>(format, given);
      // LibTorch's convolution of videos in double precision gives channels first whatever it is given.
      CHECK(ran.norm_last == (map.dim() == 4 && format == at::MemoryFormat::ChannelsLast));
      CHECK(ran.last == std::vector<bool>(2, format == at::MemoryFormat::ChannelsLast));
      for (const auto& [mine, expected] : {std::pair{ran.y, plain.y}, {ran.dx, plain.dx}, {ran.dweight, plain.dweight}})
        CHECK(torch::allclose(mine, expected, 1e-12, 1e-12));
    }
}

}  // namespace

TEST_CASE("maps lie as the host asks in every convolution and norm, however they come, and make the same numbers") {
  check_layouts<Conv2d>(testing::numbers({2, 4, 5, 6}, 7, torch::kDouble));
  check_layouts<Conv3d>(testing::numbers({2, 4, 3, 5, 6}, 8, torch::kDouble));
}

TEST_CASE("lines have one layout") {
  const auto line = testing::numbers({2, 4, 6}, 9, torch::kDouble);
  CHECK(run<Conv1d>(at::MemoryFormat::ChannelsLast, line).last == std::vector<bool>(2, false));
}

}  // namespace ditto
