#include "core/train/sheets.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <ditto/math/sizes.h>
#include <ditto/text.h>

#include "core/data/batch_job.h"
#include "core/data/loader.h"
#include "core/data/names.h"
#include "core/formats/text/json.h"
#include "core/sample/clip.h"
#include "core/sample/conditions.h"
#include "core/sample/grid.h"
#include "core/sample/prompts.h"

namespace ditto {

using nlohmann::ordered_json;
using torch::Tensor;

namespace {

bool has_own_sides(const std::vector<int64_t>& shape) {
  return std::find(shape.begin(), shape.end(), kOwnSide) != shape.end();
}

bool is_classes_alone(const TensorSpecs& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [](const auto& spec) { return spec.values > 0; });
}

// That take turns on a sheet; 0: it is not of classes alone.
int64_t classes_in_turn(const TensorSpecs& wanted) {
  const auto* label = find(wanted, names::kLabel);
  return label && is_classes_alone(wanted) ? label->values : 0;
}

// So many that a column can be a class, and all rows are whole.
int64_t count_of_grid(const Recipe& recipe, const TensorSpecs& wanted) {
  const auto count = recipe.validate.grid, classes = classes_in_turn(wanted);
  if (recipe.log.grid_columns > 0 || classes < 2 || classes > count) return count;
  return (count + classes - 1) / classes * classes;
}

// Without a cell that stays empty: a column a class or, of other pictures, as near to a square as whole rows are.
int columns_of(const Recipe& recipe, int64_t count, int64_t classes) {
  if (recipe.log.grid_columns > 0) return static_cast<int>(recipe.log.grid_columns);
  if (classes > 1 && count % classes == 0) return static_cast<int>(classes);
  int64_t columns = 1;
  while (columns * columns < count || count % columns != 0) ++columns;
  return static_cast<int>(columns);
}

GenerateOptions options_of(const Assembly& assembly) {
  GenerateOptions options;
  options.steps = assembly.recipe.sampler_steps;
  options.clip = clip_of(assembly.recipe);
  options.batch = assembly.recipe.validate.grid;
  options.cache = assembly.cache.get();
  options.failure = GenerateOptions::Failure::together;
  return options;
}

std::vector<std::string> captions_of(const Batch& batch) {
  const auto caption = batch.tensors.find(names::kCaption);
  const bool is_there = caption != batch.tensors.end() && caption->second.scalar_type() == torch::kByte;
  return is_there ? texts_of(caption->second.flatten(1)) : std::vector<std::string>();
}

ordered_json class_of(int64_t number, const TensorSpec& label) {
  const auto place = static_cast<size_t>(number);
  return place < label.names.size() ? ordered_json(label.names[place]) : ordered_json(number);
}

// --- [[validate.picture]] ---------------------------------------------------------------------------------------

struct Chosen {
  int64_t seed, steps;
  std::vector<int64_t> shape;
  std::shared_ptr<Guidance> guidance;
  Batch conditions;   // one row
  ordered_json said;  // what it is asked for by
};

class Chooser {
 public:
  // Without `encodes` a prompt is so many zeros as one token has.
  Chooser(Assembly& assembly, const SheetPicture& picture, bool encodes)
      : assembly_(assembly),
        recipe_(assembly.recipe),
        networks_(*assembly.networks),
        picture_(picture),
        takes_(networks_.conditions()),
        encodes_(encodes) {}

  Chosen chosen() {
    one_.seed = picture_.seed;
    one_.steps = picture_.steps > 0 ? picture_.steps : recipe_.sampler_steps;
    one_.said = {{"seed", one_.seed}, {"steps", one_.steps}};
    one_.conditions.ids = {one_.seed};
    one_.conditions.weights = {1};
    choose_shape();
    choose_guidance();
    read_condition();
    take_prompt();
    take_class();
    take_empty_text();
    require_all_of_it();
    return std::move(one_);
  }

 private:
  [[noreturn]] void refuse(const std::string& option, const std::string& what, const std::string& remedy) const {
    const auto key = picture_.section + (option.empty() ? "" : "." + option);
    throw Error(ErrorKind::config, recipe_.place_of(key), key + " " + what, remedy);
  }

  void choose_shape() {
    one_.shape = networks_.shape_of_one();
    if (picture_.size.empty()) {
      if (has_own_sides(one_.shape))
        refuse("", "has no size, and the model learns samples of several", "add size = \"HEIGHTxWIDTH\"");
      return;
    }
    const auto sides = sides_of(picture_.size);
    const auto is_huge = [](int64_t side) { return side > most::kSide; };
    if (sides.size() + 1 != one_.shape.size() || std::any_of(sides.begin(), sides.end(), is_huge))
      refuse("size", "is \"" + shown(picture_.size) + "\"",
             one_.shape.size() == 4 ? "the model makes videos: write FRAMESxHEIGHTxWIDTH, as \"8x32x32\""
                                    : "the model makes pictures: write HEIGHTxWIDTH, as \"32x32\"");
    std::copy(sides.begin(), sides.end(), one_.shape.begin() + 1);
    one_.said["size"] = sides;
  }

