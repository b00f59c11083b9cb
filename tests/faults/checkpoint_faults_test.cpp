// A save that is killed, or refused by the disk, at every single system call that changes the disk.
//
// The program's own write, fsync, rename, … stand before the C library's: they count, and at the call that a test names
// they kill the process or report an error. A kill also empties every file that was written and not synced, as a power
// cut may.
//
// Claim (failures): A save that is killed, or refused by the disk, at any system call leaves the step before or the
// new one, whole.
#include <doctest/doctest.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <map>
#include <mutex>
#include <optional>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/disk.h"
#include "support/checkpoint_world.h"
#include "support/files.h"

namespace {

enum class Fault { none, kill, error };

struct Injector {
  std::recursive_mutex mutex;
  Fault fault = Fault::none;
  int at = 0;        // the call it happens at, from 1; 0: at every call whose path has `only` in it
  int code = 0;      // errno of Fault::error
  std::string only;  // counts only calls on paths with this in them; empty: all
  int calls = 0;     // counted so far
  bool happened = false;
  std::map<int, int> unsynced;        // descriptor -> a copy of it, for files with bytes that no fsync covered
  std::map<int, std::string> opened;  // descriptor -> path

  void arm(Fault what, int call, int error = 0, std::string path = {}) {
    const std::lock_guard lock(mutex);
    fault = what, at = call, code = error, only = std::move(path), calls = 0, happened = false;
    unsynced.clear(), opened.clear();
  }
  void disarm() { arm(Fault::none, 0); }

  // Whether the call now to be made fails; a kill does not return. `half` does what of the call a kill lets through.
  template <class Half>
  bool strikes(const std::string& path, const Half& half) {
    const std::lock_guard lock(mutex);
    if (fault == Fault::none || (!only.empty() && path.find(only) == std::string::npos)) return false;
    if (++calls != at && at != 0) return false;
    happened = true;
    if (fault == Fault::kill) {
      half();
      for (const auto& [descriptor, copy] : unsynced) (void)!::ftruncate(copy, 0);
      ::raise(SIGKILL);
    }
    errno = code;
    return true;
  }
  bool strikes(const std::string& path) {
    return strikes(path, [] {});
  }
  std::string path_of(int descriptor) {
    const std::lock_guard lock(mutex);
    const auto it = opened.find(descriptor);
    return it == opened.end() ? "" : it->second;
  }
};

Injector& injector() {
  static Injector* const only = new Injector;  // used until the process is gone
  return *only;
}

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

#define REPLACED extern "C" __attribute__((visibility("default")))

REPLACED int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if (flags & O_CREAT) {
    va_list list;
    va_start(list, flags);
    mode = va_arg(list, mode_t);
    va_end(list);
  }
  static const auto call = real<int(const char*, int, ...)>("open");
  const bool makes = (flags & O_CREAT) != 0;
  if (makes && injector().strikes(path)) return -1;
  const int descriptor = call(path, flags, mode);
  const std::lock_guard lock(injector().mutex);
  if (makes && descriptor >= 0 && injector().fault != Fault::none) injector().opened[descriptor] = path;
  return descriptor;
}

namespace {

template <class Call>
ssize_t written(int descriptor, size_t size, const Call& call) {
  const std::string path = injector().path_of(descriptor);
  if (path.empty()) return call(size);
  if (injector().strikes(path, [&] { (void)!call(size / 2); })) return -1;
  const std::lock_guard lock(injector().mutex);
  if (injector().unsynced.count(descriptor) == 0) injector().unsynced[descriptor] = ::dup(descriptor);
  return call(size);
}

}  // namespace

