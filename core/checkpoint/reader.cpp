#include "core/checkpoint/reader.h"

#include <filesystem>

#include "core/checkpoint/disk.h"
#include "core/checkpoint/tensor_file.h"

namespace ditto::checkpoint {

namespace fs = std::filesystem;
using formats::MappedFile;

namespace {

constexpr const char* kRemedy = "use another checkpoint; `ditto checkpoint verify` tells which are whole";

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = (fs::path(folder) / kManifestFile).string();
  if (!fs::is_directory(folder))
    throw Error(ErrorKind::checkpoint, folder, "is not a checkpoint: there is no such folder");
  if (!fs::exists(path))
    throw Error(ErrorKind::checkpoint, path, "is missing: the save never ended, or this is no checkpoint", kRemedy);
  return parse_manifest(text_of(*MappedFile::open(path, ErrorKind::checkpoint)), path);
}

std::string shape_text(const std::string& dtype, const Dims& shape) { return dtype + " " + to_text(shape); }

}  // namespace

Reader::Reader(std::string folder) : folder_(std::move(folder)), manifest_(read_manifest(folder_)) {
  state_ = parse_state(text(kStateFile), path(kStateFile));
  index_ = parse_index(text(kIndexFile), path(kIndexFile));
  recipe_ = text(kRecipeFile);
}

std::string Reader::path(const std::string& name) const { return (fs::path(folder_) / name).string(); }

std::shared_ptr<const MappedFile> Reader::checked(const std::string& name) {
  const FileRecord* record = manifest_.find(name);
  if (!record) throw Error(ErrorKind::checkpoint, path(name), "is not listed in the checkpoint's manifest", kRemedy);
  if (!fs::exists(path(name)))
    throw Error(ErrorKind::checkpoint, path(name),
                "is missing; the manifest lists it with " + std::to_string(record->bytes) + " bytes", kRemedy);
  auto file = MappedFile::open(path(name), ErrorKind::checkpoint);
  if (file->bytes().size() != record->bytes)
    throw Error(
        ErrorKind::checkpoint, path(name),
        "has " + std::to_string(file->bytes().size()) + " bytes, the manifest says " + std::to_string(record->bytes),
        kRemedy);
  if (checked_.count(name)) return file;
  const std::string found = checksum(file->bytes());
  if (found != record->xxh3_128)
    throw Error(ErrorKind::checkpoint, path(name),
                "is damaged: its checksum is " + found + ", the manifest says " + record->xxh3_128, kRemedy);
  checked_.insert(name);
  return file;
}

void Reader::check_file(const std::string& name) {
  if (!checked_.count(name)) checked(name);
}

std::string Reader::text(const std::string& name) { return std::string(text_of(*checked(name))); }

const formats::SafetensorsReader& Reader::shard(const std::string& name) {
  if (const auto it = shards_.find(name); it != shards_.end()) return it->second;
  check_file(name);
  return shards_.emplace(name, formats::SafetensorsReader::open(path(name))).first->second;
}

std::vector<Reader::Part> Reader::cover(const std::string& name, const IndexedTensor& tensor, const Box& box) const {
  std::vector<Part> parts;
  int64_t found = 0;
  for (const Piece& piece : tensor.pieces) {
    const auto shared = intersection(piece.box, box);
    if (!shared) continue;
    for (const Part& other : parts)
      if (intersection(other.box, *shared))
        throw Error(
            ErrorKind::checkpoint, path(kIndexFile),
            "tensor '" + name + "': " + piece.file + " and " + other.piece->file + " hold the same numbers twice",
            kRemedy);
    found += numbers(shared->size);
    parts.push_back({&piece, *shared});
  }
  if (found != numbers(box.size))
    throw Error(ErrorKind::checkpoint, path(kIndexFile),
                "tensor '" + name + "': of the " + std::to_string(numbers(box.size)) + " numbers at " +
                    to_text(box.start) + " the checkpoint holds " + std::to_string(found),
                kRemedy);
  return parts;
}

torch::Tensor Reader::view(const IndexedTensor& tensor, const Part& part) {
  const auto& entry = shard(part.piece->file).at(part.piece->tensor);
  const std::string where = path(part.piece->file) + ": tensor '" + entry.name + "'";
  const std::string found = shape_text(std::string(formats::dtype_name(entry.dtype)), entry.shape);
  const std::string expected = shape_text(tensor.dtype, part.piece->box.size);
  if (found != expected)
    throw Error(ErrorKind::checkpoint, where, "is " + found + ", the index says " + expected, kRemedy);
  const auto type = scalar_type_of(entry.dtype, where);
  const bool aligned = reinterpret_cast<uintptr_t>(entry.data.data()) % c10::elementSize(type) == 0;
  torch::Tensor whole =
      aligned ? torch::from_blob(const_cast<std::byte*>(entry.data.data()), entry.shape, torch::TensorOptions(type))
              : to_tensor(entry, where);
  for (size_t d = 0; d < entry.shape.size(); ++d)
    whole = whole.narrow(static_cast<int64_t>(d), part.box.start[d] - part.piece->box.start[d], part.box.size[d]);
  return whole;
}

}  // namespace ditto::checkpoint
