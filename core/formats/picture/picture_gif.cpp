// GIF by giflib; still pictures only.
#include <ditto/error.h>
#include <gif_lib.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/formats/picture/picture_codecs.h"

namespace ditto::formats {

namespace {

struct Input {
  std::span<const std::byte> left;
};

int read_bytes(GifFileType* gif, GifByteType* to, int count) {
  auto* input = static_cast<Input*>(gif->UserData);
  const auto size = std::min(static_cast<std::size_t>(count), input->left.size());
  std::memcpy(to, input->left.data(), size);
  input->left = input->left.subspan(size);
  return static_cast<int>(size);
}

class GifReader {
 public:
  explicit GifReader(const Encoded& file) : file_(file), input_{file.bytes} {
    int error = 0;
    gif_ = DGifOpen(&input_, read_bytes, &error);
    if (gif_ == nullptr) fail(GifErrorString(error));
  }
  ~GifReader() {
    int ignored = 0;
    DGifCloseFile(gif_, &ignored);
  }
  GifReader(const GifReader&) = delete;
  GifReader& operator=(const GifReader&) = delete;

  // All of it, for the header too: whether it moves is seen at its end.
  Picture read(Want want) {
    Picture picture{gif_->SWidth, gif_->SHeight, 3, {}};
    for (bool seen = false;;) {
      GifRecordType type = UNDEFINED_RECORD_TYPE;
      check(DGifGetRecordType(gif_, &type));
      if (type == TERMINATE_RECORD_TYPE) {
        if (!seen) fail("it holds no picture");
        return picture;
      }
      if (type == EXTENSION_RECORD_TYPE) read_extension();
      if (type != IMAGE_DESC_RECORD_TYPE) continue;
      if (seen) throw Error(ErrorKind::data, file_.where, "it is an animation; a still picture is expected");
      seen = true;
      check(DGifGetImageDesc(gif_));
      const GifImageDesc& frame = gif_->Image;
      size_of(frame.Width, frame.Height);
      picture = size_of(std::max(picture.width, frame.Left + frame.Width),
                        std::max(picture.height, frame.Top + frame.Height));
      check_memory(file_, picture, 3 * count_pixels(picture));
      want == Want::pixels ? draw(picture) : skip();
    }
  }

 private:
  [[noreturn]] void fail(const char* reason) const {
    throw Error(ErrorKind::data, file_.where,
                std::string("the GIF does not decode: ") + (reason == nullptr ? "it is damaged" : reason));
  }
  void check(int code) const {
    if (code == GIF_ERROR) fail(GifErrorString(gif_->Error));
  }
  Picture size_of(int width, int height) const {
    return make_picture(file_, static_cast<std::uint64_t>(std::max(width, 0)),
                        static_cast<std::uint64_t>(std::max(height, 0)), 3);
  }

  void read_extension() {
    int code = 0;
    GifByteType* block = nullptr;
    check(DGifGetExtension(gif_, &code, &block));
    GraphicsControlBlock control;
    if (code == GRAPHICS_EXT_FUNC_CODE && block != nullptr &&
        DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK)
      transparent_ = control.TransparentColor;
    while (block != nullptr) check(DGifGetExtensionNext(gif_, &block));
  }

  void skip() {
    int size = 0;
    GifByteType* block = nullptr;
    check(DGifGetCode(gif_, &size, &block));
    while (block != nullptr) check(DGifGetCodeNext(gif_, &block));
  }

  // Lines come in four turns where they are interlaced. Around a picture that is smaller than its screen all is
  // transparent, or of the first colour where no colour is, as in Pillow; one that is larger makes the screen larger.
  void draw(Picture& picture) {
    const GifImageDesc& frame = gif_->Image;
    const ColorMapObject* map = frame.ColorMap != nullptr ? frame.ColorMap : gif_->SColorMap;
    if (map == nullptr || map->ColorCount < 1) fail("it has no colours");
    const GifColorType around = transparent_ == NO_TRANSPARENT_COLOR ? map->Colors[0] : GifColorType{255, 255, 255};
    picture.pixels.resize(3 * count_pixels(picture));
    for (std::size_t i = 0; i < picture.pixels.size(); i += 3) {
      picture.pixels[i] = around.Red;
      picture.pixels[i + 1] = around.Green;
      picture.pixels[i + 2] = around.Blue;
    }
    struct Turn {
      int first, step;
    };
    static constexpr std::array<Turn, 4> kTurns{{{0, 8}, {4, 8}, {2, 4}, {1, 2}}};
    std::vector<GifPixelType> line(static_cast<std::size_t>(frame.Width));
    for (std::size_t turn = 0; turn < (frame.Interlace ? kTurns.size() : 1); ++turn) {
      const Turn lines = frame.Interlace ? kTurns[turn] : Turn{0, 1};
      for (int y = lines.first; y < frame.Height; y += lines.step) {
        check(DGifGetLine(gif_, line.data(), frame.Width));
        draw_line(picture, line, *map, frame.Left, frame.Top + y);
      }
    }
  }

  void draw_line(Picture& picture, const std::vector<GifPixelType>& line, const ColorMapObject& map, int left,
                 int y) const {
    if (y < 0 || y >= picture.height) return;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const int x = left + static_cast<int>(i);
      if (x < 0 || x >= picture.width || line[i] == transparent_) continue;
      if (line[i] >= map.ColorCount) fail("a pixel has a colour that is not in its table");
      const GifColorType& colour = map.Colors[line[i]];
      const auto at =
          3 * (static_cast<std::size_t>(y) * static_cast<std::size_t>(picture.width) + static_cast<std::size_t>(x));
      picture.pixels[at] = colour.Red;
      picture.pixels[at + 1] = colour.Green;
      picture.pixels[at + 2] = colour.Blue;
    }
  }

  const Encoded& file_;
  Input input_;
  GifFileType* gif_ = nullptr;
  int transparent_ = NO_TRANSPARENT_COLOR;
};

}  // namespace

Picture decode_gif(const Encoded& file, Want want) { return GifReader(file).read(want); }

}  // namespace ditto::formats
