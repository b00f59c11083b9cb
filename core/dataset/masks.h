// Masks that lie among pictures, as sets for segmentation have them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ditto {

// "40 pictures look like masks of others (0_mask.png of 0.jpg): …" by the names of files (0_mask.png beside 0.jpg) and
// of folders (masks/0.png beside images/0.jpg); empty: none does.
std::string of_masks(const std::vector<std::filesystem::path>& pictures, const std::filesystem::path& folder);

}  // namespace ditto
