// Checkpoints of training: a folder a step, written by every rank, read on any layout.
//
//   runs/NAME/checkpoints/step_00000600/
//     model-00000.safetensors  optimizer-00000.safetensors  ema-00000.safetensors     a rank's pieces, by global name
//     index.json       every tensor's global shape, and which file holds which rectangle of it
//     state.json       step, samples, seed, counters, and what else the run hands over
//     recipe.toml      the resolved recipe
//     manifest.json    size of every file, and XXH3-128 of each of its chunks of 1 MiB; written last, and checked
//                      against itself
//   runs/NAME/checkpoints/latest -> step_00000600    a hint for people; nothing here trusts it
//
// A save happens in step_00000600.tmp-PID, is synced to the disk and renamed: a step's folder is whole or not there.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <ditto/optimizer.h>
#include <ditto/parallel/layout.h>
#include <ditto/parallel/mesh.h>

namespace ditto::checkpoint {

// Before the names of an objective's own parameters. A model that is used without it has no place for them.
inline constexpr const char* kObjectivePrefix = "objective.";
// Before the names of another network that trains, "network.NAME.". Who uses one network has no place for the others.
inline constexpr const char* kNetworkPrefix = "network.";

// What a checkpoint holds, seen from one rank. Nothing here is owned.
struct TrainState {
  Layout* layout = nullptr;
  std::vector<torch::Tensor>* ema = nullptr;  // along layout->entries, same local shapes; null or empty: no EMA
  Optimizer* optimizer = nullptr;             // its state() lists run along layout->entries; null: none
  int64_t step = 0, samples = 0;
  uint64_t seed = 0;
  std::map<std::string, std::string> extra;  // skipped steps, fingerprints, versions; UTF-8
  std::string recipe_toml;
};

// Of the numbers that this rank writes of a save; the ranks' together are all but the small files.
int64_t bytes_to_write(const TrainState& state, const Mesh& mesh);

struct Retention {
  int64_t keep_last = 3;   // the newest steps that stay; at least 1
  int64_t keep_every = 0;  // steps that are a multiple of this stay for ever; 0: none
};

// Saves in the background. A training step waits only until its tensors are copied.
class Saver {
 public:
  // `folder` (runs/NAME/checkpoints) is made where it is missing, and rank 0 removes what unfinished saves left there.
  // It has to be on storage that all ranks see. `ranks` are all ranks; it is used from the saver's own thread, so that
  // its transport must be its own where there is more than one rank. `mesh` must outlive the saver. `warn` hears, on
  // rank 0 and from any thread, a line for each thing that could not be cleaned up; each once.
  Saver(std::string folder, Retention retention, const Mesh& mesh, Group ranks,
        std::function<void(const std::string&)> warn = {});
  ~Saver();  // waits; an error that nobody asked for with wait() is lost
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Called by all ranks. Waits for the save before, copies this rank's tensors and returns; the rest happens in the
  // background. Throws what went wrong in the save before.
  void save(const TrainState& state);
  // Returns when the last save is durable on all ranks. Throws Error(checkpoint) that names every rank that failed with
  // its path and the system's reason (on all ranks the same), or Error(distributed) if a rank was lost; once.
  void wait();

