#include "core/plan/nemo_recipe.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>
#include <utility>

#include <ditto/error.h>

#include "core/formats/text/json.h"
#include "core/plan/nemo_fields.h"
#include "core/process/launch.h"

namespace ditto {

using nlohmann::json;

namespace {

namespace fs = std::filesystem;

// Sections in the order in which they are first put.
class RecipeText {
 public:
  // `field`: of the YAML file, that the value stands in.
  void put(const std::string& section, const std::string& key, const json& value, const std::string& field = {}) {
    auto it = std::find_if(sections_.begin(), sections_.end(), [&](const auto& one) { return one.first == section; });
    if (it == sections_.end()) it = sections_.insert(it, {section, {}});
    // JSON's words, lists and numbers are TOML's.
    it->second += key + " = " + formats::ascii_json(value, -1) + "\n";
    if (!field.empty()) fields_[section + "." + key] = field;
  }
  // Of a line of the text; empty: of none.
  std::string field_at(int line) const {
    std::istringstream lines(text());
    std::string section, one;
    for (int i = 0; i < line && std::getline(lines, one); ++i)
      if (one.starts_with('[')) section = one.substr(1, one.size() - 2);
    const auto found = fields_.find(section + "." + one.substr(0, one.find(' ')));
    return found == fields_.end() ? std::string() : found->second;
  }
  std::string text() const {
    std::string all;
    for (const auto& [name, options] : sections_) all += (all.empty() ? "[" : "\n[") + name + "]\n" + options;
    return all;
  }

