// PNG by libpng. Its errors come as longjmp, so the functions that call it hold nothing with a destructor.
#include <ditto/error.h>
#include <png.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "core/formats/file.h"
#include "core/formats/limits.h"
#include "core/formats/picture/picture.h"
#include "core/formats/picture/picture_codecs.h"
#include "core/formats/picture/picture_colour.h"
#include "core/formats/text/utf8.h"

namespace ditto::formats {

namespace {

struct Message {
  char text[200] = "";
};

void on_error(png_structp png, png_const_charp text) {
  auto* message = static_cast<Message*>(png_get_error_ptr(png));
  std::snprintf(message->text, sizeof message->text, "%s", text);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

struct Input {
  const std::byte* data;
  std::size_t left;
};

void read_bytes(png_structp png, png_bytep to, std::size_t count) {
  auto* input = static_cast<Input*>(png_get_io_ptr(png));
  if (count > input->left) png_error(png, "the file was cut off");
  std::memcpy(to, input->data, count);
  input->data += count;
  input->left -= count;
}

enum class Texts { skipped, read };

// Chunks that say nothing of the pixels as they are read here, five letters each with the NUL byte. Some unpack to a
// thousand times their size.
constexpr png_byte kUnused[] = "cHRM\0gAMA\0hIST\0iTXt\0oFFs\0pCAL\0pHYs\0sBIT\0sCAL\0sPLT\0sRGB\0tEXt\0tIME\0zTXt";
constexpr int kUnusedCount = sizeof kUnused / 5;

class PngReader {
 public:
  PngReader(const Encoded& file, Texts texts) : file_(file), input_{file.bytes.data(), file.bytes.size()} {
    look_at_chunks();
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &message_, on_error, on_warning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ == nullptr) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      throw Error(ErrorKind::data, file.where, "libpng could not start");
    }
    png_set_read_fn(png_, &input_, read_bytes);
    png_set_user_limits(png_, 1u << 24, 1u << 24);
    png_set_chunk_cache_max(png_, limits::kPngTexts);
    png_set_chunk_malloc_max(png_, limits::kPngTextBytes);
    if (texts == Texts::skipped) png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, kUnused, kUnusedCount);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  Picture read(Want want) {
    check(try_header());
    const int channels = png_get_color_type(png_, info_) & PNG_COLOR_MASK_COLOR ? 3 : 1;
    Picture picture =
        make_picture(file_, png_get_image_width(png_, info_), png_get_image_height(png_, info_), channels);
    if (want == Want::header) return picture;
    check(try_transforms());
    check_memory(file_, picture, count_pixels(picture) * png_get_channels(png_, info_));
    const auto row_bytes = png_get_rowbytes(png_, info_);
    const auto stored = static_cast<int>(png_get_channels(png_, info_));
    if (row_bytes != static_cast<std::size_t>(picture.width) * static_cast<std::size_t>(stored))
      throw Error(ErrorKind::data, file_.where, "libpng gives rows of an unexpected size");
    picture.pixels.resize(row_bytes * static_cast<std::size_t>(picture.height));
    std::vector<png_bytep> rows(static_cast<std::size_t>(picture.height));
    for (std::size_t y = 0; y < rows.size(); ++y) rows[y] = picture.pixels.data() + y * row_bytes;
    check(try_pixels(rows.data()));
    ToSrgb(profile(), channels == 3 ? Colours::rgb : Colours::grey, count_pixels(picture), stored == channels + 1)
        .convert(picture.pixels);
    if (stored == channels + 1) over_white(picture.pixels, channels);
    return picture;
  }

  PngText text() const {
    png_textp chunks = nullptr;
    int count = 0;
    png_get_text(png_, info_, &chunks, &count);
    PngText result;
    for (int i = 0; i < count; ++i) {
      const bool international = chunks[i].compression >= PNG_ITXT_COMPRESSION_NONE;
      const std::size_t length = international ? chunks[i].itxt_length : chunks[i].text_length;
      const std::string_view text(chunks[i].text == nullptr ? "" : chunks[i].text, chunks[i].text ? length : 0);
      result.emplace_back(from_latin1(chunks[i].key), international ? std::string(text) : from_latin1(text));
    }
    return result;
  }

