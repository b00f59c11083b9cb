#include "apps/ditto/sample_requests.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <numeric>
#include <sstream>

#include <fmt/format.h>
#include <torch/types.h>

#include <ditto/math/sizes.h>
#include <ditto/text.h>

#include "apps/ditto/class_words.h"
#include "apps/ditto/numbers.h"
#include "core/checkpoint/tensor_file.h"
#include "core/console/streams.h"
#include "core/data/names.h"
#include "core/network/flops.h"
#include "core/ranks/launch.h"
#include "core/sample/conditions.h"
#include "core/sample/handed.h"
#include "core/sample/prompts.h"

namespace ditto {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSeeds = "0-15";

// The i-th sample takes the i-th class, modulo their count.
void give_classes(const SampleArguments& a, const TensorSpecs& takes, int64_t count, Asked& asked) {
  const auto& text = a.classes;
  const auto* label = find(takes, names::kLabel);
  if (!label || label->values == 0) {
    if (text.empty() || a.is_later_stage) return;
    throw Error(ErrorKind::config, "--classes " + shown(text), "this model has no classes", "leave --classes out");
  }
  if (text.empty() && asked.requests.conditions.has(label->name)) return;  // a file's
  std::vector<int64_t> classes(static_cast<size_t>(label->values));
  std::iota(classes.begin(), classes.end(), 0);
  if (!text.empty()) classes = classes_named(text, *label);
  for (int64_t i = 0; i < count; ++i) asked.classes.push_back(classes[static_cast<size_t>(i) % classes.size()]);
  asked.class_names = label->names;
  if (a.name.find("{class}") != std::string::npos && rank_info().rank == 0)
    if (const auto said = told_apart(asked.classes, *label); !said.empty()) report::tell("--name: its " + said);
  give_rows("--classes", {{label->name, torch::tensor(asked.classes, torch::kLong).to(label->dtype)}}, count,
            asked.requests.conditions);
}

// A file's labels are numbers, where --classes takes names.
void tell_labels(const std::string& file, const std::map<std::string, torch::Tensor>& tensors,
                 const TensorSpecs& takes) {
  const auto* label = find(takes, names::kLabel);
  if (!label || !tensors.count(label->name) || rank_info().rank != 0) return;
  const auto numbers = tensors.at(label->name).flatten().to(torch::kLong).contiguous();
  const auto* first = numbers.data_ptr<int64_t>();
  if (const auto said = told_apart({first, first + numbers.numel()}, *label); !said.empty())
    report::tell(shown(file) + ": its " + said);
}

// Pictures as bytes would be taken for what is far outside of all that was learned.
void tell_large_pictures(const std::string& file, const std::map<std::string, torch::Tensor>& tensors,
                         const TensorSpecs& handed, size_t dims) {
  constexpr double kLarge = 16;  // latents are smaller
  for (const auto& [name, tensor] : tensors) {
    const auto* spec = find(handed, name);
    if (!spec || spec->shape.size() != dims || !tensor.is_floating_point() || rank_info().rank != 0) continue;
    if (const auto most = tensor.abs().max().item<double>(); most > kLarge)
      report::tell(fmt::format("warning: {}: \"{}\" reaches {:.3g}, and pictures are numbers in -1 … 1", shown(file),
                               name, most));
  }
}

// "16x24", or of videos "8x16x24", in the place of the model's own.
std::vector<int64_t> sized(const std::string& text, std::vector<int64_t> shape) {
  const bool video = shape.size() == 4;
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::config, "--size " + shown(text), what,
                video ? "the model makes videos: write FRAMESxHEIGHTxWIDTH, as 8x32x32"
                      : "the model makes pictures: write HEIGHTxWIDTH, as 32x32");
  };
  std::vector<int64_t> sizes;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, 'x');) {
    int64_t side = 0;
    const auto [end, code] = std::from_chars(part.data(), part.data() + part.size(), side);
    if (code != std::errc() || end != part.data() + part.size() || side < 1 || side > most::kSide)
      refuse(fmt::format("\"{}\" is not a size from 1 to {}", shown(part), most::kSide));
    sizes.push_back(side);
  }
  if (sizes.size() + 1 != shape.size())
    refuse(fmt::format("has {} sizes, expected {}", sizes.size(), shape.size() - 1));
  std::copy(sizes.begin(), sizes.end(), shape.begin() + 1);
  return shape;
}

