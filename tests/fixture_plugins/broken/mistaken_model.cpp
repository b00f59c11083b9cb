// A transformer with one of the mistakes that authors make, as its option says; with "none" it has none.
#include <ditto/ditto.h>

#include <cstdlib>

namespace {

using ditto::Split;
using ditto::Unit;
using torch::Tensor;

struct MistakenOptions {
  std::string mistake = "none";
  int64_t depth = 2, width = 32, heads = 4;
  void read(ditto::OptionReader& option) {
    option("mistake", mistake, "what is wrong");
    option("depth", depth, "blocks").at_least(1);
    option("width", width, "token width D").at_least(4);
    option("heads", heads, "attention heads N").at_least(1);
  }
};

// Of the fused map of queries, keys and values.
Split split_of_qkv(const MistakenOptions& o) {
  const int64_t N = o.heads, K = o.width / o.heads;
  if (o.mistake == "qkv without Split") return Split::none();
  if (o.mistake == "qkv by columns") return Split::columns({3 * o.width});
  if (o.mistake == "qkv by columns in parts") return Split::columns({o.width, o.width, o.width});
  if (o.mistake == "qkv by rows") return Split::rows();
  if (o.mistake == "qkv as one run of heads") return Split::heads({3 * N}, K);
  if (o.mistake == "qkv with other counts") return Split::heads({N, 2 * N}, K);
  if (o.mistake == "qkv of narrow heads") return Split::heads({2 * N, 2 * N, 2 * N}, K / 2);
  if (o.mistake == "qkv head by head") return Split::heads({N}, 3 * K);
  return Split::heads({N, N, N}, K);
}

struct Block : ditto::Layer {
  Block(const MistakenOptions& o)
      : options(o),
        qkv(linear("qkv", o.width, 3 * o.width, split_of_qkv(o))),
        proj(linear("proj", o.width, o.width, is("proj without Split") ? Split::none() : Split::rows())),
        up(linear("up", o.width, 4 * o.width,
                  is("up without Split") ? Split::none()
                  : is("up by rows")     ? Split::rows()
                                         : Split::columns({4 * o.width}))),
        down(linear("down", 2 * o.width, o.width, is("down without Split") ? Split::none() : Split::rows())),
        gated(linear(
            "gated", o.width, 4 * o.width,
            is("gate in one part") ? Split::columns({4 * o.width}) : Split::columns({2 * o.width, 2 * o.width}))),
        narrow(linear("narrow", 4 * o.width, o.width, Split::rows())) {}

  bool is(const char* name) const { return options.mistake == name; }

  Tensor forward(const ditto::Stream& s, ditto::Context& ctx) {
    const int64_t K = options.width / options.heads;
    const bool is_row = s.packing && !is("condition of another sample");
    const auto own_row = s.sample_of_token(s.x_BTD.size(1));
    auto x = s.x_BTD + (is_row ? s.condition.cond_BD.index_select(0, own_row).unsqueeze(0)
                               : s.condition.cond_BD.slice(0, 0, s.x_BTD.size(0)).unsqueeze(1));
    if (is("mean over a pack")) x = x + ctx.all_tokens(x, s).mean(1, true);
    if (is("positions after the cut")) x = x + ditto::sincos_positions(s.grid, options.width).to(ctx.options());
    if (is("positions of the tokens here")) x = x + ditto::sincos_positions(x.size(1), options.width).to(ctx.options());
    if (is("crash")) std::abort();
    if (is("mean over tokens")) x = x + x.mean(1, true);
    if (is("scaled by the tokens here")) x = x / static_cast<double>(x.size(1));
    // No mistake but under run.numerics = "one", where LibTorch would have to say which of two numbers stays.
    if (is("scatter"))
      x = x.scatter(-1, torch::zeros({x.size(0), x.size(1), 1}, x.options().dtype(torch::kLong)), x.narrow(-1, 0, 1));
    if (is("noise by generator")) x = x + 0.1 * torch::randn_like(x);
    x = x + ctx.attention_unit(qkv, proj, x, [&](const Tensor& in) {
      const auto all = qkv(in, ctx);
      const auto each = is("hard-coded heads")           ? all.unflatten(-1, {3, options.heads, K})
                        : is("hard-coded heads, silent") ? all.unflatten(-1, {3, options.heads, -1})
                                                         : all.unflatten(-1, {3, -1, K});
      auto part = each.unbind(-3);
      if (s.rotary_TK.defined())
        for (size_t i : {0, 1}) part[i] = ditto::apply_rotary(part[i], s.rotary_TK);
      return proj(ctx.attention(part[0], part[1], part[2], ditto::Pattern::full, s).flatten(-2), ctx);
    });
    if (is("carried token count")) x = x.view({x.size(0), tokens, options.width});
    const auto gate = gated(x, ctx).chunk(2, -1);
    x = x + down(torch::silu(gate[0]) * gate[1], ctx);
    return x + narrow(torch::gelu(up(x, ctx)), ctx);
  }

