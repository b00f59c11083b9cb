// A model with all that strategies cut, carry or compute again: grouped-query attention with rotary angles, cross
// attention to text, experts with an auxiliary loss, a long skip, an uncut layer inside of a block, by choice a second
// sequence that evolves and attends jointly, and dropout; and a run of it under strategies, put together as the host
// does.
#pragma once

#include <ditto/parallel/program.h>

#include <ditto/error.h>

#include "core/dist/gradient_sum.h"
#include "core/plugin/registry.h"
#include "tests/support/files.h"
#include "tests/unit/small_model.h"

namespace ditto::testing {

struct FullOptions {
  int64_t depth = 2, experts = 4, hidden = 8, tokens = 7;
  bool is_packed = false, has_experts = true, is_token_local = true, takes_a_part = false;
  bool is_joint = false;
  double dropout = 0;
  bool is_adapted = false;  // every layer that has a place for it has a low-rank term, and all else is frozen
};

// Twice as many query heads as key and value heads.
constexpr int64_t kWidth = 16, kHeads = 4, kSharedHeads = 2, kHeadWidth = 4, kText = 6, kNotes = 5;

class FullBlock : public Layer {
 public:
  FullBlock(const FullOptions& o, int64_t index)
      : is_first_(index == 0),
        is_last_(index + 1 == o.depth),
        has_text_(!o.is_packed),
        takes_a_part_(o.takes_a_part),
        is_joint_(o.is_joint),
        dropout_(o.dropout),
        name_(std::to_string(index)) {
    modulation_ = linear("modulation", kWidth, 3 * kWidth, Split::columns({kWidth, 2 * kWidth}).gathered());
    qkv_ = linear("qkv", kWidth, (kHeads + 2 * kSharedHeads) * kHeadWidth,
                  Split::heads({kHeads, kSharedHeads, kSharedHeads}, kHeadWidth));
    norm_ = register_module("norm", std::make_shared<RmsNorm>(kHeadWidth));
    out_ = linear("out", kWidth, kWidth, Split::rows());
    if (has_text_) {
      q_ = linear("q", kWidth, kWidth, Split::heads({kHeads}, kHeadWidth));
      kv_ = linear("kv", kText, 2 * kWidth, Split::heads({kHeads, kHeads}, kHeadWidth).of_condition());
      cross_ = linear("cross", kWidth, kWidth, Split::rows());
    }
    mix_ = linear("mix", kWidth, kWidth);
    up_ = linear("up", kWidth, 2 * kWidth, Split::columns({2 * kWidth}));
    down_ = linear("down", 2 * kWidth, kWidth, Split::rows());
    if (is_last_) skip_ = linear("skip", 2 * kWidth, kWidth);
    if (is_joint_) {
      notes_qkv_ = linear("notes_qkv", kWidth, (kHeads + 2 * kSharedHeads) * kHeadWidth,
                          Split::heads({kHeads, kSharedHeads, kSharedHeads}, kHeadWidth).of("notes"));
      notes_out_ = linear("notes_out", kWidth, kWidth, Split::rows().of("notes"));
      notes_up_ = linear("notes_up", kWidth, 2 * kWidth, Split::columns({2 * kWidth}).of("notes"));
      notes_down_ = linear("notes_down", 2 * kWidth, kWidth, Split::rows().of("notes"));
    }
    if (!o.has_experts) return;
    router_ = linear("router", kWidth, o.experts);
    experts_ = register_module("experts", std::make_shared<ExpertsModule>(o.experts, kWidth, o.hidden));
  }

