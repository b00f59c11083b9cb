// AdamW with moments of 8 bits: T. Dettmers et al., "8-bit optimizers via block-wise quantization", 2022
// (arXiv:2110.02861), sections 2 and 3; the update is AdamW's (arXiv:1711.05101).
#include <algorithm>
#include <cmath>

#include <ATen/Dispatch.h>

#include <ditto/ditto.h>
#include <ditto/math/threads.h>

namespace {

using torch::Tensor;

struct AdamW8bitOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.0;
  bool decay_vectors = true;

  void read(ditto::OptionReader& option) {
    option("beta1", beta1, "decay of the first moment").between(0, 1);
    option("beta2", beta2, "decay of the second moment").between(0, 1);
    option("eps", eps, "added to the square root of the second moment").at_least(1e-37);
    option("weight_decay", weight_decay, "decoupled: weights lose lr * weight_decay of themselves a step").at_least(0);
    option("decay_vectors", decay_vectors, "decay biases and other one-dimensional parameters too");
    option.only_if(weight_decay > 0, {"decay_vectors"}, "says what weight_decay is of, and that is 0");
    for (const auto& [name, beta] : {std::pair("beta1", beta1), std::pair("beta2", beta2)})
      if (beta == 1) option.reject(name, "is 1, and its moment would stay 0", "set it below 1");
  }
};

// A block is this many consecutive numbers of the last dim of the global tensor (the last one of a row may be shorter).
constexpr int64_t kBlock = 64;
constexpr int64_t kLeastNumbers = 4096;  // parameters with fewer keep moments of 32 bits

// The paper's dynamic tree map: 7 decades, and in each twice as many evenly spaced values as in the one below. [256],
// ascending; -1 … 1, or 0 … 1.
Tensor dynamic_map(bool is_signed) {
  std::vector<double> values{0, 1};
  size_t count = is_signed ? 1 : 2;
  for (const double decade : {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0}) {
    const auto bounds = ditto::elementary::even_steps(0.1, 1, static_cast<int64_t>(count) + 1);
    for (size_t i = 0; i < count; ++i) {
      values.push_back((bounds[i] + bounds[i + 1]) / 2 * decade);
      if (is_signed) values.push_back(-values.back());
    }
    count *= 2;
  }
  std::sort(values.begin(), values.end());
  return torch::tensor(values, at::kFloat);
}

// How many of 255 ascending bounds are less than each number: what bucketize says, which on the CPU takes 20 times as
// long. -> bytes
Tensor count_below(const Tensor& x, const Tensor& bounds) {
  const Tensor result = torch::empty(x.sizes(), at::kByte);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "count_below", [&] {
    const auto* from = x.const_data_ptr<scalar_t>();
    const auto* bound = bounds.const_data_ptr<scalar_t>();
    auto* to = result.mutable_data_ptr<uint8_t>();
    ditto::in_threads(x.numel(), 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int count = 0;
        for (int half = 128; half > 0; half /= 2) count += from[i] > bound[count + half - 1] ? half : 0;
        to[i] = static_cast<uint8_t>(count);
      }
    });
  });
  return result;
}

// Numbers as codes of a map, times the largest of their block.
class Codec {
 public:
  Codec(bool is_signed, const torch::Device& device)
      : map_(dynamic_map(is_signed).to(device)), middles_((map_.slice(0, 0, 255) + map_.slice(0, 1)) / 2) {}

  Tensor decode(const Tensor& codes, const Tensor& scales) const {
    const Tensor values =
        map_.to(codes.device(), scales.scalar_type()).index_select(0, codes.flatten().to(at::kInt)).view(codes.sizes());
    return from_blocks(to_blocks(values).mul_(scales.unsqueeze(-1)), codes.size(-1));
  }
  void encode(const Tensor& x, const Tensor& codes, const Tensor& scales) const {
    const Tensor blocks = to_blocks(x);
    scales.copy_(blocks.abs().amax(-1));
    const Tensor shares = blocks / torch::where(scales == 0, torch::ones_like(scales), scales).unsqueeze(-1);
    const Tensor middles = middles_.to(x.device(), x.scalar_type());
    const Tensor nearest = x.is_cpu() ? count_below(shares, middles) : torch::bucketize(shares, middles, true);
    codes.copy_(from_blocks(nearest, codes.size(-1)));
  }

 private:
  // [..., L] -> [..., L in blocks, 64], filled up with zeros.
  static Tensor to_blocks(const Tensor& x) {
    const int64_t missing = (kBlock - x.size(-1) % kBlock) % kBlock;
    const Tensor full = missing == 0 ? x : torch::constant_pad_nd(x, {0, missing});
    return full.unflatten(-1, {full.size(-1) / kBlock, kBlock});
  }
  static Tensor from_blocks(const Tensor& blocks, int64_t length) { return blocks.flatten(-2).narrow(-1, 0, length); }

  Tensor map_, middles_;  // [256], [255]
};

// A moment of one parameter: 8 bits with scales, or as it is.
struct Moment {
  Tensor codes, scales, exact;
};

