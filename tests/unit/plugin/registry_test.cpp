// The registry: what it lists, what it refuses and in which words, and what it opens.
//
// Claim (plugins): A library that does not match is refused before a line of it runs, in one sentence with both
// sides.
#include "core/plugin/registry.h"

#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <ditto/kernels.h>

#include <c10/util/Exception.h>
#include <torch/version.h>

#include "core/plugin/stamp.h"
#include "tests/support/files.h"

namespace fs = std::filesystem;
using ditto::Error;
using ditto::ErrorKind;
using ditto::KernelSet;
using ditto::PluginFile;
using ditto::Registry;

namespace {

const fs::path kFixtures = ditto::test::build_folder() / "tests/fixture_plugins";

// A folder with `good` and the libraries of a test, gone when the test ends.
class PluginFolder {
 public:
  explicit PluginFolder(const std::vector<std::string>& names = {}) {
    std::string pattern = fs::temp_directory_path() / "ditto-plugins-XXXXXX";
    path_ = fs::canonical(mkdtemp(pattern.data()));
    copy("good");
    for (const auto& name : names) copy(name);
  }
  ~PluginFolder() { fs::remove_all(path_); }
  PluginFolder(const PluginFolder&) = delete;

  void copy(const std::string& name) { fs::copy_file(kFixtures / (name + ".so"), path_ / (name + ".so")); }
  fs::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }
  const fs::path& path() const { return path_; }
  std::vector<ditto::SearchFolder> search() const { return {{path_, "the test"}}; }

 private:
  fs::path path_;
};

std::string bytes_of(const std::string& name) {
  std::ifstream in(kFixtures / (name + ".so"), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

const PluginFile& file_named(const Registry& registry, const std::string& name) {
  for (const PluginFile& file : registry.files())
    if (fs::path(file.path).stem() == name) return file;
  throw std::runtime_error("no file " + name);
}

// The message of Error(plugin) that fn throws.
template <class Fn>
std::string message(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::plugin);
    CHECK(error.exit_code() == 3);
    return error.what();
  }
  return "nothing was thrown";
}

std::string asked_for(Registry& registry, const std::string& id) {
  return message([&] { registry.factory<KernelSet>(id, "run.toml:7:3"); });
}

void check_good_still_works(Registry& registry) {
  CHECK(file_named(registry, "good").refusal.empty());
  const auto& factory = registry.factory<KernelSet>("good");
  ditto::OptionReader reader({"kernels", "run.toml:1:1", {}});
  CHECK(factory.make(reader, {})->rows().empty());
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a listing tells what the stamp says, without opening the library") {
  const PluginFolder folder;
  const Registry registry(folder.search());
  const PluginFile& good = file_named(registry, "good");
  CHECK(good.kind == "kernels");
  CHECK(good.id == "good");
  CHECK(good.version == "1.2.3");
  CHECK(good.licence == "MIT");
  CHECK(good.summary == "a plugin with nothing wrong");
  CHECK(good.torch == TORCH_VERSION);
  CHECK(good.path == folder.path() / "good.so");
  CHECK(good.folder == folder.path());
  CHECK(good.refusal.empty());
}

TEST_CASE("a library whose stamp does not match is refused in one sentence with both sides, and never opened") {
  const std::string torch = TORCH_VERSION;
  const std::string abi = std::to_string(KernelSet::kAbi);
  const std::string next_abi = std::to_string(KernelSet::kAbi + 1);
  const std::string host_build = ditto::build_mode() & ditto::kBuildDebug ? "a debug build" : "a release build";
  const std::string other_build = ditto::build_mode() & ditto::kBuildDebug ? "a release build" : "a debug build";
  const std::map<std::string, std::vector<std::string>> words{
      {"other_abi",
       {"for ABI " + next_abi + " of kind 'kernels'", "this ditto has " + abi + ";",
        "build the plugin against this Ditto"}},
      {"other_torch", {"with LibTorch 1.13.1, and this ditto uses " + torch + ";", "build the plugin with LibTorch "}},
      {"other_strings", {"_GLIBCXX_USE_CXX11_ABI=", "find_package(Ditto)"}},
      {"other_compiler", {"compiler ABI " + std::to_string(__GXX_ABI_VERSION + 1), std::to_string(__GXX_ABI_VERSION)}},
      {"other_build", {"it is " + other_build, "this ditto is " + host_build, "-DCMAKE_BUILD_TYPE="}},
      {"other_sanitizer", {"ThreadSanitizer", "; configure the plugin with"}},
      {"other_cuda", {"for CUDA 11.8, and this ditto "}},
      {"other_kind", {"of kind 'tokenizer'", "model, scheduler", "use a newer Ditto"}},
      {"no_stamp", {"no section .ditto.stamp", "no Ditto plugin"}},
  };
  for (const auto& [name, parts] : words) {
    CAPTURE(name);
    const PluginFolder folder({name});
    Registry registry(folder.search());
    const std::string refusal = file_named(registry, name).refusal;
    CAPTURE(refusal);
    CHECK_FALSE(contains(refusal, "\n"));
    for (const auto& part : parts) CHECK(contains(refusal, part));
    CHECK(registry.files().size() == 2);
    check_good_still_works(registry);
  }
}