  Stream forward(Stream s, Context& ctx) {
    if (is_first_) s.skips_BTD.push_back(s.x_BTD);
    if (is_last_) {
      s.x_BTD = skip_(torch::cat({s.x_BTD, s.skips_BTD.back()}, -1), ctx);
      s.skips_BTD.pop_back();
    }
    const auto m = modulation_(torch::silu(s.condition.cond_BD), ctx).chunk(3, -1);
    const auto in_x = ctx.ops.norm_modulate(s.x_BTD, m[0], m[1], s);
    s.x_BTD = ctx.ops.gated_residual(s.x_BTD, m[2], is_joint_ ? joint(in_x, m, s, ctx) : attention(in_x, s, ctx), s);
    if (has_text_) s.x_BTD = s.x_BTD + cross(s.x_BTD, s, ctx);
    s.x_BTD = s.x_BTD + torch::tanh(mix_(s.x_BTD, ctx));
    const auto in = takes_a_part_ ? s.x_BTD.narrow(1, 0, s.x_BTD.size(1) - 1) : s.x_BTD;
    const auto more = down_(ctx.ops.linear_gelu_tanh(in, up_, ctx), ctx);
    s.x_BTD = s.x_BTD + (takes_a_part_ ? more.mean(1, true) : more);
    if (dropout_ > 0) s.x_BTD = ctx.dropout(s.x_BTD, dropout_, s, name_ + ".x");
    if (experts_)
      s.x_BTD = s.x_BTD + experts_->forward(
                              s.x_BTD, [&](const torch::Tensor& x) { return route(x, s, ctx); }, ctx);
    return s;
  }

 private:
  torch::Tensor attention(const torch::Tensor& x_BTD, const Stream& s, Context& ctx) {
    return ctx.attention_unit(qkv_, out_, x_BTD, [&](const torch::Tensor& x) {
      const auto all = qkv_(x, ctx).unflatten(-1, {-1, kHeadWidth});
      const int64_t shared = all.size(-2) / 4;  // of the heads here half are queries', a quarter keys'
      const auto parts = all.split_with_sizes({2 * shared, shared, shared}, -2);
      const auto turned = [&](const torch::Tensor& y) { return apply_rotary(norm_->forward(y, ctx), s.rotary_TK); };
      return out_(ctx.attention(turned(parts[0]), turned(parts[1]), parts[2], Pattern::full, s).flatten(-2), ctx);
    });
  }

  // The tokens' part; the notes are changed in place.
  torch::Tensor joint(const torch::Tensor& x_BTD, const Tensors& m, Stream& s, Context& ctx) {
    auto& notes = s.extra.at("notes");
    const auto in_notes = ctx.ops.norm_modulate(notes.tensor, m[0], m[1], *notes.own);
    const auto y =
        ctx.attention_unit({{qkv_, out_, x_BTD}, {notes_qkv_, notes_out_, in_notes}}, [&](const Tensors& x) -> Tensors {
          const auto part = [&](Linear& map, const torch::Tensor& of, const Sequence& tokens) {
            const auto all = map(of, ctx).unflatten(-1, {-1, kHeadWidth});
            const int64_t shared = all.size(-2) / 4;
            const auto parts = all.split_with_sizes({2 * shared, shared, shared}, -2);
            return AttentionPart{norm_->forward(parts[0], ctx), norm_->forward(parts[1], ctx), parts[2], tokens, {}};
          };
          AttentionCall call{.parts = {part(qkv_, x[0], s), part(notes_qkv_, x[1], *notes.own)}};
          if (const auto mask = s.extra.find("notes_mask"); mask != s.extra.end())
            call.parts[1].key_mask_BS = mask->second.tensor;
          const auto out = ctx.attention(call);
          return {out_(out[0].flatten(-2), ctx), notes_out_(out[1].flatten(-2), ctx)};
        });
    notes.tensor = ctx.ops.gated_residual(notes.tensor, m[2], y[1], *notes.own);
    notes.tensor = notes.tensor + notes_down_(ctx.ops.linear_gelu_tanh(notes.tensor, notes_up_, ctx), ctx);
    if (dropout_ > 0) notes.tensor = ctx.dropout(notes.tensor, dropout_, s, name_ + ".notes", "notes");
    return y[0];
  }

  torch::Tensor cross(const torch::Tensor& x, const Stream& s, Context& ctx) {
    const auto q = q_(x, ctx).unflatten(-1, {-1, kHeadWidth});
    const auto kv = kv_(s.condition.text_BSE, ctx).unflatten(-1, {2, -1, kHeadWidth}).unbind(-3);
    return cross_(ctx.attention(q, kv[0], kv[1], Pattern::cross, s).flatten(-2), ctx);
  }