struct AdamW8bit final : ditto::Optimizer {
  using Options = AdamW8bitOptions;

  AdamW8bit(const Options& o, const Needs& needs) : options(o), parameters(needs.parameters), exactly(needs.exact) {
    const auto device = parameters.empty() ? torch::Device(torch::kCPU) : parameters.front().tensor.device();
    signed_codec.emplace(true, device);
    unsigned_codec.emplace(false, device);
    for (const auto& p : parameters) {
      first.push_back(nothing_yet(p));
      second.push_back(nothing_yet(p));
    }
  }

  Granularity granularity() const override { return Granularity::blockwise; }

  // By the global shape alone, so that no layout changes it. Vectors are few numbers beside the matrices.
  static bool is_coded(const ditto::OptimizedParameter& p) {
    return p.full_shape.size() > 1 && c10::multiply_integers(p.full_shape) >= kLeastNumbers;
  }

  static Moment nothing_yet(const ditto::OptimizedParameter& p) {
    const Tensor weight = p.tensor.detach();
    if (!is_coded(p)) return {{}, {}, torch::zeros_like(weight)};
    auto shape = weight.sizes().vec();
    shape.back() = (shape.back() + kBlock - 1) / kBlock;
    return {torch::zeros_like(weight, at::kByte), torch::zeros(shape, weight.options()), {}};
  }

  bool exact() const override { return true; }
  bool skips() const override { return true; }

  // Every operation rounds once, wherever a number stands: slices that cut no block move as the whole does.
  void step(const ditto::Update& update) override {
    ditto::in_parts(update, parameters, [&] {
      ++steps;
      for (size_t i = 0; i < parameters.size(); ++i) {
        const Tensor grad = parameters[i].tensor.grad();
        if (!grad.defined() || grad.numel() == 0) continue;
        std::vector<Tensor> moved{parameters[i].tensor};
        for (const auto* moment : {&first[i], &second[i]})
          for (const auto& tensor : {moment->codes, moment->scales, moment->exact})
            if (tensor.defined()) moved.push_back(tensor);
        ditto::unless_skipped(update, moved, [&] { move(i, update.lr); });
      }
    });
  }

  void move(size_t i, double lr) {
    const double unbias_first = 1 - power(options.beta1), unbias_second = 1 - power(options.beta2);
    const auto& p = parameters[i];
    const Tensor weight = p.tensor.detach(), grad = p.tensor.grad();
    const Tensor m = update(first[i], grad, options.beta1, *signed_codec);
    const Tensor v = update(second[i], grad * grad, options.beta2, *unsigned_codec);
    if (options.decay_vectors || p.full_shape.size() > 1) weight.mul_(1 - lr * options.weight_decay);
    weight.sub_(m / (root(v) / std::sqrt(unbias_second) + options.eps) * (lr / unbias_first));
  }

  // MKL's root of fp32 numbers is off by one in the last place on some processors; of doubles, rounded, it is right on
  // all.
  Tensor root(const Tensor& v) const { return exactly ? v.to(at::kDouble).sqrt().to(v.scalar_type()) : v.sqrt(); }

  // beta^steps; the C library's has other bits on other machines.
  double power(double beta) const {
    return exactly ? ditto::elementary::power(beta, steps) : std::pow(beta, static_cast<double>(steps));
  }

  // The step is taken with the moment as it is before it is coded.
  static Tensor update(Moment& moment, const Tensor& x, double beta, const Codec& codec) {
    if (moment.exact.defined()) return moment.exact.mul_(beta).add_(x * (1 - beta));
    const Tensor value = codec.decode(moment.codes, moment.scales).mul(beta).add_(x * (1 - beta));
    codec.encode(value, moment.codes, moment.scales);
    return value;
  }

  std::map<std::string, ditto::OptimizerState> state() override {
    std::map<std::string, ditto::OptimizerState> all;
    const auto add = [&](const std::string& name, const std::vector<Moment>& moments) {
      auto &exact = all[name], &codes = all[name + "_codes"], &scales = all[name + "_scales"];
      scales.block = kBlock;
      for (const auto& moment : moments) {
        exact.tensors.push_back(moment.exact);
        codes.tensors.push_back(moment.codes);
        scales.tensors.push_back(moment.scales);
      }
    };
    add("exp_avg", first);
    add("exp_avg_sq", second);
    return all;
  }
  Counters counters() const override { return {{"steps", static_cast<double>(steps)}}; }
  void set_counters(const Counters& counters) override { steps = static_cast<int64_t>(counters.at("steps")); }

  Options options;
  std::vector<ditto::OptimizedParameter> parameters;
  bool exactly;
  std::optional<Codec> signed_codec, unsigned_codec;
  std::vector<Moment> first, second;
  int64_t steps = 0;
};

}  // namespace

DITTO_PLUGIN(Optimizer, AdamW8bit, "adamw8bit", "1.0.0", "Apache-2.0", "AdamW with block-wise moments of 8 bits")
