// DiT with adaLN-Zero: W. Peebles and S. Xie, "Scalable diffusion models with transformers", 2023 (arXiv:2212.09748).
//
// Legend: B samples, T tokens here, D width, N heads, K = D / N head width, P patch side.
#include <ditto/ditto.h>
#include <ditto/sizes.h>
#include <ditto/transformer.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace {

using ditto::Batch;
using ditto::Context;
using ditto::Split;
using ditto::Stream;
using ditto::Unit;
using torch::Tensor;

struct Size {
  const char* name;
  int64_t depth, width, heads;
};
constexpr std::array<Size, 4> kSizes{
    {{"S", 12, 384, 6}, {"B", 12, 768, 12}, {"L", 24, 1024, 16}, {"XL", 28, 1152, 16}}};

struct DitOptions {
  std::string preset, convention = "facebook";
  int64_t depth = 12, width = 384, heads = 6, patch = 2, mlp_ratio = 4;

  void read(ditto::OptionReader& option) {
    std::vector<std::string> names{""};
    for (const auto& size : kSizes)
      for (const char* p : {"/2", "/4", "/8"}) names.push_back(std::string(size.name) + p);
    option("preset", preset, "size of the paper, as in \"XL/2\"; the options below override its parts").one_of(names);
    for (const auto& size : kSizes)
      if (const std::string name = size.name; preset.starts_with(name + "/")) {
        depth = size.depth, width = size.width, heads = size.heads;
        patch = preset.back() - '0';
      }
    option("depth", depth, "number of transformer blocks").between(1, ditto::most::kBlocks);
    option("width", width, "token width D").between(4, ditto::most::kWidth);
    option("heads", heads, "attention heads N; must divide the width").between(1, ditto::most::kHeads);
    option("patch", patch, "patch side P, in the model's input pixels").between(1, ditto::most::kPatch);
    option("mlp_ratio", mlp_ratio, "hidden width of the MLP over D").between(1, ditto::most::kMlpRatio);
    option("convention", convention,
           "two published functions: \"facebook\" divides time frequencies by 128, the MLP's norm has eps 1e-6; "
           "\"diffusers\" 127, 1e-5")
        .one_of({"facebook", "diffusers"});
    if (width % heads != 0)
      option.reject("heads", "= " + std::to_string(heads) + " does not divide model.width = " + std::to_string(width),
                    "use " + divisors());
    if (width % 4 != 0)
      option.reject("width", "= " + std::to_string(width) + " is not a multiple of 4", "the position table needs it");
  }

 private:
  std::string divisors() const {  // of the width, nearest to the heads asked for
    int64_t below = heads, above = heads;
    while (width % below != 0) --below;
    while (above < width && width % above != 0) ++above;
    return std::to_string(below) + " or " + std::to_string(above);
  }
};

// x <- x + gate * f(norm(x) * (1 + scale) + shift), for attention and then for the MLP.
struct Block : ditto::Layer {
  explicit Block(const DitOptions& o)
      : modulation(zero_linear("modulation", o.width, 6 * o.width, Split::columns({6 * o.width}).gathered())),
        qkv(linear("qkv", o.width, 3 * o.width, Split::heads({o.heads, o.heads, o.heads}, o.width / o.heads))),
        proj(linear("proj", o.width, o.width, Split::rows().in_units(o.width / o.heads))),
        up(linear("up", o.width, o.mlp_ratio * o.width, Split::columns({o.mlp_ratio * o.width}))),
        down(linear("down", o.mlp_ratio * o.width, o.width, Split::rows())),
        head_width(o.width / o.heads),
        mlp_eps(o.convention == "diffusers" ? 1e-5 : 1e-6) {}

  Tensor forward(const Stream& s, Context& ctx) {
    const auto m = modulation(ctx.ops.silu(s.condition.cond_BD), ctx).chunk(6, -1);
    const auto a = attention(ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s), s, ctx);
    const auto x_BTD = ctx.ops.gated_residual(s.x_BTD, m[2], a, s);
    const auto h = ctx.ops.norm_modulate(x_BTD, m[3], m[4], s, mlp_eps);
    return ctx.ops.gated_residual(x_BTD, m[5], down(ctx.ops.linear_gelu_tanh(h, up, ctx), ctx), s);
  }

  Tensor attention(const Tensor& x_BTD, const Stream& s, Context& ctx) {
    return ctx.attention_unit(qkv, proj, x_BTD, [&](const Tensor& x) {
      const auto qkv_BTNK = qkv(x, ctx).unflatten(-1, {3, -1, head_width}).unbind(-3);  // N is what is here of it
      return proj(ctx.attention(qkv_BTNK[0], qkv_BTNK[1], qkv_BTNK[2], ditto::Pattern::full, s).flatten(-2), ctx);
    });
  }

  ditto::Linear modulation, qkv, proj, up, down;
  int64_t head_width;
  double mlp_eps;
};

