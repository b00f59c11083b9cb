// How layers may be cut along an axis of ranks: what a model says (Split), what a layer declares (LayerCut), and how
// sums that a cut goes through are put together (SumLeaves).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ditto/visibility.h>

namespace ditto {

// How a layer of this library may be cut along the tensor axis. One word, said by the model; no model does anything
// else for it. Outputs and inputs are a linear map's numbers, or a convolution's channels.
struct DITTO_API Split {
  enum class Kind { none, columns, rows, along } kind = Kind::none;
  std::vector<int64_t> parts = {};  // of what is cut, one after another, each cut by itself; none: all of it is one
  int64_t unit = 1;                 // numbers of a part that stay together: a head's width, a group's channels
  bool are_heads = false;           // columns: the units are attention heads
  bool gather = false;              // columns: outputs are put together again at once
  bool condition = false;           // the input is conditioning: it has no tokens that could be cut
  std::string sequence = {};  // whose tokens the input is: the name of the stream's extra; empty: the stream's own

  static Split none() { return {}; }
  // Each rank makes a share of the outputs.
  static Split columns(std::vector<int64_t> widths) { return {Kind::columns, std::move(widths)}; }
  // Feeds attention: counts of query, key and value heads (grouped-query too).
  static Split heads(std::vector<int64_t> counts, int64_t head_width);
  // Each rank has a share of the inputs: what `columns`, and what is between, have left here. The outputs are summed.
  static Split rows() { return {Kind::rows}; }
  // Inputs and outputs are cut alike: a norm over groups of channels.
  static Split along(std::vector<int64_t> widths) { return {Kind::along, std::move(widths)}; }
  // For small outputs of a large weight (adaLN modulation): cut, at the price of gathering the outputs. Of
  // conditioning.
  Split gathered() const;
  // Keys and values of text.
  Split of_condition() const;
  // Of tokens of a second sequence, Stream::extra[name].
  Split of(const std::string& name) const;
  // Of several sequences' tokens, one after another in one tensor, which have the same weights. Strategies that cut
  // each sequence's tokens between layers refuse it.
  Split side_by_side() const { return of(kSideBySide); }
  static constexpr const char* kSideBySide = "*";
  // The same with several parts: `rows` after maps that were put side by side.
  Split in_parts(std::vector<int64_t> widths) const;
  // The same, cut between runs of `unit` numbers only.
  Split in_units(int64_t unit) const;
};

// How one of a layer's parameters may be cut along an axis of ranks: `dim` consists of parts one after another, each
// cut by itself, between its units only.
struct DITTO_API ParameterCut {
  std::string parameter;  // its own name: "weight"
  int64_t dim = 0;
  std::vector<int64_t> parts = {};  // numbers of each; none: all of dim is one part
  int64_t unit = 1;                 // numbers that stay together, wherever they are
};

// What a layer declares about an axis. From this alone strategies cut its parameters and set its exchanges.
struct DITTO_API LayerCut {
  enum class Values {
    whole,    // every rank has all of them
    cut,      // every rank has its units, as its parameters have
    partial,  // outputs: every rank has a term of their sum
    dealt,    // every rank has rows of its own, which `dispatch` takes to the units they are for, and back
  };
  std::vector<ParameterCut> parameters;                  // those that are not here are copies
  std::string units;                                     // what the units are, in plural: "attention heads of width 6"
  Values input = Values::whole, output = Values::whole;  // of the computation, where its parameters are cut
  bool gathered = false;      // cut outputs are to be put together again at once, by the parts of the first parameter
  int64_t channels = -1;      // the dim of inputs and outputs that is cut
  bool condition = false;     // inputs are conditioning: they have no tokens that could be cut
  std::string sequence = {};  // whose tokens the inputs are: the name of the stream's extra; empty: the stream's own
  bool are_heads = false;     // the units are attention heads, and the outputs feed attention
};

// Of equal shares of a layer's units, that which is here.
struct ShareHere {
  int64_t index = 0, count = 1;
};

// How the sums of a layer that may be cut are put together under run.numerics = "one": lists {U, w0, w1, …} of the op
// "linear". The dim consists of parts of these widths, each of U equal runs; leaf u is run u of every part.
struct DITTO_API SumLeaves {
  std::vector<int64_t> in;   // over inputs, in forward; empty: one leaf
  std::vector<int64_t> out;  // over outputs, in the gradient of the inputs; empty: one leaf
  // By what a Split lets be cut: of units the most runs that all parts have whole; of single numbers 12 runs, or so
  // many times 12 that none has more than 32 numbers, so that 2, 3, 4, 6 and 12 ranks can share them; where the parts
  // do not divide so, runs of 32, or of the next length that divides every part.
  static SumLeaves of(const Split& split, int64_t in, int64_t out);
};

}  // namespace ditto
