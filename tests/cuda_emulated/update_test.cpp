// Means of samples, the norm of all gradients, and AdamW beside the CPU's pass over the same numbers.
#include <cmath>
#include <cstring>
#include <limits>

#include "../../plugins/optimizers/adamw/one_pass.h"
#include "check.h"

namespace check {

namespace {

void mean(const char* name, Index samples, Index n) {
  const auto S = static_cast<std::size_t>(samples), N = static_cast<std::size_t>(n);
  for (const auto storage : storages()) {
    Case c("sample_mean", name, storage);
    const Numbers x(storage, drawn(S * N, 1)), g(storage, drawn(S, 2)), y(storage, S), dx(storage, S * N);
    const Array<double> room(static_cast<std::size_t>(ditto_cuda::sample_room(samples, n)));
    c.launched(ditto_cuda::sample_mean(x.at(), y.at(), room.at(), samples, n, storage, nullptr));
    c.launched(ditto_cuda::sample_mean_back(g.at(), dx.at(), samples, n, storage, nullptr));
    const auto vx = x.read(), vg = g.read();
    Reals want(S), want_dx(S * N);
    for (std::size_t i = 0; i < S * N; ++i)
      want[i / N] += vx[i] / static_cast<double>(n), want_dx[i] = vg[i / N] / static_cast<double>(n);
    c.expect("mean", y, want);
    c.expect("dx", dx, want_dx);
  }
}

// A parameter's numbers on the host; those of the GPU begin `off` numbers after an aligned place.
struct Tensor {
  std::size_t count, off;
  bool average, copy, gradient;
  std::vector<float> w, g, m, v, mean_w;
  std::vector<std::uint16_t> half;
};
std::vector<float> single(std::size_t count, unsigned which, double scale) {
  const auto all = drawn(count, which, scale);
  return {all.begin(), all.end()};
}
std::vector<Tensor> drawn_tensors(std::size_t count) {
  std::vector<Tensor> list;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t sizes[] = {7, 0, 4096, 33, 1, 129, 5000, 64, 0, 13};
    const std::size_t n = count == 1 ? 9001 : sizes[i % 10], off = i % 4;
    const auto seed = static_cast<unsigned>(10 * i);
    Tensor t{n,
             off,
             i % 3 != 1,
             i % 5 != 2,
             i % 17 != 5,
             single(n, seed, 1),
             single(n, seed + 1, 0.1),
             single(n, seed + 2, 0.1),
             single(n, seed + 3, 0.1),
             single(n, seed + 4, 1),
             {}};
    for (auto& v : t.v) v *= v;
    t.half.resize(n, 0x5555);
    list.push_back(std::move(t));
  }
  return list;
}

template <class T>
class Rooms {  // of all tensors' numbers of one kind, one behind another
 public:
  Rooms(const std::vector<Tensor>& list, std::vector<T> Tensor::*numbers) {
    std::vector<T> all;
    for (const auto& t : list) {
      all.resize((all.size() + 7) / 8 * 8 + t.off);
      first_.push_back(all.size());
      all.insert(all.end(), (t.*numbers).begin(), (t.*numbers).end());
    }
    at_ = std::make_unique<Array<T>>(all);
  }
  T* of(std::size_t i) const { return at_->at() + first_[i]; }
  // Of all tensors; of(i) of the GPU's memory is at begin(i) here.
  std::vector<T> read() const { return at_->read(); }
  std::size_t begin(std::size_t i) const { return first_[i]; }

