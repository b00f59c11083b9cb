#include "core/plugin/registry.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <tuple>

#include <boost/dll/runtime_symbol_info.hpp>
#include <boost/dll/shared_library.hpp>

#include <ditto/text.h>

#include "core/formats/junk_name.h"
#include "core/plugin/kinds.h"
#include "core/plugin/stamp.h"
#include "core/plugin/trust.h"

namespace ditto {

namespace fs = std::filesystem;

namespace {

constexpr const char* kElsewhere = " it lies elsewhere, name its folder by --plugin-path or in DITTO_PLUGIN_PATH";
constexpr const char* kListHint = "`ditto plugins list` shows what there is";

// All libraries ever opened, on purpose never freed: a static object would close them when the process ends.
std::vector<boost::dll::shared_library>& open_libraries() {
  static auto* libraries = new std::vector<boost::dll::shared_library>;
  return *libraries;
}

std::mutex& open_libraries_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

// Boost wraps the useful text of dlerror: "load() failed (dlerror system message: TEXT): Bad file descriptor".
std::string dlerror_text(const std::string& message) {
  constexpr std::string_view kBefore = "dlerror system message: ";
  const auto begin = message.find(kBefore);
  const auto end = message.rfind("): ");
  if (begin == std::string::npos || end == std::string::npos) return message;
  return message.substr(begin + kBefore.size(), end - begin - kBefore.size());
}

std::string without_place(const std::string& message, const std::string& place) {
  return message.starts_with(place + ": ") ? message.substr(place.size() + 2) : message;
}

// "FILE: undefined symbol: NAME[, version V]" and "FILE: cannot open shared object file: WHY" in words of people.
Error not_loaded(const std::string& place, const std::string& file, const std::string& text) {
  constexpr std::string_view kSymbol = "undefined symbol: ", kMissing = ": cannot open shared object file: ";
  const auto refuse = [&](const std::string& what, const char* remedy) {
    return Error(ErrorKind::plugin, place, "it cannot be loaded: " + what, remedy);
  };
  if (const auto at = text.find(kSymbol); at != std::string::npos)
    return refuse("no library has '" + text.substr(at + kSymbol.size()) + "', which " + file + " needs",
                  "link the plugin with what defines it, and with -Wl,--no-undefined to hear of it earlier");
  if (const auto at = text.find(kMissing); at != std::string::npos)
    return refuse("the library " + text.substr(0, at) + ", which " + file + " needs, cannot be opened (" +
                      text.substr(at + kMissing.size()) + ")",
                  "install that library, or put its folder into the plugin's rpath");
  return refuse("the system's loader does not take " + file + " (" + without_place(text, file) + ")",
                "build the plugin again");
}

bool stem_is(const std::string& path, std::string_view id) {
  const std::string stem = fs::path(path).stem();
  return stem == id || stem == "lib" + std::string(id);
}

std::vector<std::string> libraries_in(const fs::path& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  const auto options = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator it(folder, options, error), end; !error && it != end; it.increment(error)) {
    if (formats::is_junk_name(it->path().filename().string())) {
      it.disable_recursion_pending();
      continue;
    }
    if (it->path().extension() != ".so") continue;
    std::error_code broken;  // a dangling link is a file that cannot be read, and said to be one
    const auto canonical = fs::canonical(it->path(), broken);
    paths.push_back(broken ? it->path() : canonical);
  }
  return paths;
}

}  // namespace

std::string plugin_name(std::string_view kind, std::string_view id) {
  return std::string(kind) + " '" + std::string(id) + "'";
}

std::vector<SearchFolder> plugin_folders(const std::vector<std::string>& given) {
  std::vector<SearchFolder> folders;
  for (const auto& path : given) folders.push_back({path, "--plugin-path"});
  const char* variable = std::getenv("DITTO_PLUGIN_PATH");
  std::string_view rest = variable ? variable : "";
  while (!rest.empty()) {
    const auto colon = std::min(rest.find(':'), rest.size());
    if (colon > 0) folders.push_back({std::string(rest.substr(0, colon)), "DITTO_PLUGIN_PATH"});
    rest.remove_prefix(std::min(colon + 1, rest.size()));
  }
  const fs::path program = boost::dll::program_location();
  folders.push_back({program.parent_path().parent_path() / "lib/ditto/plugins", {}});
  return folders;
}

PluginFile inspect_plugin(const std::string& path, const Stamp& host) {
  PluginFile file;
  file.path = path;
  try {
    const Stamp stamp = read_stamp(path);
    file.kind = text(stamp.kind);
    file.id = text(stamp.id);
    file.version = text(stamp.version);
    file.licence = text(stamp.licence);
    file.summary = text(stamp.summary);
    file.torch = text(stamp.torch);
    file.cuda = text(stamp.cuda);
    file.refusal = misfit(stamp, host);
    if (file.refusal.empty()) file.refusal = distrust(path);
  } catch (const std::exception& error) {
    file.refusal = without_place(error.what(), path);
  }
  return file;
}

Registry::Registry(const std::vector<SearchFolder>& folders, Trial trial) : Registry(folders, host_stamp()) {
  trial_ = std::move(trial);
}

