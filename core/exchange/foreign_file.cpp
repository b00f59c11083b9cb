#include "core/exchange/foreign_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/checkpoint/disk.h"
#include "core/checkpoint/tensor_file.h"
#include "core/formats/file.h"
#include "core/formats/tensor/torch_zip.h"
#include "core/formats/text/json.h"

namespace ditto::checkpoint {

namespace {

class Safetensors final : public ForeignFile {
 public:
  explicit Safetensors(const std::string& path) : path_(path), file_(formats::SafetensorsReader::open(path)) {}
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& entry : file_.entries()) names.push_back(entry.name);
    return names;
  }
  bool has(const std::string& name) const override { return file_.find(name) != nullptr; }
  std::vector<int64_t> shape(const std::string& name) const override { return file_.at(name).shape; }
  formats::Dtype dtype(const std::string& name) const override { return file_.at(name).dtype; }
  torch::Tensor read(const std::string& name) const override { return read_tensor(file_, file_.at(name)); }
  torch::Tensor read(const std::string& name, int64_t first, int64_t count) const override {
    const auto& entry = file_.at(name);
    auto numbers = torch::empty({count}, scalar_type_of(entry.dtype, path_ + ": tensor '" + name + "'"));
    file_.read(entry, static_cast<uint64_t>(first) * numbers.element_size(), writable_bytes_of(numbers));
    return numbers;
  }
  std::map<std::string, std::string> notes() const override { return file_.metadata(); }
  std::vector<std::string> files() const override { return {path_}; }

 private:
  std::string path_;
  formats::SafetensorsReader file_;
};

class TorchZip final : public ForeignFile {
 public:
  explicit TorchZip(const std::string& path) : path_(path), file_(formats::TorchCheckpoint::open(path)) {}
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& tensor : file_.tensors()) names.push_back(tensor.name);
    return names;
  }
  bool has(const std::string& name) const override { return file_.find(name) != nullptr; }
  std::vector<int64_t> shape(const std::string& name) const override { return file_.at(name).shape; }
  formats::Dtype dtype(const std::string& name) const override { return file_.at(name).dtype; }
  torch::Tensor read(const std::string& name) const override {
    const formats::TorchTensor& entry = file_.at(name);
    const std::vector<std::byte> bytes = file_.read(entry);
    const auto type = scalar_type_of(entry.dtype, path_ + ": tensor '" + name + "'");
    torch::Tensor tensor = torch::empty(entry.shape, torch::TensorOptions(type));
    TORCH_CHECK(tensor.nbytes() == bytes.size());
    if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
    return tensor;
  }
  // A packed tensor comes whole; the last one stays, since its parts are asked for one after another.
  torch::Tensor read(const std::string& name, int64_t first, int64_t count) const override {
    if (last_name_ != name) last_ = read(name).view(-1), last_name_ = name;
    return last_.narrow(0, first, count);
  }
  std::optional<double> number(const std::string& name) const override {
    const auto found = file_.scalars().find(name);
    if (found == file_.scalars().end()) return std::nullopt;
    if (const auto* whole = std::get_if<int64_t>(&found->second)) return static_cast<double>(*whole);
    if (const auto* real = std::get_if<double>(&found->second)) return *real;
    return std::nullopt;
  }
  std::vector<std::string> files() const override { return {path_}; }

 private:
  std::string path_;
  formats::TorchCheckpoint file_;
  mutable std::string last_name_;
  mutable torch::Tensor last_;
};

// What torch.save begins a file with: a zip, and long ago a pickle of its own number, which is refused by that name.
bool is_of_torch(const std::string& path) {
  using Bytes = std::array<unsigned char, 4>;
  const auto file = formats::RandomFile::open(path, ErrorKind::checkpoint);
  Bytes first{};
  file->read(0, std::as_writable_bytes(std::span(first)).first(std::min<uint64_t>(first.size(), file->size())));
  return first == Bytes{'P', 'K', 3, 4} || first == Bytes{0x80, 2, 0x8a, 0x0a};
}

