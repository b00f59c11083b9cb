#include "core/bench/bench_checkpoint.h"

#include <fcntl.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <span>

#include <ditto/error.h>

#include "core/assembly/assembly.h"
#include "core/assembly/ema.h"
#include "core/checkpoint/checkpoint.h"
#include "core/console/streams.h"
#include "core/formats/file.h"
#include "core/formats/output_folder.h"

namespace ditto {

namespace fs = std::filesystem;

namespace {

class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& in) : path_((fs::path(in) / "ditto-bench-XXXXXX").string()) {
    formats::require_writable(in, "--folder");
    if (!mkdtemp(path_.data()))
      throw Error(ErrorKind::config, "--folder " + in, "takes no folder", "name one that can be written");
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// From the system's memory, so that the next reader reads the disk.
void forget_files(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const formats::Descriptor file(open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    if (file.get() >= 0) (void)posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

double seconds_of(const std::function<void()>& work) {
  const auto began = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

}  // namespace

CheckpointBench bench_checkpoint(Recipe recipe, Registry& registry, const Mesh& mesh,
                                 const CheckpointBenchOptions& options) {
  const ScratchFolder scratch(options.folder);
  AssemblyParts parts;
  parts.data = parts.objective = true;
  Assembly assembly(recipe, registry, mesh, parts, {});
  const auto optimizer = assembly.make_optimizer();
  Ema ema(assembly.networks->learned(), recipe.ema);
  checkpoint::TrainState state;
  state.layout = &assembly.networks->learned();
  state.ema = ema.enabled() ? &ema.tensors() : nullptr;
  state.optimizer = optimizer.get();
  state.seed = static_cast<uint64_t>(recipe.run.seed);
  checkpoint::Saver saver(scratch.path() + "/checkpoints", {.keep_last = 1}, mesh, {},
                          [](const std::string& line) { report::tell(line); });
  const auto save = [&] {
    ++state.step;
    saver.save(state);
  };
  save();
  saver.wait();

  CheckpointBench bench;
  bench.parameters = assembly.networks->parameters();
  for (const auto& file : checkpoint::describe(checkpoint::resolve(scratch.path() + "/checkpoints").path.value()).files)
    bench.bytes += static_cast<int64_t>(file.bytes);
  const std::string plain = scratch.path() + "/plain";
  const std::vector<std::byte> bytes(static_cast<size_t>(bench.bytes), std::byte{0x5a});
  for (int64_t round = 0; round < options.rounds; ++round) {
    bench.write.push_back(
        seconds_of([&] { formats::write_file(plain, bytes, ErrorKind::checkpoint, formats::Sync::fsync); }));
    bench.stall.push_back(seconds_of(save));
    bench.save.push_back(bench.stall.back() + seconds_of([&] { saver.wait(); }));
    const auto path = checkpoint::resolve(scratch.path() + "/checkpoints").path.value();
    forget_files(scratch.path());
    bench.read.push_back(seconds_of([&] { (void)formats::read_file(plain, ErrorKind::checkpoint); }));
    bench.verify.push_back(seconds_of([&] {
      if (const auto wrong = checkpoint::verify(path); !wrong.empty())
        throw Error(ErrorKind::checkpoint, path, wrong.front(), "it was saved just now: check the disk");
    }));
    forget_files(scratch.path());
    bench.load.push_back(seconds_of([&] { checkpoint::load(path, state); }));
  }
  return bench;
}

}  // namespace ditto