  MistakenOptions options;
  ditto::Linear qkv, proj, up, down, gated, narrow;
  int64_t tokens = 0;
};

struct Mistaken final : ditto::Model {
  using Options = MistakenOptions;

  Mistaken(const Options& o, const Needs& needs) : options(o), x_(needs.shape("x")) {
    patches = add<ditto::PatchEmbed>(Unit::tokens, "patches", x_.at(0), 2, o.width);
    time = add<ditto::TimeEmbed>(Unit::condition, "time", o.width, 128.0);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o));
    out = zero_linear(Unit::head, "out", o.width, 4 * needs.out_channels);
    if (o.mistake == "parameter in the wrong unit") stray = linear(Unit::head, "stray", o.width, o.width);
  }

  ditto::Conditioning condition(const ditto::Batch& in, ditto::Context& ctx) override {
    auto cond_BD = time->forward(in.at("t"), ctx);
    if (options.mistake == "parameter in the wrong unit") cond_BD = stray(cond_BD, ctx);
    return {.cond_BD = cond_BD, .text_BSE = {}, .text_mask_BS = {}};
  }
  ditto::Stream tokens(const ditto::Batch& in, ditto::Context& ctx) override {
    ditto::Stream s;
    s.grid = patches->grid(in.at("x"));
    s.x_BTD = patches->forward(in.at("x"), ctx) + ditto::sincos_positions(s.grid, options.width).to(ctx.options());
    for (auto& block : blocks) block->tokens = s.x_BTD.size(1);
    if (options.mistake == "constants in tokens")
      s.rotary_TK = ditto::rotary_table(s.grid, options.width / options.heads);
    return s;
  }
  int64_t depth() const override { return options.depth; }
  ditto::Stream run_block(int64_t i, ditto::Stream s, ditto::Context& ctx) override {
    s.x_BTD = blocks[static_cast<size_t>(i)]->forward(s, ctx);
    return s;
  }
  Tensor head(const ditto::Stream& s, ditto::Context& ctx) override {
    return patches->unpatchify(out(s.x_BTD, ctx), s.grid);
  }
  bool token_local() const override { return true; }
  ditto::TensorSpecs takes() const override { return {{"x", torch::kFloat, x_, ""}, {"t", torch::kFloat, {}, ""}}; }

  Options options;
  std::vector<int64_t> x_;  // [C, H, W]
  std::shared_ptr<ditto::PatchEmbed> patches;
  std::shared_ptr<ditto::TimeEmbed> time;
  std::vector<std::shared_ptr<Block>> blocks;
  ditto::Linear out, stray;
};

}  // namespace

DITTO_MODEL_PLUGIN(Mistaken, "mistaken_model", "1.0.0", "Apache-2.0", "has one of the mistakes that authors make")