 private:
  std::vector<std::size_t> first_;
  std::unique_ptr<Array<T>> at_;
};

enum class Spoilt { no, infinite, nan };

void update(const char* name, std::size_t tensors, double most, Spoilt spoilt) {
  auto list = drawn_tensors(tensors);
  const auto bad =
      spoilt == Spoilt::nan ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  if (spoilt != Spoilt::no) list[0].g[list[0].count - 1] = bad;
  Case c("adamw", name, Storage::fp32);
  const Rooms<float> w(list, &Tensor::w), g(list, &Tensor::g), m(list, &Tensor::m), v(list, &Tensor::v),
      mean_w(list, &Tensor::mean_w);
  const Rooms<std::uint16_t> half(list, &Tensor::half);
  std::vector<ditto_cuda::Parameter> parameters;
  std::vector<int> firsts{0};
  double squares = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto& t = list[i];
    parameters.push_back({w.of(i), m.of(i), v.of(i), t.average ? mean_w.of(i) : nullptr, t.gradient ? g.of(i) : nullptr,
                          t.copy ? half.of(i) : nullptr, static_cast<Index>(t.count), i % 2 ? 1.0f : 0.999f});
    firsts.push_back(firsts.back() + static_cast<int>(ditto_cuda::pieces_of(static_cast<Index>(t.count))));
    if (t.gradient)
      for (const float x : t.g) squares += static_cast<double>(x) * x;
  }
  const Array<ditto_cuda::Parameter> table(parameters);
  const Array<int> begins(firsts);
  const Array<ditto_cuda::Gradients> gradients(1);
  const Array<double> room(static_cast<std::size_t>(firsts.back()));
  const ditto_cuda::Parameters all{table.at(), begins.at(), static_cast<Index>(list.size()), firsts.back()};
  const double scale = 0.25;
  c.launched(ditto_cuda::gradient_norm(all, room.at(), scale, most, gradients.at(), nullptr));
  const ditto_cuda::AdamW step{0.9f, 0.999f, 1e-8f, 0.02f, 3.5f, 0.05f};
  c.launched(ditto_cuda::adamw(all, step, gradients.at(), nullptr));

  const auto found = gradients.read()[0];
  const double norm = std::sqrt(squares) * scale;
  if (spoilt != Spoilt::no && found.finite) c.fail("says that all is finite");
  if (spoilt == Spoilt::no && (!found.finite || std::abs(found.norm - norm) > 1e-12 * norm))
    c.fail("has norm " + std::to_string(found.norm) + " instead of " + std::to_string(norm));
  const double clip = most > 0 && norm > most ? scale * most / norm : scale;
  if (spoilt == Spoilt::no && std::abs(found.clip - clip) > 1e-7 * clip) c.fail("has another clip");
  if (spoilt == Spoilt::no) c.hash(&found.norm, sizeof found.norm);
  for (std::size_t i = 0; spoilt == Spoilt::no && i < list.size(); ++i) {
    auto& t = list[i];
    if (!t.gradient) continue;
    ditto_adamw::run({t.w.data(), t.g.data(), t.m.data(), t.v.data(), t.average ? t.mean_w.data() : nullptr,
                      t.copy ? t.half.data() : nullptr, found.clip, step.beta1, step.beta2, step.eps,
                      parameters[i].decay, step.rate, step.root, step.approach},
                     0, t.count);
  }
  const auto same = [&](const char* what, const auto& rooms, auto numbers) {
    const auto got = rooms.read();
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto& want = list[i].*numbers;
      c.expect_bits(what, got.data() + rooms.begin(i), want.data(), want.size() * sizeof want[0]);
    }
  };
  same("w", w, &Tensor::w);
  same("m", m, &Tensor::m);
  same("v", v, &Tensor::v);
  same("average", mean_w, &Tensor::mean_w);
  same("copy", half, &Tensor::half);
}

// Lion and SGD beside themselves in fp64, from the same numbers.
enum class Rule { lion, sgd, nesterov, without_momentum };

