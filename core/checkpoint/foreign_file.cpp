#include "core/checkpoint/foreign_file.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/checkpoint/tensor_file.h"
#include "core/formats/file.h"
#include "core/formats/torch_zip.h"

namespace ditto::checkpoint {

namespace {

class Safetensors final : public ForeignFile {
 public:
  explicit Safetensors(const std::string& path) : file_(formats::SafetensorsReader::open(path)) {}
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& entry : file_.entries()) names.push_back(entry.name);
    return names;
  }
  bool has(const std::string& name) const override { return file_.find(name) != nullptr; }
  std::vector<int64_t> shape(const std::string& name) const override { return file_.at(name).shape; }
  torch::Tensor read(const std::string& name) const override { return read_tensor(file_, file_.at(name)); }
  std::map<std::string, std::string> notes() const override { return file_.metadata(); }

 private:
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
  torch::Tensor read(const std::string& name) const override {
    const formats::TorchTensor& entry = file_.at(name);
    const std::vector<std::byte> bytes = file_.read(entry);
    const auto type = scalar_type_of(entry.dtype, path_ + ": tensor '" + name + "'");
    torch::Tensor tensor = torch::empty(entry.shape, torch::TensorOptions(type));
    TORCH_CHECK(tensor.nbytes() == bytes.size());
    if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
    return tensor;
  }

 private:
  std::string path_;
  formats::TorchCheckpoint file_;
};

bool is_zip(const std::string& path) {
  constexpr std::array<unsigned char, 4> kMagic{'P', 'K', 3, 4};
  const auto file = formats::RandomFile::open(path, ErrorKind::checkpoint);
  std::array<unsigned char, kMagic.size()> first{};
  file->read(0, std::as_writable_bytes(std::span(first)).first(std::min<uint64_t>(first.size(), file->size())));
  return first == kMagic;
}

}  // namespace

std::unique_ptr<ForeignFile> open_foreign(const std::string& path) {
  if (is_zip(path)) return std::make_unique<TorchZip>(path);
  return std::make_unique<Safetensors>(path);
}

}  // namespace ditto::checkpoint
