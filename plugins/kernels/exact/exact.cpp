// Kernels whose bits are the same on every processor, number of threads, batch and micro-batch.
#include "row_calls.h"

namespace {

// Those that this processor has.
std::vector<const ditto_exact::Kernels*> available() {
  std::vector<const ditto_exact::Kernels*> list;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw"))
    list.push_back(&ditto_exact::kAvx512);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) list.push_back(&ditto_exact::kAvx2);
#elif defined(__aarch64__)
  list.push_back(&ditto_exact::kNeon);
#endif
  list.push_back(&ditto_exact::kPlain);
  return list;
}

// Of products of numbers in bf16 alone, where the processor has an instruction for pairs of them that is exact.
const ditto_exact::Kernels* with_pairs() {
#if defined(__x86_64__)
  static const bool there = available().front() == &ditto_exact::kAvx512 && __builtin_cpu_supports("avx512bf16") &&
                            ditto_exact::pairs_are_exact();
  static const ditto_exact::Kernels pairs = [] {
    auto kernels = ditto_exact::kAvx512;
    kernels.variant = "exact_avx512_bf16", kernels.score += 10;
    kernels.product = ditto_exact::product_by_pairs;
    kernels.map_product = ditto_exact::map_product_by_pairs, kernels.map_grad = ditto_exact::map_grad_by_pairs;
    return kernels;
  }();
  if (there) return &pairs;
#endif
  return nullptr;
}

struct ExactKernels final : ditto::KernelSet {
  using Options = ditto::NoOptions;
  ExactKernels(const Options&, const Needs&) {}

  std::vector<ditto::KernelRow> rows() const override {
    constexpr ditto::KernelRow (*kRows[])(const ditto_exact::Kernels&) = {ditto_exact::linear,
                                                                          ditto_exact::linear_gelu_tanh,
                                                                          ditto_exact::silu,
                                                                          ditto_exact::gelu,
                                                                          ditto_exact::rms_norm,
                                                                          ditto_exact::layer_norm,
                                                                          ditto_exact::norm_modulate,
                                                                          ditto_exact::gated_residual,
                                                                          ditto_exact::attention,
                                                                          ditto_exact::embedding_rows,
                                                                          ditto_exact::add_row,
                                                                          ditto_exact::sample_mean,
                                                                          ditto_exact::adamw,
                                                                          ditto_exact::softmax,
                                                                          ditto_exact::row_total,
                                                                          ditto_exact::expert_balance,
                                                                          ditto_exact::token_rows,
                                                                          ditto_exact::combine_rows,
                                                                          ditto_exact::experts,
                                                                          ditto_exact::add_expert_rows,
                                                                          ditto_exact::exp,
                                                                          ditto_exact::log,
                                                                          ditto_exact::tanh,
                                                                          ditto_exact::sin,
                                                                          ditto_exact::cos,
                                                                          ditto_exact::conv,
                                                                          ditto_exact::conv_transposed,
                                                                          ditto_exact::group_norm,
                                                                          ditto_exact::add_channels,
                                                                          ditto_exact::resample};
    std::vector<ditto::KernelRow> rows;
    for (const auto* kernels : available())
      for (const auto row : kRows) {
        rows.push_back(row(*kernels));
        rows.back().exact = true;
      }
    if (const auto* kernels = with_pairs())
      for (const auto row : {ditto_exact::linear, ditto_exact::linear_gelu_tanh, ditto_exact::experts,
                             ditto_exact::conv, ditto_exact::conv_transposed}) {
        rows.push_back(row(*kernels));
        rows.back().exact = true;
        rows.back().score = [score = rows.back().score](const ditto::OpCall& call) {
          return call.inputs.flag("bf16") ? score(call) : 0;
        };
      }
    const auto in_bf16 = ditto_exact::bf16_rows(*available().front());
    rows.insert(rows.end(), in_bf16.begin(), in_bf16.end());
    for (auto& row : rows) row.copies = true;  // kernels take pointers to numbers that follow one another
    return rows;
  }
};

}  // namespace

DITTO_PLUGIN(KernelSet, ExactKernels, "exact", "1.1.0", "Apache-2.0",
             "one number: fp32 with the same bits on every processor, number of threads and micro-batch")