  void choose_guidance() {
    one_.guidance = assembly_.guidance;
    if (!picture_.has_guidance) return;
    auto component = recipe_.guidance;
    if (component.plugin == "none") component.plugin = kScaleGuidance;
    component.options.given["scale"] = {picture_.guidance, recipe_.place_of(picture_.section + ".guidance")};
    one_.guidance = assembly_.components.make<Guidance>(
        "", component, {[this](const std::string& name) { networks_.network(name).require_same_schedule(); }});
    if (takes_.empty() && one_.guidance->uses_negative())
      refuse("guidance", "would have no effect: the model takes no condition", "leave it out");
    one_.said["guidance"] = picture_.guidance;
  }

  void read_condition() {
    if (picture_.condition.empty()) return;
    if (takes_.empty()) refuse("condition", "names a file, and the model takes no condition", "leave it out");
    const ConditionFile file(picture_.condition, takes_);
    if (file.rows() != 1)
      refuse("condition", fmt::format("names a file of {} rows, and a picture is one sample", file.rows()),
             "give a file of one row, and a picture for each of them");
    one_.conditions.tensors = file.tensors();
    one_.said["condition"] = std::filesystem::path(picture_.condition).filename().string();
  }

  void take_prompt() {
    if (picture_.prompt.empty()) return;
    if (picture_.prompt.find('\0') != std::string::npos)
      refuse("prompt", "holds a NUL, at which a text ends", "leave it out");
    const auto reads = [](const auto& encoder) { return find(encoder->encoder->takes(), names::kCaption) != nullptr; };
    const bool is_read = std::any_of(networks_.encoders.begin(), networks_.encoders.end(), reads);
    const auto made = made_of_prompts(networks_);
    if (made.empty() && (is_read || !find(takes_, names::kText)))
      refuse("prompt", "is a text, which model \"" + recipe_.model.plugin + "\" does not take", "leave it out");
    for (const auto& spec : made)
      if (one_.conditions.has(spec.name))
        refuse("prompt", "stands beside a condition that gives \"" + spec.name + "\"", "leave one of them out");
    if (!is_read)
      refuse("prompt", "is a text, and no encoder of this recipe takes one",
             "encode it beforehand, and give the embedding in condition = \"FILE.safetensors\"");
    const auto encoded = encodes_
                             ? encode_prompts({picture_.prompt}, {one_.seed},
                                              [&](Batch batch) {
                                                return networks_.encode_given({std::move(batch), {}}).to(torch::kCPU);
                                              })
                             : zeros();
    one_.conditions.tensors.insert(encoded.tensors.begin(), encoded.tensors.end());
    one_.said["prompt"] = picture_.prompt;
  }

  Batch zeros() const {
    Batch batch;
    for (const auto& spec : takes_) {
      if (spec.values > 0 || spec.shape == kAnyShape) continue;
      auto shape = spec.shape;
      std::replace_if(
          shape.begin(), shape.end(), [](int64_t side) { return side < 0; }, 1);
      shape.insert(shape.begin(), 1);
      batch[spec.name] = torch::zeros(shape, spec.dtype);
    }
    return batch;
  }

  void take_class() {
    const auto* label = find(takes_, names::kLabel);
    const auto& word = picture_.of_class;
    if (!label || label->values == 0) {
      if (!word.empty())
        refuse("class", "is \"" + shown(word) + "\", and model \"" + recipe_.model.plugin + "\" takes no class",
               "leave it out");
      return;
    }
    const bool is_given = one_.conditions.has(label->name);
    if (is_given && !word.empty())
      refuse("class", "stands beside a condition that gives \"label\"", "leave one of them out");
    if (is_given) return;
    const auto key = picture_.section + ".class";
    const auto place = std::stoll(picture_.section.substr(picture_.section.rfind('.') + 1));
    const auto number = word.empty() ? place % label->values : class_called(word, *label, recipe_.place_of(key), key);
    one_.conditions[label->name] = torch::full({1}, number, label->dtype);
    one_.said["class"] = class_of(number, *label);
  }

  void take_empty_text() {
    if (encodes_) {
      one_.conditions = networks_.with_empty_text(std::move(one_.conditions)).to(torch::kCPU);
      return;
    }
    const auto all = zeros();
    for (const auto& spec : networks_.empty_text_specs())
      if (all.has(spec.name)) one_.conditions.tensors.emplace(spec.name, all.at(spec.name));
  }