TEST_CASE("asking later for an id that was refused says why it is not there") {
  const PluginFolder folder({"other_abi", "no_stamp"});
  Registry registry(folder.search());
  const std::string text = asked_for(registry, "other_abi");
  CHECK(
      contains(text, "run.toml:7:3: kernels 'other_abi' cannot be used; " + (folder.path() / "other_abi.so").string()));
  CHECK(contains(text, "it was built for ABI"));
  // A file that has no id is found by its name.
  CHECK(contains(asked_for(registry, "no_stamp"), "no section .ditto.stamp"));
}

TEST_CASE("a file that is not a whole library is refused with a readable sentence") {
  const PluginFolder folder;
  const std::string good = bytes_of("good");
  folder.write("text.so", "Once upon a time there was no shared library.\n");
  folder.write("empty.so", "");
  folder.write("cut.so", good.substr(0, good.size() / 2));
  folder.write("header_only.so", good.substr(0, 20));
  fs::create_symlink(folder.path() / "gone.so", folder.path() / "dangling.so");
  Registry registry(folder.search());
  CHECK(contains(file_named(registry, "text").refusal, "not an ELF file"));
  CHECK(contains(file_named(registry, "empty").refusal, "empty"));
  CHECK(contains(file_named(registry, "cut").refusal, "cut off"));
  CHECK(contains(file_named(registry, "header_only").refusal, "cut off"));
  CHECK(contains(file_named(registry, "dangling").refusal, "nothing is there"));
  CHECK(registry.files().size() == 6);
  check_good_still_works(registry);
}

TEST_CASE("a damaged stamp is refused with a readable sentence") {
  const PluginFolder folder;
  const std::string good = bytes_of("good");
  const size_t at = good.find("DITTOPLG");
  REQUIRE(at != std::string::npos);
  const auto damaged = [&](const std::string& name, size_t offset, char value) {
    std::string bytes = good;
    bytes[at + offset] = value;
    folder.write(name, bytes);
  };
  damaged("magic.so", 0, 'X');
  damaged("size.so", offsetof(ditto::Stamp, size), 1);
  damaged("id.so", offsetof(ditto::Stamp, id) + 1, '\x01');
  damaged("licence.so", offsetof(ditto::Stamp, licence) + 9, 'x');  // after the end of "MIT"
  Registry registry(folder.search());
  for (const auto& name : {"magic", "size", "id", "licence"}) {
    CAPTURE(name);
    const std::string refusal = file_named(registry, name).refusal;
    CHECK(contains(refusal, "its stamp is damaged: "));
    CHECK(contains(refusal, "; build the plugin again"));
  }
  check_good_still_works(registry);
}

TEST_CASE("no changed byte of a stamp makes the registry throw") {
  const PluginFolder folder;
  const std::string good = bytes_of("good");
  const size_t at = good.find("DITTOPLG");
  for (size_t offset = 0; offset < sizeof(ditto::Stamp); ++offset) {
    std::string bytes = good;
    bytes[at + offset] ^= 0x81;
    const auto path = folder.write("changed.so", bytes);
    const PluginFile file = ditto::inspect_plugin(path, ditto::host_stamp());
    CAPTURE(offset);
    CHECK_FALSE(file.refusal.empty());
  }
}

TEST_CASE("an unresolved symbol is named, without the loader's misleading errno") {
  const PluginFolder folder({"unresolved"});
  Registry registry(folder.search());
  CHECK(file_named(registry, "unresolved").refusal.empty());  // its stamp is right
  const std::string text = asked_for(registry, "unresolved");
  CHECK(contains(text, "run.toml:7:3: kernels 'unresolved': it cannot be loaded: "));
  CHECK(contains(text, "no library has '_Z15nowhere_definedv', which "));
  CHECK(contains(text, "; link the plugin with what defines it"));
  CHECK_FALSE(contains(text, "Bad file descriptor"));
  check_good_still_works(registry);
}

