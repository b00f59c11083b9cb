// Fused kernels for processors, by portable vector instructions chosen at run time.
#include <algorithm>

#include <ditto/ditto.h>
#include <ditto/threads.h>

#include "norm_modulate.h"

namespace {

using ditto::OpInputs;
using ditto::Tensors;
using torch::Tensor;

ditto_cpu::Storage storage_of(const Tensor& x) {
  return x.scalar_type() == torch::kFloat ? ditto_cpu::Storage::fp32 : ditto_cpu::Storage::bf16;
}

// Rows of x [R, D], and which row of the modulation each takes.
struct Rows {
  explicit Rows(const OpInputs& in)
      : x(in.tensors[0].contiguous()),
        shift(in.tensors[1].contiguous()),
        scale(in.tensors[2].contiguous()),
        sample(in.tensors[3].defined() ? in.tensors[3].contiguous() : Tensor()),
        width(x.size(-1)),
        count(x.numel() / width),
        tokens(x.size(-2)) {}
  int64_t modulation(int64_t row) const { return sample.defined() ? sample.data_ptr<int64_t>()[row] : row / tokens; }
  const char* at(const Tensor& t, int64_t row) const {
    return static_cast<const char*>(t.data_ptr()) + row * width * t.element_size();
  }
  char* at_mutable(const Tensor& t, int64_t row) const {
    return static_cast<char*>(t.data_ptr()) + row * width * t.element_size();
  }

  Tensor x, shift, scale, sample;
  int64_t width, count, tokens;
};

int score(const ditto::OpCall& call) {
  return call.device == torch::kCPU && (call.dtype == torch::kFloat || call.dtype == torch::kBFloat16) ? 10 : 0;
}

// y, and the rows' means and reciprocal deviations for the backward.
Tensors forward(const OpInputs& in) {
  const Rows rows(in);
  auto y = torch::empty_like(rows.x);
  auto mean = torch::empty({rows.count}, torch::kFloat), rstd = torch::empty({rows.count}, torch::kFloat);
  const auto eps = static_cast<float>(in.number("eps"));
  ditto::in_threads(rows.count, 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t m = rows.modulation(r);
      ditto_cpu::forward_row({rows.at(rows.x, r), rows.at(rows.shift, m), rows.at(rows.scale, m), rows.at_mutable(y, r),
                              mean.data_ptr<float>() + r, rstd.data_ptr<float>() + r},
                             static_cast<size_t>(rows.width), eps, storage_of(rows.x));
    }
  });
  return {y, mean, rstd};
}

// A sample's rows follow one another and are summed by one thread, in their order: the same bits on any number of
// threads.
Tensors backward(const Tensors& grads, const OpInputs& in, const Tensors& results) {
  const Rows rows(in);
  const auto g = grads[0].contiguous();
  auto dx = torch::empty_like(rows.x);
  auto dshift = torch::zeros({rows.shift.size(0), rows.width}, torch::kFloat), dscale = torch::zeros_like(dshift);
  std::vector<int64_t> first{0};  // rows where another sample begins
  bool in_order = true;           // else a sample may have rows in two places, and one thread takes all
  for (int64_t r = 1; r < rows.count; ++r) {
    if (rows.modulation(r) != rows.modulation(r - 1)) first.push_back(r);
    in_order = in_order && rows.modulation(r) >= rows.modulation(r - 1);
  }
  if (!in_order) first.resize(1);
  first.push_back(rows.count);
  const auto* mean = results[1].data_ptr<float>();
  const auto* rstd = results[2].data_ptr<float>();
  ditto::in_threads(static_cast<int64_t>(first.size()) - 1, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = first[static_cast<size_t>(begin)]; r < first[static_cast<size_t>(end)]; ++r) {
      const int64_t m = rows.modulation(r);
      ditto_cpu::backward_row(
          {rows.at(rows.x, r), rows.at(rows.scale, m), rows.at(g, r), rows.at_mutable(dx, r),
           dshift.data_ptr<float>() + m * rows.width, dscale.data_ptr<float>() + m * rows.width, mean[r], rstd[r]},
          static_cast<size_t>(rows.width), storage_of(rows.x));
    }
  });
  return {dx, dshift.to(rows.shift.scalar_type()), dscale.to(rows.scale.scalar_type()), Tensor()};
}

Tensors shapes(const OpInputs& in) {
  const Tensor y = torch::empty_like(in.tensors[0], torch::MemoryFormat::Contiguous);
  const auto of_rows = [&] { return torch::empty({y.numel() / y.size(-1)}, y.options().dtype(torch::kFloat)); };
  return {y, of_rows(), of_rows()};
}

struct CpuKernels final : ditto::KernelSet {
  using Options = ditto::NoOptions;
  CpuKernels(const Options&, const Needs&) {}
  std::vector<ditto::KernelRow> rows() const override {
    return {{"norm_modulate", "cpu_simd", score, forward, backward, shapes}};
  }
};

}  // namespace

DITTO_PLUGIN(KernelSet, CpuKernels, "cpu", "1.0.0", "Apache-2.0",
             "norm_modulate in one pass, by the processor's vector instructions")
