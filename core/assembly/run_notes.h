// What a run writes down about itself, so that it can be run again.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "core/assembly/assembly.h"

namespace ditto {

// What bits depend on besides the recipe: processor, GPU where `device` is one, threads, kernels, versions, epoch,
// LibTorch's build, variables that choose how libraries compute, and "library.NAME", the builds of those that do.
std::map<std::string, std::string> machine_record(torch::Device device = torch::kCPU);
// Says, a line each, what differs from the record of an earlier start, and which promise is lost with it. Of one number
// (run.numerics) that is another epoch of Ditto's numbers (before there were epochs: another version), or a library
// that decodes pictures.
void compare_machines(const std::map<std::string, std::string>& saved, const std::map<std::string, std::string>& now,
                      bool one_number, const std::function<void(const std::string&)>& say);

// What a run notes beside its tensors, read back: throws Error(checkpoint) naming the checkpoint and the note. Refuses
// a checkpoint that was imported and holds no run's notes.
class RunNotes {
 public:
  RunNotes(const std::map<std::string, std::string>& notes, std::string path);
  int64_t whole(const std::string& name) const;    // 0 or more
  double positive(const std::string& name) const;  // finite
  // Whole ones from 0 to below `end`, each once; none where the note is missing.
  std::set<int64_t> numbers(const std::string& name, int64_t end) const;
  // Whether the run learned from the data of this fingerprint, or from as much of it as was known then.
  bool knows(const std::string& fingerprint) const;
  // Throws Error(config) where the run learned from other data than that of this fingerprint. One that begins with what
  // was noted (of a blend: each part's does) knows more of the same data: `say` hears of it.
  void require_data(const std::string& fingerprint, const std::function<void(const std::string&)>& say) const;
  // Throws Error(checkpoint) where [network.NAME] had other weights than those of this fingerprint.
  void require_network(const std::string& name, const std::string& fingerprint) const;
  void require_weights(const std::string& section, const std::string& fingerprint) const;  // the same of any section
  // Throws Error(checkpoint) where the run's adapter was learned on another checkpoint than the one that is noted in
  // `now`, or on other weights of it.
  void require_adapter_base(const std::map<std::string, std::string>& now) const;

 private:
  const std::string& text(const std::string& name) const;
  [[noreturn]] void refuse(const std::string& name, const char* what) const;
  const std::map<std::string, std::string>& notes_;
  std::string path_;
};

// Of the recipe's plugins, "model-dit" -> version and licence.
std::map<std::string, std::string> plugin_record(Recipe& recipe, const Registry& registry);

// What kernel sets keep, as a checkpoint notes it; and read back, of one set.
std::map<std::string, std::string> notes_of(const std::map<std::string, KernelChoices>& kept);
KernelChoices kept_by(const std::string& kernels, const std::map<std::string, std::string>& notes);
// The same of all sets, as a run.toml records it.
std::map<std::string, KernelChoices> kept_in(const formats::Table& run_toml);

// The resolved recipe with a [record] section: versions, processor, stamps of the plugins, kernels and what they keep.
// The text starts the same run.
std::string run_toml(const Assembly& assembly, const Registry& registry);

}  // namespace ditto
