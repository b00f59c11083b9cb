// What samples are asked for by: named tensors of a file and words, checked against what the model takes.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ditto/batch.h>

namespace ditto {

// A safetensors file of conditions: any of the tensors that the model takes, with one row a sample, or one for all. A
// NAME without its NAME_mask is all there.
class ConditionFile {
 public:
  // Throws Error(data) for a tensor that the model does not take, of another dtype, width or number of dims, of no
  // rows, with numbers that are not finite, or with an index that is none of its values; and for a file of `ditto
  // sample --pass` that was changed.
  ConditionFile(std::string path, const TensorSpecs& takes);
  // Of what is there for several models that which this one takes and `others` does not have; maybe nothing.
  ConditionFile(std::string path, const TensorSpecs& takes, const ConditionFile& others);
  // Tensors that `who` gives.
  ConditionFile(std::string who, std::map<std::string, torch::Tensor> tensors, const TensorSpecs& takes);
  const std::string& path() const { return path_; }
  int64_t rows() const { return rows_; }  // of each tensor that has not one for all
  const std::map<std::string, torch::Tensor>& tensors() const { return tensors_; }
  // By what request `ditto sample --pass` has written all that is in it; empty: another wrote it.
  const std::string& request() const { return request_; }

 private:
  void read(const TensorSpecs& takes, std::map<std::string, torch::Tensor> tensors);
  std::string path_;
  std::map<std::string, torch::Tensor> tensors_;
  std::string request_;
  int64_t rows_ = 1;
};

// Adds a row for each of `count` samples, of tensors with so many rows or one. Throws Error(data) for other rows, and
// Error(config) for a tensor that `conditions` have already; `who` gives them.
void give_rows(const std::string& who, const std::map<std::string, torch::Tensor>& tensors, int64_t count,
               Batch& conditions);

// The class that is called so or, where no class is called by a number, that has this number; "number:3" has it in any
// case. Throws Error(config) that begins with `where` and `option`.
int64_t class_called(const std::string& word, const TensorSpec& label, const std::string& where,
                     const std::string& option);

// Throws Error(config) for a condition that the model takes and nobody gave, with who could give it. `encoded`: those
// that will be made of prompts.
void require_all(const std::string& model, const TensorSpecs& takes, const Batch& conditions,
                 const TensorSpecs& encoded = {});

}  // namespace ditto
