// JiT: T. Li and K. He, "Back to basics: let denoising generative models denoise", 2025 (arXiv:2511.13720): a
// transformer over large patches of pixels, which come in through a narrow map. From a block on, tokens of the class
// stand beside the picture's.
//
// Legend: B samples, C channels, T tokens, D width, K head width, P patch side, H hidden width of the MLP.
#include <ditto/ditto.h>
#include <ditto/exchange/foreign_names.h>
#include <ditto/math/sizes.h>
#include <ditto/nn/conditions.h>
#include <ditto/nn/transformer.h>

#include <algorithm>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Sequence;
using ditto::Split;
using ditto::Stream;
using ditto::Tensors;
using ditto::Unit;
using torch::Tensor;

constexpr const char* kClass = "class";  // the second sequence

struct JitOptions : ditto::TransformerSize {
  int64_t bottleneck = 128, context_tokens = 32, context_start = 0;

  void read(ditto::OptionReader& option) {
    std::vector<ditto::TransformerSize> published;
    for (const int64_t p : {16, 32})
      for (const auto& size : {TransformerSize{"B", 12, 768, 12}, {"L", 24, 1024, 16}, {"H", 32, 1280, 16}}) {
        published.push_back(size);
        published.back().preset += "/" + std::to_string(p), published.back().patch = p;
      }
    TransformerSize::read(option, published, "a size of the paper; the options below override its parts");
    if (preset.starts_with("H")) bottleneck = 256;
    context_start = depth / 3;
    option("bottleneck", bottleneck, "numbers that a patch is first mapped to").between(1, ditto::most::kWidth);
    option("context_tokens", context_tokens, "tokens of the class beside the picture's").between(0, ditto::most::kSide);
    option("context_start", context_start, "the first block that has them; a third of the depth, if it is left out")
        .between(0, ditto::most::kBlocks);
    option.only_if(context_tokens > 0, {"context_start"}, "is of context_tokens, and there are none");
    if (context_tokens > 0 && context_start >= depth)
      option.reject("context_start",
                    "= " + std::to_string(context_start) + ", and there are " + std::to_string(depth) + " blocks",
                    "use a smaller number, or context_tokens = 0");
    if (head_width() % 4 != 0)
      option.reject("heads", "give heads of width " + std::to_string(head_width()),
                    "rotary positions need a multiple of 4");
  }
  int64_t hidden() const { return mlp_ratio * width * 2 / 3; }  // of SwiGLU: as many parameters as an MLP
};

// x <- x + gate * f(norm(x) * (1 + scale) + shift), for attention and then for the MLP, of the picture's tokens, or of
// the class's and the picture's with the same weights.
struct Block : ditto::Layer {
  Block(const JitOptions& o, bool has_class_)
      : has_class(has_class_),
        width(o.width),
        head_width(o.head_width()),
        modulation(zero_linear("modulation", o.width, 6 * o.width, Split::columns({6 * o.width}).gathered())),
        norm1(make<ditto::RmsNorm>("norm1", o.width)),
        norm2(make<ditto::RmsNorm>("norm2", o.width)),
        q_norm(make<ditto::RmsNorm>("q_norm", head_width)),
        k_norm(make<ditto::RmsNorm>("k_norm", head_width)),
        qkv(linear("qkv", o.width, 3 * o.width, of_both(Split::heads({o.heads, o.heads, o.heads}, head_width)))),
        proj(linear("proj", o.width, o.width, of_both(Split::rows().in_units(head_width)))),
        gate_up(linear("gate_up", o.width, 2 * o.hidden(), of_both(Split::columns({o.hidden(), o.hidden()})))),
        down(linear("down", o.hidden(), o.width, of_both(Split::rows()))) {}

