// Floating-point operations of a forward, counted by the layers themselves while the model runs on shapes alone.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/network/model_units.h"

namespace ditto {

// By unit ("condition", "tokens", "blocks", "head") and part ("linear", "attention", "experts"). A multiply-add is two.
using Flops = std::map<std::string, std::map<std::string, double>>;
double total(const Flops& flops);

// A batch of shapes alone, for all that the model takes; what may have any length (a text) is so long. `sides`: of a
// sample, where they are its own.
Batch shapes_of_batch(const Model& model, const ModelNeeds& needs, int64_t samples, int64_t any_length,
                      const std::vector<int64_t>& sides = {});

class FlopCounter {
 public:
  // Makes the model once more, whole and without numbers.
  FlopCounter(Components& components, const ModelUnits& of);
  // Of one forward of a batch that is encoded: all of its samples, on all ranks that share the model. Batches of the
  // same shapes are counted once. Throws Error(plugin) that names the model and the operation where one cannot be
  // computed on shapes alone.
  double forward(const Batch& batch);
  Flops forward(int64_t samples, int64_t any_length, const std::vector<int64_t>& sides = {});
  // Of a sample with these sides. Throws as `forward` does.
  int64_t tokens(const std::vector<int64_t>& sides);
  // What the model refuses of one sample of each of these sizes in a forward, under the run's numerics: throws
  // Error(config) or Error(shape). Of many sizes the tokens alone are asked for, but for the smallest, the largest and
  // those with the longest sides. What cannot be computed on shapes alone is left to the run.
  void check(const std::vector<std::vector<int64_t>>& sizes);
  // Of each block, of one sample, whose text is as long as those of published models, or half as long and so on, where
  // the model takes none so long.
  std::vector<double> of_blocks();

 private:
  using Parts = std::map<std::string, double>;
  std::vector<double> of_blocks(int64_t text_length) const;
  // With `tokens`: those alone, before the blocks.
  void run(const Batch& batch, const std::function<Parts&(const Unit&)>& parts_of, int64_t* tokens = nullptr,
           int64_t token_leaf = 0) const;
  Flops count(const Batch& batch) const;
  using Shapes = std::vector<std::vector<int64_t>>;  // of what the model takes
  Shapes shapes_of(const Batch& batch) const;
  Shapes of_sample(const Batch& part, Shapes shapes, size_t i) const;  // of that one alone
  double of_shapes(const Shapes& shapes);

  const ModelUnits& of_;
  std::shared_ptr<const OpTable> table_;  // references, which count nothing: layers and models do
  std::shared_ptr<Model> model_;
  std::map<Shapes, double> counted_;
  std::map<std::vector<int64_t>, int64_t> tokens_;  // by sides
};

}  // namespace ditto
