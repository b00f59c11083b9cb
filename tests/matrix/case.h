// One training run of the matrix: a tiny model, a layout and a precision.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/assembly/assembly.h"
#include "core/config/recipe.h"

namespace ditto::matrix {

struct Case {
  std::string model = "dit", precision = "fp64", device = "cpu", layout, optimizer = "adamw";
  int64_t steps = 10, micro_batches = 0, batch = 8;
  bool real_init = false;          // as training starts; otherwise no tensor is zero
  bool whole = false;              // measured against one rank that runs a batch as a single micro-batch
  bool replay = false;             // a router's picks are those of the run on one rank
  bool packed = false;             // each micro-batch is one pack of samples of different lengths
  bool bits = false;               // identical bits are asked for
  bool one_number = false;         // under run.numerics = "one"; with `bits`
  std::string refused;             // what the refusal of the layout says; empty: it runs
  bool is_control = false;         // a run in wider precision that tells how far rounding goes
  bool counts = false;             // communication is held against closed forms
  std::string fault;               // planted; empty: none. The case is good if the comparison fails
  std::string save_to, load_from;  // names of checkpoints: made after `steps`, or where training goes on from
  int64_t resumed = 0;             // with load_from: the steps that were made before
  std::vector<std::string> sets;   // further options of the recipe, "model.depth=2"

  // Of what the figures may be: relative in fp64, else times the control's. Where a second moment's code of 8 bits is
  // zero an update is divided by eps, and what is rounding elsewhere is larger.
  double bound() const { return precision != "fp64" ? 3 : optimizer == "adamw8bit" ? 1e-11 : 1e-12; }
  // Held-out samples have no picks to replay, and a pack's samples have no losses of their own.
  bool is_validated() const { return !counts && !packed && !replay; }
};

// The layout's words, "tensor=2 sequence=true shard_plugin=fsdp", as options of the recipe. A word with a dot is an
// option of another section; "kernels.*=exact_plain" pins all ops that a UNet has.
std::vector<std::string> options_of(const std::string& layout);
// An axis that is said to have one rank has its strategy all the same, "shard=1 shard_plugin=fsdp", so that a single
// device can run it.
Recipe recipe_of(const Case& one);
// All degrees together, `replicate` included. Throws Error(config) as Recipe does.
int world_size(const Case& one);
// How many micro-batches a step has: as given, or enough for every data rank, and at least 4.
int64_t micro_batches(const Case& one);
// The same training on one rank, on the CPU. Of one number, as it is without pins, threads and micro-batches that are
// asked for.
Case one_rank(Case one);
// And in the next wider precision: how far that is from it is what rounding does.
Case control_of(Case one_rank);
// For people: model, precision, layout and what else it does.
std::string title(const Case& one);
// Names a run on one rank among others, as a file.
std::string key_of(const Case& one);

// What the model learns from: the shapes of a sample, without a data plugin.
SavedShapes shapes_of(const Case& one);
std::shared_ptr<Source> source_of(const Case& one);
// The ending of the names of biases that make keys, without a norm or a rotation after them.
const std::vector<std::string>& key_biases(const std::string& model);

}  // namespace ditto::matrix
