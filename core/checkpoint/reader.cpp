#include "core/checkpoint/reader.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/checkpoint/disk.h"
#include "core/checkpoint/tensor_file.h"

namespace ditto::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMostOpen = 128;  // files: a checkpoint of many ranks has more than a process may open
constexpr const char* kRemedy = "use another checkpoint; `ditto checkpoint verify` tells which are whole";

Manifest read_manifest(const std::string& folder) {
  const std::string path = (fs::path(folder) / kManifestFile).string();
  if (!fs::is_directory(folder))
    throw Error(ErrorKind::checkpoint, folder, "is not a checkpoint: there is no such folder");
  if (!fs::exists(path))
    throw Error(ErrorKind::checkpoint, path, "is missing: the save never ended, or this is no checkpoint", kRemedy);
  return parse_manifest(formats::read_file(path, ErrorKind::checkpoint), path);
}

// Calls use(begin, end) for each run of the bytes of `box` in a tensor that lies, row by row, in the file's bytes
// [at, at + bytes).
void for_each_run_of(const Box& box, const Dims& shape, uint64_t at, uint64_t bytes,
                     const std::function<void(uint64_t, uint64_t)>& use, size_t dim = 0) {
  if (dim == shape.size()) return use(at, at + bytes);
  const uint64_t row = bytes / static_cast<uint64_t>(shape[dim]);
  const uint64_t begin = at + static_cast<uint64_t>(box.start[dim]) * row;
  const uint64_t end = begin + static_cast<uint64_t>(box.size[dim]) * row;
  const auto rest = static_cast<std::ptrdiff_t>(dim) + 1;
  if (std::equal(box.size.begin() + rest, box.size.end(), shape.begin() + rest)) return use(begin, end);
  for (uint64_t next = begin; next < end; next += row) for_each_run_of(box, shape, next, row, use, dim + 1);
}

std::string shape_text(const std::string& dtype, const Dims& shape) { return dtype + " " + to_text(shape); }

}  // namespace

Reader::Reader(std::string folder)
    : folder_(std::move(folder)), manifest_mark_(mark_of(path(kManifestFile))), manifest_(read_manifest(folder_)) {
  const auto all_of = [this](const char* name) {
    File& file = this->file(name);
    return text(file, file.record->bytes);
  };
  state_ = parse_state(all_of(kStateFile), path(kStateFile));
  index_ = parse_index(all_of(kIndexFile), path(kIndexFile));
  recipe_ = all_of(kRecipeFile);
}

std::string Reader::path(const std::string& name) const { return (fs::path(folder_) / name).string(); }

Reader::File& Reader::file(const std::string& name) {
  if (const auto it = files_.find(name); it != files_.end()) return it->second;
  const FileRecord* record = manifest_.find(name);
  if (!record) throw Error(ErrorKind::checkpoint, path(name), "is not listed in the checkpoint's manifest", kRemedy);
  File& file = files_.emplace(name, File{record, std::vector<bool>(record->xxh3_128.size())}).first->second;
  opened(file);
  return file;
}

const formats::RandomFile& Reader::opened(File& file) {
  if (file.opened) return *file.opened;
  const FileRecord& record = *file.record;
  if (!file.mark) file.mark = mark_of(path(record.name));
  if (!fs::exists(path(record.name)))
    throw Error(ErrorKind::checkpoint, path(record.name),
                "is missing; the manifest lists it with " + std::to_string(record.bytes) + " bytes", kRemedy);
  if (open_files_ == kMostOpen) {
    for (auto& [name, other] : files_) other.opened.reset();
    open_files_ = 0;
  }
  file.opened = formats::RandomFile::open(path(record.name), ErrorKind::checkpoint);
  ++open_files_;
  const uint64_t bytes = file.opened->size();
  if (bytes != record.bytes)
    throw Error(ErrorKind::checkpoint, path(record.name),
                "has " + std::to_string(bytes) + " bytes, the manifest says " + std::to_string(record.bytes), kRemedy);
  return *file.opened;
}

std::span<const std::byte> Reader::chunk(File& file, size_t number) {
  if (chunk_of_ == &file && chunk_number_ == number) return chunk_;
  const uint64_t begin = number * manifest_.chunk_bytes;
  const uint64_t end = std::min(begin + manifest_.chunk_bytes, file.record->bytes);
  const auto& from = opened(file);
  chunk_of_ = nullptr;
  chunk_.resize(end - begin);
  from.read(begin, chunk_);
  const std::string found = checksum(chunk_);
  if (found != file.record->xxh3_128[number])
    throw Error(ErrorKind::checkpoint, path(file.record->name),
                "is damaged: the checksum of its bytes " + std::to_string(begin) + " to " + std::to_string(end) +
                    " is " + found + ", the manifest says " + file.record->xxh3_128[number],
                kRemedy);
  file.checked[number] = true;
  chunk_of_ = &file;
  chunk_number_ = number;
  return chunk_;
}

void Reader::check_chunks(File& file, uint64_t begin, uint64_t end) {
  for (uint64_t number = begin / manifest_.chunk_bytes; number * manifest_.chunk_bytes < end; ++number)
    if (!file.checked[number]) chunk(file, number);
}

