#include "core/data/held_out.h"

#include <unordered_map>
#include <unordered_set>

#include <ditto/error.h>
#include <ditto/text.h>

#include "core/data/shapes.h"
#include "core/formats/names.h"

namespace ditto {

namespace {

std::string identity_of_word(const std::string& word) {
  const auto mark = word.rfind('#');
  const auto whole = formats::identity_of(word);
  if (mark == std::string::npos || whole.find(':') != std::string::npos) return whole;
  return formats::identity_of(word.substr(0, mark)) + word.substr(mark);
}

}  // namespace

InBoth in_both(const std::vector<std::string>& one, const std::vector<std::string>& other) {
  InBoth found;
  std::unordered_map<std::string, const std::string*> by_identity;
  for (const auto& word : one) by_identity.emplace(identity_of_word(word), &word);
  std::unordered_set<std::string> counted;
  for (const auto& word : other) {
    const auto at = by_identity.find(identity_of_word(word));
    if (at == by_identity.end() || !counted.insert(at->first).second) continue;
    if (found.count++ > 0) continue;
    found.first = word;
    found.as = *at->second;
  }
  return found;
}

void require_held_out(const Source& learned, const Source& held_out) {
  if (const auto both = in_both(learned.holds(), held_out.holds()); both.count > 0)
    throw Error(ErrorKind::config, "data",
                "of what is held out " + std::to_string(both.count) + (both.count == 1 ? " is" : " are") +
                    " learned from too: " + shown(both.first) +
                    (both.as == both.first ? "" : ", as " + shown(both.as)) + (both.count == 1 ? "" : " first"),
                "name each in one of both parts, or set validate.every = 0");
  const auto others = other_names(learned.makes(), held_out.makes());
  if (others && others->apart.is_elsewhere)
    throw Error(ErrorKind::config, "data", others->text("where it is learned from", "where it is held out"),
                "number the classes of both alike");
}

}  // namespace ditto
