// Recipes of tests/options.toml as one process runs them, and what they make: a hash of it, or a refusal.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/types.h>

#include "core/assembly/first_weights.h"
#include "core/checkpoint/disk.h"
#include "core/data/batch_plan.h"
#include "core/data/sizes.h"
#include "core/formats/picture/picture.h"
#include "core/process/launch.h"
#include "core/sample/clip.h"
#include "core/train/sheets.h"
#include "core/train/trainer.h"
#include "core/train/validation.h"
#include "tests/support/encoder_weights.h"
#include "tests/support/files.h"

namespace ditto::option_recipes {

using formats::Table;
using Words = std::vector<std::string>;

inline Registry& plugins() {
  static Registry all(std::vector<SearchFolder>{{test::plugin_folder(), "the test"}});
  return all;
}

inline Words words_of(const formats::Node& node) {
  Words words;
  for (const auto& one : *node.as<formats::Array>())
    words.push_back(one.as<std::string>() ? *one.as<std::string>() : formats::render_toml_value(one));
  return words;
}

inline const Table& given_table() {
  static const Table table = formats::parse_toml_file(std::string(DITTO_SOURCE_DIR) + "/tests/options.toml");
  return table;
}

// Shards, a table, a run, and one of an autoencoder, for those that read files.
inline const test::TemporaryFolder& files();

// "-scheduler" takes that section out.
inline std::string recipe_text(const Words& sets = {}) {
  Table table = *given_table().find("recipe")->as<Table>();
  for (const auto& set : sets)
    if (set.starts_with('-')) table.erase(set.substr(1));
  return formats::render_toml(table);
}

inline Words at_place(const Words& sets) {
  Words all = sets;
  std::erase_if(all, [](const std::string& set) { return set.starts_with('-'); });
  for (auto& set : all) {
    set = std::regex_replace(set, std::regex("DIGITS"), std::string(DITTO_SOURCE_DIR) + "/data/digits");
    set = std::regex_replace(set, std::regex("FILES"), files().path().string());
    set = std::regex_replace(set, std::regex("GOLDEN"), std::string(DITTO_SOURCE_DIR) + "/tests/golden");
  }
  all.insert(all.begin(), "run.output=" + (files() / "out"));
  return all;
}

class Hash {
 public:
  void add(const torch::Tensor& tensor) {
    const auto numbers = tensor.detach().cpu().contiguous();
    text_ += checkpoint::checksum({static_cast<const std::byte*>(numbers.const_data_ptr()), numbers.nbytes()});
  }
  void add(double number) { add(torch::scalar_tensor(number, torch::kDouble)); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Of a run's steps, validation, averages and samples. `resolved`: its run.toml.
inline std::string made_by(Recipe recipe, std::string* resolved = nullptr) {
  declare_components(recipe, plugins());
  check_recipe(recipe, plugins());
  refuse_unserved(recipe, complete_degrees(degrees(recipe), 1));
  const GlooMesh mesh(RankInfo{}, degrees(recipe), std::chrono::seconds(60));
  AssemblyParts parts;
  parts.data = parts.objective = parts.latents = true;
  parts.sampler = bool(recipe.sampler);
  Assembly assembly(recipe, plugins(), mesh, parts, {});
  const auto seed = static_cast<uint64_t>(recipe.run.seed);
  Loader loader(assembly.train_data, recipe.loader, seed, [](const std::string&) {});
  const auto optimizer = assembly.make_optimizer();
  if (resolved) *resolved = formats::render_toml(recipe.resolved());
  read_first_weights(assembly, {mesh, [](const auto&, const auto&) {}, [](const auto&) {}});
  Ema ema(assembly.networks->learned(), recipe.ema);
  assembly.check(find_sizes(*assembly.train_data, taken_sizes(recipe.batch)).learned);
  TrainingStep step(assembly, loader, *optimizer, ema);
  Hash hash;
  for (int64_t i = 0; i < recipe.run.steps; ++i) {
    const auto result = step.run(i);
    for (const double number : {result.loss, result.grad_norm, result.lr}) hash.add(number);
    for (const auto& [name, loss] : result.losses) hash.add(loss);
  }
  for (const auto& entry : assembly.networks->learned().entries) hash.add(entry.tensor);
  for (const auto& tensor : ema.tensors()) hash.add(tensor);
  if (assembly.validation_data) {
    Loader held_out(assembly.validation_data, validation_options(recipe.loader), seed, {});
    hash.add(validate(assembly, ema, held_out).loss);
  }
  if (!recipe.sampler) return hash.text();
  const Ema::Scope averaged(ema, [&] { assembly.networks->parameters_changed(); });
  GenerateOptions options;
  options.steps = recipe.sampler_steps;
  options.clip = clip_of(recipe);
  options.cache = assembly.cache.get();
  hash.add(generate(*assembly.networks, *assembly.sampler, *assembly.guidance, grid_requests(assembly, {}).samples,
                    options));
  return hash.text();
}

struct Outcome {
  std::string hash, refusal;  // one of them
  std::string resolved;
};

inline const Outcome& outcome_of(const Words& sets) {
  static std::map<Words, Outcome> known;
  auto [it, is_new] = known.emplace(sets, Outcome{});
  if (!is_new) return it->second;
  try {
    it->second.hash = made_by(Recipe::parse(recipe_text(sets), "options.toml", at_place(sets)), &it->second.resolved);
  } catch (const Error& error) {
    it->second.refusal = error.what();
  }
  return it->second;
}

// A text encoder of the sizes that its place sets.
inline std::shared_ptr<Encoder> text_encoder(const std::string& id) {
  const std::regex size("encoder\\.text\\.(\\w+)=(\\d+)");
  OptionMap given{"encoder.text", "the test", {}};
  for (const auto& set :
       words_of(*given_table().find("place")->as<Table>()->find("encoder/" + id)->as<Table>()->find("sets")))
    if (std::smatch parts; std::regex_match(set, parts, size))
      given.given[parts[1]] = {int64_t{std::stoll(parts[2])}, "the test"};
  OptionReader reader(given);
  return plugins().factory<Encoder>(id).make(
      reader, {.inputs = {{"caption", torch::kByte, {-1}, ""}}, .folder = {}, .opens_files = false});
}

inline const test::TemporaryFolder& files() {
  static const test::TemporaryFolder folder;
  static const bool is_made = [] {
    const std::string header = "path,kind,text,h,w\n";
    std::string rows = header, few = header, more = header;
    int salt = 3;
    for (const std::string where : {"", "others/", "twin/", "twin/others/"}) {
      std::filesystem::create_directories(folder.path() / where);
      for (int i = 0; i < 12; ++i) {
        const int height = i % 2 == 0 ? 8 : 12, width = i % 3 == 0 ? 12 : 8;
        std::vector<std::uint8_t> pixels;
        for (int p = 0; p < height * width * 3; ++p) pixels.push_back(static_cast<std::uint8_t>((p * salt) % 251));
        const auto name = where + std::to_string(i) + ".png";
        formats::write_png(folder / name, {width, height, 3, pixels});
        const auto row = fmt::format("{},{},a word,{},{}\n", name, i % 4, height, width);
        if (where.empty()) rows += row;
        if (where == "others/") (i < 6 ? few : more) += row;
        salt += 4;
      }
    }
    for (const std::string id : {"t5", "clip_text", "bert"})
      test::write_some_weights(*text_encoder(id), folder / (id + ".safetensors"));
    test::write_text(folder / "rows.csv", rows);
    test::write_text(folder / "few.csv", few);  // what is held out is none of them
    test::write_text(folder / "more.csv", more);
    const auto train = [&](const std::string& name, const Words& words) {
      auto sets = words;
      sets.push_back("run.output=" + (folder / name));
      std::erase_if(sets, [](const std::string& set) { return set.starts_with('-'); });
      auto recipe = Recipe::parse(recipe_text(words), "options.toml", sets);
      declare_components(recipe, plugins());
      const GlooMesh mesh(RankInfo{}, {}, std::chrono::seconds(60));
      Trainer(recipe, plugins(), mesh, mesh.own_world("checkpoint"), {}).run();
    };
    train("run", {});
    train("autoencoder",
          words_of(*given_table().find("place")->as<Table>()->find("model/autoencoder_kl")->as<Table>()->find("sets")));
    return true;
  }();
  REQUIRE(is_made);
  return folder;
}

}  // namespace ditto::option_recipes
