// A model that breaks one promise of the interface, as its option says; with "none" it keeps them all.
#include <stdexcept>

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
      : qkv(linear("qkv", kWidth, 3 * kWidth, ditto::Split::heads({2, 2, 2}, kWidth / 2))),
        proj(linear("proj", kWidth, kWidth, ditto::Split::rows())) {}
  ditto::Linear qkv, proj;
};

struct Faulty final : ditto::Model {
  using Options = FaultyOptions;

  Faulty(const Options& o, const Needs& needs) : fault(o.fault), x_(needs.shape("x")), classes_(needs.values("label")) {
    patches = add<ditto::PatchEmbed>(ditto::Unit::tokens, "patches", x_[0], 2, kWidth);
    time = add<ditto::TimeEmbed>(ditto::Unit::condition, "time", kWidth, 128.0);
    label = add<ditto::LabelEmbed>(ditto::Unit::condition, "label", classes_, kWidth);
    block = add_block<Block>(0);
    out = linear(ditto::Unit::head, "out", kWidth, 4 * needs.out_channels);
    if (fault == "unused parameter") linear(ditto::Unit::head, "unused", kWidth, kWidth);
    if (fault == "wrong unit") stray = linear(ditto::Unit::head, "stray", kWidth, kWidth);
    if (fault == "no unit") register_module("stray", std::make_shared<Block>());
  }

  ditto::Conditioning condition(const ditto::Batch& in, ditto::Context& ctx) override {
    auto cond_BD = time->forward(in.at("t"), ctx) + label->forward(in.at("label"), ctx);
    if (fault == "mixes samples") cond_BD = cond_BD + cond_BD.mean(0, true);
    if (fault == "wrong unit") cond_BD = stray(cond_BD, ctx);
    return {.cond_BD = cond_BD, .text_BSE = {}, .text_mask_BS = {}};
  }

  ditto::Stream tokens(const ditto::Batch& in, ditto::Context& ctx) override {
    ditto::Stream s;
    s.grid = patches->grid(in.at("x"));
    const auto positions_TD = ditto::sincos_positions(s.grid, kWidth);  // double
    const auto tokens_BTD = patches->forward(in.at("x"), ctx);
    if (fault == "constant in tokens") s.rotary_TK = positions_TD.to(ctx.options());
    s.x_BTD = tokens_BTD + (fault == "promotes" ? positions_TD : positions_TD.to(ctx.options()));
    return s;
  }

  int64_t depth() const override { return ask("depth"), fault == "empty block" ? 2 : 1; }

  ditto::Stream run_block(int64_t i, ditto::Stream s, ditto::Context& ctx) override {
    if (i == 1) return s;
    if (fault == "asks for numbers") s.x_BTD = s.x_BTD * (s.x_BTD.sum().item<float>() < 0 ? 1 : 1);
    if (fault == "writes to its input") s.x_BTD.mul_(0.5);
    if (fault == "mixes tokens") s.x_BTD = s.x_BTD + s.x_BTD.mean(1, true);
    if (fault == "scatters")
      s.x_BTD = s.x_BTD.scatter(-1, torch::zeros({s.x_BTD.size(0), s.x_BTD.size(1), 1}, torch::kLong),
                                s.x_BTD.narrow(-1, 0, 1));
    if (fault == "random") s.x_BTD = s.x_BTD + torch::randn_like(s.x_BTD);
    if (fault == "places by index") {
      const auto all_TD = ditto::sincos_positions(ditto::Grid{1, x_[1] / 2, x_[2] / 2}, kWidth).to(ctx.options());
      s.x_BTD = s.x_BTD + all_TD.narrow(0, s.first_token, s.x_BTD.size(1));
    }
    const auto h = s.x_BTD + s.condition.cond_BD.unsqueeze(1);
    if (fault == "constant in tokens") s.x_BTD = s.x_BTD + s.rotary_TK;
    const auto qkv = block->qkv(h, ctx).unflatten(-1, {3, -1, kWidth / 2}).unbind(-3);
    auto a = ctx.attention(qkv[0], qkv[1], qkv[2], ditto::Pattern::full, s).flatten(-2);
    if (fault == "wrong gradient") a = 2 * a - a.detach();
    s.x_BTD = s.x_BTD + block->proj(a, ctx);
    return s;
  }

  Tensor head(const ditto::Stream& s, ditto::Context& ctx) override {
    auto y = patches->unpatchify(out(s.x_BTD, ctx), s.grid);
    return fault == "wrong shape" ? torch::cat({y, y}, 1) : y;
  }

  // An author's bug in what the host asks for between two calls.
  void ask(const char* method) const {
    if (fault == std::string("throws in ") + method) throw std::out_of_range("asked for " + std::string(method));
    if (fault == "throws a number in foreign_formats" && std::string(method) == "foreign_formats") throw 7;
  }
  bool token_local() const override { return ask("token_local"), true; }
  ditto::TensorSpecs takes() const override {
    ask("takes");
    ditto::TensorSpecs inputs{
        {"x", torch::kFloat, x_, ""}, {"t", torch::kFloat, {}, ""}, {"label", torch::kLong, {}, "", classes_}};
    if (fault == "takes what nobody makes") inputs.push_back({"depth_map", torch::kFloat, {}, ""});
    return inputs;
  }
  ditto::TensorSpecs makes() const override {
    ask("makes");
    const int64_t tokens = x_[1] / 2 * (x_[2] / 2);
    ditto::TensorSpecs made{{"features", torch::kFloat, {fault == "other features" ? 2 * tokens : tokens, kWidth}}};
    if (fault == "hands out what is not there") made.push_back({"moments", torch::kFloat, {tokens}});
    return made;
  }
  ditto::Batch without_condition(ditto::Batch in, const Tensor& which_B) const override {
    const auto null = torch::full_like(in.at("label"), label->null_label());
    if (fault == "drops all conditions") {
      in["label"] = null;
    } else if (fault == "drops the time") {
      in["t"] = torch::zeros_like(in.at("t"));
      in["label"] = torch::where(which_B, null, in.at("label"));
    } else if (fault != "drops nothing") {
      in["label"] = torch::where(which_B, null, in.at("label"));
    }
    return in;
  }
  std::vector<std::string> foreign_formats() const override {
    return ask("foreign_formats"), std::vector<std::string>{"other"};
  }
  ditto::ForeignFormat foreign(const std::string&) const override {
    ditto::ForeignFormat format;
    for (const auto& item : named_parameters()) format.tensors.push_back({item.key(), {"their." + item.key()}, {}});
    if (fault == "forgets a tensor") format.tensors.pop_back();
    return format;
  }

  std::string fault;
  std::vector<int64_t> x_;  // [C, H, W]
  int64_t classes_;
  std::shared_ptr<ditto::PatchEmbed> patches;
  std::shared_ptr<ditto::TimeEmbed> time;
  std::shared_ptr<ditto::LabelEmbed> label;
  std::shared_ptr<Block> block;
  ditto::Linear out, stray;
};

}  // namespace

DITTO_MODEL_PLUGIN(Faulty, "faulty_model", "1.0.0", "Apache-2.0", "breaks one promise")
