#include "apps/ditto/sample_requests.h"

#include <algorithm>
#include <charconv>
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

namespace ditto {

namespace {

constexpr const char* kSeeds = "0-15";

// The i-th sample takes the i-th class, modulo their count.
void give_classes(const SampleArguments& a, const TensorSpecs& takes, int64_t count, Asked& asked) {
  const auto& text = a.classes;
  const auto* label = find(takes, names::kLabel);
  if (!label || label->values == 0) {
    if (text.empty()) return;
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
void try_shapes(const SampleArguments& a, const SampleRequests& requests, Assembly& assembly) {
  auto one = requests.conditions.slice(0, 1);
  auto shape = requests.shape;
  shape.insert(shape.begin(), 1);
  one[names::kClean] = torch::empty(shape, torch::kMeta);
  const auto place = "model \"" + assembly.recipe.model.plugin + "\"" + (a.size.empty() ? "" : ", at --size " + a.size);
  guarded(place, [&] { FlopCounter(assembly.components, *assembly.main).forward(one); });
}

std::vector<int64_t> seeds_of(const SampleArguments& a, int64_t rows) {
  if (!a.seeds.empty() || rows <= 1) return number_list(a.seeds.empty() ? kSeeds : a.seeds, "--seeds");
  std::vector<int64_t> seeds(static_cast<size_t>(rows));
  std::iota(seeds.begin(), seeds.end(), 0);
  return seeds;
}

}  // namespace

Asked read_requests(const SampleArguments& a, Assembly& assembly) {
  auto& networks = *assembly.networks;
  const auto takes = networks.conditions();
  Asked asked;
  auto& requests = asked.requests;
  std::optional<ConditionFile> given, negative;
  Batch encoded;
  int64_t rows = 1;
  if (!a.condition.empty()) {
    given.emplace(a.condition, takes);
    rows = asked.condition_rows = given->rows();
  }
  if (!a.prompts.empty()) {
    if (!find(takes, names::kText))
      throw Error(ErrorKind::config, "--prompts " + shown(a.prompts), "the model takes no text", "leave it out");
    asked.prompts = read_prompts(a.prompts);
    encoded = encode_prompts(asked.prompts, [&](Batch batch) { return networks.encode_given(std::move(batch)); });
    rows = std::max(rows, encoded.size());
  }
  requests.seeds = seeds_of(a, rows);
  const auto count = static_cast<int64_t>(requests.seeds.size());
  requests.conditions.ids = requests.seeds;
  requests.conditions.weights.assign(requests.seeds.size(), 1);
  if (given) {
    give_rows(a.condition, given->tensors(), count, requests.conditions);
    tell_labels(a.condition, given->tensors(), takes);
  }
  give_rows("--prompts", encoded.tensors, count, requests.conditions);
  give_classes(a, takes, count, asked);
  requests.conditions = networks.with_empty_text(std::move(requests.conditions)).to(torch::kCPU);
  require_all(assembly.recipe.model.plugin, takes, requests.conditions);
  if (!a.negative.empty()) {
    negative.emplace(a.negative, takes);
    requests.negative.emplace();
    give_rows(a.negative, negative->tensors(), count, *requests.negative);
    require_negative(*assembly.guidance);
  }
  const auto& own = networks.shape_of_one();
  if (a.size.empty() && std::find(own.begin(), own.end(), kOwnSide) != own.end())
    throw Error(ErrorKind::config, "--size", "is needed: the model was trained with samples of several sizes",
                "give the size to make, as --size 32x48");
  requests.shape = a.size.empty() ? networks.shape_of_one() : sized(a.size, networks.shape_of_one());
  if (!a.size.empty() || given) try_shapes(a, requests, assembly);
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
