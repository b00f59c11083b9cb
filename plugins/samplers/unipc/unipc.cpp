// UniPC (Zhao et al., 2023, arXiv:2302.04867, alg. 1 with B(h) and estimates of the data), for any schedule: a
// predictor through the estimates of the last steps in log SNR, and a corrector that takes the next one's too, which
// costs no evaluation.
//
// Legend: m the estimates of the data, newest first; r their distances in log SNR over this step's, h; rho the weights
// with which their slopes D = (m_i - m_0) / r_i count.
#include <algorithm>
#include <cmath>
#include <deque>

#include <ditto/math/elementary.h>
#include <ditto/sampler.h>

namespace {

using torch::Tensor;
using Numbers = std::vector<double>;

struct UnipcOptions {
  int64_t order = 2;
  std::string variant = "bh2";
  void read(ditto::OptionReader& option) {
    option("order", order, "of the predictor; the corrector adds one").between(1, 3);
    option("variant", variant, "B(h): bh1: h; bh2: exp(h) - 1").one_of({"bh1", "bh2"});
  }
};

// Of sum_j r_j^i rho_j = b_i, by elimination: three unknowns at most, and all r differ.
Numbers solved(const Numbers& r, Numbers b) {
  const size_t n = b.size();
  std::vector<Numbers> rows(n);
  for (size_t i = 0; i < n; ++i)
    for (const double one : r) rows[i].push_back(i == 0 ? 1 : rows[i - 1][rows[i].size()] * one);
  for (size_t i = 0; i < n; ++i)
    for (size_t k = 0; k < n; ++k) {
      if (k == i) continue;
      const double factor = rows[k][i] / rows[i][i];
      for (size_t j = i; j < n; ++j) rows[k][j] -= factor * rows[i][j];
      b[k] -= factor * b[i];
    }
  for (size_t i = 0; i < n; ++i) b[i] /= rows[i][i];
  return b;
}

struct Unipc final : ditto::Sampler {
  using Options = UnipcOptions;
  Unipc(const Options& o, const Needs&) : options(o) {}

  struct Known {
    double place;  // log SNR / 2
    Tensor clean;
  };

  Tensor sample(const ditto::SamplingRequest& request) const override {
    std::deque<Known> known;
    Tensor before;  // x at the last step's start, with its level and order
    ditto::Level at{};
    int64_t order = 0;
    return integrate(request, [&](const Tensor& predicted, const ditto::Step& step) {
      Known now{log_ratio(step.from), estimate(request, predicted, step.t).clean};
      Tensor x = predicted;
      if (!known.empty() && std::isfinite(known[0].place))
        x = moved(before, at, step.from, {known.begin(), known.begin() + order}, &now);
      else
        known.clear();  // from pure noise: infinitely far in log SNR
      known.push_front(now);
      const auto left = static_cast<int64_t>(step.grid.size()) - 1 - step.index;
      order = std::min({options.order, left, static_cast<int64_t>(known.size())});
      known.resize(static_cast<size_t>(std::min<int64_t>(options.order, std::ssize(known))));
      before = x;
      at = step.from;
      return moved(x, step.from, step.to, {known.begin(), known.begin() + order}, nullptr);
    });
  }

 private:
  // `m`: as many as the order; `next`: what the corrector has besides.
  Tensor moved(const Tensor& x, const ditto::Level& from, const ditto::Level& to, const std::vector<Known>& m,
               const Known* next) const {
    const double kept = to.sigma / from.sigma;
    const auto first = kept * x + (to.alpha - kept * from.alpha) * m[0].clean;
    if (m.size() == 1 && !next) return first;
    const double h = log_ratio(from) - log_ratio(to), grown = ditto::elementary::expm1(h);  // h < 0
    const double scale = options.variant == "bh1" ? h : grown;
    Numbers r, b;
    std::vector<Tensor> slopes;
    for (size_t i = 1; i < m.size(); ++i) {
      r.push_back((m[i].place - m[0].place) / -h);
      slopes.push_back((m[i].clean - m[0].clean) / r.back());
    }
    if (next) {
      r.push_back(1);
      slopes.push_back(next->clean - m[0].clean);
    }
    double phi = grown / h - 1, factorial = 1;
    for (size_t i = 1; i <= r.size(); ++i) {
      b.push_back(phi * factorial / scale);
      factorial *= static_cast<double>(i + 1);
      phi = phi / h - 1 / factorial;
    }
    const auto rho = r.size() == 1 ? Numbers{0.5} : solved(r, b);  // of one slope the paper takes a half
    auto sum = rho[0] * slopes[0];
    for (size_t i = 1; i < rho.size(); ++i) sum = sum + rho[i] * slopes[i];
    return first - to.alpha * scale * sum;
  }

  Options options;
};

}  // namespace

DITTO_PLUGIN(Sampler, Unipc, "unipc", "1.0.0", "Apache-2.0",
             "UniPC: multistep predictor and corrector, one evaluation a step")