struct Dit final : ditto::Model {
  using Options = DitOptions;

  Dit(const Options& o, const Needs& needs)
      : options(o), x_(needs.shape("x")), classes_(needs.values("label")), out_channels_(needs.out_channels) {
    if (x_.size() != 3)
      throw ditto::Error(ditto::ErrorKind::config, "model \"dit\"",
                         "takes pictures [C, H, W], the data has " + std::to_string(x_.size()) + " dims",
                         "choose a model for video");
    ditto::check_patches("model.patch", o.patch, "pictures of", {x_[1], x_[2]});
    patches = add<ditto::PatchEmbed>(Unit::tokens, "patches", x_[0], o.patch, o.width);
    time = add<ditto::TimeEmbed>(Unit::condition, "time", o.width, o.convention == "diffusers" ? 127.0 : 128.0);
    if (classes_ > 0) label = add<ditto::LabelEmbed>(Unit::condition, "label", classes_, o.width);
    for (int64_t i = 0; i < o.depth; ++i) blocks.push_back(add_block<Block>(i, o));
    final_modulation =
        zero_linear(Unit::head, "final_modulation", o.width, 2 * o.width, Split::columns({2 * o.width}).gathered());
    out = zero_linear(Unit::head, "out", o.width, o.patch * o.patch * out_channels_);
  }

  ditto::Conditioning condition(const Batch& in, Context& ctx) override {
    auto cond_BD = time->forward(in.at("t"), ctx);
    if (label) cond_BD = cond_BD + label->forward(in.at("label"), ctx);
    return {.cond_BD = cond_BD, .text_BSE = {}, .text_mask_BS = {}};
  }

  Stream tokens(const Batch& in, Context& ctx) override {
    Stream s;
    s.grid = patches->grid(in.at("x"));
    s.x_BTD = patches->forward(in.at("x"), ctx) + ditto::sincos_positions(s.grid, options.width).to(ctx.options());
    return s;
  }

  int64_t depth() const override { return options.depth; }

  Stream run_block(int64_t i, Stream s, Context& ctx) override {
    s.x_BTD = blocks[static_cast<size_t>(i)]->forward(s, ctx);
    return s;
  }

