// [[data.part]]: the parts of a blend, each a source of its own, or a blend itself.
#pragma once

#include <string>
#include <vector>

#include "core/config/section.h"

namespace ditto {

// What [data], or a part, names as its plugin where it has parts. It is the host's: which sample comes when is.
inline constexpr const char* kBlend = "blend";

struct DataPart {
  std::string section;  // "data.part.0", "data.part.0.part.1"
  Component component;
  double weight = 0, epochs = 1;  // as Blend::Part has them
  std::vector<DataPart> parts;    // of a blend
  void read(OptionReader& option);
};

// [data], with its parts if it is a blend. Throws Error(config).
DataPart read_data(const formats::Table& table, const std::string& where);

// What is a plugin's of it: itself, or its parts and theirs.
void collect_sources(DataPart& part, std::vector<DataPart*>& into);

}  // namespace ditto
