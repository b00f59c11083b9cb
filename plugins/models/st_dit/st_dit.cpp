// A diffusion transformer for video with attention in space and in time: NeMo's ST-DiT layer (spatial, full, cross,
// temporal attention, MLP), and blocks that alternate, as Open-Sora's STDiT3 and Latte (X. Ma et al., 2024,
// arXiv:2401.03048).
//
// Legend: B samples, C channels, F frames, T tokens here, D width, K head width, P patch side, Q frames of a patch.
#include <ditto/ditto.h>
#include <ditto/sizes.h>
#include <ditto/transformer.h>

namespace {

using ditto::AdaLn;
using ditto::Batch;
using ditto::Context;
using ditto::Pattern;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;

enum class Part { spatial, full, cross, temporal, mlp };

struct StDitOptions {
  std::string preset, arrangement = "joint", cross = "auto", adaln = "zero", rotary = "none", null_text = "learned";
  int64_t depth = 12, patch = 2, patch_frames = 1, mlp_ratio = 4;
  ditto::AttentionOptions attention;
  bool full = false;

  void read(ditto::OptionReader& option) {
    option("preset", preset, "a published size; the options below override its parts")
        .one_of({"", "STDiT3-XL/2", "Latte-XL/2"});
    set_preset();
    option("arrangement", arrangement,
           "of attention in a block: \"joint\" spatial, full, cross and temporal, as NeMo; \"alternating\" spatial in "
           "even blocks and temporal in odd ones, each followed by cross")
        .one_of({"joint", "alternating"});
    option("depth", depth, "number of transformer blocks").between(1, ditto::most::kBlocks);
    attention.read(option);
    option("full", full, "joint: attention of all tokens of a sample, too");
    option("null_text", null_text,
           "what stands for a dropped text: \"learned\", an embedding; \"zero\"; or \"empty\", the empty text's "
           "embedding, "
           "which comes as text_empty and text_empty_mask")
        .one_of({"learned", "zero", "empty"});
    option("cross", cross, "blocks with attention to text: \"auto\" is all where the data has text, and none else")
        .one_of({"auto", "none", "spatial", "all"});
    option(
        "adaln", adaln,
        "\"zero\": each block maps the condition to its modulations; \"single\": one map for all and a table a block")
        .one_of({"zero", "single"});
    option(
        "rotary", rotary,
        "\"none\": sine-cosine tables of places and frames; \"temporal\": the frames' by rotation instead, in temporal "
        "and full attention; \"all\": no table, rotation in all self-attention")
        .one_of({"none", "temporal", "all"});
    option("patch", patch, "patch side P, in the model's input pixels").between(1, ditto::most::kPatch);
    option("patch_frames", patch_frames, "frames Q of a patch").between(1, ditto::most::kPatch);
    option("mlp_ratio", mlp_ratio, "hidden width of the MLP over D").between(1, ditto::most::kMlpRatio);
    check(option);
  }

  std::vector<Part> parts(int64_t block, bool has_text) const {
    const bool odd = block % 2 == 1, joint = arrangement == "joint";
    std::vector<Part> list;
    if (joint || !odd) list.push_back(Part::spatial);
    if (full) list.push_back(Part::full);
    if (!joint && odd) list.push_back(Part::temporal);
    if (has_text && (joint || !odd || cross != "spatial")) list.push_back(Part::cross);
    if (joint) list.push_back(Part::temporal);
    list.push_back(Part::mlp);
    return list;
  }
  // That are modulated: all but cross.
  int64_t sublayers() const { return arrangement == "joint" ? 3 + (full ? 1 : 0) : 2; }

 private:
  void set_preset() {
    if (preset.empty()) return;
    depth = 28, attention.width = 1152, attention.heads = 16, arrangement = "alternating";
    if (preset == "STDiT3-XL/2")  // 28 pairs of blocks
      depth = 56, attention.qk_norm = true, adaln = "single", rotary = "temporal", cross = "all";
  }