REPLACED ssize_t write(int descriptor, const void* bytes, size_t size) {
  static const auto call = real<ssize_t(int, const void*, size_t)>("write");
  return written(descriptor, size, [&](size_t n) { return call(descriptor, bytes, n); });
}
REPLACED ssize_t pwrite(int descriptor, const void* bytes, size_t size, off_t offset) {
  static const auto call = real<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return written(descriptor, size, [&](size_t n) { return call(descriptor, bytes, n, offset); });
}
REPLACED int fsync(int descriptor) {
  static const auto call = real<int(int)>("fsync");
  const std::string path = injector().path_of(descriptor);
  if (injector().strikes(path.empty() ? "a folder" : path)) return -1;
  const std::lock_guard lock(injector().mutex);
  if (const auto it = injector().unsynced.find(descriptor); it != injector().unsynced.end()) {
    ::close(it->second);
    injector().unsynced.erase(it);
  }
  return call(descriptor);
}
REPLACED int close(int descriptor) {
  static const auto call = real<int(int)>("close");
  const std::lock_guard lock(injector().mutex);
  injector().opened.erase(descriptor);
  if (const auto it = injector().unsynced.find(descriptor); it != injector().unsynced.end())
    injector().unsynced[-it->second - 2] = it->second,
                                      injector().unsynced.erase(it);  // closed, and still not on the disk
  return call(descriptor);
}
REPLACED int rename(const char* from, const char* to) noexcept {
  static const auto call = real<int(const char*, const char*)>("rename");
  return injector().strikes(to) ? -1 : call(from, to);
}
REPLACED int renameat2(int a, const char* from, int b, const char* to, unsigned flags) noexcept {
  static const auto call = real<int(int, const char*, int, const char*, unsigned)>("renameat2");
  return injector().strikes(to) ? -1 : call(a, from, b, to, flags);
}
REPLACED int symlink(const char* to, const char* path) noexcept {
  static const auto call = real<int(const char*, const char*)>("symlink");
  return injector().strikes(path) ? -1 : call(to, path);
}
REPLACED int mkdir(const char* path, mode_t mode) noexcept {
  static const auto call = real<int(const char*, mode_t)>("mkdir");
  return injector().strikes(path) ? -1 : call(path, mode);
}
REPLACED int unlink(const char* path) noexcept {
  static const auto call = real<int(const char*)>("unlink");
  return injector().strikes(path) ? -1 : call(path);
}
REPLACED int unlinkat(int folder, const char* path, int flags) noexcept {
  static const auto call = real<int(int, const char*, int)>("unlinkat");
  return injector().strikes(path) ? -1 : call(folder, path, flags);
}

namespace {

namespace fs = std::filesystem;
namespace checkpoint = ditto::checkpoint;
using ditto::Axis;
using ditto::ErrorKind;
using namespace ditto::test;

constexpr checkpoint::Retention kKeepOne{1, 0};  // so that a save removes the one before, too

// How many things could not be cleaned up.
int save(const std::string& folder, int64_t step, uint64_t salt) {
  Rank rank({}, 0, salt);
  int warnings = 0;
  checkpoint::Saver saver(folder, kKeepOne, rank.mesh, {}, [&](const std::string&) { ++warnings; });
  saver.save(rank.state(step));
  saver.wait();
  return warnings;
}

// The newest checkpoint is whole, and one of these two; which one.
int64_t check_usable(const std::string& folder, int64_t old_step, uint64_t old_salt, int64_t new_step,
                     uint64_t new_salt) {
  const auto found = checkpoint::find(folder);
  REQUIRE(found.path);
  for (const auto& line : found.skipped) CHECK_MESSAGE(contains(line, ".tmp-"), line);  // nothing half that looks whole
  Rank rank({}, 0, 99);
  auto state = rank.state();
  checkpoint::load(*found.path, state);
  CHECK((state.step == old_step || state.step == new_step));
  const bool is_new = state.extra.at("note") == "salt " + std::to_string(new_salt);
  CHECK(rank.same_as(Rank({}, 0, is_new ? new_salt : old_salt)));
  return state.step;
}

// Saves in a child that dies at its call number `call`; whether it died.
bool dies_saving(const std::string& folder, int64_t step, uint64_t salt, int call) {
  const pid_t child = ::fork();
  if (child == 0) {
    injector().arm(Fault::kill, call);
    try {
      save(folder, step, salt);
    } catch (...) {
      ::_exit(3);
    }
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  CHECK((killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)));
  return killed;
}

}  // namespace

