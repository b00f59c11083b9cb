#include "core/assembly/fit.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace ditto {

checkpoint::Fit fit_of(const Recipe& recipe, const Model& model) {
  using checkpoint::Fit;
  const auto& run = recipe.run;
  Fit fit;
  if (run.init_missing == "new") fit.missing = Fit::Missing::keep;
  if (run.init_extra == "skip") fit.extra = Fit::Extra::skip;
  if (run.init_other_shape == "skip") fit.other_shape = Fit::OtherShape::skip;
  if (run.init_other_shape != "positions") return fit;
  fit.other_shape = Fit::OtherShape::positions;
  fit.position_tables = model.position_tables();
  if (fit.position_tables.empty())
    throw Error(ErrorKind::config, recipe.name,
                "run.init_other_shape = \"positions\", and model \"" + recipe.model.plugin +
                    "\" has no learned table of positions",
                "leave it out: what a model computes by itself fits any size");
  return fit;
}

namespace {

constexpr size_t kNamesInLine = 30;

using Names = std::set<std::string>;

struct Together {
  size_t taken = 0;
  std::map<std::string, Names> kinds;  // a tensor that is cut is told of by several
};

// What no rank asked for is extra.
Together gathered(const checkpoint::Fitted& fitted, const Group& ranks) {
  const nlohmann::json mine{{"taken", fitted.taken},
                            {"new", fitted.kept},
                            {"interpolated", fitted.interpolated},
                            {"skipped", fitted.skipped},
                            {"left out", fitted.extra}};
  Together all;
  std::map<std::string, size_t> extra;
  const auto texts = ranks.all_gather_text(mine.dump());
  for (const auto& text : texts) {
    const auto theirs = nlohmann::json::parse(text);
    all.taken += theirs.at("taken").get<size_t>();
    for (const char* kind : {"new", "interpolated", "skipped"})
      for (const auto& name : theirs.at(kind)) all.kinds[kind].insert(name.get<std::string>());
    for (const auto& name : theirs.at("left out")) ++extra[name.get<std::string>()];
  }
  for (const auto& [name, count] : extra)
    if (count == texts.size()) all.kinds["left out"].insert(name);
  return all;
}

void list(const std::string& kind, const Names& names, std::vector<std::string>& lines) {
  size_t count = 0;
  for (const auto& name : names) {
    if (count++ % kNamesInLine == 0)
      lines.push_back(kind + (count == 1 ? " (" + std::to_string(names.size()) + "): " : ", further: ") + name);
    else
      lines.back() += ", " + name;
  }
}

}  // namespace

std::vector<std::string> fit_report(const checkpoint::Fitted& fitted, const checkpoint::Fit& fit,
                                    const std::string& path, const Group& ranks) {
  const auto all = gathered(fitted, ranks);
  if (all.taken == 0)
    throw Error(ErrorKind::checkpoint, path, "has no tensor that fits this model", "choose another run.init_from");
  const auto extra = all.kinds.find("left out");
  if (fit.extra == checkpoint::Fit::Extra::refuse && extra != all.kinds.end())
    throw Error(ErrorKind::checkpoint, path,
                "holds tensor '" + *extra->second.begin() + "', which has no place in this model",
                "use a recipe of its model, or set run.init_extra = \"skip\"");
  std::vector<std::string> lines;
  for (const auto& [kind, names] : all.kinds) list(kind, names, lines);
  return lines;
}

}  // namespace ditto