  void check(const ditto::OptionReader& option) const {
    if (full && arrangement != "joint")
      option.reject("full", "goes with arrangement = \"joint\", this is \"" + arrangement + "\"",
                    "change one of the two");
    if (arrangement == "alternating" && depth % 2 != 0)
      option.reject("depth", "= " + std::to_string(depth) + " leaves a spatial block without its temporal one",
                    "use an even number, or arrangement = \"joint\"");
    if (cross == "spatial" && arrangement == "joint")
      option.reject("cross", "= \"spatial\" goes with arrangement = \"alternating\"", "use \"all\" or \"none\"");
    if (attention.width % 4 != 0)
      option.reject("width", "= " + std::to_string(attention.width) + " is not a multiple of 4",
                    "the position tables need it");
    if (const int64_t least = rotary == "all" ? 6 : 2;
        rotary != "none" && (attention.head_width() % 2 != 0 || attention.head_width() < least))
      option.reject("heads", "give heads of width " + std::to_string(attention.head_width()),
                    "rotary = \"" + rotary + "\" needs an even width of at least " + std::to_string(least));
  }
};

struct Block : ditto::Layer {
  Block(const StDitOptions& o, std::vector<Part> parts_, bool is_silent) : parts(std::move(parts_)), rotary(o.rotary) {
    const auto kind = ditto::adaln(o.adaln);
    const int64_t D = o.attention.width, hidden = o.mlp_ratio * D;
    const auto zeros = ditto::Init::zeros();
    const auto proj = is_silent ? zeros : ditto::Init::xavier(D, D);
    modulation = register_module("modulation", std::make_shared<ditto::Modulation>(kind, D, o.sublayers()));
    for (const Part part : parts) switch (part) {
        case Part::spatial: spatial = self("spatial", o, proj); break;
        case Part::full: full = self("full", o, proj); break;
        case Part::temporal: temporal = self("temporal", o, proj); break;
        // It has no gate: zero weights make it nothing at first.
        case Part::cross:
          cross = register_module("cross", std::make_shared<ditto::CrossAttention>(o.attention, zeros));
          break;
        case Part::mlp:
          mlp = register_module(
              "mlp", std::make_shared<ditto::Mlp>(D, hidden, is_silent ? zeros : ditto::Init::xavier(hidden, D)));
      }
  }

  std::shared_ptr<ditto::SelfAttention> self(const char* name, const StDitOptions& o, ditto::Init proj) {
    return register_module(name, std::make_shared<ditto::SelfAttention>(o.attention, proj));
  }

  // x <- x + gate * f(norm(x) * (1 + scale) + shift) for every part but cross: x <- x + cross(x).
  Tensor forward(const Stream& s, Context& ctx) {
    const auto rows = modulation->forward(s, ctx);
    auto row = rows.begin();
    auto x_BTD = s.x_BTD;
    for (const Part part : parts) {
      if (part == Part::cross) {
        x_BTD = x_BTD + cross->forward(x_BTD, s, ctx);
        continue;
      }
      const auto y = run(part, ctx.ops.norm_modulate(x_BTD, row->shift, row->scale, s), s, ctx);
      x_BTD = ctx.ops.gated_residual(x_BTD, row->gate, y, s);
      ++row;
    }
    return x_BTD;
  }

  Tensor run(Part part, const Tensor& h, const Stream& s, Context& ctx) {
    switch (part) {
      case Part::spatial:
        return spatial->forward(h, Pattern::spatial, rotary == "all" ? s.rotary_TK : Tensor(), s, ctx);
      case Part::full: return full->forward(h, Pattern::full, s.rotary_TK, s, ctx);
      case Part::temporal: return temporal->forward(h, Pattern::temporal, s.rotary_TK, s, ctx);
      default: return mlp->forward(h, ctx);
    }
  }

  std::vector<Part> parts;
  std::string rotary;
  std::shared_ptr<ditto::Modulation> modulation;
  std::shared_ptr<ditto::SelfAttention> spatial, full, temporal;
  std::shared_ptr<ditto::CrossAttention> cross;
  std::shared_ptr<ditto::Mlp> mlp;
};

// Its conditions are time and text, or, where it attends to no text and the data has classes, time and label.
struct StDit final : ditto::Model {
  using Options = StDitOptions;

  StDit(const Options& o, const Needs& needs) : options(o), x_(needs.shape("x")), classes_(needs.values("label")) {
    const int64_t text_width = needs.width("text");
    check(o, x_, text_width);
    const int64_t D = o.attention.width;
    const AdaLn kind = ditto::adaln(o.adaln);
    const bool has_text = text_width > 0 && o.cross != "none";
    patches = add<ditto::VideoPatchEmbed>(Unit::tokens, "patches", x_[0], o.patch, o.patch_frames, D);
    time = add<ditto::TimeEmbed>(Unit::condition, "time", D, 128.0);
    if (has_text)
      text = add<ditto::TextEmbed>(Unit::condition, "text", text_width, D, ditto::null_text(o.null_text));
    else if (classes_ > 0)
      label = add<ditto::LabelEmbed>(Unit::condition, "label", classes_, D);
    if (kind == AdaLn::single)
      modulation = add<ditto::SharedModulation>(Unit::condition, "modulation", D, o.sublayers());
    for (int64_t i = 0; i < o.depth; ++i) {
      // STDiT3 begins as a model of pictures: its temporal blocks add nothing at first.
      const bool is_silent = kind == AdaLn::single && o.arrangement == "alternating" && i % 2 == 1;
      blocks.push_back(add_block<Block>(i, o, o.parts(i, has_text), is_silent));
    }
    const int64_t out = o.patch_frames * o.patch * o.patch * needs.out_channels;
    final_layer = add<ditto::FinalLayer>(Unit::head, "final", kind, D, out);
  }