void Reader::copy(File& file, uint64_t begin, std::span<std::byte> into) {
  while (!into.empty()) {
    const auto from = chunk(file, begin / manifest_.chunk_bytes).subspan(begin % manifest_.chunk_bytes);
    const size_t bytes = std::min(from.size(), into.size());
    std::copy_n(from.begin(), bytes, into.begin());
    into = into.subspan(bytes);
    begin += bytes;
  }
}

void Reader::check_file(const std::string& name, size_t first, size_t stride) {
  File& file = this->file(name);
  for (size_t number = first; number < file.checked.size(); number += stride)
    if (!file.checked[number]) chunk(file, number);
}

std::string Reader::text(File& file, uint64_t bytes) {
  std::string text(bytes, '\0');
  copy(file, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

const formats::SafetensorsReader& Reader::tensors(File& file) {
  if (file.tensors) return *file.tensors;
  const uint64_t all = file.record->bytes;
  const std::string where = path(file.record->name), length = text(file, std::min<uint64_t>(all, 8));
  const uint64_t bytes = formats::safetensors_header_bytes(std::as_bytes(std::span(length)), all, where);
  const std::string header = text(file, bytes);
  return file.tensors.emplace(formats::SafetensorsReader::parse(std::as_bytes(std::span(header)), all, where));
}

std::vector<Reader::Part> Reader::cover(const std::string& name, const IndexedTensor& tensor, const Box& box) const {
  std::vector<Part> parts;
  Tiling tiling(box);
  for (const Piece& piece : tensor.pieces) {
    auto shared = intersection(piece.box, box);
    if (!shared) continue;
    tiling.add(*shared);
    parts.push_back({&piece, std::move(*shared)});
  }
  if (!tiling.is_filled()) refuse_cover(name, box, parts, tiling.held());
  return parts;
}

void Reader::refuse_cover(const std::string& name, const Box& box, const std::vector<Part>& parts, int64_t held) const {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::checkpoint, path(kIndexFile), "tensor '" + name + "': " + what, kRemedy);
  };
  std::vector<const Box*> boxes;
  for (const Part& part : parts) boxes.push_back(&part.box);
  if (const auto two = two_that_meet(boxes))
    refuse(parts[two->second].piece->file + " and " + parts[two->first].piece->file + " hold the same numbers twice");
  const int64_t all = numbers(box.size);
  if (held >= all) refuse("some of its pieces hold the same numbers twice");
  refuse("of the " + std::to_string(all) + " numbers at " + to_text(box.start) + " the checkpoint holds " +
         std::to_string(held));
}

std::vector<std::string> Reader::changed() const {
  std::vector<std::string> lines;
  const auto look = [&](const std::string& name, const FileMark& before) {
    const auto now = mark_of(path(name));
    if (now == before) return;
    const std::string what = !now.is_there ? "was removed while it was read"
                             : now.bytes == before.bytes
                                 ? "was changed while it was read"
                                 : "had " + std::to_string(before.bytes) + " bytes and has " +
                                       std::to_string(now.bytes) + " now: it was changed while it was read";
    lines.emplace_back(
        Error(ErrorKind::checkpoint, path(name), what, "let nothing write there, and look again").what());
  };
  look(kManifestFile, manifest_mark_);
  for (const auto& [name, file] : files_)
    if (file.mark) look(name, *file.mark);
  return lines;
}

const formats::SafetensorsEntry& Reader::entry(const IndexedTensor& tensor, const Piece& piece) {
  const auto& entry = tensors(file(piece.file)).at(piece.tensor);
  const auto dtype = formats::dtype_name(entry.dtype);
  if (dtype != tensor.dtype || entry.shape != piece.box.size)
    throw Error(ErrorKind::checkpoint, path(piece.file) + ": tensor '" + entry.name + "'",
                "is " + shape_text(std::string(dtype), entry.shape) + ", the index says " +
                    shape_text(tensor.dtype, piece.box.size),
                kRemedy);
  return entry;
}

void Reader::for_each_run(const IndexedTensor& tensor, const Part& part,
                          const std::function<void(File&, uint64_t, uint64_t)>& use) {
  const auto& entry = this->entry(tensor, *part.piece);
  Box within = part.box;
  for (size_t d = 0; d < within.start.size(); ++d) within.start[d] -= part.piece->box.start[d];
  File& from = file(part.piece->file);
  for_each_run_of(within, entry.shape, entry.offset, entry.bytes,
                  [&](uint64_t begin, uint64_t end) { use(from, begin, end); });
}

void Reader::check(const IndexedTensor& tensor, const Part& part) {
  for_each_run(tensor, part, [this](File& file, uint64_t begin, uint64_t end) { check_chunks(file, begin, end); });
}

torch::Tensor Reader::read(const IndexedTensor& tensor, const Part& part) {
  const auto& entry = this->entry(tensor, *part.piece);
  const auto type = scalar_type_of(entry.dtype, path(part.piece->file) + ": tensor '" + entry.name + "'");
  torch::Tensor numbers = torch::empty(part.box.size, torch::TensorOptions(type));
  std::span<std::byte> left = writable_bytes_of(numbers);
  for_each_run(tensor, part, [&](File& file, uint64_t begin, uint64_t end) {
    copy(file, begin, left.first(end - begin));
    left = left.subspan(end - begin);
  });
  return numbers;
}

}  // namespace ditto::checkpoint