  Tensor head(const Stream& s, Context& ctx) override {
    const auto m = final_modulation(ctx.ops.silu(s.condition.cond_BD), ctx).chunk(2, -1);
    return patches->unpatchify(out(ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s), ctx), s.grid);
  }

  bool token_local() const override { return true; }

  ditto::TensorSpecs takes() const override {
    ditto::TensorSpecs inputs{{"x", torch::kFloat, x_, "noisy picture"},
                              {"t", torch::kFloat, {}, "time, in the scheduler's units"}};
    if (label)
      inputs.push_back(
          {"label", torch::kLong, {}, "0 to " + std::to_string(classes_) + ", the last is the null class", classes_});
    return inputs;
  }
  ditto::TensorSpecs makes() const override { return {{"features", torch::kFloat, {tokens_of_one(), options.width}}}; }

  Batch without_condition(Batch in, const Tensor& which_B) const override {
    if (label)
      in["label"] = torch::where(which_B, torch::full_like(in.at("label"), label->null_label()), in.at("label"));
    return in;
  }

  int64_t fixed_parameters() const override {
    return std::max<int64_t>(tokens_of_one(), 0) * options.width;
  }  // the position table

  // The one whose function this is: under the other's names the same weights would predict something else.
  std::vector<std::string> foreign_formats() const override {
    if (options.convention != "diffusers") return {"facebook-dit"};
    if (!not_theirs().empty()) return {};
    return {"diffusers"};
  }
  ditto::ForeignFormat foreign(const std::string& format) const override {
    const bool theirs = options.convention == "diffusers";
    if (format == (theirs ? "facebook-dit" : "diffusers"))
      throw ditto::Error(ditto::ErrorKind::config, "model.convention",
                         "is \"" + options.convention + "\", and weights in the format " + format +
                             " are of the other function: they would predict something else",
                         std::string("use --format ") + (theirs ? "diffusers" : "facebook-dit") +
                             ", or a model with model.convention = \"" + (theirs ? "facebook" : "diffusers") + "\"");
    if (tokens_of_one() < 0)
      throw ditto::Error(ditto::ErrorKind::config, "checkpoint format \"" + format + "\"",
                         "is of pictures of one size, and this model was made for many",
                         "keep it as a checkpoint of Ditto");
    if (format == "facebook-dit") return facebook();
    if (format != "diffusers") return Model::foreign(format);
    if (const auto why = not_theirs(); !why.empty())
      throw ditto::Error(ditto::ErrorKind::config, "checkpoint format \"diffusers\"", "DiTTransformer2DModel " + why,
                         "keep it as a checkpoint of Ditto");
    return diffusers();
  }

  // What a file of theirs says is what the recipe's options are where it leaves them open.
  static Needs foreign_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    if (file.format == "diffusers") return diffusers_needs(reader, file);
    if (file.format == "facebook-dit") return facebook_needs(reader, file);
    throw ditto::Error(ditto::ErrorKind::config, "checkpoint format",
                       "this model has no format \"" + file.format + "\"", "it has: facebook-dit, diffusers");
  }

 private:
  // Where the model's sizes stand in a file.
  struct Places {
    std::string patches, block, up, table, out;
  };
  // What a file says, but for the side of the picture.
  struct Sizes {
    int64_t channels, out_channels, classes = 0;
    Needs needs(int64_t side) const {
      Needs made{{{"x", torch::kFloat, {channels, side, side}, ""}, {"t", torch::kFloat, {}, ""}}, out_channels};
      if (classes > 0) made.inputs.push_back({"label", torch::kLong, {}, "", classes});
      return made;
    }
  };
  // And in the options. What the model will be made of has its numbers in the file.
  static Sizes sizes_of(const ditto::ForeignShapes& file, const Places& at, Options& o) {
    namespace most = ditto::most;
    o.width = file.size(at.patches, 0, most::kWidth);
    if (o.width % 4 != 0) refuse_tensor(file, at.patches, "makes tokens of a width that is no multiple of 4");
    o.patch = file.size(at.patches, 2, most::kPatch);
    if (file.size(at.patches, 3, most::kPatch) != o.patch) refuse_tensor(file, at.patches, "is of no square patches");
    o.depth = file.count(at.block, at.up, most::kBlocks);
    o.mlp_ratio = std::max<int64_t>(1, rows_of(file, at.block + "0" + at.up, most::kMlpRatio * o.width, o) / o.width);
    Sizes sizes{file.size(at.patches, 1, most::kNumbers),
                std::max<int64_t>(1, rows_of(file, at.out, most::kNumbers, o) / (o.patch * o.patch))};
    if (file.has(at.table)) sizes.classes = rows_of(file, at.table, most::kClasses + 1, o) - 1;
    return sizes;
  }
  static int64_t rows_of(const ditto::ForeignShapes& file, const std::string& name, int64_t most, const Options& o) {
    if (file.size(name, 1, ditto::most::kWidth) != o.width) refuse_tensor(file, name, "is not as wide as a token");
    return file.size(name, 0, most);
  }
  [[noreturn]] static void refuse_tensor(const ditto::ForeignShapes& file, const std::string& name, const char* what) {
    throw ditto::Error(ditto::ErrorKind::checkpoint, file.file, "tensor '" + name + "' " + what, "choose another file");
  }

  // Reads the recipe over what the file says, and refuses where it says otherwise.
  static void read_over(Options& o, ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    const Options theirs = o;
    o.read(reader);
    refuse_other(reader, file, "convention", o.convention, theirs.convention);
    refuse_other(reader, file, "depth", o.depth, theirs.depth);
    refuse_other(reader, file, "width", o.width, theirs.width);
    refuse_other(reader, file, "patch", o.patch, theirs.patch);
    refuse_other(reader, file, "mlp_ratio", o.mlp_ratio, theirs.mlp_ratio);
  }
  static void refuse_other(const ditto::OptionReader& reader, const ditto::ForeignShapes& file, const char* name,
                           const ditto::OptionValue& said, const ditto::OptionValue& found) {
    if (said != found)
      reader.reject(name,
                    "is " + ditto::to_text(said) + ", and of the weights in " + file.file + " (format " + file.format +
                        ") it is " + ditto::to_text(found),
                    "leave it out, or choose another file or format");
  }

  static Needs facebook_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    Options o;
    o.convention = "facebook";
    const auto sizes = sizes_of(file,
                                {"x_embedder.proj.weight", "blocks.", ".mlp.fc1.weight",
                                 "y_embedder.embedding_table.weight", "final_layer.linear.weight"},
                                o);
    const auto known = std::find_if(kSizes.begin(), kSizes.end(),
                                    [&](const Size& size) { return size.depth == o.depth && size.width == o.width; });
    o.heads = known != kSizes.end() ? known->heads : 1;
    read_over(o, reader, file);
    const auto says_heads = [](const ditto::OptionInfo& info) {
      return info.given && (info.name == "heads" || info.name == "preset");
    };
    if (known == kSizes.end() && std::none_of(reader.declared().begin(), reader.declared().end(), says_heads))
      reader.reject("heads", "is not said, and " + file.file + " does not say it",
                    "add it to the recipe, or --set model.heads=N");
    const int64_t tokens = file.size("pos_embed", 1, ditto::most::kNumbers);
    const auto rows = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(tokens))));
    if (rows * rows != tokens || file.size("pos_embed", 2, ditto::most::kWidth) != o.width)
      refuse_tensor(file, "pos_embed", "is not of the tokens of a square picture");
    return sizes.needs(rows * o.patch);
  }

  static Needs diffusers_needs(ditto::OptionReader& reader, const ditto::ForeignShapes& file) {
    Options o;
    o.convention = "diffusers";
    const std::string embedder = "transformer_blocks.0.norm1.emb.class_embedder.embedding_table.weight";
    const auto sizes = sizes_of(
        file, {"pos_embed.proj.weight", "transformer_blocks.", ".ff.net.0.proj.weight", embedder, "proj_out_2.weight"},
        o);
    const int64_t heads = o.heads = file.number("num_attention_heads", ditto::most::kHeads);
    if (o.width % heads != 0)
      throw ditto::Error(ditto::ErrorKind::checkpoint, file.config_file,
                         "\"num_attention_heads\" is " + std::to_string(heads) + ", which does not divide tokens of " +
                             std::to_string(o.width),
                         "take the config.json of this model");
    read_over(o, reader, file);
    refuse_other(reader, file, "heads", o.heads, heads);
    const int64_t side = file.number("sample_size", ditto::most::kSide);
    for (const auto& [key, value] : config_of(o, sizes, side)) file.expect(key, value);
    return sizes.needs(side);
  }

  ditto::Grid grid() const { return {1, x_[1] / options.patch, x_[2] / options.patch}; }
  int64_t tokens_of_one() const { return ditto::count_patches({x_[1], x_[2]}, {options.patch, options.patch}); }
  std::vector<int64_t> convolution() const { return {options.width, x_[0], options.patch, options.patch}; }

  struct Names {
    ditto::ForeignFormat format;
    void layer(const std::string& ours, const std::vector<std::string>& theirs,
               std::vector<int64_t> weight_shape = {}) {
      for (const char* leaf : {".weight", ".bias"}) {
        std::vector<std::string> names;
        for (const auto& name : theirs) names.push_back(name + leaf);
        format.tensors.push_back({ours + leaf, names, leaf[1] == 'w' ? weight_shape : std::vector<int64_t>{}});
      }
    }
  };

  ditto::ForeignFormat facebook() const {
    Names n;
    n.layer("patches.map", {"x_embedder.proj"}, convolution());
    n.layer("time.in", {"t_embedder.mlp.0"});
    n.layer("time.out", {"t_embedder.mlp.2"});
    if (label) n.format.tensors.push_back({"label.table", {"y_embedder.embedding_table.weight"}, {}});
    for (int64_t i = 0; i < options.depth; ++i) {
      const std::string b = "blocks." + std::to_string(i) + ".";
      n.layer(b + "modulation", {b + "adaLN_modulation.1"});
      n.layer(b + "qkv", {b + "attn.qkv"});
      n.layer(b + "proj", {b + "attn.proj"});
      n.layer(b + "up", {b + "mlp.fc1"});
      n.layer(b + "down", {b + "mlp.fc2"});
    }
    n.layer("final_modulation", {"final_layer.adaLN_modulation.1"});
    n.layer("out", {"final_layer.linear"});
    n.format.constants["pos_embed"] = ditto::sincos_positions(grid(), options.width).to(torch::kFloat).unsqueeze(0);
    return n.format;
  }

  ditto::ForeignFormat diffusers() const {
    Names n;
    n.layer("patches.map", {"pos_embed.proj"}, convolution());
    for (int64_t i = 0; i < options.depth; ++i) {
      const std::string ours = "blocks." + std::to_string(i) + ".",
                        theirs = "transformer_blocks." + std::to_string(i) + ".";
      n.layer(ours + "modulation", {theirs + "norm1.linear"});
      n.layer(ours + "qkv", {theirs + "attn1.to_q", theirs + "attn1.to_k", theirs + "attn1.to_v"});
      n.layer(ours + "proj", {theirs + "attn1.to_out.0"});
      n.layer(ours + "up", {theirs + "ff.net.0.proj"});
      n.layer(ours + "down", {theirs + "ff.net.2"});
    }
    n.layer("final_modulation", {"proj_out_1"});
    n.layer("out", {"proj_out_2"});
    embedders_once_a_block(n);
    n.format.config = config_of(options, {x_[0], out_channels_, classes_}, x_[1]);
    n.format.config["_class_name"] = "DiTTransformer2DModel";
    return n.format;
  }

  // Why no DiTTransformer2DModel is this model; empty: one is.
  std::string not_theirs() const {
    if (!label) return "takes a class, and this model takes none";
    if (x_[1] != x_[2]) return "makes square pictures, and this model's are not";
    if (options.mlp_ratio != 4) return "has an MLP of 4 times its width, and this model another";
    return {};
  }

  // The constructor's arguments there, but for its class' name, which has changed.
  static ditto::ForeignConfig config_of(const Options& o, const Sizes& sizes, int64_t side) {
    return {{"num_attention_heads", o.heads},
            {"attention_head_dim", o.width / o.heads},
            {"in_channels", sizes.channels},
            {"out_channels", sizes.out_channels},
            {"num_layers", o.depth},
            {"sample_size", side},
            {"patch_size", o.patch},
            {"num_embeds_ada_norm", sizes.classes},
            {"attention_bias", true},
            {"activation_fn", "gelu-approximate"},
            {"norm_type", "ada_norm_zero"},
            {"norm_elementwise_affine", false},
            {"norm_eps", 1e-5}};
  }

  // diffusers keeps the same time and label embedders in every block; ours are read from the first.
  void embedders_once_a_block(Names& n) const {
    const auto emb = [](int64_t i) { return "transformer_blocks." + std::to_string(i) + ".norm1.emb."; };
    n.layer("time.in", {emb(0) + "timestep_embedder.linear_1"});
    n.layer("time.out", {emb(0) + "timestep_embedder.linear_2"});
    std::vector<std::string> tails;
    for (const char* layer : {"timestep_embedder.linear_1", "timestep_embedder.linear_2"})
      for (const char* leaf : {".weight", ".bias"}) tails.push_back(std::string(layer) + leaf);
    if (label) {
      tails.emplace_back("class_embedder.embedding_table.weight");
      n.format.tensors.push_back({"label.table", {emb(0) + tails.back()}, {}});
    }
    for (int64_t i = 1; i < options.depth; ++i)
      for (const auto& tail : tails) n.format.copies[emb(i) + tail] = emb(0) + tail;
  }

  Options options;
  std::vector<int64_t> x_;  // [C, H, W]
  int64_t classes_, out_channels_;
  std::shared_ptr<ditto::PatchEmbed> patches;
  std::shared_ptr<ditto::TimeEmbed> time;
  std::shared_ptr<ditto::LabelEmbed> label;
  std::vector<std::shared_ptr<Block>> blocks;
  ditto::Linear final_modulation, out;
};

}  // namespace

DITTO_MODEL_PLUGIN(Dit, "dit", "1.0.0", "Apache-2.0", "DiT with adaLN-Zero (Peebles and Xie, 2023)")
