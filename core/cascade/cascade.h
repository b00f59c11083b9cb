// A cascade: recipes whose models make pictures one after another, each from the smaller one of the model before it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ditto {

struct CascadeStage {
  std::string name;               // its recipe file's, without ".toml"
  std::string recipe;             // the file
  std::string folder;             // of its run: OUTPUT/NAME
  std::vector<std::string> sets;  // what was set for it alone, as "run.steps=100"
  // The same with its run's folder: of its recipe, to be trained.
  std::vector<std::string> to_train() const;
};

// [cascade] of a file, or of the kCascadeFile that lies in the folder of a cascade that is trained, beside each stage's
// recipe, STAGE.toml, and its run's folder, STAGE:
//   stages = ["base.toml", "sr32.toml"]   recipes, beside the file, in the order in which pictures grow
//   passes = "low"                        the tensor that a stage takes of the one before it: its picture
//   name, output                          default: the file's name without ".toml", and runs/NAME
struct Cascade {
  std::string file;  // that was read
  std::string name, output, passes;
  std::vector<CascadeStage> stages;  // two at least

  // Its place in `stages`, of "1" … or a stage's name. Throws Error(config) at `where` that lists them.
  std::size_t place_of(const std::string& stage, const std::string& where) const;
  std::string names() const;  // "base, sr32, sr64"
};

// Whether it is a file that has a [cascade], or the folder of a cascade that is trained. What is not there, and what is
// no TOML, is none.
bool is_cascade(const std::string& path);

// `sets`: "STAGE.KEY=VALUE", as "base.run.steps=100", and "cascade.output=FOLDER". Of a folder it is what was begun
// there. Throws Error(config) with file, line and column: for a key that is no stage's, naming them, a stage's file
// that is not there or is a cascade itself, two stages of one name, names that folders or --stage cannot have.
Cascade read_cascade(const std::string& path, const std::vector<std::string>& sets = {});

// "stage 2 of runs/faces, \"sr32\"", for messages.
std::string name_of_stage(const Cascade& cascade, std::size_t stage);
// The newest checkpoint of a stage's run, as checkpoint::newest() finds it. Throws Error(checkpoint) that says by what
// command the stage is trained where there is none.
std::string checkpoint_of_stage(const Cascade& cascade, std::size_t stage);

// For what is of one run: throws Error(config) where `path` is a cascade, naming its stages' folders. `command`: "ditto
// bench step".
void refuse_cascade(const std::string& path, const std::string& command);

}  // namespace ditto
