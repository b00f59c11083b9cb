#include "core/plan/first_recipe.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "core/data/cut_off.h"
#include "core/dataset/inspect.h"
#include "core/formats/names.h"

namespace ditto {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostTokens = 256;

// "8 x 8 x 1": height, width, channels.
std::array<int64_t, 3> sides_in(const std::string& size) {
  std::istringstream text(size);
  std::array<int64_t, 3> sides{};
  char x = 0;
  text >> sides[0] >> x >> sides[1] >> x >> sides[2];
  return sides;
}

// The smallest patch that leaves few enough tokens; 0: none divides the sides.
int64_t patch_for(int64_t height, int64_t width) {
  for (int64_t patch = 2; patch <= std::min(height, width) / 2; ++patch)
    if (height % patch == 0 && width % patch == 0 && height / patch * (width / patch) <= kMostTokens) return patch;
  return 0;
}

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

}  // namespace

namespace {

// Shards by what they are for by their names.
struct ShardParts {
  std::vector<std::string> train, validation, left_out;

  explicit ShardParts(const std::vector<std::string>& shards) {
    using formats::SetPart;
    const auto name = [](const std::string& shard) { return fs::path(shard).filename().string(); };
    // A set may have a part for tests beside the one for validation: only one of them is seen while a model learns.
    const auto is_test = [&](const std::string& shard) { return name(shard).find("test") != std::string::npos; };
    const auto is = [&](const std::string& shard, SetPart part) { return formats::part_of_set(name(shard)) == part; };
    const auto any = [&](auto condition) { return std::any_of(shards.begin(), shards.end(), condition); };
    const bool has_train = any([&](const auto& shard) { return is(shard, SetPart::learned); });
    const bool has_more = any([&](const auto& shard) { return is(shard, SetPart::held_out) && !is_test(shard); });
    for (const auto& shard : shards) {
      const bool is_held_out = is(shard, SetPart::held_out);
      auto& part = is_held_out ? (is_test(shard) && has_more ? left_out : validation)
                               : (has_train && !is(shard, SetPart::learned) ? left_out : train);
      part.push_back(name(shard));
    }
    if (train.empty()) train.swap(validation);  // who names these alone means them
  }

