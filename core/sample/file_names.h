// What the files of samples are called.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ditto {

// A name below the output folder for each sample, every one another, ending in `suffix`. `pattern`: with {seed},
// {index} (of the sample, from 0) and {class}, and perhaps in folders; empty: 000003.png, and 000003-1.png,
// 000003-2.png, … where a seed is asked for again. `classes`: of each sample, or none. Throws Error(config) for names
// that are alike, or are one of `taken`, or leave the folder.
std::vector<std::string> file_names(const std::string& pattern, const std::string& suffix,
                                    const std::vector<int64_t>& seeds, const std::vector<int64_t>& classes,
                                    const std::vector<std::string>& taken = {});

}  // namespace ditto