TEST_CASE("an entry function that is missing, throws or returns nothing is an error with the plugin's name") {
  const PluginFolder folder(
      {"no_entry", "entry_throws", "entry_throws_torch", "entry_throws_number", "entry_returns_nothing"});
  Registry registry(folder.search());
  CHECK(contains(asked_for(registry, "no_entry"), "has no entry function ditto_plugin_entry"));
  const std::string thrown = asked_for(registry, "entry_throws");
  CHECK(contains(thrown, "run.toml:7:3: kernels 'entry_throws', entry function of "));
  CHECK(contains(thrown, ": the licence server is asleep"));
  const std::string torch = asked_for(registry, "entry_throws_torch");
  CHECK(contains(torch, "width 5 is odd"));
  CHECK_FALSE(contains(torch, "frame #"));
  CHECK(contains(asked_for(registry, "entry_throws_number"), "not a std::exception"));
  CHECK(contains(asked_for(registry, "entry_returns_nothing"), "returned nothing"));
  check_good_still_works(registry);
}

TEST_CASE("two libraries of the same kind and id are an error that names both") {
  const PluginFolder folder({"twin_a", "twin_b"});
  Registry registry(folder.search());
  const std::string text = asked_for(registry, "twin");
  CHECK(contains(text, "more than one library is kernels 'twin'"));
  CHECK(contains(text, folder.path() / "twin_a.so"));
  CHECK(contains(text, folder.path() / "twin_b.so"));
  CHECK(contains(text, "keep one of them"));
  check_good_still_works(registry);
}

TEST_CASE("the same file reached twice is one plugin") {
  const PluginFolder folder;
  fs::create_directory(folder.path() / "sub");
  fs::create_symlink(folder.path() / "good.so", folder.path() / "sub/alias.so");
  auto search = folder.search();
  search.push_back({folder.path() / "sub/..", "the test"});
  Registry registry(search);
  CHECK(registry.files().size() == 1);
  check_good_still_works(registry);
}

TEST_CASE("a usable file wins over a refused one of the same id") {
  const PluginFolder folder;
  std::string bytes = bytes_of("good");
  bytes[bytes.find("DITTOPLG") + offsetof(ditto::Stamp, abi)] += 1;
  folder.write("old.so", bytes);
  Registry registry(folder.search());
  CHECK(registry.files().size() == 2);
  CHECK(registry.find("kernels", "good", "").path == folder.path() / "good.so");
  check_good_still_works(registry);
}

TEST_CASE("an unknown id names the nearest, or all there are") {
  const PluginFolder folder({"unresolved"});
  Registry registry(folder.search());
  CHECK(asked_for(registry, "godo") ==
        "run.toml:7:3: there is no kernels 'godo'; did you mean 'good'? If it lies elsewhere, name "
        "its folder by --plugin-path or in DITTO_PLUGIN_PATH");
  CHECK(asked_for(registry, "flash_attention") ==
        "run.toml:7:3: there is no kernels 'flash_attention'; there are: good, unresolved; if it lies elsewhere, name "
        "its "
        "folder by --plugin-path or in DITTO_PLUGIN_PATH");
  const std::string none = message([&] { registry.find("sampler", "euler", "run.toml:9:1"); });
  CHECK(contains(none, "run.toml:9:1: there is no sampler 'euler'; no plugin of this kind was found"));
}

TEST_CASE("folders come from the command line, the environment and the program's place, in this order") {
  setenv("DITTO_PLUGIN_PATH", "/one::/two", 1);
  const auto folders = ditto::plugin_folders({"/given"});
  unsetenv("DITTO_PLUGIN_PATH");
  REQUIRE(folders.size() == 4);
  CHECK(folders[0].path == "/given");
  CHECK(folders[0].from == "--plugin-path");
  CHECK(folders[1].path == "/one");
  CHECK(folders[2].path == "/two");
  CHECK(folders[2].from == "DITTO_PLUGIN_PATH");
  CHECK(folders[3].path == ditto::test::plugin_folder());
  CHECK(folders[3].from.empty());
}

TEST_CASE("a named folder that is missing is an error; a missing one beside the program is not") {
  const std::vector<ditto::SearchFolder> named{{"/no/such/folder", "run.toml:2:1"}}, unnamed{{"/no/such/folder", ""}};
  const std::string text = message([&] { Registry registry(named); });
  CHECK(contains(text, "run.toml:2:1: the plugin folder '/no/such/folder' cannot be read"));
  CHECK(Registry(unnamed).files().empty());
}

