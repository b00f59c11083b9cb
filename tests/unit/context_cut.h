// What tests of cut tokens share: samples, streams, and core's part around a block.
//
// Legend: B samples, T tokens.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ditto/nn/transformer.h>

#include "core/plugin/registry.h"
#include "tests/support/files.h"
#include "tests/unit/small_model.h"

namespace ditto::testing {

inline const Grid kVideo{5, 2, 3};  // neither frames nor places nor tokens are divided by 4
inline const std::vector<int64_t> kPack{7, 2, 13, 5, 1};

struct Setting {
  const char* text;
  Pattern pattern;
  bool packed = false, masked = false;
};
inline torch::Tensor normal(at::IntArrayRef shape, int64_t seed, at::ScalarType dtype = torch::kDouble) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return torch::randn(shape, generator, torch::kDouble).to(dtype);
}

inline double distance(const torch::Tensor& a, const torch::Tensor& b) {
  REQUIRE((a.sizes() == b.sizes()));
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

inline ParallelStrategy::Needs needs_of(const Mesh& mesh, at::ScalarType compute = torch::kDouble,
                                        bool token_local = true) {
  return {&mesh, true, token_local, compute, 1};
}

inline std::shared_ptr<ParallelStrategy> make(const std::string& id, const ParallelStrategy::Needs& needs) {
  Registry registry(std::vector<SearchFolder>{{test::plugin_folder(), "the test"}});
  OptionReader none(OptionMap{"parallel", "the test", {}});
  return registry.factory<ParallelStrategy>(id, "the test").make(none, needs);
}

// What core does around a block, with one strategy or none.
struct Runner {
  explicit Runner(std::shared_ptr<ParallelStrategy> strategy_, at::ScalarType dtype = torch::kDouble)
      : strategy(std::move(strategy_)), ctx(small_context(dtype)) {
    if (!strategy) return;
    ctx->attention_op.run = [plain = ctx->attention_op.run](const AttentionCall& call) {
      for (const auto& part : call.parts)  // its grid or packing is that of the tokens it gets
        if (call.pattern != Pattern::cross) CHECK(part.tokens.tokens() == part.q.size(1));
      return plain(call);
    };
    ctx->attention_op = strategy->wrap_attention(ctx->attention_op);
    ctx->unit_runner = strategy->wrap_attention_unit(
        [](std::vector<AttentionUnitPart>& parts, const Context::RunUnit& run) { return run({parts.at(0).x}); });
    ctx->token_gather = strategy->wrap_token_gather([](const torch::Tensor& x, const Stream&) { return x; });
  }
  void run(Stream& stream, const std::function<void(Stream&)>& block) {
    if (!strategy) return block(stream);
    strategy->split(stream);
    const Batch none;
    Outputs outputs;
    UnitCall call{none, stream, outputs, *ctx};
    strategy->wrap_unit([&](const Unit&, UnitCall& inner) { block(inner.stream); })(Unit{Unit::Kind::block, 0}, call);
    strategy->join(stream);
  }

  std::shared_ptr<ParallelStrategy> strategy;
  std::shared_ptr<Context> ctx;
};

inline Stream stream_of(const Setting& setting) {
  Stream stream;
  stream.grid = kVideo;
  if (!setting.packed) return stream;
  auto packing = std::make_shared<Packing>();
  packing->lengths = kPack;
  packing->sample_T = torch::repeat_interleave(torch::tensor(kPack));
  stream.packing = packing;
  return stream;
}
inline int64_t tokens_of(const Stream& stream) {
  return stream.packing ? stream.packing->sample_T.size(0) : stream.grid.tokens();
}

struct SubLayers : Layer {
  SubLayers() {
    AttentionOptions options{.width = 48, .heads = 12, .kv_heads = 0, .qk_norm = true};
    self = register_module("self", std::make_shared<SelfAttention>(options));
    cross = register_module("cross", std::make_shared<CrossAttention>(options));
  }
  std::shared_ptr<SelfAttention> self;
  std::shared_ptr<CrossAttention> cross;
};

template <class Layers>
std::shared_ptr<Layers> filled(at::ScalarType dtype) {
  torch::NoGradGuard no_grad;
  auto layers = std::make_shared<Layers>();
  layers->to(dtype);
  int64_t seed = 100;
  for (auto& parameter : layers->parameters()) parameter.copy_(normal(parameter.sizes(), ++seed) * 0.3);
  return layers;
}

}  // namespace ditto::testing
