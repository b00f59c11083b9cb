// Which files of a folder are pictures, and which are not taken.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ditto {

struct PictureFolder {
  std::vector<std::filesystem::path> pictures;  // in order of their paths
  std::vector<std::string> left_out;            // a sentence a reason, with how many and the first names
};

// A picture is what begins like a PNG, JPEG or WebP, whatever its name; a file with such a name that begins otherwise
// is taken too, so that decoding it says what is wrong. Left out are hidden files and folders and what systems and
// tools leave behind; files that are nothing of this; links to folders; and folders in `folder` without a picture.
// "NAME.txt" beside a picture NAME is its caption. Throws Error(config) for a folder that cannot be read or has no
// picture, Error(data) for a file that cannot be read.
PictureFolder pictures_under(const std::string& folder);

}  // namespace ditto
