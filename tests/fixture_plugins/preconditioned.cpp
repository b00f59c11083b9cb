// Nothing is wrong with it: a schedule whose c_in, c_out and c_skip all count.
#include <ditto/ditto.h>

namespace {

using torch::Tensor;

struct Preconditioned final : ditto::Scheduler {
  using Options = ditto::NoOptions;
  Preconditioned(const Options&, const Needs&) {}
  Tensor times(const Tensor& u) const override { return u; }
  Tensor alpha(const Tensor& t) const override { return 1 - t; }
  Tensor sigma(const Tensor& t) const override { return t.clone(); }
  Tensor c_noise(const Tensor& t) const override { return 100 * t; }
  Tensor c_in(const Tensor& t) const override { return 2 - t; }
  Tensor c_out(const Tensor& t) const override { return 3 + t; }
  Tensor c_skip(const Tensor& t) const override { return 5 - t; }
  Tensor target(const Tensor& clean, const Tensor&, const Tensor&) const override { return clean; }
  Tensor to_clean(const Tensor& clean, const Tensor&, const Tensor&) const override { return clean; }
  Tensor to_noise(const Tensor& clean, const Tensor& x, const Tensor& t) const override {
    return (x - ditto::spread(1 - t, x) * clean) / ditto::spread(t, x);
  }
  std::vector<double> time_grid(int64_t steps) const override {
    std::vector<double> grid;
    for (int64_t i = 0; i <= steps; ++i) grid.push_back(1 - static_cast<double>(i) / static_cast<double>(steps));
    return grid;
  }
};

}  // namespace

DITTO_PLUGIN(Scheduler, Preconditioned, "preconditioned", "1.0.0", "Apache-2.0", "c_in, c_out and c_skip that count")
