#include "trial/trial_parts.h"

#include <dlfcn.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <ditto/error.h>

#include "numbers.h"

namespace ditto::testing {

std::shared_ptr<ParallelStrategy> strategy_beside_the_sdk(const std::string& id, const OptionValues& options,
                                                          const ParallelStrategy::Needs& needs) {
  Dl_info sdk{};
  ::dladdr(reinterpret_cast<const void*>(&Error::name), &sdk);
  const std::string file = sdk.dli_fname ? sdk.dli_fname : "";
  return make<ParallelStrategy>(file.substr(0, file.rfind('/') + 1) + "ditto/plugins/parallel/lib" + id + ".so",
                                options, needs);
}

void TrialFindings::add(std::string& to, const Mesh& mesh, const std::string& what) {
  const std::lock_guard lock(mutex);
  if (to.empty()) to = (mesh.world_size() > 1 && &to != &refused ? fmt::format("on rank {} ", mesh.rank()) : "") + what;
}

void TrialFindings::note(const Mesh& mesh, const bool& is_made, const std::function<std::string()>& running,
                         const std::function<std::string()>& body) {
  const auto threw = [&](const std::exception& error) {
    const auto unit = running ? running() : "";
    add(is_made ? wrong : lost, mesh,
        "it threw" + (unit.empty() ? "" : " in " + unit) + " (" + first_line(error) + ")");
  };
  try {
    if (const auto what = body(); !what.empty()) add(wrong, mesh, what);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::config)
      add(refused, mesh, error.what());
    else if (error.kind() == ErrorKind::distributed)
      add(lost, mesh, error.what());
    else
      threw(error);
    throw;
  } catch (const std::exception& error) {
    threw(error);
    throw;
  }
}

OneThread::OneThread() : before_(at::get_num_threads()) { at::set_num_threads(1); }
OneThread::~OneThread() { at::set_num_threads(before_); }

}  // namespace ditto::testing