 private:
  std::span<const std::byte> profile() const {
    png_charp name = nullptr;
    png_bytep bytes = nullptr;
    png_uint_32 length = 0;
    int compression = 0;
    if (png_get_iCCP(png_, info_, &name, &compression, &bytes, &length) == 0) return {};
    return std::as_bytes(std::span(bytes, length));
  }

  static std::string from_latin1(std::string_view text) {
    std::string result;
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x80) {
        result += c;
      } else {
        result += static_cast<char>(0xC0 | byte >> 6);
        result += static_cast<char>(0x80 | (byte & 0x3F));
      }
    }
    return result;
  }

  // A chunk's buffer is made before its bytes are read, as long as it claims to be. What follows the last one is no
  // part of the picture: programs that crop or append leave it there.
  void look_at_chunks() const {
    const auto number = [&](std::size_t at) {
      std::uint32_t value = 0;
      for (std::size_t i = 0; i < 4; ++i) value = value << 8 | std::to_integer<std::uint32_t>(file_.bytes[at + i]);
      return value;
    };
    constexpr std::size_t kSignature = 8, kAround = 12;  // of a chunk: length, type, checksum
    std::uint64_t frames = 0;
    bool is_frame = false;  // the picture itself is the first one
    for (std::size_t at = kSignature; at + kAround <= file_.bytes.size();) {
      const std::size_t length = number(at), left = file_.bytes.size() - at - kAround;
      if (length > left)
        throw Error(ErrorKind::data, file_.where,
                    "the PNG does not decode: the chunk at byte " + std::to_string(at) + " claims " +
                        std::to_string(length) + " bytes, and " + std::to_string(left) + " follow",
                    "the file was cut off or is damaged");
      const std::string_view type(reinterpret_cast<const char*>(file_.bytes.data()) + at + 4, 4);
      if (type == "IEND") return;
      if (type == "acTL" && length >= 8) frames = number(at + 8);
      if (type == "fcTL") is_frame = true;
      if (type == "IDAT" && frames > 0 &&
          frames + (is_frame ? 0 : 1) > 1)  // what stands behind the pixels counts for nothing
        throw Error(ErrorKind::data, file_.where, "it is an animation; a still picture is expected");
      at += kAround + length;
    }
  }

  void check(bool good) const {
    if (!good) throw Error(ErrorKind::data, file_.where, std::string("the PNG does not decode: ") + message_.text);
  }

  bool try_header() {
    if (setjmp(png_jmpbuf(png_))) return false;
    png_read_info(png_, info_);
    return true;
  }

  bool try_transforms() {
    if (setjmp(png_jmpbuf(png_))) return false;
    png_set_expand(png_);    // palettes, small depths, transparent colours
    png_set_scale_16(png_);  // to 8 bits, rounded
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  bool try_pixels(png_bytepp rows) {
    if (setjmp(png_jmpbuf(png_))) return false;
    png_read_image(png_, rows);
    png_read_end(png_, info_);
    return true;
  }

  const Encoded& file_;
  Input input_;
  Message message_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
};

void append_bytes(png_structp png, png_bytep from, std::size_t count) {
  auto* out = static_cast<std::vector<std::byte>*>(png_get_io_ptr(png));
  bool full = false;
  try {
    out->insert(out->end(), reinterpret_cast<std::byte*>(from), reinterpret_cast<std::byte*>(from) + count);
  } catch (const std::bad_alloc&) {
    full = true;  // no exception may cross libpng
  }
  if (full) png_error(png, "out of memory");
}

void flush_nothing(png_structp) {}

