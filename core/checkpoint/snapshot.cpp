#include "core/checkpoint/snapshot.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "core/checkpoint/disk.h"
#include "core/checkpoint/tensor_file.h"
#include "core/mesh/whole.h"

namespace ditto::checkpoint {

namespace fs = std::filesystem;

namespace {

std::string shard_name(const std::string& section, int rank) {
  char text[16];
  std::snprintf(text, sizeof text, "-%05d", rank);
  return section + text + ".safetensors";
}

bool writes(const LayoutEntry& entry, const Mesh* mesh) {
  return !mesh || std::all_of(kAxes.begin(), kAxes.end(),
                              [&](Axis axis) { return !entry.is_copy(axis) || mesh->index(axis) == 0; });
}

class Taker {
 public:
  Taker(Snapshot& snapshot, HostBuffers& buffers, int rank) : snapshot_(snapshot), buffers_(buffers), rank_(rank) {}

  void add(const char* section, const std::string& name, const LayoutEntry& entry, const torch::Tensor& tensor) {
    const auto expected = local_shape(entry);
    if (!tensor.defined() || tensor.sizes() != at::IntArrayRef(expected))
      throw Error(ErrorKind::checkpoint, "tensor '" + name + "'",
                  "has not the shape of the parameter it belongs to: " +
                      (tensor.defined() ? to_text(tensor.sizes().vec()) : std::string("nothing")) + " instead of " +
                      to_text(expected));
    const std::string file = shard_name(section, rank_);
    const auto dtype = formats::dtype_name(dtype_of(tensor, "tensor '" + name + "'"));
    IndexedTensor indexed{std::string(dtype), entry.full_shape, {}};
    for (const Rectangle& rectangle : entry.slices()) {
      const Box box{rectangle.global_start, rectangle.size};
      torch::Tensor local = tensor.detach();
      for (size_t d = 0; d < box.size.size(); ++d)
        local = local.narrow(static_cast<int64_t>(d), rectangle.local_start[d], rectangle.size[d]);
      const std::string part = piece_name(name, box, entry.full_shape);
      snapshot_.files[file].push_back({part, buffers_.copy(file + ":" + part, local)});
      indexed.pieces.push_back({file, part, box});
    }
    snapshot_.index.sections[section].emplace(name, std::move(indexed));
  }

