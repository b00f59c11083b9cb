// ditto plugins list [KIND] | show ID | verify PATH | try FILE | new KIND NAME
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include <ditto/kernels.h>
#include <ditto/text.h>

#include "apps/ditto/commands.h"
#include "apps/ditto/plugins_new.h"
#include "apps/ditto/plugins_try.h"
#include "core/formats/text/json.h"
#include "core/plugin/kinds.h"
#include "core/plugin/registry.h"
#include "core/plugin/stamp.h"
#include "core/plugin/trial.h"

namespace ditto {

namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

struct PluginsArguments {
  std::string subject;            // KIND, ID, KIND/ID or PATH
  std::vector<std::string> path;  // --plugin-path
  bool json = false;
};

void print_table(Rows rows) {
  for (auto& row : rows)
    for (auto& cell : row) cell = shown(cell);
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (size_t i = 0; i + 1 < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      line += fmt::format("{:<{}}", row[i], i + 1 < row.size() ? widths[i] + 2 : 0);
    std::cout << line << '\n';
  }
}

std::string shown_path(const PluginFile& file) {
  return std::filesystem::path(file.path).lexically_relative(file.folder).string();
}

Json as_json(const PluginFile& file) {
  return {{"kind", file.kind},       {"id", file.id},           {"version", file.version},
          {"licence", file.licence}, {"summary", file.summary}, {"torch", file.torch},
          {"cuda", file.cuda},       {"path", file.path},       {"usable", file.refusal.empty()},
          {"refusal", file.refusal}};
}

[[noreturn]] void refuse_kind(const char* where, const std::string& kind) {
  std::vector<std::string> kinds;
  for_each_kind([&](auto tag) { kinds.emplace_back(decltype(tag)::type::kKind); });
  const auto near = nearest(kind, kinds);
  throw Error(ErrorKind::config, where, "there is no kind \"" + shown(kind) + "\" of plugins",
              (near.empty() ? "" : "did you mean \"" + near + "\"? ") + ("there are: " + kind_list()));
}

void list(const PluginsArguments& arguments) {
  const auto& kind = arguments.subject;
  if (!kind.empty() && !is_kind(kind)) refuse_kind("ditto plugins list", kind);
  const Registry registry(plugin_folders(arguments.path));
  std::vector<PluginFile> files;
  for (const PluginFile& file : registry.files())
    if (kind.empty() || file.kind == kind) files.push_back(file);
  if (arguments.json) {
    Json all = Json::array();
    for (const PluginFile& file : files) all.push_back(as_json(file));
    std::cout << formats::ascii_json(all) << '\n';
    return;
  }
  Rows rows{{"KIND", "ID", "VERSION", "LICENCE", "TORCH", "STATUS", "FILE"}};
  std::string refusals;
  for (const PluginFile& file : files) {
    const auto known = [](const std::string& text) { return text.empty() ? std::string("?") : text; };
    rows.push_back({known(file.kind), known(file.id), known(file.version), known(file.licence), known(file.torch),
                    file.refusal.empty() ? "ok" : "refused", shown_path(file)});
    if (!file.refusal.empty()) refusals += shown(file.path + ": " + file.refusal, kSentenceShown) + '\n';
  }
  print_table(rows);
  if (!refusals.empty()) std::cout << "\nRefused:\n" << refusals;
}

// The options that a plugin declares. Opens it.
template <class Interface>
std::vector<OptionInfo> options_of(Registry& registry, const PluginFile& file) {
  const auto& factory = registry.factory<Interface>(file.id);
  OptionReader reader({file.kind, file.path, {}}, effect_of_options<Interface>());
  guarded(plugin_name(file.kind, file.id) + ", its options", [&] { factory.declare(reader); });
  return reader.declared();
}

std::vector<OptionInfo> options_of(Registry& registry, const PluginFile& file) {
  std::vector<OptionInfo> options;
  for_each_kind([&](auto tag) {
    using Interface = typename decltype(tag)::type;
    if (file.kind == Interface::kKind) options = options_of<Interface>(registry, file);
  });
  return options;
}

// The rows of a kernel set with its defaults, on this processor; of others none. Makes it.
std::vector<KernelRow> rows_of(Registry& registry, const PluginFile& file) {
  if (file.kind != KernelSet::kKind) return {};
  const auto& factory = registry.factory<KernelSet>(file.id);
  OptionReader reader({file.kind, file.path, {}});
  return guarded(plugin_name(file.kind, file.id) + ", its rows", [&] { return factory.make(reader, {})->rows(); });
}

Json json_value(const OptionValue& value) {
  return std::visit([](const auto& v) { return Json(v); }, value);
}

void print_rows(const std::vector<KernelRow>& rows) {
  if (rows.empty()) return;
  Rows table{{"OP", "VARIANT", "EXACT", "COPIES"}};
  for (const auto& row : rows) table.push_back({row.op, row.variant, row.exact ? "yes" : "", row.copies ? "yes" : ""});
  std::cout
      << "\nKernels on this processor. EXACT: for run.numerics = \"one\" too. COPIES: tensors whose numbers do not "
         "follow one another, before it computes.\n";
  print_table(table);
}

void print_plugin(const PluginFile& file, const std::vector<OptionInfo>& options, const std::vector<KernelRow>& kernels,
                  const PluginsArguments& arguments) {
  if (arguments.json) {
    Json all = as_json(file);
    all["options"] = Json::array();
    for (const OptionInfo& option : options)
      all["options"].push_back({{"name", option.name},
                                {"type", type_name(option.fallback)},
                                {"default", json_value(option.fallback)},
                                {"range", option.range},
                                {"changes", name(option.effect)},
                                {"help", option.help}});
    for (const auto& row : kernels)
      all["kernels"].push_back(
          {{"op", row.op}, {"variant", row.variant}, {"exact", row.exact}, {"copies", row.copies}});
    std::cout << formats::ascii_json(all) << '\n';
    return;
  }
  std::cout << fmt::format("{}/{} {} ({}), LibTorch {}{}\n{}\n{}\n", file.kind, file.id, file.version, file.licence,
                           file.torch, file.cuda.empty() ? "" : ", CUDA " + file.cuda, file.summary, shown(file.path));
  if (options.empty()) {
    std::cout << "\nIt takes no options.\n";
    return print_rows(kernels);
  }
  Rows rows{{"OPTION", "TYPE", "DEFAULT", "RANGE", "CHANGES", "HELP"}};
  for (const OptionInfo& option : options)
    rows.push_back({option.name, type_name(option.fallback), to_text(option.fallback), option.range,
                    name(option.effect), option.help});
  std::cout << '\n';
  print_table(rows);
  print_rows(kernels);
}

constexpr const char* kShow = "ditto plugins show";

// Of an id without a kind: the kind that has it.
std::string kind_of_id(const Registry& registry, const std::string& id) {
  std::vector<std::string> kinds, ids;
  for (const PluginFile& file : registry.files()) {
    if (file.id == id && std::find(kinds.begin(), kinds.end(), file.kind) == kinds.end()) kinds.push_back(file.kind);
    ids.push_back(file.id);
  }
  if (kinds.size() == 1) return kinds.front();
  if (kinds.empty()) {
    const auto near = nearest(id, ids);
    throw Error(ErrorKind::config, kShow, "there is no plugin \"" + shown(id) + "\" of any kind",
                near.empty() ? "see `ditto plugins list`" : "did you mean \"" + near + "\"? See `ditto plugins list`");
  }
  std::string all;
  for (const auto& kind : kinds) all += (all.empty() ? "" : " or ") + kind + "/" + id;
  throw Error(ErrorKind::config, kShow, "\"" + shown(id) + "\" is the name of a plugin of more than one kind",
              "name " + all);
}

void show(const PluginsArguments& arguments) {
  const auto slash = arguments.subject.find('/');
  Registry registry(plugin_folders(arguments.path), try_new_plugins);
  const auto kind =
      slash == std::string::npos ? kind_of_id(registry, arguments.subject) : arguments.subject.substr(0, slash);
  if (!is_kind(kind)) refuse_kind(kShow, kind);
  const PluginFile& file = registry.find(kind, arguments.subject.substr(slash + 1), kShow);
  print_plugin(file, options_of(registry, file), rows_of(registry, file), arguments);
}

void verify(const PluginsArguments& arguments) {
  Registry registry({{arguments.subject, "ditto plugins verify"}}, try_plugins);
  for (const PluginFile& file : registry.files()) {
    if (!file.refusal.empty()) throw Error(ErrorKind::plugin, file.path, file.refusal);
    const auto options = options_of(registry, file);
    if (arguments.json) {
      print_plugin(file, options, {}, arguments);
    } else {
      std::cout << shown(file.path) << ": " << plugin_name(file.kind, file.id) << " " << file.version
                << " fits and opens; " << options.size() << (options.size() == 1 ? " option\n" : " options\n");
    }
  }
}

void add(CLI::App& parent, CommandLine& line, const std::string& name, const std::string& help,
         const std::string& subject, const std::string& said, const std::string& example,
         void (*run)(const PluginsArguments&)) {
  auto* command = parent.add_subcommand(name, help);
  auto arguments = std::make_shared<PluginsArguments>();
  command->add_option(subject, arguments->subject, said)->required(name != "list");
  if (name != "verify") add_plugin_path(*command, line);
  command->add_flag("--json", arguments->json, "print JSON, for programs");
  command->footer("Example: ditto plugins " + example);
  command->callback([arguments, &line, run] {
    arguments->path = line.plugin_path;
    run(*arguments);
  });
}

void add_try(CLI::App& parent, CommandLine& line) {
  auto* command = parent.add_subcommand(
      "try",
      "Run a model or an encoder on many layouts of ranks in this process, and say what is wrong with it on which");
  auto arguments = std::make_shared<TryArguments>();
  command->add_option("FILE", arguments->file, "the model's or encoder's library")->required();
  command->add_option("RECIPE", arguments->recipe,
                      "a recipe with its options and data; default: a small one, and data of any kind");
  command
      ->add_option("--set", arguments->sets,
                   "KEY=VALUE: an option, model.depth=3; of an encoder without a recipe encoder.tried.KEY")
      ->allow_extra_args(false);
  add_plugin_path(*command, line);
  command->footer("Example: ditto plugins try build/lib/ditto/plugins/models/libtiny.so --set model.depth=3");
  command->callback([arguments, &line] {
    arguments->plugin_path = line.plugin_path;
    try_plugin(*arguments);
  });
}

void add_new(CLI::App& parent) {
  auto* command = parent.add_subcommand("new", "Write a folder with a small model to begin with");
  auto arguments = std::make_shared<NewArguments>();
  command->add_option("KIND", arguments->kind, "model")->required();
  command->add_option("NAME", arguments->name, "the plugin's id: letters a to z, digits and \"_\"")->required();
  command->add_option("--in", arguments->in, "the folder in which NAME is made; default: this one");
  command->footer("Example: ditto plugins new model mine --in plugins/models");
  command->callback([arguments] { new_plugin(*arguments); });
}

// Not for people: what try_plugins starts.
void add_open(CLI::App& parent) {
  auto* command = parent.add_subcommand("open", "Open libraries, and end whatever they do")->group("");
  auto paths = std::make_shared<std::vector<std::string>>();
  command->add_option("PATH", *paths)->required();
  command->callback([paths] { run_trial(*paths); });
}

}  // namespace

void add_plugin_path(CLI::App& command, CommandLine& line) {
  command
      .add_option("--plugin-path", line.plugin_path,
                  "a folder that is searched for plugins, before those of DITTO_PLUGIN_PATH")
      ->allow_extra_args(false);
}

void add_plugins_commands(CLI::App& app, CommandLine& line) {
  auto* plugins =
      app.add_subcommand("plugins", "List plugins, show one's options, check a library, try a model, or begin one");
  plugins->require_subcommand(1);
  add(*plugins, line, "list", "List every library found, and why one is refused; opens none", "KIND",
      "only those of this kind: " + kind_list(), "list sampler", list);
  add(*plugins, line, "show", "Open a plugin and show its options", "ID", "its id, or KIND/ID", "show model/dit", show);
  add(*plugins, line, "verify", "Say whether a library fits this ditto, and open it", "PATH",
      "the library, or a folder of them", "verify build/lib/ditto/plugins/models/libtiny.so", verify);
  add_try(*plugins, line);
  add_new(*plugins);
  add_open(*plugins);
}

}  // namespace ditto
