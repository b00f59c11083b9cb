// Claim (failures): A disk that cannot read, and a file that another program cuts, at every single read: the step
// before is taken, or the error comes out with the file's name.
//
// The program's own pread stands before the C library's and fails at the call that a test names.
#include <doctest/doctest.h>

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/checkpoint/checkpoint.h"
#include "core/formats/archive/tar.h"
#include "support/checkpoint_world.h"
#include "support/files.h"

namespace {

enum class ReadFault { none, error, cut };
std::atomic<ReadFault> fault{ReadFault::none};
std::atomic<int> reads_left{0};  // until it happens
std::atomic<bool> happened{false};

std::string path_of(int descriptor) {
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor)).string();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) ssize_t pread(int descriptor, void* into, size_t size, off_t offset) {
  static const auto call = reinterpret_cast<ssize_t (*)(int, void*, size_t, off_t)>(::dlsym(RTLD_NEXT, "pread"));
  if (fault != ReadFault::none && --reads_left == 0) {
    happened = true;
    if (fault == ReadFault::error) {
      errno = EIO;
      return -1;
    }
    (void)!::truncate(path_of(descriptor).c_str(), offset + static_cast<off_t>(size / 2));
  }
  return call(descriptor, into, size, offset);
}

namespace {

namespace checkpoint = ditto::checkpoint;
using ditto::Axis;
using ditto::Error;
using ditto::ErrorKind;
using namespace ditto::test;

void arm(ReadFault what, int call) {
  happened = false;
  reads_left = call;
  fault = what;
}

// The file that is named where a read fails.
bool names_a_file(const std::string& text) {
  for (const char* name : {".safetensors", "index.json", "state.json", "manifest.json", "recipe.toml"})
    if (contains(text, name)) return true;
  return false;
}

struct Resumes {
  int newest = 0, before = 0, refused = 0;
};

// What a resume does where read number `call` fails; whether there was such a read.
bool resume(const std::string& folder, ReadFault what, int call, Resumes& count) {
  const char* reason = what == ReadFault::error ? "Input/output error" : "became shorter";
  Rank rank({}, 0, 99);
  auto state = rank.state();
  arm(what, call);
  try {
    const auto found = checkpoint::find(folder);
    REQUIRE(found.path);
    checkpoint::load(*found.path, state);
    fault = ReadFault::none;
    const bool is_newest = *found.path == folder + "/step_00000200";
    ++(is_newest ? count.newest : count.before);
    CHECK(rank.same_as(Rank({}, 0, is_newest ? 2 : 1)));
    CHECK(is_newest != happened);
    if (!is_newest) {
      REQUIRE(found.skipped.size() == 1);
      CHECK_MESSAGE((contains(found.skipped[0], "step_00000200") && contains(found.skipped[0], reason)),
                    found.skipped[0]);
    }
  } catch (const Error& error) {
    fault = ReadFault::none;
    ++count.refused;
    CHECK(error.kind() == ErrorKind::checkpoint);
    const std::string said = error.what();
    CHECK_MESSAGE((contains(said, reason) && names_a_file(said)), said);
  }
  return happened;
}

}  // namespace

TEST_CASE("a read that fails, at any place of a resume, costs one step or is named") {
  for (const auto what : {ReadFault::error, ReadFault::cut}) {
    Resumes count;
    int call = 1;
    for (bool again = true; again; ++call) {
      const TemporaryFolder folder;
      for (const int64_t step : {1, 2}) save_world(folder / "c", {}, static_cast<uint64_t>(step), 100 * step);
      again = resume(folder / "c", what, call, count);
    }
    const int reads = call - 2;
    MESSAGE(reads << " reads: the step before was taken after " << count.before << ", the error was named after "
                  << count.refused);
    CHECK(count.newest == 1);
    CHECK(count.before >= 6);   // of the search
    CHECK(count.refused >= 6);  // of what is loaded then
  }
}

TEST_CASE("a read that fails while a shard is opened is an error of that shard, not a shorter shard") {
  const std::string shard = golden_format("gnu.tar").string();
  const size_t members = ditto::formats::index_tar(shard).members.size();
  int call = 1;
  for (bool again = true; again; ++call) {
    arm(ReadFault::error, call);
    size_t found = 0;
    const std::string error = error_of(ErrorKind::data, [&] {
      found = ditto::formats::index_tar(shard, ditto::formats::OnDamage::report).members.size();
    });
    CHECK(found == (error.empty() ? members : 0));
    again = happened;
    fault = ReadFault::none;
    CHECK_MESSAGE(contains(error, again ? "gnu.tar: cannot be read: Input/output error" : ""), error);
    CHECK(error.empty() != again);
  }
  CHECK(call > 3);
}
