#include "core/components/optimizers.h"

#include <algorithm>

#include "core/config/name_patterns.h"
#include "core/config/numerics.h"

namespace ditto {

using torch::Tensor;

namespace {

constexpr size_t kNamed = 12;  // parameters in a message

// --- which group takes a parameter ---

// Those that a person may have meant: "blocks.*.qkv.weight", "blocks.*", "*.qkv.weight", "*.weight", …
std::string nearest_pattern(const std::string& wanted, const std::vector<std::string>& names) {
  std::vector<std::string> patterns;
  for (const auto& name : names) {
    patterns.push_back(name);
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      patterns.push_back("*" + name.substr(dot));
      patterns.push_back(name.substr(0, dot) + ".*");
    }
  }
  return nearest(wanted, patterns);
}

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamed); ++i) text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > kNamed ? text + " and " + std::to_string(names.size() - kNamed) + " more" : text;
}

[[noreturn]] void refuse_pattern(const std::vector<OptimizerGroup>& groups, size_t number, const std::string& pattern,
                                 const std::vector<std::string>& names) {
  const auto& group = groups[number];
  const OptimizerGroup alone{{}, {pattern}, 1, {}};
  size_t matched = 0;
  std::vector<std::string> takers, forms;
  const auto add = [](std::vector<std::string>& list, const std::string& text) {
    if (std::find(list.begin(), list.end(), text) == list.end()) list.push_back(text);
  };
  for (const auto& name : names) {
    add(forms, as_pattern(name));
    if (!alone.matches(name)) continue;
    ++matched;
    add(takers,
        std::find_if(groups.begin(), groups.end(), [&](const auto& one) { return one.matches(name); })->section);
  }
  const auto& where = group.component.options.where;
  const std::string who = group.section + ".match: \"" + pattern + "\" matches ";
  if (matched > 0)
    throw Error(ErrorKind::config, where,
                who + std::to_string(matched) + " parameters, and " + list_of(takers) + " has taken them all",
                "the first group that matches a parameter takes it: put this one before, or leave it out");
  const auto near = nearest_pattern(pattern, forms);
  throw Error(ErrorKind::config, where, who + "no parameter that is trained",
              (near.empty() ? "" : "did you mean \"" + near + "\"? ") + ("there are " + list_of(forms)));
}

// groups.size(): none.
size_t taker(const std::vector<OptimizerGroup>& groups, const std::string& name) {
  const auto it = std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.matches(name); });
  return static_cast<size_t>(it - groups.begin());
}

// --- several optimizers as one ---

// Whole tensors for an optimizer of some of the parameters.
class WholeOfSome final : public WholeTensors {
 public:
  WholeOfSome(const WholeTensors& all, std::vector<size_t> places, size_t count)
      : all_(all), places_(std::move(places)), count_(count) {}

  std::vector<Tensor> gather(const std::vector<Tensor>& local) const override {
    return mine(all_.gather(among_all(local)));
  }
  std::vector<Tensor> scatter(const std::vector<Tensor>& whole, const std::vector<Tensor>& local) const override {
    return mine(all_.scatter(among_all(whole), among_all(local)));
  }
  std::vector<bool> here(const std::vector<Tensor>& local) const override { return mine(all_.here(among_all(local))); }

 private:
  std::vector<Tensor> among_all(const std::vector<Tensor>& some) const {
    std::vector<Tensor> all(count_);
    for (size_t i = 0; i < places_.size(); ++i) all[places_[i]] = some.at(i);
    return all;
  }
  template <class T>
  std::vector<T> mine(const std::vector<T>& all) const {
    std::vector<T> some;
    for (const size_t place : places_) some.push_back(all.at(place));
    return some;
  }

  const WholeTensors& all_;
  const std::vector<size_t> places_;
  const size_t count_;
};

struct Part {
  std::string plugin, prefix;  // of its counters
  double lr_scale;
  std::vector<size_t> places;  // of its parameters among all
  std::unique_ptr<WholeTensors> whole;
  std::shared_ptr<Optimizer> optimizer;
};

class GroupedOptimizer final : public Optimizer {
 public:
  GroupedOptimizer(std::vector<Part> parts, size_t count) : parts_(std::move(parts)), count_(count) {}

