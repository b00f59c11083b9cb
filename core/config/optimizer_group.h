// [[optimizer.group]]: parameters by name, whose optimizer has other options or is another one.
#pragma once

#include <string>
#include <vector>

#include <ditto/options.h>

#include "core/config/section.h"

namespace ditto {

struct OptimizerGroup {
  std::string section;             // "optimizer.group.0"
  std::vector<std::string> match;  // patterns of names, as a shell's: *, ? and [a-z]
  double lr_scale = 1;
  // Without a plugin of its own: [optimizer]'s, with its options and what the group says over them.
  Component component;

  bool matches(const std::string& name) const;
  void read(OptionReader& option);
};

// One of the list's tables, and what was declared of the host's part. `file`: where no place is known. Throws
// Error(config).
OptimizerGroup read_group(const formats::Node& node, const std::string& section, const Component& optimizer,
                          const std::string& file, std::vector<OptionInfo>& declared);

}  // namespace ditto