TEST_CASE("a library that everybody may write, or in a folder that everybody may write, is refused") {
  const PluginFolder folder;
  const auto good = folder.path() / "good.so";
  const auto refusal = [&] { return ditto::inspect_plugin(good, ditto::host_stamp()).refusal; };
  CHECK(refusal().empty());
  fs::permissions(good, fs::perms::others_write, fs::perm_options::add);
  CHECK(contains(refusal(), "everybody may write it; chmod o-w " + good.string()));
  fs::permissions(good, fs::perms::others_write, fs::perm_options::remove);
  fs::permissions(folder.path(), fs::perms::others_write, fs::perm_options::add);
  CHECK(contains(refusal(), "is one that everybody may write; chmod o-w " + folder.path().string()));
  fs::permissions(folder.path(), fs::perms::sticky_bit, fs::perm_options::add);
  CHECK(refusal().empty());
  fs::create_directory(folder.path() / "inner");
  fs::copy_file(good, folder.path() / "inner/good.so");
  fs::permissions(folder.path(), fs::perms::sticky_bit, fs::perm_options::remove);
  const auto inner = ditto::inspect_plugin(folder.path() / "inner/good.so", ditto::host_stamp()).refusal;
  CHECK(contains(inner, "chmod o-w " + folder.path().string()));  // a folder further up is as good
  if (::geteuid() != 0) return;
  fs::permissions(folder.path(), fs::perms::owner_all);
  REQUIRE(::chown(good.c_str(), 4321, static_cast<gid_t>(-1)) == 0);
  CHECK(contains(refusal(), "it belongs to user 4321"));
}

TEST_CASE("a library is tried before it is opened, those of a recipe together, and each once") {
  const PluginFolder folder({"unresolved", "entry_throws"});
  std::vector<std::vector<std::string>> tried;
  Registry registry(folder.search(), [&](const std::vector<std::string>& paths) -> std::optional<ditto::TrialFailure> {
    tried.push_back(paths);
    for (size_t i = 0; i < paths.size(); ++i)
      if (fs::path(paths[i]).stem() == "entry_throws") return ditto::TrialFailure{i, "signal 11"};
    return {};
  });
  registry.try_out({{"kernels", "good"}, {"kernels", "no such"}, {"model", "good"}, {"kernels", "entry_throws"}});
  REQUIRE(tried.size() == 1);
  CHECK(tried[0].size() == 2);
  check_good_still_works(registry);  // only if it was tried before the other failed, or alone now
  const std::string text = asked_for(registry, "entry_throws");
  CHECK(contains(text, "run.toml:7:3: kernels 'entry_throws': "));
  CHECK(contains(text, "entry_throws.so: signal 11"));
  CHECK_FALSE(contains(text, "licence server"));
  asked_for(registry, "unresolved");
  const auto times = tried.size();
  asked_for(registry, "unresolved");
  asked_for(registry, "entry_throws");
  CHECK(tried.size() == times);
}

TEST_CASE("a guard keeps an error's kind, adds the place, and leaves backtraces out") {
  const auto thrown = [](auto fn) -> std::string {
    try {
      ditto::guarded("model 'dit', block 7", fn);
    } catch (const Error& error) {
      return Error::name(error.kind()) + std::string(" | ") + error.what();
    }
    return "nothing was thrown";
  };
  CHECK(ditto::guarded("x", [] { return 7; }) == 7);
  CHECK(thrown([] { throw Error(ErrorKind::shape, "x", "is [2, 3]", "give [2, 4]"); }) ==
        "shape | model 'dit', block 7: x: is [2, 3]; give [2, 4]");
  const std::string text = thrown([] { torch::zeros({2, 3}).matmul(torch::zeros({2, 3})); });
  CHECK(contains(text, "plugin | model 'dit', block 7: mat1 and mat2 shapes cannot be multiplied"));
  CHECK_FALSE(contains(text, "frame #"));
  CHECK(thrown([] { throw std::out_of_range("map::at"); }) == "plugin | model 'dit', block 7: map::at");
  const std::string memory = thrown([] { torch::empty({int64_t{1} << 50}); });
  CHECK(contains(memory,
                 "config | model 'dit', block 7: not enough memory: 4503599627370496 bytes more were asked for; "));
  CHECK(contains(memory, "run.micro_batch"));
  CHECK(
      contains(thrown([] { throw std::bad_alloc(); }), "config | model 'dit', block 7: not enough memory; take fewer"));
  int made = 0;
  const auto place = [&] { return "place " + std::to_string(++made); };
  CHECK(ditto::guarded(place, [] { return 1; }) == 1);
  CHECK(made == 0);
}