  Granularity granularity() const override {
    Granularity most = Granularity::elementwise;
    for (const auto& part : parts_) most = std::max(most, part.optimizer->granularity());
    return most;
  }
  bool exact() const override {
    return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.optimizer->exact(); });
  }
  bool averages() const override {
    return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.optimizer->averages(); });
  }

  bool skips() const override {
    return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.optimizer->skips(); });
  }

  void step(const Update& update) override {
    for (const auto& part : parts_) {
      Update own{.lr = update.lr * part.lr_scale, .clip = update.clip, .decay = update.decay};
      own.exact = update.exact;
      own.late_clip = update.late_clip;
      own.skip = update.skip;
      if (update.written)
        own.written = [&](size_t i, int64_t begin, int64_t end) { update.written(part.places[i], begin, end); };
      for (const size_t place : part.places) {
        if (!update.average.empty()) own.average.push_back(update.average.at(place));
        if (!update.copies.empty()) own.copies.push_back(update.copies.at(place));
      }
      part.optimizer->step(own);
    }
  }

  std::map<std::string, OptimizerState> state() override {
    std::map<std::string, OptimizerState> all;
    for (const auto& part : parts_)
      for (const auto& [kind, of] : part.optimizer->state()) add(all, part, kind, of);
    return all;
  }

  Counters counters() const override {
    Counters all;
    for (const auto& part : parts_)
      for (const auto& [name, value] : part.optimizer->counters()) all[part.prefix + name] = value;
    return all;
  }
  void set_counters(const Counters& counters) override {
    for (const auto& part : parts_) {
      Counters own = part.optimizer->counters();
      for (auto& [name, value] : own) value = counters.at(part.prefix + name);
      part.optimizer->set_counters(own);
    }
  }

 private:
  // Kinds of one name are one list, where they lie alike along their parameters.
  void add(std::map<std::string, OptimizerState>& all, const Part& part, const std::string& kind,
           const OptimizerState& of) const {
    if (of.tensors.size() != part.places.size())
      throw Error(ErrorKind::plugin, "optimizer '" + part.plugin + "'",
                  "its state \"" + kind + "\" has " + std::to_string(of.tensors.size()) + " tensors for " +
                      std::to_string(part.places.size()) + " parameters",
                  "Optimizer::state runs along the parameters, each tensor in the shape of its own");
    const OptimizerState empty{std::vector<Tensor>(count_), of.block, of.whole};
    auto into = all.try_emplace(kind, empty).first;
    if (into->second.block != of.block || into->second.whole != of.whole)
      into = all.try_emplace(part.prefix + kind, empty).first;
    for (size_t i = 0; i < of.tensors.size(); ++i) into->second.tensors[part.places[i]] = of.tensors[i];
  }

  std::vector<Part> parts_;
  const size_t count_;
};

std::shared_ptr<Optimizer> make_one(Components& components, const std::string& section, const Component& component,
                                    const Optimizer::Needs& needs) {
  auto made = components.make<Optimizer>(section, component, needs);
  if (made->averages() && !components.recipe.ema.enabled)
    throw Error(ErrorKind::config, component.where,
                "optimizer \"" + component.plugin +
                    "\" makes the average that is evaluated and sampled, and ema.enabled = false leaves it no place",
                "set ema.enabled = true");
  if (needs.exact && !made->exact())
    refuse_numerics("\"one\" does not go with optimizer \"" + component.plugin + "\" of [" + section +
                        "]: with these options its update is not made of single IEEE operations",
                    "choose adamw, adamw8bit, lion, muon in fp32 or sgd, or set run.numerics = \"fast\"");
  return made;
}

}  // namespace

void refuse_idle(const std::vector<OptimizerGroup>& groups, const std::vector<std::string>& names) {
  for (size_t number = 0; number < groups.size(); ++number)
    for (const auto& pattern : groups[number].match) {
      const OptimizerGroup alone{{}, {pattern}, 1, {}};
      if (std::none_of(names.begin(), names.end(),
                       [&](const auto& name) { return alone.matches(name) && taker(groups, name) == number; }))
        refuse_pattern(groups, number, pattern, names);
    }
}

std::shared_ptr<Optimizer> make_optimizer(Components& components, const Optimizer::Needs& needs) {
  const auto& recipe = components.recipe;
  const auto& groups = recipe.optimizer_groups;
  if (groups.empty()) return make_one(components, "optimizer", recipe.optimizer, needs);
  const size_t count = needs.parameters.size();
  std::vector<std::vector<size_t>> places(groups.size() + 1);
  for (size_t i = 0; i < count; ++i) places[taker(groups, needs.parameters[i].name)].push_back(i);

  std::vector<Part> parts;
  const auto add = [&](const std::string& section, const Component& component, const std::string& prefix,
                       double lr_scale, const std::vector<size_t>& mine) {
    Part part{component.plugin, prefix, lr_scale, mine, std::make_unique<WholeOfSome>(*needs.whole, mine, count), {}};
    Optimizer::Needs own{{}, part.whole.get()};
    own.ops = needs.ops;
    own.exact = needs.exact;
    for (const size_t place : mine) own.parameters.push_back(needs.parameters[place]);
    part.optimizer = make_one(components, section, component, own);
    parts.push_back(std::move(part));
  };
  add("optimizer", recipe.optimizer, "", 1, places.back());
  for (size_t i = 0; i < groups.size(); ++i)
    add(groups[i].section, groups[i].component, "group." + std::to_string(i) + ".", groups[i].lr_scale, places[i]);
  return std::make_shared<GroupedOptimizer>(std::move(parts), count);
}

}  // namespace ditto
