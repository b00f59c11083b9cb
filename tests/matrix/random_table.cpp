#include "tests/matrix/random_table.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>

namespace ditto::matrix {

namespace {

constexpr int64_t kWidth = 48;  // its heads divide by 2, 3, 4 and 6
constexpr int64_t kSteps = 6, kFirstSteps = 4;

// The same draws on every machine, which the standard's distributions do not promise.
class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}
  int64_t below(int64_t count) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(count)); }
  bool one_in(int64_t count) { return below(count) == 0; }
  template <class T>
  T of(const std::vector<T>& list) {
    return list[static_cast<size_t>(below(static_cast<int64_t>(list.size())))];
  }
  std::string word(const std::vector<const char*>& list) { return of(list); }
  int64_t number(const std::vector<int64_t>& list) { return of(list); }

 private:
  std::mt19937_64 engine_;
};

class Words {
 public:
  void add(const std::string& words) { text_ += (text_.empty() ? "" : " ") + words; }
  void add(const std::string& key, const std::string& value) { add(key + "=" + value); }
  void add(const std::string& key, int64_t value) { add(key, std::to_string(value)); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// What decides on which layouts a training can go.
struct Limits {
  int64_t depth, heads, kv_heads, tokens, experts = 1;
  bool keeps_bits = false;    // data axes and pipelines alone
  bool cuts_matrices = true;  // not through a block of an optimizer's states
};

void draw_video(Draw& d, Words& w, Limits& limits, int64_t patch) {
  const int64_t frames = d.number({1, 1, 2});  // of a patch, so that attention in time has more than one key
  w.add("model.patch_frames", frames);
  limits.tokens = 4 / frames * (8 / patch) * (8 / patch);
  const bool alternating = d.one_in(3);
  if (alternating) w.add("model.arrangement=alternating model.full=false");
  if (alternating && limits.depth % 2 != 0) ++limits.depth;
  if (!alternating && d.one_in(3)) w.add("model.full=false");
  auto rotary = d.word({"temporal", "all", "none"});
  if (limits.heads > 4 && rotary == "all") rotary = "temporal";  // it needs wider heads
  if (alternating && rotary == "none") rotary = "temporal";      // it has no table of frames
  w.add("model.rotary", rotary);
  if (rotary == "none") w.add("model.qk_norm=true");  // or the gradient of a key's bias is rounding alone
  w.add("model.cross", alternating ? d.word({"auto", "none", "spatial", "all"}) : d.word({"auto", "none", "all"}));
}

void draw_experts(Draw& d, Words& w, Limits& limits) {
  limits.experts = d.number({1, 2, 3, 4, 6});
  const int64_t top_k = 1 + d.below(std::min<int64_t>(limits.experts, 3));
  w.add("model.experts", limits.experts);
  w.add("model.top_k", top_k);
  if (limits.depth > 1 && d.one_in(3)) w.add("model.moe_every", d.number({2, limits.depth}));
  if (d.one_in(3)) w.add("model.shared_ratio=1");
  if (d.one_in(3))
    w.add("model.router=expert_choice");
  else if (top_k > 1 && d.one_in(2))
    w.add("model.normalise=true");
}

Limits draw_model(Draw& d, Case& one, Words& w) {
  Limits limits;
  one.model = d.word({"dit", "dit", "dit_text", "st_dit", "dit_moe"});
  limits.keeps_bits = one.bits = d.one_in(3);
  one.precision = one.bits ? "fp32" : "fp64";
  limits.depth = d.number({1, 2, 3, 4, 4, 5, 6});
  limits.heads = limits.kv_heads = d.number({2, 3, 4, 4, 6, 12});
  const bool video = one.model == "st_dit";
  const int64_t patch = video ? d.number({2, 4}) : d.number({2, 2, 4, 8});
  one.packed = !video && patch == 2 && d.one_in(8);
  limits.tokens = (16 / patch) * (16 / patch);
  w.add("model.width", kWidth);
  w.add("model.heads", limits.heads);
  w.add("model.patch", patch);
  w.add("model.mlp_ratio", d.number({1, 2, 3}));
  if (one.model != "dit" && d.one_in(3)) {
    limits.kv_heads = limits.heads % 2 == 0 ? limits.heads / 2 : 1;
    w.add("model.kv_heads", limits.kv_heads);
    w.add("model.qk_norm=true");
  }
  if (one.model == "dit_text") {
    w.add("model.rotary", d.word({"true", "false"}));
    w.add("model.cross", d.word({"plain", "modulated"}));
  }
  if (video) draw_video(d, w, limits, patch);
  if (video && d.one_in(3)) w.add("model.adaln=single");
  if (one.model == "dit_moe") draw_experts(d, w, limits);
  w.add("model.depth", limits.depth);
  return limits;
}

void draw_training(Draw& d, Case& one, Words& w, Limits& limits) {
  one.batch = d.number({1, 2, 3, 4, 5, 6, 8, 8});
  one.micro_batches = 1;  // or rather as many as this makes, the last one shorter
  w.add("run.micro_batch", 1 + d.below(std::min<int64_t>(one.batch, 4)));
  if (d.one_in(5)) w.add("run.clip_norm", d.word({"0", "0.001", "1000"}));
  if (d.one_in(6)) w.add("objective.condition_dropout=0");
  if (d.one_in(4)) w.add("ema.warmup=true");
  if (d.one_in(10)) w.add("ema.enabled=false");
  if (d.one_in(4)) w.add("lr_schedule.kind=cosine lr_schedule.warmup=3 lr_schedule.final_share=0.1");
  if (d.one_in(4))
    w.add("scheduler.plugin=iddpm");
  else if (d.one_in(3))
    w.add("scheduler.times=logit_normal scheduler.shift=3 scheduler.convention=data_at_one");
  one.optimizer = d.word({"adamw", "adamw", "lion", "muon", "sgd", "adamw8bit"});
  limits.cuts_matrices = one.optimizer != "adamw8bit";
  // Elsewhere a first step's tiny gradients make large steps of what is rounding.
  one.real_init = one.optimizer == "sgd" && d.one_in(2);
  if (one.optimizer == "sgd") w.add("optimizer.momentum", d.word({"0", "0.9"}));
  const bool decays = d.one_in(2);
  if (decays) w.add("optimizer.weight_decay=0.1");
  if (d.one_in(3) && decays) w.add("optimizer.decay_vectors=false");
}

// Degrees, by axis, of 1 to 8 ranks.
std::map<std::string, int64_t> draw_degrees(Draw& d, const Limits& limits) {
  std::map<std::string, int64_t> degrees;
  std::vector<std::string> axes{"replicate", "shard", "pipeline"};
  if (!limits.keeps_bits) axes.insert(axes.end(), {"context", "expert", "tensor"});
  for (const auto& axis : {"replicate", "shard", "pipeline", "context", "expert", "tensor"}) degrees[axis] = 1;
  int64_t left = d.number({1, 2, 2, 3, 4, 4, 4, 4, 6, 8});
  while (left > 1) {
    const auto axis = d.of(axes);
    const int64_t prime = left % 3 == 0 ? 3 : 2, degree = degrees[axis] * prime;
    if ((axis == "pipeline" && degree > limits.depth) || (axis == "context" && degree > limits.tokens) ||
        (axis == "expert" && limits.experts % degree != 0) ||
        (axis == "tensor" && (!limits.cuts_matrices || limits.kv_heads % degree != 0)))
      continue;
    degrees[axis] = degree;
    left /= prime;
  }
  return degrees;
}

std::string draw_layout(Draw& d, const Limits& limits) {
  Words w;
  auto degrees = draw_degrees(d, limits);
  for (const auto& [axis, degree] : degrees)
    if (degree > 1) w.add(axis, degree);
  if (degrees["shard"] > 1) {
    const auto plugin = d.word({"zero1", "zero2", "fsdp", "fsdp"});
    w.add("shard_plugin", plugin);
    if (plugin == "fsdp" && d.one_in(3)) w.add("prefetch=false");
  }
  if (degrees["pipeline"] > 1) {
    w.add("virtual_stages", std::min(limits.depth / degrees["pipeline"], 1 + d.below(3)));
    if (!limits.keeps_bits && d.one_in(3)) w.add("pipeline_conditioning=replicated");
  }
  if (degrees["context"] > 1) {
    std::vector<std::string> plugins{"ring", "spatiotemporal"};
    const int64_t dealt = degrees["context"] * degrees["tensor"];
    if (limits.heads % dealt == 0) plugins.emplace_back("ulysses");
    if (limits.kv_heads % dealt == 0) plugins.emplace_back("fastseq");
    w.add("context_plugin", d.of(plugins));
  }
  if (degrees["tensor"] > 1) w.add("sequence", d.word({"true", "false"}));
  if (d.one_in(3)) {
    w.add("recompute", d.word({"blocks", "attention"}));
    w.add("recompute_every", 1 + d.below(limits.depth));
  }
  if (d.one_in(4)) {
    w.add("offload=optimizer");
    w.add("offload_bytes", d.number({0, 20000, 100000, 10000000}));
  }
  if (!limits.keeps_bits && d.one_in(5)) w.add("run.deterministic=false");
  return w.text();
}

}  // namespace

std::vector<Case> random_cases(uint64_t seed, int64_t count) {
  std::vector<Case> cases;
  Draw d(seed);
  while (static_cast<int64_t>(cases.size()) < count) {
    Case one;
    Words w;
    auto limits = draw_model(d, one, w);
    draw_training(d, one, w, limits);
    one.sets = options_of(w.text());
    one.layout = draw_layout(d, limits);
    one.steps = kSteps;
    if (d.one_in(3)) {
      one.save_to = "random" + std::to_string(cases.size());
      one.steps = kFirstSteps;
    }
    cases.push_back(one);
    if (one.save_to.empty()) continue;
    one.load_from = std::exchange(one.save_to, "");
    one.resumed = kFirstSteps;
    one.steps = kSteps - kFirstSteps;
    one.layout = draw_layout(d, limits);
    cases.push_back(one);
  }
  return cases;
}

}  // namespace ditto::matrix
