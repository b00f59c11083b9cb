#include "video_files.h"

#include <ditto/error.h>

#include <ditto/formats/file.h>

namespace table {

VideoFiles::VideoFiles(const std::string& decoder, const ditto::Source::Needs& needs) {
  if (!needs.decoder)
    throw ditto::Error(ditto::ErrorKind::plugin, "data.decoder",
                       "the program that reads this table has no decoders to give");
  decoder_ = needs.decoder(decoder);
}

std::unique_ptr<ditto::Video> VideoFiles::open(const std::string& path, const std::string& place) const {
  const auto file = ditto::formats::RandomFile::open(path);
  return decoder_->open({place, file->size(), [file, place](std::uint64_t offset, std::span<std::byte> into) {
                           file->read(offset, into, place);
                         }});
}

}  // namespace table
