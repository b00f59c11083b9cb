// What each option of a recipe changes: what a resume makes of another value, and whether ranks may differ in it.
#pragma once

#include <string>
#include <vector>

namespace ditto {

enum class ChangeKind {
  learning,  // changes what is learned: refused unless allowed
  course,    // changes the training from here on, as one may mean to: learning rate, optimizer, steps
  rounding,  // the same training within rounding: threads, kernels, cuts of a sample or a layer, precision
  sharing,   // who computes what, and when: the same bits where the micro-batches stay the same
  nothing,   // of the training: paths, logging, how often to save, how long to wait for a rank
};

struct OptionEffect {
  const char* key;  // "run.seed"; "model.*": every option of that section that has no row of its own
  ChangeKind kind;
};
// docs/config.md ("Resuming") has the same rows.
const std::vector<OptionEffect>& option_effects();

// nullptr: the table has no row for this key.
const OptionEffect* effect_of(const std::string& key);
// An option without a row counts as one that changes what is learned.
ChangeKind change_kind(const std::string& key);

// Names a place in the file system, which each machine may have elsewhere. What lies there is compared by content.
bool is_place(const std::string& key);

}  // namespace ditto
