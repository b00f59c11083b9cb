#include "core/formats/tensor/torch_zip.h"

#include <ditto/error.h>
#include <ditto/options.h>
#include <zip.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/formats/limits.h"
#include "core/formats/tensor/torch_tree.h"

namespace ditto::formats {

namespace {

struct CloseArchive {
  void operator()(zip_t* zip) const { zip_discard(zip); }
};
struct CloseFile {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};
using Archive = std::unique_ptr<zip_t, CloseArchive>;

[[noreturn]] void refuse(const std::string& path, const std::string& what, std::string_view remedy = {}) {
  throw Error(ErrorKind::checkpoint, path, what, remedy);
}

Archive open_archive(const std::string& path) {
  std::error_code status;
  if (std::filesystem::exists(path, status) && !std::filesystem::is_regular_file(path, status))
    refuse(path, "is not a regular file");
  int code = 0;
  Archive zip(zip_open(path.c_str(), ZIP_RDONLY, &code));
  if (zip) return zip;
  std::ifstream file(path, std::ios::binary);
  if (file && file.get() == 0x80) {
    refuse(path, "this is the old form of torch.save, a pickle without a zip archive",
           "load it and save it again with PyTorch 1.6 or newer");
  }
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  const std::string text = zip_error_strerror(&error);
  zip_error_fini(&error);
  refuse(path, "cannot be opened as a zip archive: " + text, "a file of torch.save is expected");
}

Archive open_archive(std::span<const std::byte> bytes, const std::string& where) {
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* source = zip_source_buffer_create(bytes.data(), bytes.size(), 0, &error);
  Archive zip(source == nullptr ? nullptr : zip_open_from_source(source, ZIP_RDONLY, &error));
  if (!zip && source != nullptr) zip_source_free(source);
  const std::string text = zip ? "" : zip_error_strerror(&error);
  zip_error_fini(&error);
  if (!zip) refuse(where, "cannot be opened as a zip archive: " + text, "a file of torch.save is expected");
  return zip;
}

class Members {
 public:
  Members(zip_t* zip, const std::string& path, std::uint64_t bytes) : zip_(zip), path_(path), file_bytes_(bytes) {
    const zip_int64_t count = zip_get_num_entries(zip, 0);
    for (zip_int64_t i = 0; i < count; ++i) {
      const char* name = zip_get_name(zip, static_cast<zip_uint64_t>(i), ZIP_FL_ENC_RAW);
      const std::string text = name == nullptr ? "" : name;
      if (text != "data.pkl" && !text.ends_with("/data.pkl")) continue;
      if (found_) refuse(path, "the archive has two data.pkl");
      found_ = true;
      prefix_ = text.substr(0, text.size() - std::strlen("data.pkl"));
    }
    if (!found_) refuse(path, "the archive has no data.pkl", "a file of torch.save is expected");
  }

  // Bytes of a member.
  std::uint64_t size(const std::string& name) const {
    zip_stat_t status;
    zip_stat_init(&status);
    const std::string full = prefix_ + name;
    if (zip_stat(zip_, full.c_str(), 0, &status) != 0) refuse(path_, "the archive has no member " + full);
    if (!(status.valid & ZIP_STAT_SIZE) || status.comp_method != ZIP_CM_STORE ||
        status.encryption_method != ZIP_EM_NONE)
      refuse(path_, "the member " + full + " is compressed or encrypted, which torch.save does not do");
    if (status.size > file_bytes_) refuse(path_, "the member " + full + " is larger than the file", "it was cut off");
    return status.size;
  }

  bool has(const std::string& name) const { return zip_name_locate(zip_, (prefix_ + name).c_str(), 0) >= 0; }

  std::vector<std::byte> read(const std::string& name, std::uint64_t limit) const {
    const std::uint64_t bytes = size(name);
    if (bytes > limit)
      refuse(path_, "the member " + name + " has " + std::to_string(bytes) + " bytes; up to " + std::to_string(limit) +
                        " are read");
    const std::unique_ptr<zip_file_t, CloseFile> file(zip_fopen(zip_, (prefix_ + name).c_str(), 0));
    if (!file) refuse(path_, "the member " + name + " cannot be read: " + zip_strerror(zip_));
    std::vector<std::byte> data(bytes);
    std::uint64_t done = 0;
    while (done < bytes) {
      const zip_int64_t part = zip_fread(file.get(), data.data() + done, bytes - done);
      if (part <= 0) refuse(path_, "the member " + name + " is damaged: " + zip_file_strerror(file.get()));
      done += static_cast<std::uint64_t>(part);
    }
    char beyond = 0;  // the checksum is compared when the end is read
    if (zip_fread(file.get(), &beyond, 1) != 0)
      refuse(path_, "the member " + name + " is damaged: " + zip_file_strerror(file.get()));
    return data;
  }

