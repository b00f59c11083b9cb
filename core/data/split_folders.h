// Folders of pictures that are laid out in parts, to learn from and held out, as ImageNet and Hugging Face's image folders
// are: no classes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ditto {

// Throws Error(config) where some folder holds both a part to learn from ("train", "training") and one that is held out
// ("val", "test", "dev", …, in any case, also as "val2017" or "test_set"), or `folder` holds nothing but such parts, with
// folders in them: pictures that are to be held out would be learned from, and classes be taken for one.
void refuse_split_folders(const std::string& folder, const std::vector<std::filesystem::path>& pictures);

}  // namespace ditto
