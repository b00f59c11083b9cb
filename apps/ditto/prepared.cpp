#include "apps/ditto/prepared.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include <ditto/text.h>

namespace ditto {

void print_bad(const std::vector<std::string>& bad, const std::string& rest, std::ostream& to) {
  constexpr size_t kBadShown = 20;
  for (size_t i = 0; i < bad.size() && i < kBadShown; ++i) to << "bad: " << shown(bad[i], kSentenceShown) << '\n';
  if (bad.size() > kBadShown) to << "bad: " << bad.size() - kBadShown << " more, " << rest << '\n';
}

void print_prepared(const Prepared& made, const std::string& out, std::ostream& to) {
  for (const auto& reason : made.left_out) to << "left out: " << shown(reason, kSentenceShown) << '\n';
  print_bad(made.bad, "named in " + shown((std::filesystem::path(out) / "report.jsonl").string()), to);
  for (const auto& note : made.notes) to << "note: " << shown(note, kSentenceShown) << '\n';
}

void add_fit_option(CLI::App& command, Fit& fit) {
  std::vector<std::string> names;
  for (const auto& [name, is] : kFits) names.push_back(name);
  const auto take = [&fit](const std::string& word) {
    for (const auto& [name, is] : kFits)
      if (name == word) fit = is;
  };
  // A word that is looked up, as CLI11's own map of words to values takes the values' numbers too.
  command
      .add_option_function<std::string>(
          "--fit", take,
          "Folder: how a picture that is not square becomes one: crop (its middle), pad (all of it, on white) or "
          "stretch")
      ->check(CLI::IsMember(names))
      ->option_text("crop|pad|stretch [crop]");
}

}  // namespace ditto