bool try_encode(png_structp png, png_infop info, const Picture& picture, png_textp text, int texts, png_bytepp rows) {
  if (setjmp(png_jmpbuf(png))) return false;
  png_set_IHDR(png, info, static_cast<png_uint_32>(picture.width), static_cast<png_uint_32>(picture.height), 8,
               picture.channels == 3 ? PNG_COLOR_TYPE_RGB : PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (texts > 0) png_set_text(png, info, text, texts);
  png_write_info(png, info);
  png_write_image(png, rows);
  png_write_end(png, nullptr);
  return true;
}

bool ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

void check_text(const std::string& key, const std::string& text) {
  const bool printable = std::all_of(key.begin(), key.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
  if (key.empty() || key.size() > 79 || !printable || key.front() == ' ' || key.back() == ' ' ||
      key.find("  ") != std::string::npos)
    throw Error(ErrorKind::data, {}, "'" + key + "' is no keyword for a PNG's text chunk", "use 1 to 79 ASCII letters");
  if (text.find('\0') != std::string::npos || utf8_damage(text))
    throw Error(ErrorKind::data, {}, "the text for the PNG chunk '" + key + "' has a NUL byte or is not UTF-8");
}

std::vector<png_text> text_chunks(const PngText& text) {
  static char no_language[] = "";
  std::vector<png_text> chunks;
  for (const auto& [key, value] : text) {
    check_text(key, value);
    png_text chunk{};
    chunk.compression = ascii(value) ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
    chunk.key = const_cast<char*>(key.c_str());
    chunk.text = const_cast<char*>(value.c_str());
    chunk.text_length = value.size();
    chunk.lang = no_language;
    chunk.lang_key = no_language;
    chunks.push_back(chunk);
  }
  return chunks;
}

void check_pixels(const Picture& picture) {
  const bool fits = picture.width > 0 && picture.height > 0 && (picture.channels == 1 || picture.channels == 3) &&
                    picture.pixels.size() == static_cast<std::size_t>(picture.width) *
                                                 static_cast<std::size_t>(picture.height) *
                                                 static_cast<std::size_t>(picture.channels);
  if (!fits)
    throw Error(ErrorKind::data, {},
                "a picture of " + std::to_string(picture.width) + "x" + std::to_string(picture.height) + " with " +
                    std::to_string(picture.channels) + " channels and " + std::to_string(picture.pixels.size()) +
                    " values cannot be written as PNG");
}

}  // namespace

Picture decode_png(const Encoded& file, Want want) { return PngReader(file, Texts::skipped).read(want); }

PngText read_png_text(std::span<const std::byte> bytes, std::string_view where) {
  const Encoded file{bytes, where, DecodeOptions{}.max_pixels};
  if (sniff_picture(bytes) != PictureFormat::png) throw Error(ErrorKind::data, where, "this is not a PNG");
  PngReader reader(file, Texts::read);
  reader.read(Want::pixels);  // text may stand after the pixels
  return reader.text();
}

std::vector<std::byte> encode_png(const Picture& picture, const PngText& text) {
  check_pixels(picture);
  std::vector<png_text> chunks = text_chunks(text);
  std::vector<png_bytep> rows(static_cast<std::size_t>(picture.height));
  const auto row_bytes = static_cast<std::size_t>(picture.width) * static_cast<std::size_t>(picture.channels);
  for (std::size_t y = 0; y < rows.size(); ++y) rows[y] = const_cast<png_bytep>(picture.pixels.data() + y * row_bytes);

  Message message;
  std::vector<std::byte> out;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &message, on_error, on_warning);
  png_infop info = png == nullptr ? nullptr : png_create_info_struct(png);
  bool good = info != nullptr;
  if (good) {
    png_set_write_fn(png, &out, append_bytes, flush_nothing);
    png_set_user_limits(png, 1u << 24, 1u << 24);
    good = try_encode(png, info, picture, chunks.data(), static_cast<int>(chunks.size()), rows.data());
  }
  png_destroy_write_struct(&png, &info);
  if (!good) throw Error(ErrorKind::data, {}, std::string("the picture cannot be written as PNG: ") + message.text);
  return out;
}

void write_png(const std::string& path, const Picture& picture, const PngText& text) {
  write_file(path, encode_png(picture, text), ErrorKind::data);
}

}  // namespace ditto::formats
