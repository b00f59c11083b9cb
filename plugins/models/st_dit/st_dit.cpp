// A diffusion transformer for video with attention in space and in time: NeMo's ST-DiT layer (spatial, full, cross,
// temporal attention, MLP), and blocks that alternate, as Open-Sora's STDiT3 and Latte (X. Ma et al., 2024,
// arXiv:2401.03048), whose weights it reads and writes.
//
// Legend: B samples, C channels, F frames, T tokens here, D width, K head width, P patch side, Q frames of a patch.
#include <ditto/ditto.h>
#include <ditto/positions.h>
#include <ditto/video.h>

#include <cmath>
#include <numeric>

#include "options.h"
#include "weights.h"

namespace {

using ditto::AdaLn;
using ditto::Batch;
using ditto::Context;
using ditto::Pattern;
using ditto::Stream;
using ditto::Unit;
using st_dit::Part;
using st_dit::StDitOptions;
using torch::Tensor;

struct Block : ditto::Layer {
  Block(const StDitOptions& o, std::vector<Part> parts_, bool is_silent) : parts(std::move(parts_)), rotary(o.rotary) {
    const auto kind = ditto::adaln(o.adaln);
    const int64_t D = o.width, hidden = o.mlp_ratio * D;
    const auto zeros = ditto::Init::zeros();
    const auto proj = is_silent ? zeros : ditto::Init::xavier(D, D);
    modulation = make<ditto::Modulation>("modulation", kind, D, o.sublayers());
    for (const Part part : parts) switch (part) {
        case Part::spatial: spatial = self("spatial", o, proj); break;
        case Part::full: full = self("full", o, proj); break;
        case Part::temporal: temporal = self("temporal", o, proj); break;
        // It has no gate: zero weights make it nothing at first.
        case Part::cross: cross = make<ditto::CrossAttention>("cross", o.cross_attention(), zeros); break;
        case Part::mlp: mlp = make<ditto::Mlp>("mlp", D, hidden, is_silent ? zeros : ditto::Init::xavier(hidden, D));
      }
  }

  std::shared_ptr<ditto::SelfAttention> self(const char* name, const StDitOptions& o, ditto::Init proj) {
    return make<ditto::SelfAttention>(name, o.attention(), proj);
  }

  // x <- x + gate * f(norm(x) * (1 + scale) + shift) for every part but cross: x <- x + cross(x).
  Tensor forward(const Stream& s, Context& ctx) {
    const auto rows = modulation->forward(s, ctx);
    auto row = rows.begin();
    auto x_BTD = s.x_BTD;
    for (const Part part : parts)
      x_BTD = part == Part::cross
                  ? x_BTD + cross->forward(x_BTD, s, ctx)
                  : ditto::modulated(x_BTD, *row++, s, ctx, [&](const Tensor& h) { return run(part, h, s, ctx); });
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
struct StDit final : ditto::VideoTransformer {
  using Options = StDitOptions;

  StDit(const Options& o, const Needs& given)
      : VideoTransformer({"st_dit", o.depth, o.width, o.patch, o.patch_frames}, given), options(o), needs(given) {
    const int64_t D = o.width, text_width = o.cross == "none" ? 0 : needs.width("text");
    if (text_width == 0 && (o.cross == "spatial" || o.cross == "all"))
      throw ditto::Error(ditto::ErrorKind::config, "model.cross",
                         "= \"" + o.cross + "\" attends to text, the data has none",
                         "choose data with text, or cross = \"none\"");
    const AdaLn kind = ditto::adaln(o.adaln);
    time = add<ditto::TimeEmbed>(Unit::condition, "time", D, 128.0);
    if (text_width > 0)
      text =
          add<ditto::TextEmbed>(Unit::condition, "text", text_width, D, ditto::null_text(o.null_text), o.null_tokens);
    else if (const auto n = needs.values("label"))
      label = add<ditto::LabelEmbed>(Unit::condition, "label", n, D);
    if (o.fps > 0)
      rate = add<ditto::FrameRateEmbed>(Unit::condition, "rate", D, ditto::TimeFeatures{}, o.fps, needs.inputs);
    if (kind == AdaLn::single)
      modulation = add<ditto::SharedModulation>(Unit::condition, "modulation", D, o.sublayers());
    for (int64_t i = 0; i < o.depth; ++i) {
      // STDiT3 begins as a model of pictures: its temporal blocks add nothing at first.
      const bool is_silent = kind == AdaLn::single && o.arrangement == "alternating" && i % 2 == 1;
      blocks.push_back(add_block<Block>(i, o, o.parts(i, text_width > 0), is_silent));
    }
    final_layer = add<ditto::FinalLayer>(Unit::head, "final", kind, D, outputs());
  }

  ditto::Conditioning condition(const Batch& in, Context& ctx) override {
    ditto::Conditioning c;
    const auto& t = in.at("t");  // of each sample, or of each of its frames
    const auto of_sample = [&](const Tensor& x_BD) { return t.dim() == 2 ? x_BD.unsqueeze(1) : x_BD; };
    c.cond_BD = time->forward(t.flatten(), ctx).unflatten(0, t.sizes());
    if (label) c.cond_BD = c.cond_BD + of_sample(label->forward(in.at("label"), ctx));
    if (rate) c.cond_BD = c.cond_BD + of_sample(rate->forward(in, ctx));
    if (modulation) c.cond_BD = modulation->forward(c.cond_BD, ctx);
    if (text) text->forward(in, c, ctx);
    return c;
  }

  Stream tokens(const Batch& in, Context& ctx) override {
    Stream s = patched(in, ctx);
    if (options.rotary == "all") return s;
    auto positions = places(s.grid).unsqueeze(0);
    if (adds_frames_first()) positions = positions + frames(s.grid).unsqueeze(1);
    s.x_BTD = s.x_BTD + positions.expand({s.grid.frames, -1, -1}).flatten(0, 1).to(ctx.options());
    return s;
  }

  void constants(const Batch&, Stream& s, Context& ctx) override {
    const int64_t K = options.head_width();
    if (options.rotary == "all") s.rotary_TK = ditto::rotary_table(s.grid, K).to(ctx.device);
    if (options.rotary == "temporal") s.rotary_TK = ditto::rotary_table(s.grid, {K / 2, 0, 0}).to(ctx.device);
  }

  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    if (i == 1 && options.rotary == "none" && !adds_frames_first()) s.x_BTD = s.x_BTD + frames_of(s, ctx);
    s.x_BTD = blocks[static_cast<size_t>(i)]->forward(s, ctx);
    return s;
  }

  Tensor head(const Stream& s, Context& ctx) override {
    return patches_->unpatchify(final_layer->forward(s, ctx), s.grid);
  }

  ditto::TensorSpecs takes() const override {
    auto inputs = VideoTransformer::takes();
    const auto more = [&](const ditto::TensorSpecs& list) { inputs.insert(inputs.end(), list.begin(), list.end()); };
    if (text) more(text->takes());
    if (rate) more(rate->takes());
    if (label) more(ditto::takes_offered(needs, {"label"}));
    return inputs;
  }

  Batch without_condition(Batch in, const Tensor& which_B) const override {
    if (text) return ditto::TextEmbed::without_text(std::move(in), which_B);
    if (label)
      in["label"] = torch::where(which_B, torch::full_like(in.at("label"), label->null_label()), in.at("label"));
    return in;
  }

  std::vector<std::string> foreign_formats() const override { return st_dit::formats(options, needs); }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    return st_dit::names(*this, options, needs, format);
  }
  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    return st_dit::needs_of(reader, file);
  }