 private:
  zip_t* zip_;
  const std::string& path_;
  std::uint64_t file_bytes_;
  std::string prefix_;
  bool found_ = false;
};

std::string_view text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

struct TorchCheckpoint::State {
  std::string path;
  Archive zip;
  std::unique_ptr<Members> members;
  TorchTree tree;
  std::map<std::string, std::size_t, std::less<>> by_name;
};

TorchCheckpoint TorchCheckpoint::open(const std::string& path) {
  auto zip = open_archive(path);
  return read_from({path, std::move(zip), nullptr, {}, {}}, std::filesystem::file_size(path));
}

TorchCheckpoint TorchCheckpoint::parse(std::span<const std::byte> bytes, std::string_view where) {
  const std::string path(where);
  return read_from({path, open_archive(bytes, path), nullptr, {}, {}}, bytes.size());
}

TorchCheckpoint TorchCheckpoint::read_from(State opened, std::uint64_t file_bytes) {
  auto state = std::make_unique<State>(std::move(opened));
  const auto& path = state->path;
  state->members = std::make_unique<Members>(state->zip.get(), path, file_bytes);
  if (state->members->has("byteorder") && text_of(state->members->read("byteorder", 64)) != "little")
    refuse(path, "its numbers are big-endian", "save it on a little-endian machine");
  pickle::Arena arena;
  const auto bytes = state->members->read("data.pkl", limits::kPickleBytes);
  state->tree = flatten_torch(pickle::unpickle(text_of(bytes), path + ": data.pkl", arena), path);
  for (const auto& [key, storage] : state->tree.storages) {
    const std::uint64_t there = state->members->size("data/" + key);
    if (there != storage.bytes)
      refuse(path,
             "storage " + key + " has " + std::to_string(there) + " bytes; its tensors need " +
                 std::to_string(storage.bytes),
             "the file is damaged");
  }
  for (std::size_t i = 0; i < state->tree.tensors.size(); ++i) state->by_name.emplace(state->tree.tensors[i].name, i);
  return TorchCheckpoint(std::move(state));
}

TorchCheckpoint::TorchCheckpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
TorchCheckpoint::TorchCheckpoint(TorchCheckpoint&&) noexcept = default;
TorchCheckpoint& TorchCheckpoint::operator=(TorchCheckpoint&&) noexcept = default;
TorchCheckpoint::~TorchCheckpoint() = default;

const std::vector<TorchTensor>& TorchCheckpoint::tensors() const { return state_->tree.tensors; }
const std::map<std::string, TorchScalar>& TorchCheckpoint::scalars() const { return state_->tree.scalars; }
const std::vector<TorchOpaque>& TorchCheckpoint::opaque() const { return state_->tree.opaque; }

const TorchTensor* TorchCheckpoint::find(std::string_view name) const {
  const auto found = state_->by_name.find(name);
  return found == state_->by_name.end() ? nullptr : &state_->tree.tensors[found->second];
}

const TorchTensor& TorchCheckpoint::at(std::string_view name) const {
  if (const TorchTensor* tensor = find(name)) return *tensor;
  const std::string quoted = "'" + std::string(name) + "'";
  for (const TorchOpaque& opaque : state_->tree.opaque)
    if (opaque.name == name)
      refuse(state_->path, quoted + " is a " + opaque.class_name + ", which is not read; a tensor is expected");
  if (state_->tree.scalars.contains(std::string(name)))
    refuse(state_->path, quoted + " is a plain value; a tensor is expected");
  std::vector<std::string> names;
  for (const TorchTensor& tensor : state_->tree.tensors) names.push_back(tensor.name);
  const std::string near = nearest(name, names);
  refuse(state_->path, "it has no tensor " + quoted,
         near.empty() ? std::string() : "the nearest name in it is '" + near + "'");
}

std::vector<std::byte> TorchCheckpoint::read(const TorchTensor& tensor) const {
  const auto member = "data/" + tensor.storage;
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return {};
  return elements_of(tensor, state_->members->read(member, state_->members->size(member)), state_->path);
}

}  // namespace ditto::formats