// The model runs on shapes alone: what it does not take is refused before weights are used or anything is computed.
void try_shapes(const std::string& size, const SampleRequests& requests, Assembly& assembly) {
  auto one = completed(*assembly.networks, requests.conditions.slice(0, 1), 0);
  if (!requests.prompts.empty())
    EncodedPrompts(*assembly.networks, requests.prompts, requests.seeds, requests.kept.get()).add_to(one, 0);
  auto shape = requests.shape;
  shape.insert(shape.begin(), 1);
  one[names::kClean] = torch::empty(shape, torch::kMeta);
  const auto place = "model \"" + assembly.recipe.model.plugin + "\"" + (size.empty() ? "" : ", at --size " + size);
  guarded(place, [&] { FlopCounter(assembly.components, *assembly.main).forward(one); });
}

// What a file of prompts says of samples, beside the words of the command.
struct Asking {
  std::vector<int64_t> seeds;
  std::string size;
};

// Of all lines of a file, or of none.
template <class Value>
std::vector<Value> said_by_lines(const std::string& file, const std::vector<Prompt>& prompts,
                                 std::optional<Value> Prompt::*member, const char* key, const std::string& remedy) {
  std::vector<Value> values;
  for (const auto& prompt : prompts)
    if (prompt.*member) values.push_back(*(prompt.*member));
  if (!values.empty() && values.size() != prompts.size())
    throw Error(ErrorKind::data, shown(file),
                fmt::format("has \"{}\" in {} of its {} prompts", key, values.size(), prompts.size()), remedy);
  return values;
}

void refuse_without_encoder(const std::string& option, const TensorSpecs& takes) {
  const bool takes_text =
      std::any_of(takes.begin(), takes.end(), [](const auto& spec) { return spec.name.starts_with(names::kText); });
  if (!takes_text) throw Error(ErrorKind::config, option, "the model takes no text", "leave it out");
  throw Error(ErrorKind::config, option,
              std::string("no encoder of this recipe makes \"") + names::kText + "\" from \"" + names::kCaption + "\"",
              "encode them beforehand, and give the embeddings in --condition FILE.safetensors");
}

// Texts, which are encoded later, a batch at a time.
Asking give_prompts(const SampleArguments& a, const Networks& networks, SampleRequests& requests) {
  Asking asking;
  if (a.prompts.empty() && !a.negative_prompt) return asking;
  const auto option = a.prompts.empty() ? "--negative-prompt" : "--prompts " + shown(a.prompts);
  const bool takes_text = !made_of_prompts(networks).empty();
  if (!takes_text && !a.is_later_stage) refuse_without_encoder(option, networks.conditions());
  if (a.negative_prompt && takes_text) requests.negative_prompts = {*a.negative_prompt};
  if (a.prompts.empty()) return asking;
  const auto prompts = read_prompts(a.prompts);
  for (const auto& prompt : prompts) requests.prompts.push_back(prompt.text);
  if (!a.negative_prompt)
    requests.negative_prompts = said_by_lines(a.prompts, prompts, &Prompt::negative, "negative",
                                              "give it in all, or --negative-prompt for the others");
  else
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (!prompts[i].negative) continue;
      requests.negative_prompts.resize(prompts.size(), *a.negative_prompt);
      requests.negative_prompts[i] = *prompts[i].negative;
    }
  asking.seeds = said_by_lines(a.prompts, prompts, &Prompt::seed, "seed", "give it in all, or in none with --seeds");
  const auto sizes = said_by_lines(a.prompts, prompts, &Prompt::size, "size", "give it in all, or in none with --size");
  if (!sizes.empty()) asking.size = sizes.front();
  if (const auto other =
          std::find_if(sizes.begin(), sizes.end(), [&](const auto& size) { return size != sizes.front(); });
      other != sizes.end())
    throw Error(ErrorKind::data, shown(a.prompts),
                "asks for samples of " + shown(sizes.front()) + " and of " + shown(*other),
                "give a file for each size: samples of one command have one");
  for (const auto& [key, is_twice] : {std::pair("seed", !asking.seeds.empty() && !a.seeds.empty()),
                                      std::pair("size", !asking.size.empty() && !a.size.empty())})
    if (is_twice)
      throw Error(ErrorKind::config, fmt::format("--{}", key == std::string("seed") ? "seeds" : key),
                  fmt::format("stands beside \"{}\" in {}", key, shown(a.prompts)), "leave one of them out");
  if (!takes_text) requests.prompts.clear(), requests.negative_prompts.clear();  // they are the first stage's
  return asking;
}

