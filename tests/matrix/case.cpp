#include "tests/matrix/case.h"

#include <array>
#include <functional>
#include <sstream>

#include <fmt/format.h>
#include <torch/types.h>

#include <ditto/math/random.h>

#include "core/process/launch.h"

namespace ditto::matrix {

namespace {

constexpr int64_t kSamples = 48, kClasses = 5, kTextTokens = 6, kTextWidth = 24, kPooledWidth = 20,
                  kJointTokens = 12;  // leaves of one number for two ranks
constexpr uint64_t kDataSeed = 9090;

// A model's options at a tiny size, and the shape of its samples.
struct Tiny {
  const char* model;
  const char* options;
  std::vector<int64_t> x;
  bool text = false;
  std::vector<std::string> key_biases;
  int64_t text_tokens = kTextTokens;
  bool pooled = false;  // a whole text's embedding too
  int64_t text_width = kTextWidth;
  bool maps = false;              // a UNet
  std::vector<int64_t> low = {};  // a smaller picture, and its time
  const char* plugin = nullptr;   // of another name than the model's here
};

// Of no norm a group is one channel: the bias before it would have no gradient but rounding.
const std::vector<Tiny>& unets() {
  static const std::vector<Tiny> kUnets{
      {.model = "unet_sd",
       .options = "block_out_channels = [32, 64]\nlayers_per_block = [1]\nattention_head_dim = [4]\n"
                  "down_block_types = [\"CrossAttnDownBlock2D\", \"DownBlock2D\"]\n"
                  "up_block_types = [\"UpBlock2D\", \"CrossAttnUpBlock2D\"]\n"
                  "norm_num_groups = 8\ntext_tokens = 6\n",
       .x = {4, 8, 8},
       .text = true,
       .maps = true},
      {.model = "imagen_unet",
       .options = "embed_dim = 64\nchannel_mult = [1, 2]\nnum_res_blocks = [1]\nper_head_channels = 16\ncond_dim = 64\n"
                  "attention_type = \"fused\"\nattention_resolutions = [4]\nfeature_pooling_type = \"mean\"\n"
                  "token_length = 6\n",
       .x = {3, 8, 8},
       .text = true,
       .text_width = 64,
       .maps = true},
      {.model = "imagen_efficient_unet",
       .options = "embed_dim = 64\nchannel_mult = [1, 1, 2]\nnum_resblocks = [1, 1, 1]\natnn_enabled_at = [0, 0, 1]\n"
                  "per_head_channels = 16\nattention_type = \"stacked\"\nfeature_pooling_type = \"mean\"\n"
                  "skip_connection_scaling = true\nnoise_cond_aug = true\ntoken_length = 6\n",
       .x = {3, 16, 16},
       .text = true,
       .key_biases = {"qkv.bias", "kv_text.bias"},
       .text_width = 64,
       .maps = true,
       .low = {3, 8, 8}},
  };
  return kUnets;
}

const Tiny& tiny(const std::string& model) {
  static const std::vector<Tiny> kTiny{
      {"dit", "depth = 4\nwidth = 32\nheads = 4\nmlp_ratio = 2\n", {3, 16, 16}, false, {"qkv.bias"}},
      {"dit_text",
       "depth = 4\nwidth = 32\nheads = 4\nmlp_ratio = 2\nqk_norm = true\nrotary = true\ncross = \"modulated\"\n",
       {3, 16, 16},
       true,
       {}},
      {"pixart",
       "depth = 4\nwidth = 48\nheads = 4\nmlp_ratio = 2\nmicro_conditions = true\n",
       {3, 16, 16},
       true,
       {"attn.qkv.bias", "cross.kv.bias"}},
      {"uvit", "depth = 4\nwidth = 32\nheads = 4\nmlp_ratio = 2\n", {3, 16, 16}, false, {}},
      {"st_dit",
       "depth = 4\nwidth = 32\nheads = 4\nmlp_ratio = 2\nfull = true\nrotary = \"temporal\"\n",
       {3, 4, 8, 8},
       true,
       {"spatial.qkv.bias", "cross.kv.bias"}},
      {"latte",
       "depth = 4\nwidth = 32\nheads = 4\nmlp_ratio = 2\n",
       {3, 4, 8, 8},
       true,
       {"spatial.qkv.bias", "temporal.qkv.bias", "cross.kv.bias"}},
      {"nemo_dit",
       "depth = 4\nwidth = 32\nheads = 4\nmlp_ratio = 2\npositions = \"factorised\"\n",
       {3, 4, 8, 8},
       true,
       {}},
      {"moviegen", "depth = 4\nwidth = 32\nheads = 4\nhidden = 48\n", {3, 4, 8, 8}, true, {}},
      {"dit_moe", "depth = 4\nwidth = 32\nheads = 4\nexperts = 4\n", {3, 16, 16}, false, {"qkv.bias"}},
      {"mmdit",
       "depth = 4\nwidth = 32\nheads = 4\nqk_norm = true\ndual_attention = 1\n",
       {3, 16, 16},
       true,
       {},
       kJointTokens,
       true},
      {"flux",  // two blocks of either kind
       "depth = 2\nsingle_depth = 2\nwidth = 48\nheads = 4\nguidance_embed = true\n",
       {3, 16, 16},
       true,
       {},
       kJointTokens,
       true},
      {"jit",
       "depth = 4\nwidth = 48\nheads = 4\nbottleneck = 8\ncontext_tokens = 12\ncontext_start = 1\n",
       {3, 16, 16},
       false,
       {}},
      {"wan", "depth = 4\nwidth = 32\nheads = 4\nhidden = 64\n", {3, 4, 8, 8}, true, {}},
      {.model = "dit_joins",
       .options = "depth = 4\nwidth = 32\nheads = 4\nmlp_ratio = 2\njoins = [\"low\"]\n",
       .x = {3, 16, 16},
       .key_biases = {"qkv.bias"},
       .low = {3, 8, 8},
       .plugin = "dit"},
  };
  for (const auto* list : {&kTiny, &unets()})
    for (const auto& one : *list)
      if (model == one.model) return one;
  throw Error(ErrorKind::config, "--model", "\"" + model + "\" has no tiny size here",
              "add it to tests/matrix/case.cpp");
}

constexpr const char* kAllKernels = "kernels.*";
constexpr const char* kOpsOfUnets[] = {
    "conv",      "conv_transposed", "group_norm", "resample", "add_channels", "linear", "silu", "gelu",
    "attention", "layer_norm",      "row_total",  "add_row",  "adamw",        "sin",    "cos"};

bool is_plain_value(const std::string& value) {
  return value == "true" || value == "false" || value.find_first_not_of("+-.0123456789e") == std::string::npos;
}

// Samples made from their number, fp32 in every precision.
class TinySource final : public Source {
 public:
  explicit TinySource(const Tiny& tiny) : tiny_(tiny), random_(kDataSeed) {}
  int64_t size() const override { return kSamples; }
  TensorSpecs makes() const override {
    TensorSpecs list{{"clean", torch::kFloat, tiny_.x, "any"}};
    if (tiny_.text) {
      list.push_back({"text", torch::kFloat, {tiny_.text_tokens, tiny_.text_width}, "any"});
      list.push_back({"text_mask", torch::kBool, {tiny_.text_tokens}, ""});
      if (tiny_.pooled) list.push_back({"text_pooled", torch::kFloat, {kPooledWidth}, "any"});
    } else {
      list.push_back({"label", torch::kLong, {}, "classes", kClasses});
    }
    if (!tiny_.low.empty()) {
      list.push_back({"low", torch::kFloat, tiny_.low, "any"});
      list.push_back({"low_t", torch::kFloat, {}, "any"});
    }
    return list;
  }
  Sample read(int64_t index) const override {
    Sample sample;
    sample.place = "sample " + std::to_string(index);
    const auto normal = [&](at::IntArrayRef shape, std::uint32_t series) {
      return random_.normal(Purpose::noise, std::array{index}, shape, torch::kFloat, series)[0];
    };
    sample.tensors["clean"] = normal(tiny_.x, 0);
    if (tiny_.text) {
      sample.tensors["text"] = normal({tiny_.text_tokens, tiny_.text_width}, 1);
      sample.tensors["text_mask"] = torch::arange(tiny_.text_tokens) < 2 + index % (tiny_.text_tokens - 1);
      if (tiny_.pooled) sample.tensors["text_pooled"] = normal({kPooledWidth}, 2);
    } else {
      sample.tensors["label"] = torch::scalar_tensor(index % kClasses, torch::kLong);
    }
    if (!tiny_.low.empty()) {
      sample.tensors["low"] = normal(tiny_.low, 3);
      sample.tensors["low_t"] = normal({}, 4);
    }
    return sample;
  }
  std::string fingerprint() const override { return "tiny samples"; }