  // Each token's two likeliest experts; and a loss of each row of tokens.
  Routing route(const torch::Tensor& x_BTD, Stream& s, Context& ctx) {
    const auto p_BTE = torch::softmax(router_(x_BTD, ctx), -1);
    auto& loss = s.auxiliary_losses["balance"];
    const auto more = ctx.all_tokens(p_BTE, s).mean(1).square().sum(-1);
    loss = loss.defined() ? loss + more : more;
    const auto taken =
        torch::zeros_like(p_BTE, torch::kBool).scatter(-1, std::get<1>(p_BTE.detach().topk(2, -1)), true);
    const auto rows = taken.flatten(0, 1).nonzero().unbind(1);
    return {rows[0], rows[1], p_BTE.masked_select(taken)};
  }

  bool is_first_, is_last_, has_text_, takes_a_part_, is_joint_;
  double dropout_;
  std::string name_;
  Linear modulation_, qkv_, out_, q_, kv_, cross_, mix_, up_, down_, skip_, router_;
  Linear notes_qkv_, notes_out_, notes_up_, notes_down_;
  std::shared_ptr<RmsNorm> norm_;
  std::shared_ptr<ExpertsModule> experts_;
};

class FullModel : public Model {
 public:
  explicit FullModel(const FullOptions& o) : options_(o) {
    embed_ = linear(Unit::tokens, "embed", 3, kWidth);
    if (o.is_joint) notes_ = linear(Unit::tokens, "notes", 3, kWidth);
    label_ = add<LabelEmbed>(Unit::condition, "label", 3, kWidth);
    if (!o.is_packed) text_ = linear(Unit::condition, "text", 5, kText);
    for (int64_t i = 0; i < o.depth; ++i) blocks_.push_back(add_block<FullBlock>(i, o, i));
    head_ = linear(Unit::head, "head", kWidth, 3);
  }
  Conditioning condition(const Batch& batch, Context& ctx) override {
    Conditioning made{label_->forward(batch.at("label"), ctx), {}, {}};
    if (!options_.is_packed) made.text_BSE = text_(batch.at("text"), ctx);
    return made;
  }
  Stream tokens(const Batch& batch, Context& ctx) override {
    Stream stream;
    stream.x_BTD = embed_(batch.at("x"), ctx);
    stream.grid = {1, 1, options_.tokens};
    const int64_t first = options_.tokens / 3;
    if (options_.is_packed) stream.packing = packing_of({first, options_.tokens - first}, torch::kCPU);
    if (!options_.is_joint) return stream;
    stream.extra["notes"] = {notes_(batch.at("notes"), ctx), 1, Role::evolving, notes_tokens()};
    return stream;
  }
  void constants(const Batch& batch, Stream& stream, Context& ctx) override {
    stream.rotary_TK = rotary_table(stream.grid, kHeadWidth).to(ctx.options());
    if (options_.is_joint && !options_.is_packed)
      stream.extra["notes_mask"] = {batch.at("notes_mask"), 1, Role::constant, notes_tokens()};
  }
  int64_t depth() const override { return options_.depth; }
  Stream run_block(int64_t i, Stream stream, Context& ctx) override {
    return blocks_[static_cast<size_t>(i)]->forward(std::move(stream), ctx);
  }
  torch::Tensor head(const Stream& stream, Context& ctx) override {
    if (!options_.is_joint) return head_(stream.x_BTD, ctx);
    return head_(stream.x_BTD + stream.extra.at("notes").tensor.mean(1, true), ctx);
  }
  TensorSpecs takes() const override { return {}; }
  bool token_local() const override { return options_.is_token_local; }

 private:
  Sequence notes_tokens() const {
    return {{1, 1, kNotes}, options_.is_packed ? packing_of({2, kNotes - 2}, torch::kCPU) : nullptr};
  }

