// Reads files as the program would, one after another in one process, and says what came of each. For
// tests/integration/robustness/hostile_files.py, which makes hundreds of them: starting `ditto` for each would take
// minutes.
//
//   ditto_hostile <LIST      a line "KIND PATH" each
//
// prints a JSON object a line: {"code": exit code, "message": …, "seconds": of the processor, "peak_mib": …}. The
// process stays alive, or the test sees which file ended it.
#include <time.h>

#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include <ditto/error.h>

#include "core/checkpoint/index.h"
#include "core/config/recipe.h"
#include "core/formats/archive/shard.h"
#include "core/formats/file.h"
#include "core/formats/picture/picture.h"
#include "core/formats/tensor/safetensors.h"
#include "core/formats/tensor/torch_zip.h"
#include "core/formats/text/table.h"
#include "core/plugin/stamp.h"

namespace {

using namespace ditto;

void read_torch(const std::string& path) {
  const auto file = formats::TorchCheckpoint::open(path);
  for (const auto& tensor : file.tensors()) file.read(tensor);
}

void read_safetensors(const std::string& path) {
  const auto file = formats::SafetensorsReader::open(path);
  for (const auto& entry : file.entries()) file.read(entry);
}

const std::map<std::string, std::function<void(const std::string&)>> kReaders{
    {"recipe", [](const std::string& path) { Recipe::read(path); }},
    {"safetensors", read_safetensors},
    {"index",
     [](const std::string& path) { checkpoint::parse_index(formats::read_file(path, ErrorKind::checkpoint), path); }},
    {"table", [](const std::string& path) { formats::read_number_table(path); }},
    {"tar", [](const std::string& path) { formats::shard_samples(formats::index_tar(path), path); }},
    {"picture", [](const std::string& path) { formats::read_picture(path); }},
    {"pt", read_torch},
    {"plugin",
     [](const std::string& path) {
       const std::string misfit_text = misfit(read_stamp(path), host_stamp());
       if (!misfit_text.empty()) throw Error(ErrorKind::plugin, path, misfit_text);
     }},
};

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Forgets the largest memory so far. proc(5), clear_refs.
void reset_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

double peak_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024;
  return -1;
}

nlohmann::json outcome(const std::function<void(const std::string&)>& read, const std::string& path) {
  reset_peak();
  const double begin = processor_seconds();
  nlohmann::json result{{"code", 0}, {"message", ""}};
  try {
    read(path);
  } catch (const Error& error) {
    result = {{"code", error.exit_code()}, {"message", error.what()}};
  }
  result["seconds"] = processor_seconds() - begin;
  result["peak_mib"] = peak_mib();
  return result;
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto space = line.find(' ');
    const auto result = outcome(kReaders.at(line.substr(0, space)), line.substr(space + 1));
    std::cout << result.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << std::endl;
  }
}
