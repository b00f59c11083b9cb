#include "tests/fuzz/targets.h"

#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include <ditto/error.h>

#include "core/formats/archive/shard.h"
#include "core/formats/archive/tar.h"
#include "core/formats/elf_stamp.h"
#include "core/formats/picture/picture.h"
#include "core/formats/tensor/safetensors.h"
#include "core/formats/tensor/saved_tensor.h"
#include "core/formats/tensor/torch_tree.h"
#include "core/formats/tensor/torch_zip.h"
#include "core/formats/tensorboard/events.h"
#include "core/formats/tensorboard/tfrecord.h"
#include "core/formats/text/json.h"
#include "core/formats/text/table.h"
#include "core/formats/text/text_table.h"
#include "core/formats/text/toml.h"
#include "core/formats/text/utf8.h"
#include "core/formats/text/yaml.h"
#include "core/formats/tokenizers/tokenizer.h"
#include "core/formats/tokenizers/unicode.h"

namespace ditto::fuzz {

namespace {

using namespace formats;

constexpr std::size_t kLongestMessage = 5100;  // place, finding and remedy, each shown in part

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}
#define REQUIRE(condition) require(condition, #condition)

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// What a random change never gets right, and what would keep every changed file out: the checksums of a PNG's chunks …
std::string with_png_checksums(std::string_view input) {
  std::string out(input);
  const auto byte = [&](std::size_t at) { return std::size_t{static_cast<unsigned char>(out[at])}; };
  for (std::size_t at = 8; at + 12 <= out.size();) {
    const std::size_t length = byte(at) << 24 | byte(at + 1) << 16 | byte(at + 2) << 8 | byte(at + 3);
    if (length > out.size() - at - 12) break;
    const auto checksum =
        ::crc32(0, reinterpret_cast<const Bytef*>(out.data() + at + 4), static_cast<uInt>(length + 4));
    at += 12 + length;
    for (std::size_t i = 0; i < 4; ++i) out[at - 1 - i] = static_cast<char>(checksum >> (8 * i));
  }
  return out;
}

// … and of a tar's headers, one every 512 bytes.
std::string with_tar_checksums(std::string_view input) {
  constexpr std::size_t kBlock = 512, kField = 148, kDigits = 6;
  std::string out(input);
  for (std::size_t at = 0; at + kBlock <= out.size(); at += kBlock) {
    const std::string_view header(out.data() + at, kBlock);
    if (header.substr(257, 5) != "ustar") continue;  // data
    out.replace(at + kField, 8, 8, ' ');
    unsigned sum = 0;
    for (std::size_t i = 0; i < kBlock; ++i) sum += static_cast<unsigned char>(out[at + i]);
    for (std::size_t i = kDigits; i-- > 0; sum /= 8) out[at + kField + i] = static_cast<char>('0' + sum % 8);
    out[at + kField + kDigits] = '\0';
  }
  return out;
}

// Runs a parser; its only way out but returning is an Error of this kind that begins with the place.
template <class Call>
void expect(ErrorKind kind, std::string_view where, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string_view message = error.what();
    REQUIRE(error.kind() == kind);
    REQUIRE(message.starts_with(where));
    REQUIRE(message.size() < kLongestMessage);
  }
}

