#include <cmath>
#include <optional>

#include "core/exchange/foreign.h"
#include "core/exchange/foreign_folder.h"
#include "core/exchange/foreign_import.h"

namespace ditto::checkpoint {

namespace {

constexpr const char *kTrainedSet = "model.", *kAverageSet = "ema.", *kMomentsOf = "opt.state.", *kFirst = "exp_avg",
                     *kSecond = "exp_avg_sq", *kSteps = "steps", *kSecondGroup = "opt.param_groups.1.lr",
                     *kSection = "optimizer";

[[noreturn]] void refuse_file(const std::string& path, const std::string& what, const std::string& remedy) {
  throw Error(ErrorKind::checkpoint, path, what, remedy);
}

// Where the moments of each tensor lie: torch numbers an optimizer's parameters as the module lists them, and so do its
// weights stand in the file.
std::map<std::string, std::string> places_of_moments(const ForeignFile& file, const std::string& prefix) {
  std::map<std::string, std::string> places;
  int64_t number = 0;
  for (const auto& name : file.names())
    if (name.starts_with(prefix)) places[name.substr(prefix.size())] = kMomentsOf + std::to_string(number++) + ".";
  return places;
}

// One moment of each tensor, by the tensor's name.
class Moments final : public ForeignFile {
 public:
  Moments(const ForeignFile& file, const std::map<std::string, std::string>& places, const std::string& kind)
      : file_(file) {
    for (const auto& [name, place] : places)
      if (file.has(place + kind)) there_[name] = place + kind;
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& item : there_) names.push_back(item.first);
    return names;
  }
  bool has(const std::string& name) const override { return there_.count(name) != 0; }
  std::vector<int64_t> shape(const std::string& name) const override { return file_.shape(there_.at(name)); }
  formats::Dtype dtype(const std::string& name) const override { return file_.dtype(there_.at(name)); }
  torch::Tensor read(const std::string& name) const override { return file_.read(there_.at(name)); }
  torch::Tensor read(const std::string& name, int64_t first, int64_t count) const override {
    return file_.read(there_.at(name), first, count);
  }
  std::vector<std::string> files() const override { return file_.files(); }

 private:
  const ForeignFile& file_;
  std::map<std::string, std::string> there_;
};

// All parameters have made the same steps: torch notes them for each.
int64_t steps_of(const ForeignFile& file, const std::map<std::string, std::string>& places, const std::string& path) {
  std::optional<double> steps;
  for (const auto& [name, place] : places) {
    const auto at = place + "step";
    std::optional<double> here = file.number(at);
    if (!here && file.has(at)) here = file.read(at).to(torch::kDouble).item<double>();
    if (!here) continue;
    if (steps && *steps != *here)
      refuse_file(path,
                  "has made " + std::to_string(*steps) + " steps with some tensors and " + std::to_string(*here) +
                      " with '" + name + "'",
                  "import the weights without --optimizer");
    steps = here;
  }
  if (!steps || *steps < 0 || *steps != std::floor(*steps))
    refuse_file(path, "has no state of torch's Adam: nothing like 'opt.state.0.step'",
                "import the weights without --optimizer");
  return static_cast<int64_t>(*steps);
}

Layout with_tensors(Layout layout, const std::vector<torch::Tensor>& tensors) {
  for (size_t i = 0; i < layout.entries.size(); ++i) layout.entries[i].tensor = tensors.at(i);
  return layout;
}

}  // namespace

void import_training(const Units& of, const std::string& format_name, const std::string& given, TrainState& state) {
  const auto own = of.named_parameters();
  const std::string path = foreign_weights(given);
  const auto file = open_foreign(path);
  const auto format = of.foreign(format_name);
  const auto fill = [&](const ForeignFile& from, const std::string& prefix, Layout layout, bool is_weights) {
    std::erase_if(layout.entries,
                  [&](const LayoutEntry& entry) { return !own.contains(entry.name); });  // an objective's
    const auto parameters = entries_of(layout);
    require_map(format, parameters, "format " + format_name);
    ForeignImport import(from, path, prefix, format.former);
    for (const auto& tensor : format.tensors) import.parameter(tensor, *parameters.at(tensor.ours));
    if (is_weights) {
      for (const auto& [copy, original] : format.copies) import.copy(copy, original);
      for (const auto& [name, value] : format.constants) import.constant(name, value);
      import.refuse_others();
    }
    import.finish(is_weights ? "model" : kSection);
  };

  if (file->has(kSecondGroup) || file->number(kSecondGroup))
    refuse_file(path, "has several groups of parameters, and does not say which tensor is which number of them",
                "import the weights without --optimizer");
  const auto lists = state.optimizer->state();
  if (lists.size() != 2 || !lists.count(kFirst) || !lists.count(kSecond) ||
      state.optimizer->counters() != Optimizer::Counters{{kSteps, 0}})
    throw Error(ErrorKind::config, "[optimizer]", "is not Adam's, of which the moments in " + path + " are",
                "set optimizer.plugin = \"adamw\", or import without --optimizer");
  const auto places = places_of_moments(*file, kTrainedSet);
  state.step = steps_of(*file, places, path);
  fill(*file, kTrainedSet, *state.layout, true);
  if (state.ema && !state.ema->empty()) fill(*file, kAverageSet, with_tensors(*state.layout, *state.ema), true);
  for (const char* kind : {kFirst, kSecond})
    fill(Moments(*file, places, kind), "", with_tensors(*state.layout, lists.at(kind).tensors), false);
  state.optimizer->set_counters({{kSteps, static_cast<double>(state.step)}});
}

}  // namespace ditto::checkpoint