 private:
  const Tiny& tiny_;
  Random random_;
};

}  // namespace

std::vector<std::string> options_of(const std::string& layout) {
  std::istringstream words(layout);
  std::vector<std::string> sets;
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    if (equals == std::string::npos)
      throw Error(ErrorKind::config, "--layout", "\"" + word + "\" is not KEY=VALUE", "write it as \"tensor=2\"");
    auto key = word.substr(0, equals), value = word.substr(equals + 1);
    if (key.find('.') == std::string::npos) key = "parallel." + key;
    if (!is_plain_value(value)) value = "\"" + value + "\"";
    if (key != kAllKernels)
      sets.push_back(key + "=" + value);
    else
      for (const char* op : kOpsOfUnets) sets.push_back(std::string("kernels.") + op + "=" + value);
  }
  return sets;
}

namespace {

// Leaves of tokens, heads and hidden numbers that four ranks can share. Groups of channels are leaves as they are.
std::vector<std::string> sets_of_one_number(const Case& one) {
  std::vector<std::string> sets{"run.numerics=\"one\"", "run.token_leaf=8"};
  if (!tiny(one.model).maps) sets.emplace_back("model.width=48");
  return sets;
}

// AdamW makes whole steps of gradients that are nothing but rounding, in directions that rounding chooses: few numbers,
// and by chance none of the control's. Where bounds are of rounding, or a model has so many numbers that the gradients
// of some are next to nothing beside the others', they are to stay small.
bool is_steady(const Case& one) {
  return one.optimizer == "adamw" && (one.precision != "fp64" || one.is_control || tiny(one.model).maps);
}

// Five steps of 1e-3 carry rounding to 3e-12 of the first moments of imagen_unet's frequencies, and of 1e-4 to 6e-14.
const char* learning_rate(const Case& one) { return tiny(one.model).maps ? "1e-4" : "1e-3"; }

}  // namespace