  Stream forward(Stream s, Context& ctx) {
    // What is here of the sequences, in the reference's order.
    std::vector<Tensor*> x{&s.x_BTD};
    std::vector<const Sequence*> of{&s};
    if (has_class) x.insert(x.begin(), &s.extra.at(kClass).tensor), of.insert(of.begin(), &s.sequence(kClass));
    const auto m = modulation(ctx.ops.silu(condition(s)), ctx).chunk(6, -1);
    const auto apart = [&](const Tensor& all) {
      std::vector<int64_t> lengths;
      for (const auto* one : x) lengths.push_back(one->size(1));
      return all.split_with_sizes(lengths, 1);
    };
    // The norm is used once for both: of two uses a weight's gradients would be added before samples' are, and bits
    // would depend on micro-batches.
    const auto both = [&](ditto::RmsNorm& norm, size_t row) {
      Tensors parts;
      for (const auto* one : x) parts.push_back(*one);
      if (parts.size() > 1) ctx.ops.leaves().of(ditto::Split::kSideBySide);  // refuses a cut of tokens, as `qkv` would
      parts = apart(norm.forward(torch::cat(parts, 1), ctx));
      for (size_t i = 0; i < x.size(); ++i)
        parts[i] = ditto::scale_and_shift(parts[i], m[row], m[row + 1], *of[i], ctx);
      return torch::cat(parts, 1);
    };
    const auto add = [&](const Tensor& all, const Tensor& gate) {
      const auto parts = apart(all);
      for (size_t i = 0; i < x.size(); ++i) *x[i] = ctx.ops.gated_residual(*x[i], gate, parts[i], *of[i]);
    };
    add(ctx.attention_unit(qkv, proj, both(*norm1, 0), [&](const Tensor& in) { return attention(in, s, ctx); }), m[2]);
    const auto parts = gate_up(both(*norm2, 3), ctx).chunk(2, -1);  // of each what is here
    add(down(ctx.ops.silu(parts[0]) * parts[1], ctx), m[5]);
    return s;
  }

  Tensor attention(const Tensor& x, const Stream& s, Context& ctx) {
    auto all = qkv(x, ctx).unflatten(-1, {3, -1, head_width}).unbind(-3);  // heads that are here
    all[0] = q_norm->of_heads(all[0], *qkv, ctx, ctx.ops.inside());
    all[1] = k_norm->of_heads(all[1], *qkv, ctx, ctx.ops.inside());
    const int64_t first = has_class ? x.size(1) - s.rotary_TK.size(-2) : 0;  // of the picture's tokens
    const auto picture = [&](const Tensor& heads) { return heads.narrow(1, first, heads.size(1) - first); };
    const auto turned = [&](const Tensor& heads) { return ditto::apply_rotary(picture(heads), s.rotary_TK); };
    ditto::AttentionCall call;
    if (has_class)
      call.parts.push_back(
          {all[0].narrow(1, 0, first), all[1].narrow(1, 0, first), all[2].narrow(1, 0, first), s.sequence(kClass), {}});
    call.parts.push_back({turned(all[0]), turned(all[1]), picture(all[2]), s, {}});
    return proj(torch::cat(ctx.attention(call), 1).flatten(-2), ctx);
  }

  // Time and class; behind it, where there are tokens of the class, the class alone.
  Tensor condition(const Stream& s) const { return s.condition.cond_BD.slice(-1, 0, width); }

  Split of_both(Split split) const { return has_class ? split.side_by_side() : split; }

  bool has_class;
  int64_t width, head_width;
  ditto::Linear modulation;
  std::shared_ptr<ditto::RmsNorm> norm1, norm2, q_norm, k_norm;
  ditto::Linear qkv, proj, gate_up, down;
};

// Patches to tokens by way of a few numbers. Parameters in, out.
struct Bottleneck : ditto::Layer {
  Bottleneck(int64_t numbers, int64_t narrow, int64_t width)
      : in(linear("in", numbers, narrow, {}, ditto::Init::xavier(numbers, narrow), ditto::kNoBias)),
        out(linear("out", narrow, width)) {}
  ditto::Linear in, out;
};

struct Table : ditto::Layer {
  Table(int64_t rows, int64_t width) : table(parameter("table", {rows, width}, ditto::Init::normal(0.02))) {}
  ditto::Parameter table;
};

struct Jit final : ditto::Model {
  using Options = JitOptions;

