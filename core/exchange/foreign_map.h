// A model's name map (Units::foreign), checked: which of another project's rows are which of ours.
#pragma once

#include <map>
#include <string>

#include <ditto/exchange/foreign.h>
#include <ditto/parallel/layout.h>

#include "core/checkpoint/index.h"
#include "core/checkpoint/tensor_file.h"

namespace ditto::checkpoint {

using Entries = std::map<std::string, const LayoutEntry*>;  // of a layout, by name
Entries entries_of(const Layout& layout);

// Throws Error(plugin) at `where` for a map that is not one of these parameters: one that is mapped twice or never, a
// shape that does not make ours, a row of theirs that is of none of ours, or of two.
void require_map(const ForeignFormat& format, const Entries& parameters, const std::string& where);

// Of a map that holds: the shape of each of theirs, and of all of them, one under another in rows of ours.
Dims their_shape(const ForeignTensor& tensor, const Dims& ours);
Dims stacked_shape(const ForeignTensor& tensor, const Dims& ours);

// All of theirs, copies and constants included, from whole tensors of ours by name.
NamedTensors to_theirs(const ForeignFormat& format, const NamedTensors& ours);

}  // namespace ditto::checkpoint
