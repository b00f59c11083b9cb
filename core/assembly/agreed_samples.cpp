#include "core/assembly/agreed_samples.h"

#include <map>

#include <torch/types.h>

namespace ditto {

namespace {

std::string first_of_all(const Mesh& mesh, const std::string& mine) {
  const auto all = mesh.world().all_gather_text(mine);
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty()) return all.size() == 1 ? all[rank] : "on rank " + std::to_string(rank) + ", " + all[rank];
  return {};
}

}  // namespace

std::vector<int64_t> agree_on_samples(const Mesh& mesh, const Places& all,
                                      const std::vector<std::shared_ptr<BatchJob>>& jobs) {
  std::map<int64_t, int64_t> at;
  for (const int64_t place : all.list) at.emplace(place, static_cast<int64_t>(at.size()));
  auto ranks = torch::zeros({all.count()}, torch::kInt);  // that could not decode a sample
  for (const auto& job : jobs)
    for (const auto& sample : job->bad()) ranks[at.at(sample.place)] = 1;
  ranks = mesh.world().all_reduce(ranks);

  std::vector<int64_t> left_out;
  for (const auto& [place, i] : at)
    if (ranks.const_data_ptr<int32_t>()[i] > 0) left_out.push_back(place);
  for (const auto& job : jobs) job->leave_out(left_out);
  return left_out;
}

void leave_out(const Mesh& mesh, Loader& loader, const std::vector<int64_t>& places) {
  loader.leave_out(places, [&](const std::string& mine) { return first_of_all(mesh, mine); });
}

}  // namespace ditto