// For parsers that take a path: a file in memory.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view text) : descriptor_(::memfd_create("fuzz", 0)) {
    REQUIRE(descriptor_ >= 0 && ::write(descriptor_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    path = "/proc/self/fd/" + std::to_string(descriptor_);
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path;

 private:
  int descriptor_;
};

void toml(std::string_view input) {
  expect(ErrorKind::config, "x.toml", [&] {
    const Table tree = parse_toml(input, "x.toml");
    REQUIRE(same_value(parse_toml(render_toml(tree), "again"), tree));
  });
}

void toml_value(std::string_view input) {
  expect(ErrorKind::config, "--set", [&] {
    const Node value = parse_toml_value(input);
    REQUIRE(same_value(parse_toml_value(render_toml_value(value)), value));
  });
}

void json(std::string_view input) {
  expect(ErrorKind::checkpoint, "x.json", [&] {
    const auto tree = parse_json(input, "x.json", ErrorKind::checkpoint);
    REQUIRE(parse_json(tree.dump(), "again", ErrorKind::checkpoint) == tree);
  });
  expect(ErrorKind::data, "x.json", [&] { json_label(input, {"label"}, "x.json"); });
  expect(ErrorKind::data, "x.json", [&] { json_text(input, {"text"}, "x.json"); });
  expect(ErrorKind::data, "x.cls", [&] { REQUIRE(parse_label(input, "x.cls") >= 0); });
}

void yaml(std::string_view input) {
  expect(ErrorKind::data, "x.yaml", [&] {
    std::map<std::string, int> lines;
    const auto tree = parse_yaml(input, "x.yaml", ErrorKind::data, lines);
    REQUIRE(parse_yaml(input, "x.yaml", ErrorKind::data) == tree);
  });
}

void safetensors(std::string_view input) {
  expect(ErrorKind::checkpoint, "x.safetensors", [&] {
    const auto file = SafetensorsReader::parse(bytes_of(input), "x.safetensors");
    std::size_t read = 0;
    for (const auto& entry : file.entries()) {
      REQUIRE(&file.at(entry.name) == &entry);
      REQUIRE(file.read(entry).size() == entry.bytes && entry.offset + entry.bytes <= input.size());
      read += entry.bytes;
    }
    REQUIRE(read < input.size());
  });
}

void table(std::string_view input) {
  expect(ErrorKind::data, "x.csv", [&] {
    const NumberTable table = parse_number_table(input, "x.csv");
    REQUIRE(table.rows() > 0 && table.rows() * table.width == table.numbers.size());
    REQUIRE(table.columns.empty() || table.columns.size() == table.width);
  });
}

void packed_table(std::string_view input) {
  const MemoryFile file(input);
  expect(ErrorKind::data, file.path, [&] { read_number_table(file.path); });
}

void text_table(std::string_view input) {
  for (const auto& parse : {parse_csv, parse_json_lines})
    expect(ErrorKind::data, "x.csv", [&] {
      const TextTable table = parse(input, "x.csv", {"a"});
      REQUIRE(table.rows() + table.bad_rows > 0 && table.bad.size() <= table.bad_rows);
      for (std::size_t row = 0; row < table.rows(); ++row) REQUIRE(table.at(row, 0).size() <= input.size() * 2);
    });
}

void tar_as_it_is(std::string_view input) {
  expect(ErrorKind::data, "x.tar", [&] {
    const TarIndex index = index_tar(bytes_of(input), "x.tar", OnDamage::report);
    for (const auto& member : index.members)
      REQUIRE(member.offset <= input.size() && member.size <= input.size() - member.offset);
    shard_samples(index, "x.tar");
  });
}

void tar(std::string_view input) {
  tar_as_it_is(input);
  tar_as_it_is(with_tar_checksums(input));
}

void picture(std::string_view input, PictureFormat format) {
  if (sniff_picture(bytes_of(input)) != format) return;
  // Large pictures take a tenth of a second each: one file in eight may be one.
  const std::uint64_t max_pixels = input.size() % 8 == 0 ? limits::kPixels : std::uint64_t{1} << 20;
  for (const Channels channels : {Channels::as_stored, Channels::grey, Channels::rgb})
    expect(ErrorKind::data, "x", [&] {
      const Picture decoded = decode_picture(bytes_of(input), "x", {channels, max_pixels});
      const Picture size = picture_size(bytes_of(input), "x");
      REQUIRE(size.width == decoded.width && size.height == decoded.height && decoded.pixels.size() > 0);
      REQUIRE(decoded.pixels.size() == static_cast<std::size_t>(decoded.width) *
                                           static_cast<std::size_t>(decoded.height) *
                                           static_cast<std::size_t>(decoded.channels));
    });
}

void png(std::string_view input) {
  const std::string repaired = with_png_checksums(input);
  picture(input, PictureFormat::png);
  picture(repaired, PictureFormat::png);
  expect(ErrorKind::data, "x", [&] { read_png_text(bytes_of(repaired), "x"); });
}
void jpeg(std::string_view input) { picture(input, PictureFormat::jpeg); }
void webp(std::string_view input) {
  picture(input, PictureFormat::webp);
  expect(ErrorKind::data, "x.webp", [&] { decode_webp_frames(std::as_bytes(std::span(input)), "x.webp"); });
}
void avif(std::string_view input) { picture(input, PictureFormat::avif); }
void tiff(std::string_view input) { picture(input, PictureFormat::tiff); }
void gif(std::string_view input) { picture(input, PictureFormat::gif); }
void bmp(std::string_view input) { picture(input, PictureFormat::bmp); }

void pickle(std::string_view input) {
  expect(ErrorKind::checkpoint, "x.pt", [&] {
    pickle::Arena arena;
    flatten_torch(pickle::unpickle(input, "x.pt", arena), "x.pt");
  });
}

void saved_tensor(std::string_view input) {
  expect(ErrorKind::data, "x.pth", [&] {
    const auto tensor = read_saved_tensor(bytes_of(input), "x.pth");
    REQUIRE(saved_tensor_shape(bytes_of(input), "x.pth").shape == tensor.shape);
    std::size_t count = dtype_bits(tensor.dtype) / 8;
    for (const auto side : tensor.shape) count *= static_cast<std::size_t>(side);
    REQUIRE(tensor.bytes.size() == count);
  });
  expect(ErrorKind::data, "x.pth", [&] { read_saved_tensor(bytes_of(input), "x.pth", "embeddings_t5_xxl"); });
}

void torch_zip(std::string_view input) {
  const MemoryFile file(input);
  expect(ErrorKind::checkpoint, file.path, [&] {
    const auto checkpoint = TorchCheckpoint::open(file.path);
    for (const auto& tensor : checkpoint.tensors()) checkpoint.read(checkpoint.at(tensor.name));
  });
}

void elf(std::string_view input) {
  for (const char* section : {".ditto.stamp", ".dynstr"})
    expect(ErrorKind::plugin, "x.so", [&] { REQUIRE(!elf_section(input, "x.so", section).empty()); });
}

void events(std::string_view input) {
  for (const MemoryFile& file : {MemoryFile(input), MemoryFile(tfrecord(input))})
    expect(ErrorKind::data, file.path, [&] { read_events(file.path); });
}

void utf8(std::string_view input) {
  const auto damage = utf8_damage(input);
  REQUIRE(!damage || *damage < input.size());
  if (damage) REQUIRE(!utf8_damage(input.substr(0, *damage)));
}

// For parsers that take a folder: one that is there until the process ends, with the files that were written to it
// last.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/ditto-fuzz-XXXXXX";
    REQUIRE(::mkdtemp(name));
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  void write(const std::string& name, std::string_view text) const {
    std::ofstream(path + "/" + name, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
  }
  std::string path;
};

void tokenizer_file(std::string_view input) {
  static const Folder folder;
  folder.write("tokenizer.json", input);
  for (const auto& open : {open_clip_tokenizer, open_bert_tokenizer})
    expect(ErrorKind::config, folder.path,
           [&] { REQUIRE(open(folder.path, {})->row("A b's \u00e9.", "x").ids.size() == 77); });
}

// CLIP's with one pair and BERT's with three letters.
std::vector<std::unique_ptr<const Tokenizer>> small_tokenizers() {
  static const Folder folder;
  auto words = nlohmann::json::object();
  const auto add = [&](const std::string& word) { words[word] = words.size(); };
  for (const char* end : {"", "</w>"})
    for (char32_t letter = 0x21; letter < 0x144; ++letter)  // bytes as the files write them, and some more
      add(unicode::text(std::u32string(1, letter)) + end);
  for (const char* word : {"ab", "<|startoftext|>", "<|endoftext|>"}) add(word);
  folder.write("vocab.json", words.dump());
  folder.write("merges.txt", "a b\n");
  folder.write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##b\n##a\n");
  std::vector<std::unique_ptr<const Tokenizer>> all;
  for (const auto cleaning : {Cleaning::none, Cleaning::clip}) {
    all.push_back(open_clip_tokenizer(folder.path, {.cleaning = cleaning}));
    all.push_back(open_bert_tokenizer(folder.path, {.cleaning = cleaning}));
  }
  return all;
}

void tokenizer_text(std::string_view input) {
  static const auto all = small_tokenizers();
  for (const auto& tokenizer : all)
    expect(ErrorKind::data, "x", [&] {
      const auto row = tokenizer->row(input, "x");
      REQUIRE(row.ids.size() == 77 && row.length >= 2 && row.length <= 77);
      for (const auto id : tokenizer->pieces(input, "x")) REQUIRE(id >= 0 && id < tokenizer->vocabulary());
    });
}

constexpr std::array<Target, 24> kTargets{{{"elf", elf},
                                           {"events", events},
                                           {"jpeg", jpeg},
                                           {"json", json},
                                           {"packed_table", packed_table},
                                           {"pickle", pickle},
                                           {"png", png},
                                           {"safetensors", safetensors},
                                           {"saved_tensor", saved_tensor},
                                           {"table", table},
                                           {"tar", tar},
                                           {"text_table", text_table},
                                           {"tokenizer_file", tokenizer_file},
                                           {"tokenizer_text", tokenizer_text},
                                           {"toml", toml},
                                           {"toml_value", toml_value},
                                           {"torch_zip", torch_zip},
                                           {"utf8", utf8},
                                           {"webp", webp},
                                           {"avif", avif},
                                           {"tiff", tiff},
                                           {"gif", gif},
                                           {"bmp", bmp},
                                           {"yaml", yaml}}};

}  // namespace

std::span<const Target> targets() { return kTargets; }

}  // namespace ditto::fuzz