  ditto::Conditioning condition(const Batch& in, Context& ctx) override {
    ditto::Conditioning c;
    const auto& t = in.at("t");  // of each sample, or of each of its frames
    c.cond_BD = time->forward(t.flatten(), ctx).unflatten(0, t.sizes());
    if (label) {
      const auto label_BD = label->forward(in.at("label"), ctx);
      c.cond_BD = c.cond_BD + (t.dim() == 2 ? label_BD.unsqueeze(1) : label_BD);
    }
    if (modulation) c.cond_BD = modulation->forward(c.cond_BD, ctx);
    if (text) text->forward(in, c, ctx);
    return c;
  }

  Stream tokens(const Batch& in, Context& ctx) override {
    const int64_t D = options.attention.width;
    Stream s;
    s.grid = patches->grid(in.at("x"));
    s.x_BTD = patches->forward(in.at("x"), ctx);
    if (options.rotary == "all") return s;
    auto positions = ditto::sincos_positions({1, s.grid.rows, s.grid.columns}, D).unsqueeze(0);
    if (options.rotary == "none") positions = positions + ditto::sincos_positions(s.grid.frames, D).unsqueeze(1);
    s.x_BTD = s.x_BTD + positions.expand({s.grid.frames, -1, -1}).flatten(0, 1).to(ctx.options());
    return s;
  }

  void constants(const Batch&, Stream& s, Context& ctx) override {
    const int64_t K = options.attention.head_width();
    if (options.rotary == "all") s.rotary_TK = ditto::rotary_table(s.grid, K).to(ctx.device);
    if (options.rotary == "temporal") s.rotary_TK = ditto::rotary_table(s.grid, {K / 2, 0, 0}).to(ctx.device);
  }

  int64_t depth() const override { return options.depth; }

  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    s.x_BTD = blocks[static_cast<size_t>(i)]->forward(s, ctx);
    return s;
  }

  Tensor head(const Stream& s, Context& ctx) override {
    return patches->unpatchify(final_layer->forward(s, ctx), s.grid);
  }

  bool token_local() const override { return true; }
  bool time_per_frame() const override { return options.patch_frames == 1; }

  ditto::TensorSpecs takes() const override {
    ditto::TensorSpecs inputs{{"x", torch::kFloat, x_, "noisy video"},
                              {"t", torch::kFloat, {}, "time, in the scheduler's units"}};
    if (text)
      for (auto& input : text->takes()) inputs.push_back(std::move(input));
    if (label)
      inputs.push_back(
          {"label", torch::kLong, {}, "0 to " + std::to_string(classes_) + ", the last is the null class", classes_});
    return inputs;
  }
  ditto::TensorSpecs makes() const override {
    const int64_t tokens =
        ditto::count_patches({x_[1], x_[2], x_[3]}, {options.patch_frames, options.patch, options.patch});
    return {{"features", torch::kFloat, {tokens, options.attention.width}}};
  }

  Batch without_condition(Batch in, const Tensor& which_B) const override {
    if (text) return ditto::TextEmbed::without_text(std::move(in), which_B);
    if (label)
      in["label"] = torch::where(which_B, torch::full_like(in.at("label"), label->null_label()), in.at("label"));
    return in;
  }

 private:
  static void check(const Options& o, const std::vector<int64_t>& x, int64_t text_width) {
    if (x.size() != 4)
      throw ditto::Error(ditto::ErrorKind::config, "model \"st_dit\"",
                         "takes video [C, F, H, W], the data has " + std::to_string(x.size()) + " dims",
                         "choose a model for pictures, or data with frames (one is enough)");
    if (text_width == 0 && (o.cross == "spatial" || o.cross == "all"))
      throw ditto::Error(ditto::ErrorKind::config, "model.cross",
                         "= \"" + o.cross + "\" attends to text, the data has none",
                         "choose data with text, or cross = \"none\"");
    ditto::check_patches("model.patch_frames", o.patch_frames, "the frames,", {x[1]});
    ditto::check_patches("model.patch", o.patch, "frames of", {x[2], x[3]});
  }

  Options options;
  std::vector<int64_t> x_;  // [C, F, H, W]
  int64_t classes_;
  std::shared_ptr<ditto::VideoPatchEmbed> patches;
  std::shared_ptr<ditto::TimeEmbed> time;
  std::shared_ptr<ditto::LabelEmbed> label;
  std::shared_ptr<ditto::TextEmbed> text;
  std::shared_ptr<ditto::SharedModulation> modulation;  // adaLN-single's
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<ditto::FinalLayer> final_layer;
};

}  // namespace

DITTO_MODEL_PLUGIN(StDit, "st_dit", "1.0.0", "Apache-2.0",
                   "video with spatial, temporal, full and cross attention (STDiT3, Latte, NeMo ST-DiT)")