  FullOptions options_;
  Linear embed_, notes_, text_, head_;
  std::shared_ptr<LabelEmbed> label_;
  std::vector<std::shared_ptr<FullBlock>> blocks_;
};

// Rows of tokens: two, or one pack of two samples.
inline Batch full_batch(int64_t seed, const FullOptions& o, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  const int64_t rows = o.is_packed ? 1 : 2;
  Batch batch;
  batch["x"] = torch::randn({rows, o.tokens, 3}, generator, torch::kDouble).to(dtype);
  batch["target"] = torch::randn({rows, o.tokens, 3}, generator, torch::kDouble).to(dtype);
  batch["text"] = torch::randn({rows, 3, 5}, generator, torch::kDouble).to(dtype);
  batch["label"] = torch::tensor({seed % 4, (seed + 1) % 4}, torch::kLong);
  batch["notes"] = torch::randn({rows, kNotes, 3}, generator, torch::kDouble).to(dtype);
  batch["notes_mask"] = torch::arange(kNotes).lt(torch::arange(4, 4 + rows).unsqueeze(1));
  batch.ids = {2 * seed, 2 * seed + 1};
  batch.weights = {1, 1};
  return batch;
}

struct Named {
  std::string id;
  std::map<std::string, OptionValue> options = {};
};

// One rank of a run under strategies, in the order they are given. The first wraps innermost.
class FullRun {
 public:
  FullRun(const Mesh& mesh, const FullOptions& options, at::ScalarType dtype, const std::vector<Named>& strategies)
      : mesh_(mesh),
        options_(options),
        dtype_(dtype),
        model_(std::make_shared<FullModel>(options)),
        ctx_(small_context(dtype)),
        units_(*model_, *ctx_) {
    if (options.is_adapted) adapt_layers();
    // Gradients are left in at least fp32.
    fill(*model_, dtype == torch::kDouble ? torch::kDouble : torch::kFloat);
    if (options.is_adapted)
      for (auto& item : model_->named_parameters())
        item.value().set_requires_grad(item.key().find(".lora_") != std::string::npos);
    layout = Layout::of(*model_);
    for (const auto& named : strategies) strategies_.push_back(make(named));
    for (auto& strategy : strategies_) strategy->claim(layout);
    for (auto& strategy : strategies_) strategy->shard(layout);
    for (auto& strategy : strategies_) units_.wrap(*strategy);
    parameters_changed();
    sum_ = std::make_unique<GradientSum>(layout, mesh, true);
  }

  FullRun(const FullRun&) = delete;
  FullRun& operator=(const FullRun&) = delete;

  void step(int64_t micro_batches, int64_t step) {
    const int64_t n = mesh_.data_ranks(), r = mesh_.data_rank();
    const StepPlan plan{step, micro_batches, (micro_batches + n - 1) / n, (micro_batches - r + n - 1) / n,
                        Phase::train};
    for (auto& entry : layout.entries) {
      entry.tensor.mutable_grad().reset();
      entry.parameter.leaf().mutable_grad().reset();
    }
    sum_->begin_step(strategies_, plan);
    for (auto& strategy : strategies_) strategy->begin_step(plan);
    for (int64_t accumulation = 0; accumulation < plan.accumulations; ++accumulation) {
      micro_batch(100 * step + accumulation * n + r, plan.runs(accumulation) ? 1.0 : 0.0);
      for (auto& strategy : strategies_) strategy->end_accumulation(accumulation, plan);
      sum_->after_micro_batch(accumulation, plan);
    }
    for (auto& strategy : strategies_) strategy->sync_gradients();
    sum_->finish(plan);
  }

  // The prediction, whole on every rank.
  torch::Tensor predict(int64_t seed) {
    torch::NoGradGuard no_grad;
    Stream stream;
    return forward(full_batch(seed, options_, dtype_), stream);
  }

  void parameters_changed() {
    torch::NoGradGuard no_grad;
    for (auto& strategy : strategies_) strategy->parameters_changed();
  }

  std::map<std::string, torch::Tensor> gradients() const {
    std::map<std::string, torch::Tensor> list;
    for (const auto& entry : layout.entries) list[entry.name] = entry.tensor.grad();
    return list;
  }

  Layout layout;

