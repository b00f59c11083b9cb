// Finds plugins, says why a file cannot be used, and opens those that a run names.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ditto/plugin.h>

#include "core/plugin/guard.h"

namespace ditto {

// A folder that is searched, all of its subfolders included; or one library.
struct SearchFolder {
  std::string path;
  std::string from;  // who names it, for messages: "--plugin-path", "DITTO_PLUGIN_PATH"; empty: it may be missing
};

// Where plugins are, in this order: `given` (--plugin-path), the folders of the environment variable DITTO_PLUGIN_PATH
// (separated by colons), lib/ditto/plugins beside the program's own folder. Nothing else: no file that came with data
// may say what code is run.
std::vector<SearchFolder> plugin_folders(const std::vector<std::string>& given = {});

// By kind and id.
using PluginKey = std::pair<std::string, std::string>;

// One library that was found, as its stamp describes it. Where the stamp cannot be read, only path and refusal are set.
struct PluginFile {
  std::string path;    // canonical
  std::string folder;  // the searched folder it was found in, canonical
  std::string kind, id, version, licence, summary;
  std::string torch, cuda;
  std::string refusal;  // why it cannot be used: one sentence with both sides and the remedy; empty: it fits
};

struct TrialFailure {
  size_t which;      // of the paths; those before it came back
  std::string what;  // one sentence
};

// Opens the libraries in a process of their own, in this order, up to the first that does not come back. What throws
// comes back: the caller hears of it by opening it itself.
using Trial = std::function<std::optional<TrialFailure>(const std::vector<std::string>& paths)>;

// Opened libraries stay open until the process ends: closing one that has touched LibTorch crashes.
class Registry {
 public:
  // Reads the stamp of every *.so in the folders; opens none. Throws Error(plugin) for a named folder that is missing.
  // With a `trial` each library is tried by it before it is opened.
  explicit Registry(const std::vector<SearchFolder>& folders = plugin_folders(), Trial trial = {});
  Registry(const std::vector<SearchFolder>& folders, const Stamp& host);
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // Sorted by kind, id and path; the unreadable ones last.
  const std::vector<PluginFile>& files() const { return files_; }

  std::vector<PluginFile> opened() const;  // those of them that were asked for, and opened

  // The one usable file of this kind and id. Throws Error(plugin) at `where` that says what there is, or why the file
  // that would have been it was refused.
  const PluginFile& find(std::string_view kind, std::string_view id, std::string_view where) const;

  // Tries those of them that can be opened all at once, which takes less time than one by one. What fails is told when
  // it is opened.
  void try_out(const std::vector<PluginKey>& plugins);

  // Opens the plugin of interface I (once) and returns its factory, valid until the process ends. `where` is the place
  // that asks for it. Throws Error(plugin). Thread-safe.
  template <class I>
  const Factory<I>& factory(std::string_view id, std::string_view where = {}) {
    return *static_cast<const Factory<I>*>(open(find(I::kKind, id, where), where));
  }

 private:
  void scan(const SearchFolder& folder, const Stamp& host);
  void refuse_duplicates();
  void try_paths(const std::vector<std::string>& paths);
  const void* open(const PluginFile& file, std::string_view where);

  std::vector<PluginFile> files_;
  Trial trial_;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> tried_;   // path -> what went wrong; empty: nothing
  std::map<std::string, const void*> opened_;  // path -> what the entry function returned
};

// One file by itself, wherever it lies.
PluginFile inspect_plugin(const std::string& path, const Stamp& host);

// "model 'dit'"
std::string plugin_name(std::string_view kind, std::string_view id);

}  // namespace ditto
