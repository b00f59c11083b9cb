// A model of two blocks that is right on one rank and breaks, as its option says, what layouts need.
#include <ditto/ditto.h>

namespace {

using torch::Tensor;

struct FaultyOptions {
  std::string fault = "none";
  void read(ditto::OptionReader& option) { option("fault", fault, "the promise to break"); }
};

constexpr int64_t kWidth = 8;

struct Block : ditto::Layer {
  Block()
      : up(linear("up", kWidth, 2 * kWidth, ditto::Split::columns({2 * kWidth}))),
        down(linear("down", 2 * kWidth, kWidth, ditto::Split::rows())) {}
  Tensor forward(const Tensor& x, ditto::Context& ctx) { return down(torch::silu(up(x, ctx)), ctx); }
  ditto::Linear up, down;
};

struct Faulty final : ditto::Model {
  using Options = FaultyOptions;

  Faulty(const Options& o, const Needs& needs) : fault(o.fault), x_(needs.shape("x")) {
    patches = add<ditto::PatchEmbed>(ditto::Unit::tokens, "patches", x_[0], 2, kWidth);
    time = add<ditto::TimeEmbed>(ditto::Unit::condition, "time", kWidth, 128.0);
    for (int64_t i = 0; i < 2; ++i) blocks.push_back(add_block<Block>(i));
    out = linear(ditto::Unit::head, "out", kWidth, 4 * needs.out_channels);
  }

  ditto::Conditioning condition(const ditto::Batch& in, ditto::Context& ctx) override {
    return {.cond_BD = time->forward(in.at("t"), ctx), .text_BSE = {}, .text_mask_BS = {}};
  }
  ditto::Stream tokens(const ditto::Batch& in, ditto::Context& ctx) override {
    ditto::Stream s;
    s.grid = patches->grid(in.at("x"));
    s.x_BTD = patches->forward(in.at("x"), ctx);
    return s;
  }
  int64_t depth() const override { return 2; }
  ditto::Stream run_block(int64_t i, ditto::Stream s, ditto::Context& ctx) override {
    const bool borrows = fault == (i == 0 ? "borrows from a later block" : "borrows from an earlier block");
    const auto& block = blocks[static_cast<size_t>(borrows ? 1 - i : i)];
    const auto h = s.x_BTD + s.condition.cond_BD.unsqueeze(1);
    if (fault == "takes part of the tokens")
      s.x_BTD = s.x_BTD + block->forward(h.narrow(1, 0, h.size(1) - 1), ctx).mean(1, true);
    else
      s.x_BTD = s.x_BTD + block->forward(h, ctx);
    return s;
  }
  Tensor head(const ditto::Stream& s, ditto::Context& ctx) override {
    return patches->unpatchify(out(s.x_BTD, ctx), s.grid);
  }

  bool token_local() const override { return true; }
  ditto::TensorSpecs takes() const override { return {{"x", torch::kFloat, x_, ""}, {"t", torch::kFloat, {}, ""}}; }

  std::string fault;
  std::vector<int64_t> x_;  // [C, H, W]
  std::shared_ptr<ditto::PatchEmbed> patches;
  std::shared_ptr<ditto::TimeEmbed> time;
  std::vector<std::shared_ptr<Block>> blocks;
  ditto::Linear out;
};

}  // namespace

DITTO_MODEL_PLUGIN(Faulty, "faulty_layout", "1.0.0", "Apache-2.0", "breaks what layouts need")
