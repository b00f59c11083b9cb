// Pictures in every container of orientation and opacity against what Pillow makes of them, and files that are none:
// made by make_containers.py. DITTO_CONTAINERS names another such file.
//
// Claim (data): Pictures stand upright and over white as Pillow makes them, within 1 of 255, in 208 files of every
// container of orientation and opacity.
#include <algorithm>
#include <cstdlib>

#include <doctest/doctest.h>

#include "core/formats/picture/picture.h"
#include "core/formats/tensor/safetensors.h"
#include "support/files.h"

namespace {

using ditto::ErrorKind;
using ditto::formats::Channels;
using ditto::formats::SafetensorsReader;

SafetensorsReader containers() {
  const char* given = std::getenv("DITTO_CONTAINERS");
  const std::string golden = DITTO_SOURCE_DIR "/tests/golden/containers/pictures.safetensors";
  return SafetensorsReader::open(given != nullptr ? given : golden);
}

// The names of the entries that begin so, without this beginning.
std::vector<std::string> names_of(const SafetensorsReader& all, const std::string& beginning) {
  std::vector<std::string> names;
  for (const auto& entry : all.entries())
    if (entry.name.starts_with(beginning)) names.push_back(entry.name.substr(beginning.size()));
  return names;
}

}  // namespace

TEST_CASE("over two hundred pictures are what Pillow makes of them, within 1 of 255") {
  const auto all = containers();
  const auto names = names_of(all, "file/");
  CHECK(names.size() >= 200);
  for (const auto& name : names) {
    CAPTURE(name);
    const auto bytes = all.read(all.at("file/" + name));
    const auto& entry = all.at("pixels/" + name);
    const auto expected = all.read(entry);
    try {
      const auto picture = ditto::formats::decode_picture(bytes, name, {.channels = Channels::rgb});
      CHECK(entry.shape == std::vector<std::int64_t>{picture.height, picture.width, 3});
      const auto size = ditto::formats::picture_size(bytes, name);
      CHECK((size.height == picture.height && size.width == picture.width));
      if (picture.pixels.size() != expected.size()) continue;
      int largest = 0;
      for (std::size_t i = 0; i < expected.size(); ++i)
        largest = std::max(largest, std::abs(int{picture.pixels[i]} - std::to_integer<int>(expected[i])));
      CHECK(largest <= 1);
    } catch (const ditto::Error& error) {
      FAIL_CHECK(std::string(error.what()));
    }
  }
}

TEST_CASE("animations, raw camera files and thumbnails are no pictures, and are called what they are") {
  const auto all = containers();
  const std::vector<std::pair<std::string, std::string>> kinds{
      {"animation/", "it is an animation"}, {"raw/", "raw camera files"}, {"reduced/", "calls itself a thumbnail"}};
  std::size_t seen = 0;
  for (const auto& [kind, said] : kinds)
    for (const auto& name : names_of(all, "bad/" + kind)) {
      CAPTURE(name);
      const auto bytes = all.read(all.at("bad/" + kind + name));
      for (const bool whole : {true, false}) {
        const auto message = ditto::test::error_of(ErrorKind::data, [&] {
          whole ? ditto::formats::decode_picture(bytes, name) : ditto::formats::picture_size(bytes, name);
        });
        CHECK_MESSAGE(message.find(said) != std::string::npos, message);
      }
      ++seen;
    }
  CHECK(seen == names_of(all, "bad/").size());
  CHECK(seen >= 15);
}