  Jit(const Options& o, const Needs& given) : options(o), needs(given), x_(needs.shape("x")) {
    if (x_.size() != 3)
      throw ditto::Error(ditto::ErrorKind::config, "model \"jit\"",
                         "takes pictures [C, H, W], the data has " + std::to_string(x_.size()) + " dims",
                         "choose a model for video");
    ditto::check_patches("model.patch", o.patch, "pictures of", {x_[1], x_[2]});
    const int64_t D = o.width, P = o.patch;
    patches = add<Bottleneck>(Unit::tokens, "patches", x_[0] * P * P, o.bottleneck, D);
    time = add<ditto::TimeEmbed>(Unit::condition, "time", D, 128.0);
    if (const auto n = needs.values("label")) label = add<ditto::LabelEmbed>(Unit::condition, "label", n, D);
    if (has_class()) context = add<Table>(Unit::tokens, "context", o.context_tokens, D);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o, has_class() && i >= o.context_start));
    final_norm = add<ditto::RmsNorm>(Unit::head, "final_norm", D);
    final_modulation = zero_linear(Unit::head, "final_modulation", D, 2 * D, Split::columns({2 * D}).gathered());
    out = zero_linear(Unit::head, "out", D, P * P * needs.out_channels);
  }

  ditto::Conditioning condition(const Batch& in, Context& ctx) override {
    auto cond_BD = time->forward(in.at("t"), ctx);
    if (label) {
      const auto label_BD = label->forward(in.at("label"), ctx);
      cond_BD = cond_BD + label_BD;
      if (has_class()) cond_BD = torch::cat({cond_BD, label_BD}, -1);
    }
    return {.cond_BD = cond_BD, .text_BSE = {}, .text_mask_BS = {}};
  }

  Stream tokens(const Batch& in, Context& ctx) override {
    const auto& x = in.at("x");
    const int64_t P = options.patch, D = options.width;
    Stream s;
    s.grid = {1, x.size(2) / P, x.size(3) / P};
    const auto cut = x.unflatten(-1, {s.grid.columns, P}).unflatten(-3, {s.grid.rows, P});  // B C rows P columns P
    const auto numbers = cut.permute({0, 2, 4, 1, 3, 5}).flatten(3).flatten(1, 2);
    s.x_BTD = patches->out(patches->in(numbers, ctx), ctx) +
              positions.of(s.grid, ctx.options(), [&] { return ditto::sincos_positions(s.grid, D); });
    if (!has_class()) return s;
    const int64_t n = options.context_tokens;
    const auto zeros = torch::zeros({x.size(0), n, D}, s.x_BTD.options().requires_grad(false));
    s.extra[kClass] = {ctx.ops.add_row(zeros, context->table(ctx)), 1, ditto::Role::evolving,
                       Sequence{{1, 1, n}, nullptr}};
    return s;
  }

  void constants(const Batch&, Stream& s, Context& ctx) override {
    s.rotary_TK = turns.of(s.grid, torch::TensorOptions(torch::kDouble).device(ctx.device),
                           [&] { return ditto::rotary_table(s.grid, options.head_width()); });
  }

  int64_t depth() const override { return options.depth; }

  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    if (has_class() && i == options.context_start) {
      auto& tokens = s.extra.at(kClass).tensor;
      const auto class_BD = s.condition.cond_BD.slice(-1, options.width);
      tokens = ctx.ops.gated_residual(tokens, class_BD, torch::ones_like(tokens), s.sequence(kClass));
    }
    return blocks[static_cast<size_t>(i)]->forward(std::move(s), ctx);
  }

  Tensor head(const Stream& s, Context& ctx) override {
    const auto cond_BD = s.condition.cond_BD.slice(-1, 0, options.width);
    const auto m = final_modulation(ctx.ops.silu(cond_BD), ctx).chunk(2, -1);
    const auto y = out(ditto::scale_and_shift(final_norm->forward(s.x_BTD, ctx), m[0], m[1], s, ctx), ctx);
    const auto pixels = y.unflatten(-1, {options.patch, options.patch, -1}).unflatten(1, {s.grid.rows, s.grid.columns});
    return pixels.permute({0, 5, 1, 3, 2, 4}).flatten(4).flatten(2, 3);  // of B rows columns P P C
  }

  bool token_local() const override { return true; }
  ditto::TensorSpecs takes() const override { return ditto::takes_offered(needs, {"x", "t", "label"}); }
  ditto::TensorSpecs makes() const override {
    return {{"features",
             torch::kFloat,
             {ditto::count_patches({x_[1], x_[2]}, {options.patch, options.patch}), options.width}}};
  }
  Batch without_condition(Batch in, const Tensor& which_B) const override {
    return ditto::without_class_and_text(std::move(in), which_B, needs);
  }

  std::vector<std::string> foreign_formats() const override {
    return ditto::formats_of({"jit"}, [&](const auto&) { return not_theirs(); });
  }
  // github.com/LTH14/JiT, model_jit.py, whose rotary pairs lie side by side.
  ditto::ForeignFormat foreign(const std::string& format) const override {
    ditto::require_format(format, {"jit"}, [&](const auto&) { return not_theirs(); });
    const int64_t D = options.width, P = options.patch;
    ditto::ForeignNames n(*this, ditto::kFacebookParts);
    n.layers("", "",
             "patches.in=x_embedder.proj1 patches.out=x_embedder.proj2 time=t_embedder "
             "label.table=y_embedder.embedding_table.weight context.table=in_context_posemb");
    n.layers("", "final_layer.", "final_norm=norm_final final_modulation=adaLN_modulation.1 out=linear");
    n.blocks(options.depth, "blocks.#.", "blocks.#.",
             "modulation=adaLN_modulation.1 norm1=norm1 norm2=norm2 qkv=attn.qkv q_norm=attn.q_norm "
             "k_norm=attn.k_norm proj=attn.proj gate_up=mlp.w12 down=mlp.w3");
    n.shape("patches.in", {options.bottleneck, x_[0], P, P});
    n.shape("patches.out", {D, options.bottleneck, 1, 1});
    n.shape("context.table", {1, options.context_tokens, D});
    n.turn_pairs("blocks.#", options.head_width());
    n.table("pos_embed", ditto::sincos_positions({1, x_[1] / P, x_[2] / P}, D));
    return n.format;
  }

  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    namespace most = ditto::most;
    ditto::require_format(file.format, {"jit"});
    const std::string in = "x_embedder.proj1.weight", labels = "y_embedder.embedding_table.weight",
                      tokens = "in_context_posemb";
    Options o;
    o.bottleneck = file.size(in, 0, most::kWidth), o.patch = file.size(in, 2, most::kPatch);
    o.width = file.size("x_embedder.proj2.weight", 0, most::kWidth);
    o.depth = file.count("blocks.", ".attn.qkv.weight", most::kBlocks);
    o.heads = o.width / file.size("blocks.0.attn.q_norm.weight", 0, o.width);
    const int64_t hidden = file.size("blocks.0.mlp.w3.weight", 1, most::kMlpRatio * o.width);
    o.mlp_ratio = (3 * hidden + 2 * o.width - 1) / (2 * o.width);  // as hidden() rounds it
    o.context_tokens = file.has(tokens) ? file.size(tokens, 1, most::kSide) : 0;
    ditto::read_sizes_over(o, reader, file, {}, {"bottleneck", "context_tokens"});
    const int64_t side = o.patch * ditto::square_of(file, "pos_embed", o.width);
    const int64_t out = ditto::rows_of(file, "final_layer.linear.weight", o.width, most::kNumbers);
    auto made = ditto::foreign_needs_of({file.size(in, 1, most::kNumbers), side, side},
                                        std::max<int64_t>(1, out / (o.patch * o.patch)));
    made.inputs.push_back(
        {"label", torch::kLong, {}, "", ditto::rows_of(file, labels, o.width, most::kClasses + 1) - 1});
    return made;
  }

 private:
  bool has_class() const { return needs.values("label") > 0 && options.context_tokens > 0; }

  // Why no model of theirs is this one; empty: one is.
  std::string not_theirs() const {
    if (x_[1] == ditto::kOwnSide || x_[1] != x_[2])
      return "makes square pictures of one size, and this model's are not";
    if (!label) return "takes a class, and this model takes none";
    return needs.out_channels == x_[0] ? "" : "predicts as many channels as there are, and this model others";
  }

  Options options;
  Needs needs;
  std::vector<int64_t> x_;  // [C, H, W]
  std::shared_ptr<Bottleneck> patches;
  ditto::GridTable positions, turns;
  std::shared_ptr<ditto::TimeEmbed> time;
  std::shared_ptr<ditto::LabelEmbed> label;
  std::shared_ptr<Table> context;
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<ditto::RmsNorm> final_norm;
  ditto::Linear final_modulation, out;
};

}  // namespace

DITTO_MODEL_PLUGIN(Jit, "jit", "1.0.0", "Apache-2.0",
                   "JiT: a transformer over patches of pixels (T. Li and K. He, 2025)")