void refuse_twice(const TensorSpecs& encoded, const std::map<std::string, torch::Tensor>& given,
                  const std::string& file) {
  for (const auto& spec : encoded)
    if (given.count(spec.name))
      throw Error(ErrorKind::config, file, "gives \"" + spec.name + "\", which is made of the prompts already",
                  "leave --classes or --prompts out, or the tensor");
}

void require_rows(const std::vector<std::string>& texts, const char* option, int64_t count) {
  const auto rows = static_cast<int64_t>(texts.size());
  if (rows <= 1 || rows == count) return;
  throw Error(ErrorKind::data, option,
              fmt::format("has {} rows, and --seeds ask for {} sample{}", rows, count, count == 1 ? "" : "s"),
              "give as many seeds as rows, or one row for all");
}

std::vector<int64_t> seeds_of(const SampleArguments& a, int64_t rows) {
  if (!a.seeds.empty() || rows <= 1) return number_list(a.seeds.empty() ? kSeeds : a.seeds, "--seeds");
  std::vector<int64_t> seeds(static_cast<size_t>(rows));
  std::iota(seeds.begin(), seeds.end(), 0);
  return seeds;
}

void refuse_unused(const Networks& networks, const Batch& given, const std::string& file) {
  const auto unused = unused_names(networks, given);
  if (unused.empty()) return;
  throw Error(
      ErrorKind::data, file,
      "has \"" + shown(unused.front()) + "\", of which nothing is made: what would be made of it is there already",
      "leave one of them out");
}

// Until it comes: no model's null condition.
torch::Tensor any_of(const TensorSpec& spec) {
  auto shape = spec.shape;
  shape.insert(shape.begin(), 1);
  return torch::full(shape, 0.5, spec.dtype);
}

// Whether it is there yet or not.
bool is_same_place(const std::string& one, const std::string& other) {
  std::error_code ignored;
  const auto whole = [&](const std::string& path) {
    return fs::weakly_canonical(fs::absolute(path, ignored), ignored).lexically_normal();
  };
  return !other.empty() && whole(one) == whole(other);
}

}  // namespace

void refuse_same_places(const SampleArguments& a) {
  using Places = std::vector<std::pair<const char*, const std::string*>>;
  const Places outputs{
      {"--out", &a.out}, {"--npz", &a.npz}, {"--save-latents", &a.save_latents}, {"--pass", &a.pass.file}};
  const Places inputs{{"--condition", &a.condition},
                      {"--condition", &a.condition_of_all},
                      {"--negative", &a.negative},
                      {"--noise", &a.noise}};
  std::error_code ignored;
  for (size_t i = 0; i < outputs.size(); ++i) {
    auto others = inputs;
    if (fs::exists(a.prompts, ignored)) others.emplace_back("--prompts", &a.prompts);  // and is no text
    others.insert(others.end(), outputs.begin(), outputs.begin() + static_cast<ptrdiff_t>(i));
    const auto& [option, path] = outputs[i];
    for (const auto& [other, place] : others)
      if (!path->empty() && !place->empty() && is_same_place(*path, *place))
        throw Error(ErrorKind::config, fmt::format("{} {}", option, shown(*path)),
                    fmt::format("is the place of {} too", other), "give each its own");
  }
}

