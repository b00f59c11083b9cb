#include "stages.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace ditto {

std::vector<int64_t> stages_by_number(int64_t blocks, int64_t stages) {
  std::vector<int64_t> starts;
  for (int64_t k = 0; k <= stages; ++k) starts.push_back(blocks * k / stages);
  return starts;
}

namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

// The cut of least price, where a stage's price is that of its cost and prices are joined to that of all stages; among
// equals the one whose stages begin earliest.
struct Cheapest {
  double price = kNone;
  std::vector<int64_t> starts;
};
template <class Price, class Join>
Cheapest cheapest(const std::vector<double>& costs, int64_t stages, const Price& price, const Join& join) {
  const size_t blocks = costs.size(), n = static_cast<size_t>(stages);
  struct Best {
    double price = kNone;
    size_t end = 0;  // of the first stage
  };
  // best[k][i]: of blocks i … in k stages.
  std::vector<std::vector<Best>> best(n + 1, std::vector<Best>(blocks + 1));
  best[0][blocks] = {0, blocks};
  for (size_t k = 1; k <= n; ++k)
    for (size_t i = 0; i < blocks; ++i) {
      double cost = 0;
      for (size_t end = i + 1; end <= blocks; ++end) {
        cost += costs[end - 1];
        const double all = join(price(cost), best[k - 1][end].price);
        if (all < best[k][i].price) best[k][i] = {all, end};
      }
    }
  Cheapest found{best[n][0].price, {0}};
  for (size_t k = n, i = 0; k > 0; --k) found.starts.push_back(static_cast<int64_t>(i = best[k][i].end));
  return found;
}

}  // namespace

std::vector<int64_t> stages_by_cost(const std::vector<double>& costs, int64_t stages) {
  if (std::all_of(costs.begin(), costs.end(), [&](double cost) { return cost == costs[0]; }))
    return stages_by_number(static_cast<int64_t>(costs.size()), stages);
  const auto larger = [](double a, double b) { return std::max(a, b); };
  const double most = cheapest(
                          costs, stages, [](double cost) { return cost; }, larger)
                          .price;
  const auto square = [&](double cost) { return cost > most ? kNone : cost * cost; };
  return cheapest(costs, stages, square, std::plus<>()).starts;
}

}  // namespace ditto