  // As "train-*.tar" where that takes no other, else by their names.
  static std::vector<std::string> patterns(const std::vector<std::string>& names,
                                           std::initializer_list<const std::vector<std::string>*> others) {
    std::set<std::string> patterns;
    for (const auto& name : names) {
      const auto last = name.find_last_of("0123456789");
      const auto before = last == std::string::npos ? last : name.find_last_not_of("0123456789", last);
      const auto first = before == std::string::npos ? 0 : before + 1;
      patterns.insert(last == std::string::npos || name.find_first_of("*?[\\{") != std::string::npos
                          ? name
                          : name.substr(0, first) + "*" + name.substr(last + 1));
    }
    for (const auto* other : others)
      for (const auto& name : *other)
        for (const auto& pattern : patterns)
          if (::fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return names;
    return {patterns.begin(), patterns.end()};
  }
};

}  // namespace

ShardFacts shard_facts(const std::string& path, const std::string& folder, int64_t most_side) {
  ShardFacts facts;
  const bool is_folder = fs::is_directory(path);
  const auto beside = fs::path(path).parent_path();
  const fs::path home = is_folder ? fs::path(path) : beside.empty() ? fs::path(".") : beside;
  const auto here = fs::absolute(home).lexically_normal().lexically_proximate(fs::absolute(folder).lexically_normal());
  const auto below = [&](std::vector<std::string> names) {
    for (auto& name : names) name = (here / name).string();
    return names;
  };
  std::map<std::string, int64_t> sizes;
  std::map<int64_t, int64_t> labels;
  int64_t trained = 0;
  const ShardParts parts(shards_named({path}));
  for (const auto* part : {&parts.train, &parts.validation})
    for (const auto& name : *part) {
      const auto report = inspect_shard((home / name).string(), Depth::headers);
      (part == &parts.validation ? facts.held_out : facts.samples) += report.samples;
      trained += report.samples;
      facts.captions += report.captions;
      for (const auto& [size, count] : report.sizes) sizes[size] += count;
      for (const auto& [label, count] : report.labels) labels[label] += count;
    }
  facts.train = below(ShardParts::patterns(parts.train, {&parts.validation, &parts.left_out}));
  facts.validation = below(ShardParts::patterns(parts.validation, {&parts.train, &parts.left_out}));
  if (!parts.left_out.empty())
    facts.notes.push_back(
        fmt::format("{} of the shards, {} first, are neither learned from nor held out by their names",
                    parts.left_out.size(), parts.left_out.front()));
  if (facts.samples == 0 || sizes.empty())
    throw Error(ErrorKind::data, path, "holds no picture to train on", "look inside with `ditto data inspect`");
  int64_t labelled = 0, pictures = 0, before = 0;
  for (const auto& [label, count] : labels) labelled += count;
  facts.names_classes = fs::exists(home / "classes.json");
  if (labelled == trained && !labels.empty()) facts.classes = labels.rbegin()->first + 1;
  // Of pictures that differ, the middle one of their shorter sides decides.
  std::multimap<int64_t, std::pair<std::string, int64_t>> by_side;
  facts.channels = 1;
  for (const auto& [size, count] : sizes) {
    const auto sides = sides_in(size);
    facts.channels = std::max(facts.channels, sides[2]);
    facts.one_size = facts.one_size && sides[0] == sides_in(sizes.begin()->first)[0] &&
                     sides[1] == sides_in(sizes.begin()->first)[1];
    by_side.emplace(std::min(sides[0], sides[1]), std::pair(size, count));
    pictures += count;
  }
  for (const auto& [side, size] : by_side)
    if ((before += size.second) * 2 >= pictures) {
      const auto sides = sides_in(size.first);
      facts.height = facts.one_size ? sides[0] : side;
      facts.width = facts.one_size ? sides[1] : side;
      break;
    }
  const bool fits =
      facts.one_size && std::max(facts.height, facts.width) <= most_side && patch_for(facts.height, facts.width) > 0;
  if (fits) return facts;
  facts.one_size = false;
  const int64_t side = std::min(facts.height, facts.width);
  facts.height = facts.width = side >= most_side ? most_side : std::max<int64_t>(4, side / 4 * 4);
  CutOff cut;
  for (const auto& [size, count] : sizes) {
    const auto sides = sides_in(size);
    cut.add(1 - static_cast<double>(std::min(sides[0], sides[1])) / static_cast<double>(std::max(sides[0], sides[1])),
            count);
  }
  if (const auto said = cut.sentence("data.size"); !said.empty()) facts.notes.push_back(said);
  return facts;
}

std::string to_text(const FirstRecipe& recipe, const ShardFacts& facts) {
  const bool has_classes = facts.classes > 0;
  auto text = fmt::format("[run]\nname = {}\nsteps = {}\nbatch = {}\nclip_norm = 1.0\n\n", quoted(recipe.name),
                          recipe.steps, recipe.batch);
  text += fmt::format("[data]\nplugin = \"webdataset\"\nshards = {}\n", nlohmann::json(facts.train).dump());
  if (!facts.validation.empty())
    text += fmt::format("validation_shards = {}\n", nlohmann::json(facts.validation).dump());
  if (!has_classes) text += "label = \"none\"\n";
  if (has_classes && !facts.names_classes) text += fmt::format("classes = {}\n", facts.classes);
  text += fmt::format("channels = {}\nsize = [{}, {}]\n", facts.channels, facts.height, facts.width);
  if (!facts.one_size) text += "resize = \"bicubic\"\n";
  text += "\n[encoder.image]\nplugin = \"identity\"\n\n";
  text += fmt::format(
      "[model]\nplugin = \"dit\"\nconvention = \"diffusers\"\ndepth = {}\nwidth = {}\nheads = {}\npatch = {}\n\n",
      recipe.depth, recipe.width, recipe.heads, recipe.patch);
  text += "[scheduler]\nplugin = \"rectified_flow\"\nconvention = \"noise_at_one\"\ntimes = \"logit_normal\"\n\n";
  text += "[sampler]\nplugin = \"euler\"\nsteps = 50\n\n";
  if (has_classes) text += "[guidance]\nplugin = \"cfg\"\nscale = 2.0\n\n";
  text += "[objective]\nplugin = \"diffusion\"\n";
  if (has_classes) text += "condition_dropout = 0.1\n";
  text += fmt::format(
      "\n[optimizer]\nplugin = \"adamw\"\n\n[lr_schedule]\nlr = {}\nwarmup = 100\n\n[ema]\ndecay = 0.999\n\n",
      recipe.width <= 384 ? "1e-3" : "1e-4");
  text += "[checkpoint]\nevery = 500\nkeep = 2\n\n[validate]\n";
  if (!facts.validation.empty())
    text += fmt::format("every = 100\nsamples = {}\n", std::min<int64_t>(facts.held_out, 256));
  return text + "grid_every = 500\ngrid = 40\n";
}

FirstRecipe fit_recipe(const ShardFacts& facts, const std::string& name, int64_t bytes, double operations,
                       const std::function<DryRun(const std::string& text)>& count) {
  struct Step {
    int64_t depth, width, heads;
  };
  static constexpr std::array<Step, 6> kLadder{
      {{28, 1152, 16}, {24, 1024, 16}, {12, 768, 12}, {12, 384, 6}, {6, 256, 4}, {6, 128, 4}}};
  FirstRecipe recipe;
  recipe.name = name;
  recipe.patch = std::max<int64_t>(patch_for(facts.height, facts.width), 1);
  for (const auto& model : kLadder) {
    recipe.depth = model.depth;
    recipe.width = model.width;
    recipe.heads = model.heads;
    const bool is_last = &model == &kLadder.back();
    for (recipe.batch = 128; recipe.batch >= (is_last ? 8 : 32); recipe.batch /= 2) {
      if (recipe.batch > std::max<int64_t>(facts.samples, 8)) continue;
      const auto cost = count(to_text(recipe, facts));
      const bool fits = cost.unknown.empty() && cost.largest.total() <= bytes && total(cost.flops) <= operations;
      if (!fits && !(is_last && recipe.batch <= 8)) continue;
      // A hundred times round the data, within reason.
      recipe.steps = std::clamp<int64_t>(100 * facts.samples / recipe.batch, 1000, 20000);
      return recipe;
    }
  }
  recipe.batch = 8;
  recipe.steps = 1000;
  return recipe;
}

}  // namespace ditto