std::unique_ptr<ForeignFile> open_one(const std::string& path) {
  if (is_of_torch(path)) return std::make_unique<TorchZip>(path);
  return std::make_unique<Safetensors>(path);
}

// Several files, and an index that says which tensor lies in which.
class Indexed final : public ForeignFile {
 public:
  explicit Indexed(const std::string& path) : path_(path) {
    const auto index = formats::parse_json(formats::read_file(path, ErrorKind::checkpoint, kMostIndexBytes), path,
                                           ErrorKind::checkpoint);
    const auto map = index.is_object() ? index.find("weight_map") : index.end();
    if (map == index.end() || !map->is_object()) refuse("has no \"weight_map\" of tensors and files");
    for (const auto& [name, file] : map->items()) {
      if (!file.is_string()) refuse("says of tensor '" + name + "' no file's name");
      place(name, file.get<std::string>());
    }
    for (const auto& [file, open] : open_)
      for (const auto& name : open->names())
        if (const auto at = files_.find(name); at == files_.end() || at->second != file)
          refuse("does not say that " + file + " holds tensor '" + name + "'");
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, file] : files_) names.push_back(name);
    return names;
  }
  bool has(const std::string& name) const override { return files_.count(name) != 0; }
  std::vector<int64_t> shape(const std::string& name) const override { return of(name).shape(name); }
  formats::Dtype dtype(const std::string& name) const override { return of(name).dtype(name); }
  torch::Tensor read(const std::string& name) const override { return of(name).read(name); }
  torch::Tensor read(const std::string& name, int64_t first, int64_t count) const override {
    return of(name).read(name, first, count);
  }
  std::map<std::string, std::string> notes() const override {  // each file has the same
    return open_.empty() ? std::map<std::string, std::string>() : open_.begin()->second->notes();
  }
  std::vector<std::string> files() const override {
    std::vector<std::string> all{path_};
    for (const auto& [file, open] : open_) all.push_back(beside(file));
    return all;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::checkpoint, path_, what, "take the index and its files as they were saved together");
  }
  std::string beside(const std::string& file) const {
    return (std::filesystem::path(path_).parent_path() / file).string();
  }
  // A name out of a file is no way to another folder.
  void place(const std::string& name, const std::string& file) {
    const bool is_known = file.ends_with(".safetensors") || file.ends_with(".bin") || file.ends_with(".pt");
    if (!is_known || file.find('/') != std::string::npos || file.find('\0') != std::string::npos)
      refuse("names '" + file + "', which is no file of weights beside it");
    auto& open = open_[file];
    if (!open) open = open_one(beside(file));
    if (!open->has(name)) refuse("says that " + file + " holds tensor '" + name + "', and it does not");
    files_[name] = file;
  }
  const ForeignFile& of(const std::string& name) const {
    const auto at = files_.find(name);
    if (at == files_.end()) refuse("has no tensor '" + name + "'");
    return *open_.at(at->second);
  }

  const std::string path_;
  std::map<std::string, std::string> files_;  // by tensor
  std::map<std::string, std::unique_ptr<ForeignFile>> open_;
};

}  // namespace

bool is_weights_index(const std::string& file) {
  const auto name = std::filesystem::path(file).filename().string();
  return name.ends_with(".json") && name.find(".index.") != std::string::npos;
}

std::unique_ptr<ForeignFile> open_foreign(const std::string& path) {
  if (is_weights_index(path)) return std::make_unique<Indexed>(path);
  return open_one(path);
}

std::string fingerprint(const ForeignFile& file) {
  std::string all;
  std::vector<std::byte> part;
  for (const auto& path : file.files()) {
    const auto bytes = formats::RandomFile::open(path, ErrorKind::checkpoint);
    ChunkHasher hasher;
    for (uint64_t at = 0; at < bytes->size(); at += part.size()) {
      part.resize(std::min(kChunkBytes, bytes->size() - at));
      bytes->read(at, part);
      hasher.update(part);
    }
    for (const auto& chunk : hasher.finish()) all += chunk;
    all += ' ';
  }
  return checksum(std::as_bytes(std::span(all)));
}

}  // namespace ditto::checkpoint
