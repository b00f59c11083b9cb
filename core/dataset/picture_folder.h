// Which files of a folder are pictures, and which are not taken.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace ditto {

struct LeftOut {
  std::filesystem::path path;  // in the folder
  std::string reason;          // "hidden, or left behind by a system or tool"
  std::int64_t files = 1;      // a folder: how many are in it
};

struct PictureFolder {
  std::vector<std::filesystem::path> pictures;  // in order of their paths, each with the folder's before it
  std::map<std::filesystem::path, std::filesystem::path> captions;  // of a picture: the text beside it
  std::vector<std::filesystem::path> tables;                        // of captions: picture_notes.h
  std::vector<LeftOut> left_out;                                    // in order of their paths
  std::vector<LeftOut> unreadable;                                  // folders that cannot be opened, likewise
};

// A picture is what begins like one of kPictureFormats, whatever its name; a file with such a name that begins
// otherwise is taken too, so that decoding it says what is wrong. The caption of NAME.png is the first of NAME.png.txt,
// NAME.txt, NAME.png.caption and NAME.caption that is there, whatever the case of the suffixes. Left out are hidden
// files and folders and what systems and tools leave behind; raw camera files and thumbnails (tiff_directory.h); files
// that are nothing of this; links to folders, and to files outside of this one; folders in `folder` without a picture.
// Throws Error(config) for a folder that cannot be read or has no picture.
PictureFolder pictures_under(const std::string& folder);

// "REASON (3): cat/a.svg, …", a sentence a reason, with the first names.
std::vector<std::string> sentences(const std::vector<LeftOut>& left_out);

}  // namespace ditto
