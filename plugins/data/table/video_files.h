// Video files of a table, by the decoder that the recipe names.
#pragma once

#include <memory>
#include <string>

#include <ditto/data.h>
#include <ditto/video_decoder.h>

namespace table {

class VideoFiles {
 public:
  VideoFiles() = default;
  // Throws Error(plugin) where the host has no such decoder.
  VideoFiles(const std::string& decoder, const ditto::Source::Needs& needs);
  // Throws Error(data) at `place`.
  std::unique_ptr<ditto::Video> open(const std::string& path, const std::string& place) const;

 private:
  std::shared_ptr<const ditto::VideoDecoder> decoder_;
};

}  // namespace table
