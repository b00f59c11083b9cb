// Tensors of another project's file into a layout, by a name map that holds: all is checked before anything is filled.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/exchange/foreign_file.h"
#include "core/exchange/foreign_map.h"

namespace ditto::checkpoint {

class ForeignImport {
 public:
  // `prefix`: before every name in the file, which outlives this. `former`: as ForeignFormat has it.
  ForeignImport(const ForeignFile& file, std::string path, std::string prefix,
                std::map<std::string, std::string> former)
      : file_(file), path_(std::move(path)), prefix_(std::move(prefix)), former_(std::move(former)) {}

  void parameter(const ForeignTensor& tensor, const LayoutEntry& ours);
  void copy(const std::string& name, const std::string& of);
  void constant(const std::string& name, const torch::Tensor& expected);
  // All that the file holds under the prefix and nobody asked for, but what is no part of the model.
  void refuse_others(const std::function<bool(const std::string& name)>& is_beside = {});
  // Throws Error(checkpoint) that lists what does not fit, else fills; `section` of the recipe is what to look at.
  void finish(const std::string& section);

 private:
  struct Move {
    const LayoutEntry* to;
    std::vector<std::string> parts;  // names there
    Dims stacked;                    // of them, one under another
    std::vector<int64_t> rows;       // of ours; empty: as they come
  };

  // What the file calls it: a name of today, or the one that it had before.
  std::string there(const std::string& name) const;
  bool require(const std::string& name, const Dims& shape);
  std::optional<torch::Tensor> take(const std::string& name, const Dims& shape);
  void misfit(const std::string& name, const std::string& what);
  std::vector<std::string> missing_ones() const;
  void fill(const Move& move, const Rectangle& block) const;

  const ForeignFile& file_;
  const std::string path_, prefix_;
  const std::map<std::string, std::string> former_;
  std::vector<Move> moves_;
  std::vector<std::string> misfits_, missing_, others_;  // sentences; names that are not there; names nobody asked for
  std::set<std::string> taken_;
};

}  // namespace ditto::checkpoint