 private:
  // Latte adds its frames' table before its first temporal block.
  bool adds_frames_first() const { return options.rotary == "none" && options.arrangement == "joint"; }
  // For the tokens here; a picture has none.
  Tensor frames_of(const Stream& s, const Context& ctx) const {
    const auto table = [&](const ditto::Grid& g) { return g.frames > 1 ? frames(g) : torch::zeros_like(frames(g)); };
    std::vector<Tensor> tables;
    if (s.packing)
      for (const auto& grid : s.packing->grids) tables.push_back(table(grid));
    else
      tables.assign(static_cast<size_t>(s.x_BTD.size(0)), table(s.grid));
    const auto row_T = s.frame_of_token(s.x_BTD.size(0), s.x_BTD.size(1), s.x_BTD.device());
    return torch::cat(tables).to(ctx.options()).index_select(0, row_T).view(s.x_BTD.sizes());
  }
  Tensor frames(const ditto::Grid& g) const { return ditto::sincos_positions(g.frames, options.width); }
  Tensor places(const ditto::Grid& g) const {
    const auto root = [](int64_t a, int64_t b) { return std::sqrt(static_cast<double>(a * b)); };
    const double scale = options.base_side == 0 ? 1
                                                : root(g.rows, g.columns) * static_cast<double>(options.patch) /
                                                      static_cast<double>(options.base_side);
    const auto along = [&](int64_t n) {
      std::vector<double> list(static_cast<size_t>(n));
      std::iota(list.begin(), list.end(), 0.0);
      if (options.base_side > 0)
        for (auto& place : list)
          place = place / scale * (std::nearbyint(root(g.rows, g.columns)) / static_cast<double>(n));
      return list;
    };
    return ditto::sincos_positions(along(g.rows), along(g.columns), options.width);
  }

  Options options;
  Needs needs;
  std::shared_ptr<ditto::TimeEmbed> time;
  std::shared_ptr<ditto::FrameRateEmbed> rate;
  std::shared_ptr<ditto::LabelEmbed> label;
  std::shared_ptr<ditto::TextEmbed> text;
  std::shared_ptr<ditto::SharedModulation> modulation;  // adaLN-single's
  std::vector<std::shared_ptr<Block>> blocks;
  std::shared_ptr<ditto::FinalLayer> final_layer;
};

}  // namespace

DITTO_MODEL_PLUGIN(StDit, "st_dit", "1.0.0", "Apache-2.0",
                   "video with spatial, temporal, full and cross attention (STDiT3, Latte, NeMo ST-DiT)")