TEST_CASE("a save that is killed at any call leaves the step before or the new one, whole") {
  int call = 1, old_found = 0, new_found = 0;
  for (bool died = true; died; ++call) {
    const TemporaryFolder folder;
    save(folder / "c", 100, 1);
    died = dies_saving(folder / "c", 200, 2, call);
    const bool is_new = check_usable(folder / "c", 100, 1, 200, 2) == 200;
    ++(is_new ? new_found : old_found);
    save(folder / "c", 300, 3);  // the next run cleans up and goes on
    CHECK(check_usable(folder / "c", 300, 3, 300, 3) == 300);
    CHECK(checkpoint::list(folder / "c").unfinished.empty());
  }
  const int places = call - 2;
  MESSAGE(places << " places to be killed at: the old step was found after " << old_found << ", the new one after "
                 << new_found);
  CHECK(call > 25);
  CHECK(old_found > 10);
  CHECK(new_found > 3);
}

TEST_CASE("a save over the same step that is killed at any call leaves one of the two, whole") {
  int call = 1;
  for (bool died = true; died; ++call) {
    const TemporaryFolder folder;
    save(folder / "c", 100, 1);
    died = dies_saving(folder / "c", 100, 2, call);
    check_usable(folder / "c", 100, 1, 100, 2);
  }
  CHECK(call > 25);
}

TEST_CASE("an error of the disk at any call comes out with its path and reason, and costs no checkpoint") {
  for (const int code : {ENOSPC, EIO}) {
    int call = 1, reported = 0, warned = 0;
    for (bool happened = true; happened; ++call) {
      const TemporaryFolder folder;
      save(folder / "c", 100, 1);
      injector().arm(Fault::error, call, code);
      int warnings = 0;
      const std::string error = error_of(ErrorKind::checkpoint, [&] { warnings = save(folder / "c", 200, 2); });
      happened = injector().happened;
      injector().disarm();
      if (!error.empty()) {
        ++reported;
        CHECK_MESSAGE(contains(error, std::strerror(code)), error);
        CHECK_MESSAGE(contains(error, folder.path().string()), error);
      }
      const int64_t found = check_usable(folder / "c", 100, 1, 200, 2);
      if (warnings > 0) {  // the new step is durable, and stays the newest
        ++warned;
        CHECK(found == 200);
      }
      save(folder / "c", 300, 3);
      CHECK(check_usable(folder / "c", 300, 3, 300, 3) == 300);
    }
    CHECK(reported > 20);
    CHECK(warned > 8);
  }
}

TEST_CASE("the error of a save is thrown by the next one") {
  const TemporaryFolder folder;
  Rank rank({}, 0, 1);
  checkpoint::Saver saver(folder / "c", {}, rank.mesh, {});
  injector().arm(Fault::error, 0, ENOSPC, "model-00000");
  saver.save(rank.state(100));
  const std::string error = error_of(ErrorKind::checkpoint, [&] { saver.save(rank.state(200)); });
  injector().disarm();
  CHECK_MESSAGE(contains(error, "step_00000100: the save failed: "), error);
  CHECK_MESSAGE(contains(error, "model-00000.safetensors: cannot be created: No space left on device"), error);
  saver.save(rank.state(300));
  saver.wait();
  CHECK(checkpoint::find(folder / "c").path == folder / "c/step_00000300");
}

TEST_CASE("a rank that cannot write is named by all ranks, and it alone") {
  const TemporaryFolder folder;
  const Degrees three{{Axis::shard, 2}, {Axis::tensor, 2}};
  save_world(folder / "c", three, 1, 100);
  injector().arm(Fault::error, 0, EIO, "-00002.safetensors");
  const auto errors = as_ranks(4, [&](int number, const ditto::Group& group) {
    Rank rank(three, number, 2);
    checkpoint::Saver saver(folder / "c", {}, rank.mesh, group);
    saver.save(rank.state(200));
    saver.wait();
  });
  injector().disarm();
  CHECK_MESSAGE(contains(errors[0], "the save failed on rank 2: "), errors[0]);
  CHECK(contains(errors[0], "Input/output error"));
  for (const int other : {0, 1, 3}) CHECK(!contains(errors[0], "rank " + std::to_string(other)));
  for (const auto& error : errors) CHECK(error == errors[0]);
  const auto found = checkpoint::find(folder / "c");
  CHECK(found.path == folder / "c/step_00000100");
  CHECK(found.skipped.empty());
}