Registry::Registry(const std::vector<SearchFolder>& folders, const Stamp& host) {
  for (const SearchFolder& folder : folders) scan(folder, host);
  const auto order = [](const PluginFile& f) { return std::tuple(f.kind.empty(), f.kind, f.id, f.path); };
  std::sort(files_.begin(), files_.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
  refuse_duplicates();
}

void Registry::scan(const SearchFolder& folder, const Stamp& host) {
  std::error_code missing;
  const fs::path place = fs::canonical(folder.path, missing);
  if (missing) {
    if (folder.from.empty()) return;
    throw Error(ErrorKind::plugin, folder.from,
                "the plugin folder '" + folder.path + "' cannot be read: " + missing.message(),
                "correct the path, or take it out");
  }
  const bool is_folder = fs::is_directory(place, missing);
  for (const std::string& path : is_folder ? libraries_in(place) : std::vector<std::string>{place}) {
    const auto same = [&](const PluginFile& file) { return file.path == path; };
    if (std::any_of(files_.begin(), files_.end(), same)) continue;
    files_.push_back(inspect_plugin(path, host));
    files_.back().folder = is_folder ? place : place.parent_path();
  }
}

void Registry::refuse_duplicates() {
  std::map<std::pair<std::string, std::string>, std::vector<PluginFile*>> fitting;
  for (PluginFile& file : files_)
    if (file.refusal.empty()) fitting[{file.kind, file.id}].push_back(&file);
  for (const auto& [key, files] : fitting) {
    if (files.size() < 2) continue;
    std::string paths;
    for (const PluginFile* file : files) paths += (paths.empty() ? "" : " and ") + file->path;
    for (PluginFile* file : files)
      file->refusal =
          "more than one library is " + plugin_name(key.first, key.second) + ": " + paths + "; keep one of them";
  }
}

std::vector<PluginFile> Registry::opened() const {
  const std::lock_guard lock(mutex_);
  std::vector<PluginFile> list;
  for (const auto& file : files_)
    if (opened_.count(file.path) > 0) list.push_back(file);
  return list;
}

const PluginFile& Registry::find(std::string_view kind, std::string_view id, std::string_view where) const {
  const PluginFile* refused = nullptr;
  std::vector<std::string> names;
  for (const PluginFile& file : files_) {
    const bool named = file.kind == kind && file.id == id;
    if (named && file.refusal.empty()) return file;
    if (named || (!refused && file.kind.empty() && stem_is(file.path, id))) refused = &file;
    if (file.kind == kind && file.refusal.empty()) names.push_back(file.id);
  }
  if (refused)
    throw Error(ErrorKind::plugin, where, plugin_name(kind, id) + " cannot be used",
                refused->path + ": " + refused->refusal);
  const std::string near = nearest(id, names);
  std::string all;
  for (const auto& name : names) all += (all.empty() ? "" : ", ") + name;
  const std::string known =
      all.empty() ? "no plugin of this kind was found; " + std::string(kListHint) : "there are: " + all;
  throw Error(ErrorKind::plugin, where, "there is no " + plugin_name(kind, id),
              near.empty() ? known + "; if" + kElsewhere : "did you mean '" + near + "'? If" + kElsewhere);
}

void Registry::try_out(const std::vector<PluginKey>& plugins) {
  std::vector<std::string> paths;
  for (const PluginFile& file : files_)
    if (file.refusal.empty() && std::count(plugins.begin(), plugins.end(), PluginKey(file.kind, file.id)))
      paths.push_back(file.path);
  const std::lock_guard lock(mutex_);
  try_paths(paths);
}

void Registry::try_paths(const std::vector<std::string>& paths) {
  std::vector<std::string> untried;
  for (const auto& path : paths)
    if (!tried_.count(path)) untried.push_back(path);
  if (!trial_ || untried.empty()) return;
  const auto failure = trial_(untried);
  const size_t came_back = failure ? failure->which : untried.size();
  for (size_t i = 0; i < came_back; ++i) tried_[untried[i]];
  if (failure) tried_[untried.at(came_back)] = failure->what;
}

const void* Registry::open(const PluginFile& file, std::string_view where) {
  const std::lock_guard lock(mutex_);
  const auto it = opened_.find(file.path);
  if (it != opened_.end()) return it->second;

  const std::string place = (where.empty() ? "" : std::string(where) + ": ") + plugin_name(file.kind, file.id);
  try_paths({file.path});
  if (const auto& what = tried_[file.path]; !what.empty())
    throw Error(ErrorKind::plugin, place, file.path + ": " + what,
                "it was tried in a process of its own; mend the plugin, or name another");
  const auto whole = "opening " + plugin_name(file.kind, file.id) + " (" + shown(file.path) + ")";
  const Doing doing(whole.c_str());
  using Entry = const void*();
  Entry* entry = nullptr;
  try {
    boost::dll::shared_library library;
    library.load(file.path, boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
    const std::lock_guard parked(open_libraries_mutex());
    entry = &open_libraries().emplace_back(std::move(library)).get<Entry>(kEntryName);
  } catch (const std::system_error& error) {
    const std::string text = dlerror_text(error.what());
    if (text.find(kEntryName) != std::string::npos)
      throw Error(ErrorKind::plugin, place, file.path + " has no entry function " + kEntryName,
                  "a plugin's source ends with the SDK's macro that registers it");
    throw not_loaded(place, file.path, text);
  }
  const void* factory = guarded(place + ", entry function of " + file.path, [&] { return entry(); });
  if (!factory)
    throw Error(ErrorKind::plugin, place, "the entry function of " + file.path + " returned nothing",
                "it returns the address of a ditto::Factory");
  return opened_[file.path] = factory;
}

}  // namespace ditto
