#include "core/checkpoint/reader.h"

#include <algorithm>
#include <filesystem>
#include <functional>

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

// Calls use(begin, end) for each run of the bytes of `box` in a tensor that lies, row by row, in the file's bytes
// [at, at + bytes).
void for_each_run(const Box& box, const Dims& shape, uint64_t at, uint64_t bytes,
                  const std::function<void(uint64_t, uint64_t)>& use, size_t dim = 0) {
  if (dim == shape.size()) return use(at, at + bytes);
  const uint64_t row = bytes / static_cast<uint64_t>(shape[dim]);
  const uint64_t begin = at + static_cast<uint64_t>(box.start[dim]) * row;
  const uint64_t end = begin + static_cast<uint64_t>(box.size[dim]) * row;
  const auto rest = static_cast<std::ptrdiff_t>(dim) + 1;
  if (std::equal(box.size.begin() + rest, box.size.end(), shape.begin() + rest)) return use(begin, end);
  for (uint64_t next = begin; next < end; next += row) for_each_run(box, shape, next, row, use, dim + 1);
}

std::string shape_text(const std::string& dtype, const Dims& shape) { return dtype + " " + to_text(shape); }

}  // namespace

Reader::Reader(std::string folder) : folder_(std::move(folder)), manifest_(read_manifest(folder_)) {
  state_ = parse_state(text(kStateFile), path(kStateFile));
  index_ = parse_index(text(kIndexFile), path(kIndexFile));
  recipe_ = text(kRecipeFile);
}

std::string Reader::path(const std::string& name) const { return (fs::path(folder_) / name).string(); }

Reader::File& Reader::file(const std::string& name) {
  if (const auto it = files_.find(name); it != files_.end()) return it->second;
  const FileRecord* record = manifest_.find(name);
  if (!record) throw Error(ErrorKind::checkpoint, path(name), "is not listed in the checkpoint's manifest", kRemedy);
  if (!fs::exists(path(name)))
    throw Error(ErrorKind::checkpoint, path(name),
                "is missing; the manifest lists it with " + std::to_string(record->bytes) + " bytes", kRemedy);
  auto mapped = MappedFile::open(path(name), ErrorKind::checkpoint);
  const uint64_t bytes = mapped->bytes().size();
  if (bytes != record->bytes)
    throw Error(ErrorKind::checkpoint, path(name),
                "has " + std::to_string(bytes) + " bytes, the manifest says " + std::to_string(record->bytes), kRemedy);
  std::vector<bool> checked(record->xxh3_128.size());
  return files_.emplace(name, File{record, std::move(mapped), std::move(checked), {}}).first->second;
}

void Reader::check_chunk(File& file, size_t number) {
  if (file.checked[number]) return;
  const uint64_t begin = number * manifest_.chunk_bytes;
  const uint64_t end = std::min(begin + manifest_.chunk_bytes, file.record->bytes);
  const std::string found = checksum(file.mapped->bytes().subspan(begin, end - begin));
  if (found != file.record->xxh3_128[number])
    throw Error(ErrorKind::checkpoint, file.mapped->path(),
                "is damaged: the checksum of its bytes " + std::to_string(begin) + " to " + std::to_string(end) +
                    " is " + found + ", the manifest says " + file.record->xxh3_128[number],
                kRemedy);
  file.checked[number] = true;
}

void Reader::check(File& file, uint64_t begin, uint64_t end) {
  for (uint64_t number = begin / manifest_.chunk_bytes; number * manifest_.chunk_bytes < end; ++number)
    check_chunk(file, number);
}

void Reader::check_file(const std::string& name, size_t first, size_t stride) {
  File& file = this->file(name);
  for (size_t number = first; number < file.checked.size(); number += stride) check_chunk(file, number);
}

std::string Reader::text(const std::string& name) {
  check_file(name);
  return std::string(text_of(*file(name).mapped));
}

const formats::SafetensorsReader& Reader::tensors(File& file) {
  if (file.tensors) return *file.tensors;
  const auto bytes = file.mapped->bytes();
  check(file, 0, std::min<uint64_t>(bytes.size(), 8));  // says how long the header is
  check(file, 0, formats::safetensors_header_bytes(bytes, file.mapped->path()));
  return file.tensors.emplace(formats::SafetensorsReader::parse(bytes, file.mapped->path()));
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

const formats::SafetensorsEntry& Reader::entry(const IndexedTensor& tensor, const Piece& piece) {
  const auto& entry = tensors(file(piece.file)).at(piece.tensor);
  const std::string found = shape_text(std::string(formats::dtype_name(entry.dtype)), entry.shape);
  const std::string expected = shape_text(tensor.dtype, piece.box.size);
  if (found != expected)
    throw Error(ErrorKind::checkpoint, path(piece.file) + ": tensor '" + entry.name + "'",
                "is " + found + ", the index says " + expected, kRemedy);
  return entry;
}

torch::Tensor Reader::view(const IndexedTensor& tensor, const Part& part) {
  const auto& entry = this->entry(tensor, *part.piece);
  const std::string where = path(part.piece->file) + ": tensor '" + entry.name + "'";
  const auto type = scalar_type_of(entry.dtype, where);
  Box within = part.box;
  for (size_t d = 0; d < within.start.size(); ++d) within.start[d] -= part.piece->box.start[d];
  File& from = file(part.piece->file);
  for_each_run(within, entry.shape, entry.offset, entry.bytes,
               [&](uint64_t begin, uint64_t end) { check(from, begin, end); });
  const bool aligned = reinterpret_cast<uintptr_t>(entry.data.data()) % c10::elementSize(type) == 0;
  torch::Tensor numbers =
      aligned ? torch::from_blob(const_cast<std::byte*>(entry.data.data()), entry.shape, torch::TensorOptions(type))
              : to_tensor(entry, where);
  for (size_t d = 0; d < entry.shape.size(); ++d)
    numbers = numbers.narrow(static_cast<int64_t>(d), within.start[d], within.size[d]);
  return numbers;
}

}  // namespace ditto::checkpoint
