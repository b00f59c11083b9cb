#include "core/cascade/cascade_folder.h"

#include <unistd.h>

#include <filesystem>
#include <span>

#include <fmt/format.h>

#include <ditto/error.h>
#include <ditto/text.h>
#include <ditto/version.h>

#include "core/config/include.h"
#include "core/formats/file.h"
#include "core/formats/output_folder.h"

namespace ditto {

namespace fs = std::filesystem;
using formats::Node;
using formats::Table;

namespace {

// What tells that Ditto wrote it: recipes of runs are read so, too.
std::string noted(Table table) {
  table.set_path("record.version", Node{std::string(kVersion), {}});
  return formats::render_toml(table);
}

Table names_of(const Cascade& cascade) {
  formats::Array stages;
  for (const auto& stage : cascade.stages) stages.push_back(Node{stage.name + ".toml", {}});
  Table table;
  table.set_path("cascade.name", Node{cascade.name, {}});
  table.set_path("cascade.stages", Node{std::move(stages), {}});
  table.set_path("cascade.passes", Node{cascade.passes, {}});
  return table;
}

void write(const fs::path& path, const std::string& text) {
  formats::write_file(path.string(), std::as_bytes(std::span(text)), ErrorKind::data, formats::Sync::fsync);
  formats::sync_parent(path.string(), ErrorKind::data);
}

// Whoever is first stays.
void write_if_none(const fs::path& path, const std::string& text) {
  std::error_code error;
  if (fs::exists(path, error)) return;
  const fs::path own = path.string() + ".of-" + std::to_string(::getpid());
  write(own, text);
  fs::create_hard_link(own, path, error);
  const bool has_no_links = error && error != std::errc::file_exists;  // some file systems do not
  if (has_no_links && !fs::exists(path, error)) fs::rename(own, path, error);
  fs::remove(own, error);
}

void require_same_stages(const Cascade& cascade, const fs::path& file) {
  std::error_code ignored;
  if (!fs::exists(file, ignored) || fs::equivalent(file, cascade.file, ignored)) return;
  const auto there = read_cascade(file.string());
  if (there.names() == cascade.names() && there.passes == cascade.passes) return;
  throw Error(ErrorKind::config, cascade.output,
              fmt::format("is the folder of another cascade, of {} by \"{}\", and this one is of {} by \"{}\"",
                          shown(there.names()), shown(there.passes), shown(cascade.names()), shown(cascade.passes)),
              "choose another folder: --set cascade.output=FOLDER");
}

}  // namespace

void write_cascade_folder(const Cascade& cascade, const std::vector<Table>& recipes, std::optional<std::size_t> one) {
  formats::make_output_folder(cascade.output, "cascade.output");
  const auto folder = fs::path(cascade.output), file = folder / kCascadeFile;
  require_same_stages(cascade, file);
  for (std::size_t i = 0; i < recipes.size(); ++i) {
    const auto path = folder / (cascade.stages[i].name + ".toml");
    if (!one || *one == i)
      write(path, noted(recipes[i]));
    else
      write_if_none(path, noted(recipes[i]));
  }
  write(file, noted(names_of(cascade)));
}

}  // namespace ditto