 private:
  void adapt_layers() {
    for (const auto& module : model_->modules(/*include_self=*/false))
      if (auto* layer = dynamic_cast<CutLayer*>(module.get())) layer->adapt({2, 3});
  }

  std::shared_ptr<ParallelStrategy> make(const Named& named) {
    Registry registry(
        std::vector<SearchFolder>{{test::plugin_folder(), "the test"},
                                  {test::build_folder() / "tests/broken_plugins/faulty_parallel.so", "the test"}});
    OptionMap map{"parallel", "the test", {}};
    for (const auto& [name, value] : named.options) map.given[name] = {value, "the test"};
    OptionReader reader(map);
    return registry.factory<ParallelStrategy>(named.id, "the test")
        .make(reader, {&mesh_, true, model_->token_local(), dtype_, model_->depth()});
  }

  torch::Tensor forward(const Batch& batch, Stream& stream) {
    const Traffic::Scope pass(mesh_.traffic(), Traffic::Pass::forward);
    stream = units_.begin(batch);
    units_.blocks(0, model_->depth(), stream);
    return units_.head(stream, batch).at("prediction");
  }

  void micro_batch(int64_t seed, double weight) {
    const auto batch = full_batch(seed, options_, dtype_);
    Stream stream;
    auto loss = (forward(batch, stream) - batch.at("target")).square().sum();
    for (const auto& [name, auxiliary] : stream.auxiliary_losses) loss = loss + auxiliary.sum();
    loss = loss * (weight / (mesh_.size(Axis::tensor) * mesh_.size(Axis::context)));
    const Traffic::Scope pass(mesh_.traffic(), Traffic::Pass::backward);
    loss.backward();
  }

  const Mesh& mesh_;
  FullOptions options_;
  at::ScalarType dtype_;
  std::shared_ptr<FullModel> model_;
  std::shared_ptr<Context> ctx_;
  ModelProgram units_;
  std::vector<std::shared_ptr<ParallelStrategy>> strategies_;
  std::unique_ptr<GradientSum> sum_;
};

inline torch::Tensor rectangle(torch::Tensor of, const std::vector<int64_t>& start, const std::vector<int64_t>& size) {
  for (size_t dim = 0; dim < start.size(); ++dim) of = of.narrow(static_cast<int64_t>(dim), start[dim], size[dim]);
  return of;
}

// One rank by itself, in whatever world.
inline GlooMesh mesh_of_one() { return GlooMesh(RankInfo{}, {}, std::chrono::seconds(60)); }

// The prediction, every gradient and the norm, in double precision.
inline void check_full(const Mesh& mesh, const FullOptions& options, const std::vector<Named>& strategies,
                       int64_t micro_batches) {
  const auto alone = mesh_of_one();
  FullRun whole(alone, options, torch::kDouble, {}), rank(mesh, options, torch::kDouble, strategies);
  CHECK((rank.predict(7) - whole.predict(7)).abs().max().item<double>() < 1e-12);
  whole.step(micro_batches, 1);
  rank.step(micro_batches, 1);
  const auto expected = whole.gradients();
  for (const auto& entry : rank.layout.entries) {
    CAPTURE(entry.name);
    const torch::Tensor& reference = expected.at(entry.name);
    CHECK(entry.tensor.sizes().vec() == local_shape(entry));
    if (!entry.trains) {
      CHECK(!entry.tensor.grad().defined());
      CHECK(!reference.defined());
      continue;
    }
    const double size = reference.abs().max().item<double>();
    if (options.tokens > 1) CHECK(size > 1e-6);  // one token has no choice what to attend to
    for (const auto& slice : entry.slices()) {
      const auto there = rectangle(reference, slice.global_start, slice.size);
      const auto here = rectangle(entry.tensor.grad(), slice.local_start, slice.size);
      CHECK((there - here).abs().max().item<double>() <= 1e-12 * std::max(size, 1e-3));
    }
  }
  CHECK(grad_norm(rank.layout, mesh) == doctest::Approx(grad_norm(whole.layout, alone)).epsilon(1e-13));
}

}  // namespace ditto::testing
