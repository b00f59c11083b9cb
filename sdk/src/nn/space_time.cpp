#include <ditto/nn/space_time.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include <ditto/math/sizes.h>
#include <ditto/nn/conditions.h>
#include <ditto/nn/tables.h>

namespace ditto {

namespace {

bool has(const Parts& parts, Part part) { return std::find(parts.begin(), parts.end(), part) != parts.end(); }

int64_t modulated_ones(const Parts& parts) {
  return static_cast<int64_t>(parts.size()) - std::count(parts.begin(), parts.end(), Part::cross);
}

}  // namespace

void SpaceTimeOptions::read_parts(OptionReader& option) {
  option("adaln", adaln,
         "\"zero\": each block maps the condition to its modulations; \"single\": one map for all and a table a block")
      .one_of({"zero", "single"});
  read_null_text(option, null_text);
  option("base_side", base_side,
         "0: places of rows and columns are 0, 1, …; else they lie closer together the larger frames are beside this "
         "side, as STDiT3's")
      .between(0, most::kSide);
}

void SpaceTimeOptions::require_pairs(const OptionReader& option) const {
  if (depth % 2 != 0)
    option.reject("depth", "= " + std::to_string(depth) + " leaves a spatial block without its temporal one",
                  "use an even number");
}

SpaceTimeBlock::SpaceTimeBlock(const Form& form, const Parts& parts) : parts_(parts), turns_places_(form.turns_places) {
  const int64_t D = form.attention.width;
  const auto zeros = Init::zeros();
  const bool is_silent = form.adaln == AdaLn::single && has(parts, Part::temporal) && !has(parts, Part::spatial);
  const auto self = [&](const char* name) {
    return make<SelfAttention>(name, form.attention, is_silent ? zeros : Init::xavier(D, D));
  };
  modulation_ = make<Modulation>("modulation", form.adaln, D, modulated_ones(parts));
  for (const Part part : parts) switch (part) {
      case Part::spatial: spatial_ = self("spatial"); break;
      case Part::full: full_ = self("full"); break;
      case Part::temporal: temporal_ = self("temporal"); break;
      // It has no gate: zero weights make it nothing at first.
      case Part::cross: cross_ = make<CrossAttention>("cross", form.cross, zeros); break;
      case Part::mlp: mlp_ = make<Mlp>("mlp", D, form.hidden, is_silent ? zeros : Init::xavier(form.hidden, D));
    }
}

SpaceTimeBlock::~SpaceTimeBlock() = default;

torch::Tensor SpaceTimeBlock::forward(const Stream& s, Context& ctx) {
  const auto rows = modulation_->forward(s, ctx);
  auto row = rows.begin();
  auto x_BTD = s.x_BTD;
  for (const Part part : parts_)
    x_BTD = part == Part::cross
                ? x_BTD + cross_->forward(x_BTD, s, ctx)
                : modulated(x_BTD, *row++, s, ctx, [&](const torch::Tensor& h) { return run(part, h, s, ctx); });
  return x_BTD;
}

torch::Tensor SpaceTimeBlock::run(Part part, const torch::Tensor& h, const Stream& s, Context& ctx) {
  switch (part) {
    case Part::spatial:
      return spatial_->forward(h, Pattern::spatial, turns_places_ ? s.rotary_TK : torch::Tensor(), s, ctx);
    case Part::full: return full_->forward(h, Pattern::full, s.rotary_TK, s, ctx);
    case Part::temporal: return temporal_->forward(h, Pattern::temporal, s.rotary_TK, s, ctx);
    default: return mlp_->forward(h, ctx);
  }
}

SpaceTimeTransformer::SpaceTimeTransformer(const std::string& name, const SpaceTimeOptions& o, const Blocks& form,
                                           const Needs& given)
    : VideoTransformer({name, o.depth, o.width, o.patch, o.patch_frames}, given),
      needs_(given),
      width_(o.width),
      patch_(o.patch),
      base_side_(o.base_side) {
  const AdaLn kind = adaln(o.adaln);
  time_ = add<TimeEmbed>(Unit::condition, "time", width_, 128.0);
  if (std::any_of(form.parts.begin(), form.parts.end(), [](const auto& parts) { return has(parts, Part::cross); }))
    text_ = add<TextEmbed>(Unit::condition, "text", needs_.width("text"), width_, ditto::null_text(o.null_text),
                           o.null_tokens);
  else if (const auto n = needs_.values("label"))
    label_ = add<LabelEmbed>(Unit::condition, "label", n, width_);
  if (o.fps > 0) rate_ = add<FrameRateEmbed>(Unit::condition, "rate", width_, TimeFeatures{}, o.fps, needs_.inputs);
  if (kind == AdaLn::single)
    modulation_ = add<SharedModulation>(Unit::condition, "modulation", width_, modulated_ones(form.parts.front()));
  const SpaceTimeBlock::Form block{kind, o.attention(), form.cross, o.mlp_ratio * width_, form.turns_places};
  for (size_t i = 0; i < form.parts.size(); ++i)
    blocks_.push_back(add_block<SpaceTimeBlock>(static_cast<int64_t>(i), block, form.parts[i]));
  final_ = add<FinalLayer>(Unit::head, "final", kind, width_, outputs());
}

SpaceTimeTransformer::~SpaceTimeTransformer() = default;

Conditioning SpaceTimeTransformer::condition(const Batch& in, Context& ctx) {
  Conditioning c;
  const auto& t = in.at("t");  // of each sample, or of each of its frames
  const auto of_sample = [&](const torch::Tensor& x_BD) { return t.dim() == 2 ? x_BD.unsqueeze(1) : x_BD; };
  c.cond_BD = time_->forward(t.flatten(), ctx).unflatten(0, t.sizes());
  if (label_) c.cond_BD = c.cond_BD + of_sample(label_->forward(in.at("label"), ctx));
  if (rate_) c.cond_BD = c.cond_BD + of_sample(rate_->forward(in, ctx));
  if (modulation_) c.cond_BD = modulation_->forward(c.cond_BD, ctx);
  if (text_) text_->forward(in, c, ctx);
  return c;
}

Stream SpaceTimeTransformer::run_block(int64_t i, Stream s, Context& ctx) {
  s.x_BTD = blocks_[static_cast<size_t>(i)]->forward(s, ctx);
  return s;
}

torch::Tensor SpaceTimeTransformer::head(const Stream& s, Context& ctx) {
  return patches_->unpatchify(final_->forward(s, ctx), s.grid);
}

TensorSpecs SpaceTimeTransformer::takes() const {
  auto inputs = VideoTransformer::takes();
  const auto more = [&](const TensorSpecs& list) { inputs.insert(inputs.end(), list.begin(), list.end()); };
  if (text_) more(text_->takes());
  if (rate_) more(rate_->takes());
  if (label_) more(takes_offered(needs_, {"label"}));
  return inputs;
}

Batch SpaceTimeTransformer::without_condition(Batch in, const torch::Tensor& which_B) const {
  if (text_) return TextEmbed::without_text(std::move(in), which_B);
  if (label_)
    in["label"] = torch::where(which_B, torch::full_like(in.at("label"), label_->null_label()), in.at("label"));
  return in;
}

void SpaceTimeTransformer::add_positions(Stream& s, bool of_frames, Context& ctx) {
  s.x_BTD = s.x_BTD + positions_.of(s.grid, ctx.options(), [&] {
    auto positions = places(s.grid).unsqueeze(0);
    if (of_frames) positions = positions + frames(s.grid).unsqueeze(1);
    return positions.expand({s.grid.frames, -1, -1}).flatten(0, 1);
  });
}

torch::Tensor SpaceTimeTransformer::frames(const Grid& g) const { return sincos_positions(g.frames, width_); }

torch::Tensor SpaceTimeTransformer::places(const Grid& g) const {
  const auto root = [](int64_t a, int64_t b) { return std::sqrt(static_cast<double>(a * b)); };
  const double scale =
      base_side_ == 0 ? 1 : root(g.rows, g.columns) * static_cast<double>(patch_) / static_cast<double>(base_side_);
  const auto along = [&](int64_t n) {
    std::vector<double> list(static_cast<size_t>(n));
    std::iota(list.begin(), list.end(), 0.0);
    if (base_side_ > 0)
      for (auto& place : list)
        place = place / scale * (std::nearbyint(root(g.rows, g.columns)) / static_cast<double>(n));
    return list;
  };
  return sincos_positions(along(g.rows), along(g.columns), width_);
}

}  // namespace ditto