 private:
  Snapshot& snapshot_;
  HostBuffers& buffers_;
  int rank_;
};

void require_along(size_t found, size_t entries, const std::string& what) {
  if (found != entries) throw std::logic_error("checkpoint: " + what + " does not run along the layout");
}

FileRecord write_shard(const std::string& folder, const std::string& name, const std::vector<Snapshot::Part>& parts) {
  const std::string path = (fs::path(folder) / name).string();
  std::vector<formats::TensorDeclaration> declarations;
  std::map<std::string, const torch::Tensor*> by_name;
  for (const auto& part : parts) {
    declarations.push_back({part.name, dtype_of(part.data, path), part.data.sizes().vec()});
    by_name[part.name] = &part.data;
  }
  ChunkHasher hasher;
  const std::string header = formats::safetensors_header(declarations, {});
  hasher.update(std::as_bytes(std::span(header)));
  formats::SafetensorsWriter writer(path, std::move(declarations));
  for (const std::string& tensor : writer.order()) {
    const auto bytes = bytes_of(*by_name.at(tensor));
    hasher.update(bytes);
    writer.write(tensor, bytes);
  }
  writer.finish(formats::Sync::fsync);
  return {name, writer.file_bytes(), hasher.finish()};
}

FileRecord write_text(const std::string& folder, const std::string& name, const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  formats::write_file((fs::path(folder) / name).string(), bytes, ErrorKind::checkpoint, formats::Sync::fsync);
  ChunkHasher hasher;
  hasher.update(bytes);
  return {name, bytes.size(), hasher.finish()};
}

// Of each tensor that this rank writes: section, name, entry and tensor.
template <class Take>
void for_each_written(const TrainState& state, const Mesh* mesh, const Take& take) {
  const auto& entries = state.layout->entries;
  const bool has_ema = state.ema && !state.ema->empty();
  if (has_ema) require_along(state.ema->size(), entries.size(), "EMA");
  const auto optimizer = state.optimizer ? state.optimizer->state() : std::map<std::string, OptimizerState>();
  for (const auto& [kind, of] : optimizer) require_along(of.tensors.size(), entries.size(), "optimizer state " + kind);
  for (size_t i = 0; i < entries.size(); ++i) {
    const LayoutEntry& entry = entries[i];
    if (!writes(entry, mesh)) continue;
    take(kModel, entry.name, entry, entry.tensor);
    if (has_ema) take(kEma, entry.name, entry, (*state.ema)[i]);
    for (const auto& [kind, of] : optimizer) {
      if (!of.tensors[i].defined()) continue;
      take(kOptimizer, kind + "/" + entry.name, entry_of(of, entry, of.tensors[i]), of.tensors[i]);
    }
  }
}

// False: there is no room for a copy, and it is the tensor itself.
bool copy_there(torch::Tensor& tensor) {
  try {
    tensor = tensor.clone(at::MemoryFormat::Contiguous);
    return true;
  } catch (const c10::OutOfMemoryError&) {
    return false;
  }
}

}  // namespace

torch::Tensor HostBuffers::copy(const std::string& key, const torch::Tensor& source) {
  torch::Tensor& buffer = buffers_[key];
  if (!buffer.defined() || buffer.sizes() != source.sizes() || buffer.scalar_type() != source.scalar_type())
    buffer = torch::empty(source.sizes(), torch::TensorOptions(source.scalar_type()).pinned_memory(source.is_cuda()));
  if (source.is_cuda())
    asked_.push_back({buffer, source});
  else
    buffer.copy_(source);
  return buffer;
}

std::shared_ptr<c10::Event> HostBuffers::download() {
  if (asked_.empty()) return {};
  auto list = std::exchange(asked_, {});
  const auto device = list.front().from.device();
  const c10::impl::VirtualGuardImpl impl(device.type());
  if (!stream_) stream_ = impl.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  const auto here = impl.getStream(device);
  bool has_room = true;
  for (auto& one : list) has_room = has_room && copy_there(one.from);
  c10::Event copied(device.type());
  const auto done = std::make_shared<c10::Event>(device.type());
  copied.record(here);
  copied.block(*stream_);
  {
    const c10::StreamGuard guard(*stream_);
    for (const auto& one : list) {
      one.to.copy_(one.from, /*non_blocking=*/true);
      one.from.record_stream(*stream_);
    }
    done->record(*stream_);
  }
  if (!has_room) done->block(here);
  return done;
}

Snapshot take_snapshot(const TrainState& state, const Mesh* mesh, HostBuffers& buffers) {
  torch::NoGradGuard no_grad;
  Snapshot snapshot;
  snapshot.state = {state.step, state.samples, state.seed, mesh ? mesh->world_size() : 1, {}, state.extra};
  snapshot.recipe = state.recipe_toml;
  if (state.optimizer) snapshot.state.counters = state.optimizer->counters();
  Taker taker(snapshot, buffers, mesh ? mesh->rank() : 0);
  for_each_written(state, mesh, [&](const char* section, const auto& name, const auto& entry, const auto& tensor) {
    taker.add(section, name, entry, tensor);
  });
  snapshot.copied = buffers.download();
  return snapshot;
}

int64_t bytes_to_write(const TrainState& state, const Mesh& mesh) {
  int64_t bytes = 0;
  for_each_written(state, &mesh, [&](const char*, const auto&, const auto& entry, const auto& tensor) {
    for (const Rectangle& rectangle : entry.slices())
      bytes += c10::multiply_integers(rectangle.size) * static_cast<int64_t>(tensor.element_size());
  });
  return bytes;
}

std::vector<FileRecord> write_shards(const std::string& folder, const Snapshot& snapshot) {
  if (snapshot.copied) snapshot.copied->synchronize();
  std::vector<FileRecord> records;
  for (const auto& [name, parts] : snapshot.files) records.push_back(write_shard(folder, name, parts));
  return records;
}

void write_manifest(const std::string& folder, std::vector<FileRecord> files, const Index& index,
                    const Snapshot& snapshot) {
  files.push_back(write_text(folder, kIndexFile, to_json(index)));
  files.push_back(write_text(folder, kStateFile, to_json(snapshot.state)));
  files.push_back(write_text(folder, kRecipeFile, snapshot.recipe));
  std::sort(files.begin(), files.end(), [](const FileRecord& a, const FileRecord& b) { return a.name < b.name; });
  write_text(folder, kManifestFile, to_json(Manifest{std::move(files)}));
  sync_folder(folder);
}

}  // namespace ditto::checkpoint