void other(const char* name, Rule rule) {
  const bool with_m = rule != Rule::without_momentum;
  auto list = drawn_tensors(30);
  Case c(rule == Rule::lion ? "lion" : "sgd", name, Storage::fp32);
  const Rooms<float> w(list, &Tensor::w), g(list, &Tensor::g), m(list, &Tensor::m), mean_w(list, &Tensor::mean_w);
  std::vector<ditto_cuda::Parameter> parameters;
  std::vector<int> firsts{0};
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto& t = list[i];
    const float keeps = i % 2 ? 1.0f : 0.999f, decays = i % 2 ? 0.0f : 0.1f;
    parameters.push_back({w.of(i), with_m ? m.of(i) : nullptr, nullptr, mean_w.of(i), g.of(i), nullptr,
                          static_cast<Index>(t.count), rule == Rule::lion ? keeps : decays});
    firsts.push_back(firsts.back() + static_cast<int>(ditto_cuda::pieces_of(static_cast<Index>(t.count))));
  }
  const Array<ditto_cuda::Parameter> table(parameters);
  const Array<int> begins(firsts);
  const Array<ditto_cuda::Gradients> gradients(std::vector<ditto_cuda::Gradients>{{1, 0.5f, 1}});
  const ditto_cuda::Parameters all{table.at(), begins.at(), static_cast<Index>(list.size()), firsts.back()};
  const float lr = 0.01f, approach = 0.05f, momentum = with_m ? 0.9f : 0.0f;
  c.launched(rule == Rule::lion
                 ? ditto_cuda::lion(all, {0.9f, 1 - 0.9f, 0.99f, 1 - 0.99f, lr, approach}, gradients.at(), nullptr)
                 : ditto_cuda::sgd(all, {momentum, lr, approach, rule == Rule::nesterov}, gradients.at(), nullptr));
  Reals want_w, want_m, want_mean, got_w, got_m, got_mean;
  const auto all_w = w.read(), all_m = m.read(), all_mean = mean_w.read();
  for (std::size_t i = 0; i < list.size(); ++i)
    for (std::size_t n = 0; n < list[i].count; ++n) {
      double weight = list[i].w[n], moment = list[i].m[n];
      const double grad = 0.5 * list[i].g[n], decay = parameters[i].decay;
      if (rule == Rule::lion) {
        const double direction = moment * 0.9f + grad * (1 - 0.9f);
        weight = weight * decay - (direction > 0 ? lr : direction < 0 ? -lr : 0);
        moment = moment * 0.99f + grad * (1 - 0.99f);
      } else {
        double direction = grad + decay * weight;
        moment = with_m ? momentum * moment + direction : moment;
        if (with_m) direction = rule == Rule::nesterov ? momentum * moment + direction : moment;
        weight -= lr * direction;
      }
      want_w.push_back(weight), want_m.push_back(moment);
      want_mean.push_back(list[i].mean_w[n] + approach * (weight - list[i].mean_w[n]));
      got_w.push_back(all_w[w.begin(i) + n]), got_m.push_back(all_m[m.begin(i) + n]);
      got_mean.push_back(all_mean[mean_w.begin(i) + n]);
    }
  c.expect("w", Numbers(Storage::fp32, got_w), want_w);
  c.expect("m", Numbers(Storage::fp32, got_m), want_m);
  c.expect("average", Numbers(Storage::fp32, got_mean), want_mean);
}

}  // namespace

void updates() {
  mean("small", 2, 105);
  mean("one row", 1, 64);
  mean("long", 3, 1000);
  mean("pieces", 2, 9001);
  update("one tensor", 1, 0, Spoilt::no);
  update("odd sizes, slices and empties", 40, 0, Spoilt::no);
  update("clipped", 23, 0.5, Spoilt::no);
  update("400 tensors", 400, 1, Spoilt::no);
  update("an infinite gradient", 12, 1, Spoilt::infinite);
  update("a gradient that is no number", 12, 0, Spoilt::nan);
  other("signs of moments", Rule::lion);
  other("momentum", Rule::sgd);
  other("Nesterov's", Rule::nesterov);
  other("without momentum", Rule::without_momentum);
}

}  // namespace check
