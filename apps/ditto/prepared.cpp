#include "apps/ditto/prepared.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <ostream>

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
  command
      .add_option(
          "--fit", fit,
          "Folder: how a picture that is not square becomes one: crop (its middle), pad (all of it, on white) or "
          "stretch")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Fit>(kFits.begin(), kFits.end())))
      ->option_text("crop|pad|stretch [crop]");
}

}  // namespace ditto