Asked read_requests(const SampleArguments& a, Assembly& assembly, const HandedOn* from) {
  auto& networks = *assembly.networks;
  const auto takes = networks.conditions();
  Asked asked;
  auto& requests = asked.requests;
  const auto asking = give_prompts(a, networks, requests);
  const auto own = shape_of_whole(networks);
  const auto& size = asking.size.empty() ? a.size : asking.size;
  if (size.empty() && std::find(own.begin(), own.end(), kOwnSide) != own.end())
    throw Error(ErrorKind::config, "--size", "is needed: the model was trained with samples of several sizes",
                "give the size to make, as --size 32x48");
  requests.shape = size.empty() ? own : sized(size, own);
  const auto handed = handed_specs(networks, requests.shape);
  std::optional<ConditionFile> given, negative;
  int64_t rows = 1;
  std::optional<ConditionFile> of_all;
  if (from)
    given.emplace(a.condition, NamedTensors{{from->spec.name, any_of(from->spec)}}, handed);
  else if (!a.condition.empty())
    given.emplace(a.condition, handed);
  if (given && !a.condition_of_all.empty()) of_all.emplace(a.condition_of_all, handed, *given);
  if (given) rows = asked.condition_rows = from ? from->count : given->rows();
  rows = std::max(rows, static_cast<int64_t>(requests.prompts.size()));
  requests.seeds = asking.seeds.empty() ? seeds_of(a, rows) : asking.seeds;
  const auto count = static_cast<int64_t>(requests.seeds.size());
  require_rows(requests.prompts, "--prompts", count);
  require_rows(requests.negative_prompts, "--prompts", count);
  requests.conditions.ids = requests.seeds;
  requests.conditions.weights.assign(requests.seeds.size(), 1);
  auto encoded = requests.prompts.empty() ? TensorSpecs() : made_of_prompts(networks);
  for (const auto* file : {given ? &*given : nullptr, of_all ? &*of_all : nullptr}) {
    if (!file) continue;
    const auto& path = file->path();
    give_rows(path, file->tensors(), count, requests.conditions);
    tell_labels(path, file->tensors(), takes);
    tell_large_pictures(path, file->tensors(), handed, requests.shape.size());
    refuse_twice(encoded, file->tensors(), path);
    for (const auto& [name, tensor] : file->tensors())
      if (!file->request().empty()) requests.followed[name] = {file->request(), {}};
  }
  if (from) requests.followed[from->spec.name] = {from->request, from->rows};
  give_classes(a, takes, count, asked);
  requests.conditions = networks.with_empty_text(std::move(requests.conditions)).to(torch::kCPU);
  refuse_unused(networks, requests.conditions, a.condition);
  for (auto& spec : completed_specs(networks, requests.conditions)) encoded.push_back(std::move(spec));
  require_all(assembly.recipe.model.plugin, takes, requests.conditions, encoded);
  if (!a.negative.empty()) {
    negative.emplace(a.negative, takes);
    requests.negative.emplace();
    give_rows(a.negative, negative->tensors(), count, *requests.negative);
    require_negative(*assembly.guidance);
    if (!requests.negative_prompts.empty()) refuse_twice(made_of_prompts(networks), negative->tensors(), a.negative);
  }
  // A cascade's later stages may have a guidance that leads away from nothing; its first one may not.
  if (a.is_later_stage && !assembly.guidance->uses_negative()) requests.negative_prompts.clear();
  if (!requests.negative_prompts.empty()) require_negative(*assembly.guidance, "--negative-prompt");
  if (!a.kept_texts.empty() && !requests.prompts.empty())
    requests.kept = std::make_shared<KeptTexts>(a.kept_texts, batch_size(*assembly.sampler, {.batch = a.batch}));
  if (!size.empty() || given || requests.shape != networks.shape_of_one()) try_shapes(size, requests, assembly);
  return asked;
}

torch::Tensor read_noise(const SampleArguments& a, const SampleRequests& requests) {
  const auto tensors = read_tensors(a.noise);
  const auto it = tensors.find("noise");
  if (it == tensors.end())
    throw Error(ErrorKind::data, a.noise, "has no tensor \"noise\"", "name it so, with shape [n, C, H, W]");
  auto expected = requests.shape;
  expected.insert(expected.begin(), static_cast<int64_t>(requests.seeds.size()));
  if (it->second.sizes() != at::IntArrayRef(expected))
    throw Error(ErrorKind::data, a.noise, fmt::format("noise is {}", to_text(OptionValue(it->second.sizes().vec()))),
                fmt::format("expected {}: one start for each seed", to_text(OptionValue(expected))));
  if (!it->second.isfinite().all().item<bool>())
    throw Error(ErrorKind::data, a.noise, "holds numbers that are not finite", "use other noise");
  return it->second;
}

}  // namespace ditto