  void require_all_of_it() const {
    for (const auto& spec : takes_)
      if (!one_.conditions.has(spec.name))
        refuse("", "gives no " + to_text(spec) + ", which model \"" + recipe_.model.plugin + "\" takes",
               std::string("add condition = \"FILE.safetensors\"") +
                   (spec.name == names::kText ? ", or a prompt where an encoder takes texts" : ""));
  }

  Assembly& assembly_;
  const Recipe& recipe_;
  Networks& networks_;
  const SheetPicture& picture_;
  const TensorSpecs takes_;
  const bool encodes_;
  Chosen one_{};
};

std::vector<Chosen> all_chosen(Assembly& assembly, bool encodes) {
  std::vector<Chosen> all;
  for (const auto& picture : assembly.recipe.validate.pictures)
    all.push_back(Chooser(assembly, picture, encodes).chosen());
  return all;
}

// Each by itself, so that its numbers follow from what it asks for whatever else the list has; those that are alike in
// shape are shared out among the data ranks. Their frames, in the order of the list.
std::vector<std::vector<formats::Picture>> draw_chosen(Assembly& assembly, const std::vector<Chosen>& all) {
  std::map<std::string, std::vector<size_t>> alike;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& one = all[i];
    auto key = fmt::format("{} {}", one.steps, one.said.value("guidance", ordered_json()).dump());
    for (const int64_t side : one.shape) key += fmt::format(" {}", side);
    for (const auto& [name, rows] : one.conditions.tensors) key += " " + name + c10::str(rows.sizes());
    alike[key].push_back(i);
  }
  auto& networks = *assembly.networks;
  std::vector<std::vector<formats::Picture>> drawn(all.size());
  for (const auto& [key, places] : alike) {
    const auto& first = all[places.front()];
    SampleRequests requests;
    requests.shape = first.shape;
    for (const size_t i : places) requests.seeds.push_back(all[i].seed);
    for (const auto& [name, row] : first.conditions.tensors) {
      std::vector<Tensor> rows;
      for (const size_t i : places) rows.push_back(all[i].conditions.at(name));
      requests.conditions[name] = torch::cat(rows);
    }
    auto options = options_of(assembly);
    options.steps = first.steps;
    options.batch = 1;
    const auto samples = generate(networks, *assembly.sampler, *first.guidance, requests, options);
    torch::NoGradGuard no_grad;
    const auto decoded = networks.decode(samples).cpu();
    for (size_t row = 0; row < places.size(); ++row) {
      const auto one = decoded.slice(0, static_cast<int64_t>(row), static_cast<int64_t>(row) + 1);
      for (const auto& frame : one.dim() == 5 ? one.unbind(2) : std::vector<Tensor>{one})
        drawn[places[row]].push_back(report::to_pictures(frame).front());
    }
  }
  return drawn;
}

// A video that is shorter than others stands still at its end.
std::vector<formats::Picture> sheets_of(const std::vector<std::vector<formats::Picture>>& drawn,
                                        const report::SheetOptions& look) {
  size_t frames = 0;
  for (const auto& one : drawn) frames = std::max(frames, one.size());
  std::vector<formats::Picture> sheets;
  for (size_t frame = 0; frame < frames; ++frame) {
    std::vector<formats::Picture> cells;
    for (const auto& one : drawn) cells.push_back(one[std::min(frame, one.size() - 1)]);
    sheets.push_back(report::make_sheet(cells, look));
  }
  return sheets;
}