 private:
  std::vector<std::pair<std::string, std::string>> sections_;
  std::map<std::string, std::string> fields_;
};

// --- what says nothing to a recipe, and what can be said in one way alone ---

struct LeftOut {
  const char *field, *why;
};
constexpr LeftOut kLeftOut[] = {
    {"allow_tf32", "products in fp32 are of fp32 here"},
    {"trainer.logger", "exp_manager says what is logged"},
    {"trainer.enable_checkpointing", "exp_manager says what is kept"},
    {"trainer.limit_val_batches", "NeMo's Imagen holds nothing out; [validate] would"},
    {"trainer.num_sanity_val_steps", "NeMo's Imagen holds nothing out"},
    {"trainer.benchmark", "[kernels] and run.memory_format choose kernels"},
    {"trainer.enable_model_summary", "`ditto train RECIPE --dry-run` says what a model is"},
    {"exp_manager.wandb_logger_kwargs.*", "nothing is sent to Weights & Biases"},
    {"exp_manager.checkpoint_callback_params.monitor", "the newest checkpoints are kept"},
    {"exp_manager.checkpoint_callback_params.filename", "checkpoints are called by their steps"},
    {"exp_manager.resume_ignore_no_checkpoint", "a run that has no checkpoint begins"},
    {"exp_manager.ema.validate_original_weights", "NeMo's Imagen holds nothing out"},
    {"exp_manager.ema.cpu_offload", "where the average lies changes no number"},
    {"model.inductor", "no compiler stands between a model and its kernels"},
    {"model.inductor_cudagraphs", "no compiler stands between a model and its kernels"},
    {"model.apex_transformer_log_level", "is of a library that is not used"},
    {"model.gradient_as_bucket_view", "how gradients travel changes no number"},
    {"model.ddp_overlap", "how gradients travel changes no number"},
    {"model.unet.flash_attention", "attention is the same function by the fastest kernel, or that of [kernels]"},
    {"model.unet.stable_attention", "attention is the same function by the fastest kernel, or that of [kernels]"},
    {"model.data.synthetic_data_length", "is of made-up data"},
    {"model.data.webdataset.infinite_sampler", "every sample comes once an epoch, in an order by run.seed"},
    {"model.data.webdataset.verbose", "`ditto data inspect` says what shards hold"},
    {"model.data.pbss_checkpoint_saving.pbss_credentials_file", "is of checkpoints in a store"},
    {"model.data.pbss_checkpoint_saving.save_frequency", "is of checkpoints in a store"},
};

// Of three files of NeMo's, and one more; no option of them is to be mended before that.
void refuse_corruptions(const NemoFields& yaml) {
  const std::string corrupted = "model.data.train.corruption_aug";
  if (!yaml.has(corrupted)) return;
  const bool has_sizes = yaml.has("model.data.train.target_resolutions");
  yaml.refuse(
      corrupted,
      std::string("is a field that no code of NeMo's reads") +
          (has_sizes ? "" : ", and target_resolutions, which its data ask for, is missing: it cannot run there"),
      has_sizes ? "leave it out" : "say target_resolutions in its place");
}

void take_what_changes_nothing(NemoFields& yaml) {
  for (const auto& [field, why] : kLeftOut) yaml.leave_out(field, why);
  yaml.demand("trainer.max_epochs", {-1, nullptr}, "a run ends by its steps", "set -1, and say max_steps");
  yaml.demand("trainer.accumulate_grad_batches", {1}, "NeMo refuses another",
              "set 1: global_batch_size and micro_batch_size say it");
  for (const char* field :
       {"trainer.resume_from_checkpoint", "exp_manager.resume_from_checkpoint", "model.resume_from_checkpoint"})
    yaml.demand(field, {nullptr}, "a recipe does not go on from a file of NeMo's",
                "set null; `ditto checkpoint import --format nemo` and run.init_from take its weights");
  yaml.demand("exp_manager.create_wandb_logger", {false}, "nothing is sent to Weights & Biases",
              "set False; log.tensorboard and metrics.jsonl have the numbers");
  yaml.demand("exp_manager.checkpoint_callback_params.every_n_epochs", {0, nullptr}, "checkpoints come by steps",
              "set 0, and say every_n_train_steps");
  yaml.demand("exp_manager.resume_if_exists", {true}, "a recipe goes on where its run is",
              "set True; `ditto train RECIPE --resume never` begins anew");
  yaml.demand("exp_manager.ema.every_n_steps", {1}, "the average follows every step", "set 1");
  yaml.demand("model.data.synthetic_data", {false}, "made-up data of NeMo's are not those of `synthetic`",
              "set False; data.plugin = \"synthetic\" in the recipe makes such");
  yaml.demand("model.data.webdataset.use_webdataset", {true}, "NeMo's Imagen reads shards alone", "set True");
  yaml.demand("model.data.webdataset.object_store", {false}, "its addresses stand in a file of credentials",
              "set False, and name addresses in data.shards of the recipe (docs/data.md)");
  yaml.demand("model.data.pbss_checkpoint_saving.enable", {false}, "checkpoints go to a run's folder", "set False");
  yaml.demand("model.optim.sched.warmup_ratio", {nullptr}, "a warm-up is told in steps", "say warmup_steps");
}

// --- sections ---

void put_run(NemoFields& yaml, RecipeText& recipe) {
  const auto name = yaml.word("name", "imagen");
  const auto called = yaml.word("exp_manager.name", name);
  recipe.put("run", "name", called);
  if (const auto folder = yaml.take("exp_manager.exp_dir"); folder.is_string())
    recipe.put("run", "output", (fs::path(folder.get<std::string>()) / called).string());
  recipe.put("run", "steps", yaml.whole("trainer.max_steps"), "trainer.max_steps");
  recipe.put("run", "seed", yaml.whole("model.seed", 1234));
  recipe.put("run", "device",
             yaml.one_of("trainer.accelerator", "gpu", {{"gpu", "cuda"}, {"cuda", "cuda"}, {"cpu", "cpu"}}));
  const std::map<std::string, std::string> precisions{{"16", "fp16"},         {"16-mixed", "fp16"}, {"bf16", "bf16"},
                                                      {"bf16-mixed", "bf16"}, {"32", "fp32"},       {"32-true", "fp32"},
                                                      {"64", "fp64"},         {"64-true", "fp64"}};
  const auto precision = yaml.one_of("trainer.precision", "32", precisions);
  if (yaml.has("model.precision") && yaml.one_of("model.precision", "32", precisions) != precision)
    yaml.refuse("model.precision", "is not trainer.precision", "let it be ${trainer.precision}");
  recipe.put("run", "precision", precision);
  recipe.put("run", "batch", yaml.whole("model.global_batch_size"), "model.global_batch_size");
  recipe.put("run", "micro_batch", yaml.whole("model.micro_batch_size"), "model.micro_batch_size");
  recipe.put("run", "clip_norm",
             yaml.take("trainer.gradient_clip_val").is_null() ? 0.0 : yaml.number("trainer.gradient_clip_val"));
  if (yaml.has("model.channels_last"))
    recipe.put("run", "memory_format", yaml.flag("model.channels_last", false) ? "channels_last" : "channels_first");
}

struct Sides {
  int64_t whole, seen;  // of a picture, and of the part of it that the network learns
};

std::string unet_type(NemoFields& yaml) {
  return yaml.one_of("model.unet_type", "base", {{"base", "base"}, {"sr", "sr"}, {"sr-unet", "sr-unet"}});
}

// "N, N"
int64_t side_of_crop(NemoFields& yaml, const std::string& field) {
  const auto sides = yaml.word(field);
  int64_t rows = 0, columns = 0;
  char end = 0;
  if (std::sscanf(sides.c_str(), " %" SCNd64 " , %" SCNd64 " %c", &rows, &columns, &end) != 2 || rows < 1 ||
      rows != columns)
    yaml.refuse(field, "= " + sides + " is no square", "say a side twice, as 64, 64");
  return rows;
}

// The picture that is learned, and of models that enlarge the small one, with its noise, whose levels are spread as the
// picture's own.
void put_small_pictures(NemoFields& yaml, RecipeText& recipe, Sides sides) {
  if (unet_type(yaml) == "base") {
    recipe.put("encoder.image", "plugin", "identity");
    return;
  }
  const std::string target = "model.data.train.target_resolutions", theirs = "model.preconditioning.";
  const auto both = yaml.take(target);
  if (!both.is_array() || both.size() != 2 || !both[0].is_number_integer() || both[1] != sides.seen)
    yaml.refuse(target, "is not [LOW, " + std::to_string(sides.seen) + "]",
                "say both sides, of the picture to enlarge and of the picture");
  recipe.put("encoder.image", "plugin", "pyramid");
  recipe.put("encoder.image", "size", {both[0], both[0]});
  if (sides.seen < sides.whole) recipe.put("encoder.image", "crop", {sides.seen, sides.seen});
  if (!yaml.flag("model.noise_cond_aug", false)) return;
  recipe.put("encoder.low", "plugin", "noise_condition");
  const std::pair<const char*, const char*> names[] = {
      {"sigma_data", "sigma_data"}, {"p_mean", "mean"}, {"p_std", "std"}};
  for (const auto& [field, option] : names)
    if (yaml.has(theirs + field)) recipe.put("encoder.low", option, yaml.number(theirs + field));
}

Sides put_data(NemoFields& yaml, RecipeText& recipe) {
  const std::string train = "model.data.train.", pictures = train + "augmentations.";
  const auto root = fs::path(yaml.word("model.data.webdataset.local_root_path", ""));
  auto paths = yaml.take(train + "dataset_path");
  if (paths.is_string()) paths = json::array({paths});
  if (!paths.is_array() || paths.empty()) yaml.refuse(train + "dataset_path", "names no shards", "name some");
  std::vector<std::string> shards;
  for (const auto& one : paths) {
    if (!one.is_string()) yaml.refuse(train + "dataset_path", "has what is no text", "name shards");
    const fs::path path = one.get<std::string>();
    // NeMo's list of tar files is a pickle that lies beside them.
    shards.push_back((root / (path.extension() == ".pkl" ? path.parent_path() / "*.tar" : path)).string());
  }
  const auto crop = pictures + "center_crop_h_w";
  const auto smallest = yaml.whole(pictures + "resize_smallest_side"), seen = side_of_crop(yaml, crop);
  if (seen > smallest || (seen < smallest && unet_type(yaml) == "base"))
    yaml.refuse(crop,
                "= " + yaml.word(crop) + " of pictures whose smallest side is " + std::to_string(smallest) +
                    ": only what enlarges learns from parts of pictures here",
                "crop to what resize_smallest_side says");
  recipe.put("data", "plugin", "webdataset");
  recipe.put("data", "shards", shards);
  recipe.put("data", "label", "none");
  recipe.put("data", "size", {smallest, smallest});
  recipe.put("data", "resize", "bicubic");
  recipe.put("data", "channels", yaml.whole("model.unet.channels", 3), "model.unet.channels");
  put_small_pictures(yaml, recipe, {smallest, seen});
  recipe.put("loader", "threads", yaml.whole("model.data.num_workers", 2));
  recipe.put("loader", "flip", yaml.flag(pictures + "horizontal_flip", false));
  if (!yaml.take(train + "filterings").is_null())
    yaml.refuse(train + "filterings", "leaves pictures out by their size, and shards are learned from whole here",
                "set null, and name shards without those pictures");
  return {smallest, seen};
}

// What NeMo downloads where its field says nothing.
constexpr const char* kOwnEncoder = "t5-11b";

void put_texts(NemoFields& yaml, RecipeText& recipe) {
  const std::string theirs = "model.conditioning.";
  const bool encodes = yaml.flag(theirs + "online_encoding", false);
  if (encodes) recipe.put("data", "caption", "txt");
  for (const char* field : {"embed_dim", "token_length"}) recipe.put("conditioning", field, yaml.whole(theirs + field));
  recipe.put("conditioning", "drop_rate", yaml.number(theirs + "drop_rate"));
  for (const char* field : {"precached_key", "out_key", "encoder_path"})
    if (const auto value = yaml.take(theirs + field); !value.is_null()) recipe.put("conditioning", field, value);
  if (!encodes) return;
  if (yaml.take(theirs + "encoder_path").is_null()) recipe.put("conditioning", "encoder_path", kOwnEncoder);
  recipe.put("conditioning", "online_encoding", true);
  recipe.put("encoder.t5", "preset", "t5-11b");
}

void put_model(NemoFields& yaml, RecipeText& recipe, Sides sides) {
  const std::string theirs = "model.unet.";
  const auto type = unet_type(yaml);
  const bool enlarges = type != "base", efficient = type == "sr";
  recipe.put("model", "plugin", efficient ? "imagen_efficient_unet" : "imagen_unet");
  std::vector<std::string> as_they_are{"embed_dim",      "channel_mult",          "per_head_channels",
                                       "attention_type", "feature_pooling_type",  "learned_sinu_pos_emb_dim",
                                       "use_null_token", "init_conv_kernel_size", "scale_shift_norm"};
  const std::vector<std::string> of_efficient{"num_resblocks", "atnn_enabled_at", "stride", "skip_connection_scaling"},
      of_base{"attention_resolutions", "cond_dim", "resblock_updown", "resample_with_conv", "low_res_cond"};
  for (const auto& field : efficient ? of_efficient : of_base) as_they_are.push_back(field);
  for (const auto& field : as_they_are)
    if (const auto value = yaml.take(theirs + field); !value.is_null())
      recipe.put("model", field, value, theirs + field);
  if (!efficient && yaml.has(theirs + "num_res_blocks")) {
    const auto blocks = yaml.take(theirs + "num_res_blocks");
    recipe.put("model", "num_res_blocks", blocks.is_array() ? blocks : json::array({blocks}),
               theirs + "num_res_blocks");
  }
  recipe.put("model", "token_length", yaml.whole("model.conditioning.token_length"));
  const auto heads = yaml.take(theirs + "num_attn_heads");
  if (yaml.take(theirs + "per_head_channels") == -1) {
    if (!heads.is_null()) recipe.put("model", "num_attn_heads", heads, theirs + "num_attn_heads");
  } else {
    yaml.leave_out(theirs + "num_attn_heads", "does nothing where per_head_channels says it");
  }
  if (const auto image = yaml.whole(theirs + "image_size", sides.whole); image != sides.whole)
    yaml.refuse(theirs + "image_size",
                "= " + std::to_string(image) + ", and pictures have a side of " + std::to_string(sides.whole),
                "let both be the same");
  else if (!efficient)
    recipe.put("model", "image_size", image);
  // False is a rate of 0 there, and True one of 1.
  if (const auto rate = yaml.take(theirs + "dropout"); !efficient && rate.is_number())
    recipe.put("model", "dropout", rate, theirs + "dropout");
  else if (!rate.is_null() && (efficient || rate != false))
    yaml.refuse(theirs + "dropout", efficient ? "is not of this UNet" : "is no rate",
                efficient ? "leave it out" : "say a number below 1");
  const bool noisy = yaml.flag("model.noise_cond_aug", false);
  if (noisy && !enlarges)
    yaml.refuse("model.noise_cond_aug", "is of a picture to enlarge, and unet_type is base", "leave it out");
  if (noisy) recipe.put("model", "noise_cond_aug", true);
  if (yaml.flag(theirs + "gradient_checkpointing", false)) recipe.put("parallel", "recompute", "blocks");
}

void put_diffusion(NemoFields& yaml, RecipeText& recipe) {
  const std::string theirs = "model.preconditioning.";
  const auto loss = yaml.one_of(theirs + "loss_type", "l2", {{"l1", "l1"}, {"l2", "l2"}, {"huber", "huber"}});
  if (yaml.one_of("model.preconditioning_type", "DDPM", {{"DDPM", "DDPM"}, {"EDM", "EDM"}}) == "EDM") {
    recipe.put("scheduler", "plugin", "edm");
    const std::pair<const char*, const char*> names[] = {
        {"sigma_data", "sigma_data"}, {"p_mean", "mean"}, {"p_std", "std"}};
    for (const auto& [field, option] : names)
      if (yaml.has(theirs + field)) recipe.put("scheduler", option, yaml.number(theirs + field));
    recipe.put("sampler", "plugin", "heun");
    recipe.put("sampler", "steps", 50);
  } else {
    if (yaml.flag("model.noise_cond_aug", false))
      yaml.refuse("model.noise_cond_aug", "goes with EDM alone, in NeMo too", "set preconditioning_type: EDM");
    recipe.put("scheduler", "plugin", "ddpm_continuous");
    recipe.put("scheduler", "prediction",
               yaml.one_of(theirs + "pred_objective", "noise", {{"noise", "epsilon"}, {"x_start", "x0"}}));
    recipe.put("scheduler", "log_snr",
               yaml.one_of(theirs + "noise_schedule", "cosine", {{"cosine", "cosine"}, {"linear", "linear"}}));
    recipe.put("sampler", "plugin", "ancestral");
    recipe.put("sampler", "steps", yaml.whole(theirs + "timesteps", 1000));
  }
  recipe.put("scheduler", "loss", loss);
  recipe.put("sampler", "clip", "dynamic");
  recipe.put("guidance", "plugin", "cfg");
  recipe.put("objective", "plugin", "diffusion");
}

void put_optimizer(NemoFields& yaml, RecipeText& recipe) {
  const std::string theirs = "model.optim.";
  const auto name =
      yaml.one_of(theirs + "name", "fused_adam", {{"fused_adam", "fused_adam"}, {"adamw", "adamw"}, {"adam", "adam"}});
  const double unsaid = name == "adamw" ? 0.01 : 0.0;  // torch.optim.AdamW's; the others'
  const double decay = yaml.take(theirs + "weight_decay").is_null() ? unsaid : yaml.number(theirs + "weight_decay");
  if (name == "adam" && decay != 0)
    yaml.refuse(theirs + "name", "= adam, whose weight_decay is a part of the gradient", "set fused_adam or adamw");
  recipe.put("optimizer", "plugin", "adamw");
  const auto betas = yaml.take(theirs + "betas");
  if (!betas.is_null()) {
    if (!betas.is_array() || betas.size() != 2 || !betas[0].is_number() || !betas[1].is_number())
      yaml.refuse(theirs + "betas", "are no two numbers", "say two, as [0.9, 0.999]");
    recipe.put("optimizer", "beta1", betas[0]);
    recipe.put("optimizer", "beta2", betas[1]);
  }
  if (yaml.has(theirs + "eps")) recipe.put("optimizer", "eps", yaml.number(theirs + "eps"));
  recipe.put("optimizer", "weight_decay", decay);
  recipe.put("lr_schedule", "lr", yaml.number(theirs + "lr"), theirs + "lr");
  if (!yaml.take(theirs + "sched.name").is_null()) {
    yaml.one_of(theirs + "sched.name", "WarmupPolicy", {{"WarmupPolicy", "constant"}});
    // Step s of w has (s + 1) / (w + 1) of the rate there, and (s + 1) / w here.
    const auto steps = yaml.whole(theirs + "sched.warmup_steps", 0);
    recipe.put("lr_schedule", "warmup", steps > 0 ? steps + 1 : 0);
  }
}

void put_what_is_kept(NemoFields& yaml, RecipeText& recipe) {
  const std::string theirs = "exp_manager.", kept = theirs + "checkpoint_callback_params.";
  const bool averages = yaml.flag(theirs + "ema.enable", false);
  const auto decay = yaml.take(theirs + "ema.decay");
  recipe.put("ema", "enabled", averages);
  if (averages && !decay.is_null()) recipe.put("ema", "decay", yaml.number(theirs + "ema.decay"));
  if (averages) recipe.put("ema", "warmup", false);
  const bool keeps = yaml.flag(theirs + "create_checkpoint_callback", true);
  const auto every = yaml.whole(kept + "every_n_train_steps", 500), newest = yaml.whole(kept + "save_top_k", 3);
  if (newest < 1)
    yaml.refuse(kept + "save_top_k", "= " + std::to_string(newest) + ", and at least the newest checkpoint is kept",
                "set 1 or more");
  recipe.put("checkpoint", "every", keeps ? every : 0);
  if (keeps) recipe.put("checkpoint", "keep", newest);
  const bool shows = yaml.flag(theirs + "create_tensorboard_logger", true);
  recipe.put("log", "tensorboard", shows);
  const auto steps = yaml.whole("trainer.log_every_n_steps", 1);
  if (shows) recipe.put("log", "tensorboard_every", steps);
}

int64_t ranks_in(NemoFields& yaml) {
  const auto devices = yaml.take("trainer.devices");
  const auto nodes = yaml.whole("trainer.num_nodes", 1);
  const auto each = devices.is_array() ? static_cast<int64_t>(devices.size()) : yaml.whole("trainer.devices", 1);
  return std::max<int64_t>(each, 1) * nodes;  // 0: the processors of one machine
}

// As everyone reads it: what an option refuses is said of the field.
void check(const NemoFields& yaml, const RecipeText& made, const std::string& file, Registry& registry) {
  const std::string name = "recipe";
  try {
    auto recipe = Recipe::parse(made.text(), name);
    registry.try_out(plugins_of(recipe));
    declare_components(recipe, registry);
  } catch (const Error& error) {
    const std::string text = error.what();
    const auto place = std::min(text.find(name + ":"), text.size());
    int line = 0, column = 0, end = 0;
    std::sscanf(text.c_str() + place, "recipe:%d:%d: %n", &line, &column, &end);
    const auto field = made.field_at(line);
    if (end == 0 || field.empty()) throw error.within(file + ", as a recipe");
    yaml.refuse(field, "does not do: " + text.substr(place + static_cast<size_t>(end)), {});
  }
}

}  // namespace

NemoRecipe recipe_of_nemo(const std::string& yaml_text, const std::string& file, Registry& registry) {
  NemoFields yaml(yaml_text, file);
  for (const char* field : {"infer", "fid", "customized_model", "samplings", "texts"})
    if (yaml.has(field) && !yaml.has("model.unet"))
      yaml.refuse(field, "is of a file that NeMo samples or scores by, and a recipe is of training",
                  "name the file that a model is trained by; `ditto sample` and docs/sampling.md are for the rest");
  if (!yaml.has("model.unet"))
    throw Error(ErrorKind::config, file, "has no field model.unet, and so is not what NeMo's Imagen is trained by",
                "name such a file");
  refuse_corruptions(yaml);
  take_what_changes_nothing(yaml);
  RecipeText recipe;
  put_run(yaml, recipe);
  const auto sides = put_data(yaml, recipe);
  put_texts(yaml, recipe);
  put_model(yaml, recipe, sides);
  put_diffusion(yaml, recipe);
  put_optimizer(yaml, recipe);
  put_what_is_kept(yaml, recipe);
  const auto ranks = ranks_in(yaml);
  yaml.refuse_rest();
  yaml.whole("model.unet.embed_dim");  // NeMo's UNets have no default
  check(yaml, recipe, file, registry);
  auto notes = yaml.notes();
  notes.push_back("trainer.devices, num_nodes: a launcher starts ranks, " + std::to_string(ranks) +
                  " there (docs/clusters.md)");
  const std::string texts = "model.conditioning.";
  if (yaml.flag(texts + "online_encoding", false) && yaml.take(texts + "encoder_path").is_null())
    notes.push_back(texts + "encoder_path: NeMo downloads T5-11B; here its folder, " + kOwnEncoder +
                    ", is to lie beside the recipe");
  if (sides.seen < sides.whole)
    notes.push_back(
        "model.data.train.augmentations.center_crop_h_w: parts of pictures are cut by sample id, not from the middle");
  return {recipe.text(), std::move(notes)};
}

}  // namespace ditto