 private:
  struct Snapshot;
  struct Buffers;
  void write(const Snapshot& snapshot);
  void warn_once(const std::string& line);
  void join();
  std::string folder_;
  Retention retention_;
  const Mesh* mesh_;
  Group ranks_;
  std::function<void(const std::string&)> warn_;
  std::set<std::string> warned_;
  std::unique_ptr<Buffers> buffers_;  // host memory of the copies, kept from save to save
  std::exception_ptr failure_;
  std::jthread thread_;
};

// The model's weights as a checkpoint of its own: step 0, no optimizer, no EMA. One process; `layout` uncut. Replaces
// `folder` if that is a checkpoint without an optimizer, and throws Error(checkpoint) if it is anything else.
void save_weights(const std::string& folder, Layout& layout, const std::string& recipe_toml,
                  const std::map<std::string, std::string>& extra = {},
                  const std::function<void(const std::string&)>& warn = {});
// The same of all of a state: what a training of one rank would have saved.
void save_state(const std::string& folder, const TrainState& state,
                const std::function<void(const std::string&)>& warn = {});

struct Found {
  std::optional<std::string> path;   // the newest step that is complete and whose checksums hold
  std::vector<std::string> skipped;  // newer ones, a line each: which, and why
};
// Looks through runs/NAME/checkpoints. A folder that is not there has no checkpoints. Called by every member of
// `ranks`: each reads its share of the bytes, and all find the same.
Found find(const std::string& folder, const Group& ranks = {});

// From a run's folder, its checkpoints' folder, or a checkpoint: the checkpoint. `skipped` as find() says.
// Throws Error(checkpoint) if there is none that can be used.
Found resolve(const std::string& path, const Group& ranks = {});

// Whether it is one of these, by its names alone.
bool is_of_a_run(const std::string& path);

// The same without reading it: a run's newest step, be it whole or not. What is no folder of them stays as it is.
// Throws Error(checkpoint) if there is none.
std::string newest(const std::string& path);

// Puts every step after `step` out of find()'s sight, as `abandoned-step_…` (`…-2` where one is there), so that a run
// that goes on from an older step does not meet its other future; where it has done so, of all that were set aside the
// last three stay, and of those of one time the latest steps. By one rank, before it trains. Returns a line each.
std::vector<std::string> set_aside_later(const std::string& folder, int64_t step);

// Fills the state from a checkpoint that any layout of ranks wrote, bit for bit: layout's tensors, EMA and optimizer
// where the state has them, counters, and the rest. Each rank calls it for itself, and reads and checks only the chunks
// that what it holds lies in. Nothing is changed unless everything fits. Throws Error(checkpoint) that names tensor or
// file, what was found, what was expected: a file that is missing or changed, another model's shapes, dtypes, or names,
// no EMA or another optimizer's state. (Where pipeline stages hold different parameters, a rank cannot tell that a name
// of the checkpoint is nobody's.)
void load(const std::string& path, TrainState& state);

enum class Which { weights, ema, ema_or_weights };  // the last: EMA where there is one
// Behind the fingerprint of weights of which the average was not taken.
inline constexpr const char* kNotAveraged = ", not averaged";
// What to make of a checkpoint of a model that is not quite this one. What is not taken from it keeps its values here.
struct Fit {
  enum class Missing { refuse, keep } missing = Missing::refuse;  // tensors that the checkpoint lacks
  enum class Extra { refuse, skip } extra = Extra::refuse;        // tensors that this model lacks
  enum class OtherShape { refuse, skip, positions } other_shape = OtherShape::refuse;
  std::vector<std::string> position_tables = {};  // of this model: what OtherShape::positions interpolates
  bool of_a_start = false;  // a run starts from them: a refusal names run.init_missing and its like
  friend bool operator==(const Fit&, const Fit&) = default;
};
// What came of it here, by tensor. Names that nobody here asked for are extra; where pipeline stages hold different
// parameters they may be another rank's, and are not refused.
struct Fitted {
  size_t taken = 0;
  std::vector<std::string> kept, extra, skipped, interpolated;
};
// Only the model's tensors; values are converted to the layout's dtypes. The same errors.
Fitted load_weights(const std::string& path, Layout& layout, Which which, const Fit& fit = {});

// What a checkpoint says of itself; reads its small files only.
struct Info {
  std::string path;
  int64_t step = 0, samples = 0;
  uint64_t seed = 0;
  int64_t ranks = 1;
  std::map<std::string, std::string> extra;
  std::string recipe_toml;
  std::map<std::string, double> counters;  // the optimizer's
  struct Tensor {
    std::string dtype;  // "F32"
    std::vector<int64_t> shape;
    size_t pieces;
  };
  std::map<std::string, Tensor> model, ema, optimizer;  // by global name; the optimizer's as "exp_avg/NAME"
  struct File {
    std::string name;
    uint64_t bytes;
  };
  std::vector<File> files;
  bool has_ema() const { return !ema.empty(); }
};
Info describe(const std::string& path);
std::string to_text(const Info& info);  // for people
std::string to_json(const Info& info);

// Reads every byte, each member of `ranks` its share. A line for each thing that is wrong, the same on all; empty: all
// is well.
std::vector<std::string> verify(const std::string& path, const Group& ranks = {});

}  // namespace ditto::checkpoint
