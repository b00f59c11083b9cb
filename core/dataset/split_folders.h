// Folders of pictures that are laid out in parts, to learn from and held out, as ImageNet and Hugging Face's image
// folders are: no classes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ditto {

// Throws Error(config) where pictures that are to be held out would be learned from, and classes be taken for one: some
// folder holds folders, or nothing but pictures, of both kinds by their names ("train" and "val", "train2017" and
// "test_set", "train_1.png" and "val_1.png"), or different ones do; or such a folder holds folders that are called as
// those beside it, or several; or `folder` holds nothing but such folders, with folders in them. `pictures`: in order
// of their paths, below `folder`.
void refuse_split_folders(const std::string& folder, const std::vector<std::filesystem::path>& pictures);

}  // namespace ditto
