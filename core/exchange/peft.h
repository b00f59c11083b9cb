// Adapters as peft keeps them: a folder with adapter_config.json and adapter_model.safetensors, in which a layer's term
// is "base_model.model.LAYER.lora_A.weight" and "….lora_B.weight". LAYER is what another project's format calls it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <ditto/parallel/layout.h>

#include "core/exchange/foreign_file.h"

namespace ditto::checkpoint {

bool is_peft(const std::string& path);
// Of a file of tensors whose names are an adapter's: "an adapter in one file, as kohya's scripts write it"; empty:
// none.
std::string adapter_in_file(const std::string& file);
// Throws Error(checkpoint) that says what is read instead where the path is that of a file, or of a folder with an
// adapter in one file.
void refuse_one_file(const std::string& path);
// Which file is read of a folder that has two; empty: it has one.
std::string reading_of_peft(const std::string& folder);
std::string fingerprint_of_peft(const std::string& folder);

// One to read. A layer that is several there (query, key and value) has their terms side by side: its rank is then the
// sum of theirs, unless all of them have the same first map.
class Peft {
 public:
  // No format: as the file notes, else the model's own names. Throws Error(checkpoint), also for what is no plain
  // low-rank term, and for a layer that the model does not have.
  Peft(const Units& of, std::string format, const std::string& folder);
  int64_t rank() const { return rank_; }                             // that all layers have a place in
  double alpha() const { return alpha_; }                            // of that rank
  const std::vector<std::string>& layers() const { return names_; }  // ours
  // Into the terms that are here of the layout, which have this rank and factor. Throws Error(checkpoint) for a rank
  // that has no place for them.
  void read_into(Layout& layout, int64_t rank, double factor) const;

 private:
  struct Part {
    std::string name;      // theirs, as in the file, without the map's
    int64_t index, count;  // of the row blocks that make ours
  };
  void read_config(const std::string& path);
  void find_layers(const Units& of, const std::string& format);
  bool share_first_map(const std::vector<Part>& parts) const;
  torch::Tensor map(const Part& part, const char* which) const;
  [[noreturn]] void refuse(const std::string& what, const std::string& remedy) const;

  const std::string folder_;
  std::unique_ptr<ForeignFile> file_;
  int64_t their_rank_ = 0, rank_ = 0;
  double their_alpha_ = 0, alpha_ = 0;
  nlohmann::json config_;
  std::map<std::string, std::vector<Part>> parts_;    // by our layer
  std::map<std::string, std::vector<int64_t>> rows_;  // of theirs, by our layer; empty: as they come
  std::vector<std::string> names_;
};

// Writes the terms of a layout that is here whole. No format: under the model's own names. Throws Error(config) for a
// format that has no name for one of the layers.
void export_peft(const Units& model, const std::string& format, const Layout& layout, double alpha,
                 const std::string& folder, const std::map<std::string, std::string>& notes);

}  // namespace ditto::checkpoint