ordered_json said_of(const GridRequests& grid, const TensorSpecs& wanted) {
  auto all = ordered_json::array();
  const auto* label = find(wanted, names::kLabel);
  const bool has_label = label && label->values > 0 && grid.samples.conditions.has(label->name);
  for (size_t i = 0; i < grid.samples.seeds.size(); ++i) {
    ordered_json one{{"seed", grid.samples.seeds[i]}};
    if (has_label)
      one["class"] = class_of(grid.samples.conditions.at(label->name)[static_cast<int64_t>(i)].item<int64_t>(), *label);
    if (!grid.of_data.empty()) one["sample"] = grid.of_data[i];
    if (!grid.prompts.empty()) one["prompt"] = grid.prompts[i];
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace

GridRequests grid_requests(Assembly& assembly, const std::function<void(const std::string&)>& warn) {
  const auto& recipe = assembly.recipe;
  auto& networks = *assembly.networks;
  const auto wanted = networks.conditions();
  const auto pictures = count_of_grid(recipe, wanted);
  GridRequests grid;
  auto& requests = grid.samples;
  for (int64_t i = 0; i < pictures; ++i) requests.seeds.push_back(i);
  const bool classes_alone = is_classes_alone(wanted);
  const bool own_sides = has_own_sides(networks.shape_of_one());
  if (classes_alone)
    for (const auto& spec : wanted)
      requests.conditions[spec.name] = torch::arange(pictures).remainder(spec.values).to(spec.dtype);
  if (classes_alone && !own_sides) return grid;
  const auto& source = assembly.validation_data ? assembly.validation_data : assembly.train_data;
  Loader loader(source, validation_options(recipe.loader), static_cast<uint64_t>(recipe.run.seed), warn);
  const auto count = std::min(recipe.validate.grid, source->size());
  auto read = loader.read({0, count})->result();
  const auto captions = captions_of(*read.begin());
  const auto batch = networks.encode(read.to(assembly.main->ctx->device), Phase::sample);
  const auto& part = *batch.begin();  // of several sizes a sheet shows one, the first sample's
  if (own_sides) requests.shape = part.at(names::kClean).sizes().slice(1).vec();
  if (classes_alone) return grid;
  const auto rows = torch::arange(pictures).remainder(part.size());
  for (const auto& spec : wanted)
    requests.conditions[spec.name] = part.at(spec.name).to(torch::kCPU).index_select(0, rows);
  for (int64_t i = 0; i < pictures; ++i) {
    const auto row = static_cast<size_t>(i % part.size());
    grid.of_data.push_back(part.ids[row]);
    if (row < captions.size()) grid.prompts.push_back(captions[row]);
  }
  return grid;
}

void check_pictures(Assembly& assembly) {
  if (assembly.recipe.validate.pictures.empty()) return;
  const auto& networks = *assembly.networks;
  FlopCounter counter(assembly.components, *assembly.main);
  for (const auto& one : all_chosen(assembly, /*encodes=*/false)) {
    const auto sized = networks.scheduler->for_size(one.shape);
    (sized ? *sized : *networks.scheduler).time_grid(one.steps);
    auto shape = one.shape;
    shape.insert(shape.begin(), 1);
    auto batch = one.conditions;
    batch[names::kClean] = torch::empty(shape, torch::kMeta);
    guarded("model \"" + assembly.recipe.model.plugin + "\", of a picture of [[validate.picture]]",
            [&] { counter.forward(batch); });
  }
}

std::vector<std::string> sheet_notes(Assembly& assembly) {
  const auto& recipe = assembly.recipe;
  if (recipe.validate.grid_every == 0) return {};
  const auto wanted = assembly.networks->conditions();
  const auto& pictures = recipe.validate.pictures;
  if (!pictures.empty()) {
    std::vector<std::string> lines{
        fmt::format("sheets: the pictures of [[validate.picture]], {} in all", pictures.size())};
    for (const auto& one : all_chosen(assembly, /*encodes=*/false)) {
      if (!one.said.contains("guidance")) continue;
      const auto null = unlearned_null(recipe, *one.guidance);
      if (!null.empty() && lines.size() == 1) lines.push_back("warning: [[validate.picture]]: " + null);
    }
    return lines;
  }
  const auto count = count_of_grid(recipe, wanted), classes = classes_in_turn(wanted);
  auto text = fmt::format("sheets: {} picture{}", count, count == 1 ? "" : "s");
  if (classes > 0)
    text += columns_of(recipe, count, classes) == classes ? ", a column a class" : ", classes in turn";
  else if (!wanted.empty())
    text += std::string(", of what the first samples ") +
            (assembly.validation_data ? "that are held out" : "to learn from") +
            " have as conditions; [[validate.picture]] asks for others";
  return {text};
}

Sheet draw_sheet(Assembly& assembly, const std::function<void(const std::string&)>& warn) {
  const auto& recipe = assembly.recipe;
  auto& networks = *assembly.networks;
  const auto wanted = networks.conditions();
  report::SheetOptions look;
  look.min_cell = static_cast<int>(recipe.log.grid_cell);
  Sheet sheet;
  ordered_json said{{"sampler", recipe.sampler.plugin}, {"guidance", recipe.guidance.plugin}};
  if (recipe.validate.pictures.empty()) {
    const auto grid = grid_requests(assembly, warn);
    const auto samples = generate(networks, *assembly.sampler, *assembly.guidance, grid.samples, options_of(assembly));
    look.columns = columns_of(recipe, static_cast<int64_t>(grid.samples.seeds.size()), classes_in_turn(wanted));
    torch::NoGradGuard no_grad;
    sheet.frames = report::make_sheets(networks.decode(samples).cpu(), look);
    said["steps"] = recipe.sampler_steps;
    said["pictures"] = said_of(grid, wanted);
  } else {
    const auto chosen = all_chosen(assembly, /*encodes=*/true);
    look.columns = columns_of(recipe, static_cast<int64_t>(chosen.size()), 0);
    sheet.frames = sheets_of(draw_chosen(assembly, chosen), look);
    for (const auto& one : chosen) said["pictures"].push_back(one.said);
  }
  said["columns"] = look.columns;
  sheet.request = formats::ascii_json(said, -1);
  return sheet;
}

}  // namespace ditto