Recipe recipe_of(const Case& one) {
  const int64_t parts = one.micro_batches == 0 ? 1 : one.micro_batches;
  if (one.batch % parts != 0)
    throw Error(ErrorKind::config, "--micro-batches", fmt::format("{} do not divide a batch of {}", parts, one.batch),
                "");
  const auto text = fmt::format(
      "[run]\nname = \"matrix\"\nseed = 3\nsteps = {}\nbatch = {}\nmicro_batch = {}\nclip_norm = 0.5\nprecision = "
      "\"{}\"\ndevice = \"{}\"\n[lr_schedule]\nlr = {}\n[ema]\ndecay = 0.95\nwarmup = false\n[loader]\nthreads = 0\n"
      "[validate]\nevery = 1\nsamples = 5\nbatch = 2\n"
      "[model]\nplugin = \"{}\"\n{}[scheduler]\nplugin = \"rectified_flow\"\n[objective]\nplugin = \"diffusion\"\n"
      "condition_dropout = 0.25\n[optimizer]\nplugin = \"{}\"\n[parallel]\ntimeout_s = 60\n",
      one.resumed + one.steps, one.batch, one.batch / parts, one.precision, one.device, learning_rate(one),
      tiny(one.model).plugin ? tiny(one.model).plugin : one.model, tiny(one.model).options, one.optimizer);
  auto sets = one.sets;
  if (one.one_number)
    for (auto& set : sets_of_one_number(one)) sets.push_back(std::move(set));
  if (is_steady(one)) sets.push_back("optimizer.eps=1e-3");
  for (auto& set : options_of(one.layout)) sets.push_back(std::move(set));
  auto recipe = Recipe::parse(text, "matrix \"" + one.layout + "\"", sets);
  for (const Axis axis : kAxes)
    if (const auto it = recipe.parallel.given.find(name(axis));
        it != recipe.parallel.given.end() && to_text(it->second.value) == "1")
      recipe.parallel.alone.insert(name(axis));
  return recipe;
}

