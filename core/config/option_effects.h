// What each option of a recipe changes: what a resume makes of another value, and whether ranks may differ in it. Every
// option says so where it is declared (<ditto/options.h>); here it is found by its key.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <ditto/options.h>

namespace ditto {

// Of the options of a section that do not say, by the table of sections (sections.cpp).
Effect effect_of_section(const std::string& section);

class OptionEffects {
 public:
  // `section`: "model", "encoder.image".
  void add(const std::string& section, const std::vector<OptionInfo>& declared);
  void add(const std::string& key, Effect effect, bool is_place);
  // Those that are not here yet.
  void merge(const OptionEffects& other);

  // Of "run.seed". One that nobody has declared is as its section's: in [parallel] it changes what is learned.
  Effect of(const std::string& key) const;
  bool declared(const std::string& key) const { return by_key_.count(key) > 0; }
  // It is an option that somebody has declared, or a section with one.
  bool knows(const std::string& word) const;
  // Names a place in the file system, which each machine may have elsewhere.
  bool is_place(const std::string& key) const;

 private:
  struct One {
    Effect effect;
    bool is_place;
  };
  std::map<std::string, One> by_key_;
};

}  // namespace ditto