namespace {

// Also of a layout that is refused.
ParallelOptions parallel_of(Case one) {
  one.one_number = false;
  return recipe_of(one).parallel;
}

}  // namespace

int world_size(const Case& one) {
  const auto p = parallel_of(one);
  return static_cast<int>(p.tensor * p.context * p.pipeline * p.expert * p.shard * std::max<int64_t>(1, p.replicate));
}

int64_t micro_batches(const Case& one) {
  if (one.micro_batches > 0) return one.micro_batches;
  const auto p = parallel_of(one);
  return std::max<int64_t>(4, p.shard * p.expert * std::max<int64_t>(1, p.replicate));
}

namespace {

bool changes_no_bit_of_one_number(const std::string& set) {
  return set.starts_with("kernels.") || set.starts_with("run.micro_batch=") || set.starts_with("run.threads=");
}

}  // namespace

Case one_rank(Case one) {
  // What the layout says of other sections (model.depth) is of the run on one rank too.
  for (auto& set : options_of(one.layout))
    if (!set.starts_with("parallel.")) one.sets.push_back(std::move(set));
  one.layout.clear();
  one.device = "cpu";
  one.fault.clear();
  one.save_to.clear();
  one.load_from.clear();
  one.steps += one.resumed;
  one.resumed = 0;
  one.bits = one.counts = one.replay = false;
  one.refused.clear();
  if (one.one_number) std::erase_if(one.sets, changes_no_bit_of_one_number);
  if (one.whole) {
    one.micro_batches = 1;
    std::erase_if(one.sets, [](const std::string& set) { return set.starts_with("run.micro_batch="); });
  }
  return one;
}

Case control_of(Case one) {
  one.is_control = true;
  one.precision = one.precision == "fp32" ? "fp64" : "fp32";
  return one;
}

std::string title(const Case& one) {
  std::string text = one.model + " " + one.precision + " " + (one.layout.empty() ? "one rank" : one.layout);
  for (const auto& set : one.sets) text += " " + set;
  if (one.optimizer != "adamw") text += ", " + one.optimizer;
  if (one.real_init) text += ", real initialisation";
  if (one.packed) text += ", packed";
  if (one.device != "cpu") text += ", " + one.device;
  if (one.whole) text += ", against a whole batch";
  if (one.micro_batches > 0) text += fmt::format(", {} micro-batches", one.micro_batches);
  if (one.one_number) text += ", one number";
  if (one.bits && !one.one_number) text += ", bits";
  if (!one.save_to.empty()) text += ", saved";
  if (!one.load_from.empty()) text += ", from " + one.load_from;
  if (!one.fault.empty()) text += ", planted: " + one.fault;
  return text;
}

std::string key_of(const Case& one) {
  std::string text = fmt::format("{} {} {} {} {} {} {} {} {}", one.model, one.precision, one.optimizer, one.steps,
                                 one.micro_batches, one.batch, one.real_init, one.replay, is_steady(one));
  for (const auto& set : one.sets) text += " " + set;
  if (one.packed) text += " packed";
  if (one.one_number) text += " one number";
  return fmt::format("{}-{}-{:016x}", one.model, one.precision, std::hash<std::string>()(text));
}

SavedShapes shapes_of(const Case& one) {
  const auto& x = tiny(one.model).x;
  const auto data = source_of(one)->makes();
  ModelNeeds needs{{{"x", torch::kFloat, x}, {"t", torch::kFloat, {}}}, x[0]};
  for (const auto& spec : data)
    if (spec.name != "clean") needs.inputs.push_back(spec);
  return {needs, data};
}

const std::vector<std::string>& key_biases(const std::string& model) { return tiny(model).key_biases; }

std::shared_ptr<Source> source_of(const Case& one) { return std::make_shared<TinySource>(tiny(one.model)); }

}  // namespace ditto::matrix
