// Rows of tokens x [R, D] under their sample's shift, scale or gate.
#include <algorithm>

#include <ditto/math/threads.h>

#include "elementwise.h"
#include "norm_modulate.h"
#include "rows.h"

namespace ditto_cpu {

namespace {

using ditto::OpInputs;
using ditto::Tensors;
using torch::Tensor;

// Which row of the modulation each row of x takes.
struct Rows {
  Rows(const Tensor& x_, const Tensor& sample_)
      : x(x_.contiguous()),
        sample(sample_.defined() ? sample_.contiguous() : Tensor()),
        width(x.size(-1)),
        count(x.numel() / width),
        tokens(x.size(-2)),
        storage(storage_of(x)) {}
  int64_t modulation(int64_t row) const { return sample.defined() ? sample.data_ptr<int64_t>()[row] : row / tokens; }
  const char* at(const Tensor& t, int64_t row) const {
    return static_cast<const char*>(t.data_ptr()) + row * width * t.element_size();
  }
  char* at_mutable(const Tensor& t, int64_t row) const {
    return static_cast<char*>(t.data_ptr()) + row * width * t.element_size();
  }

  // A sample's rows follow one another and are taken by one thread, in their order, so that what is summed over them
  // has the same bits on any number of threads.
  template <class F>
  void in_samples(F of_row) const {
    std::vector<int64_t> first{0};  // rows where another sample begins
    bool in_order = true;           // else a sample may have rows in two places, and one thread takes all
    if (!sample.defined())
      for (int64_t r = tokens; r < count; r += tokens) first.push_back(r);
    else
      for (int64_t r = 1; r < count; ++r) {
        if (modulation(r) != modulation(r - 1)) first.push_back(r);
        in_order = in_order && modulation(r) >= modulation(r - 1);
      }
    if (!in_order) first.resize(1);
    first.push_back(count);
    ditto::in_threads(static_cast<int64_t>(first.size()) - 1, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = first[static_cast<size_t>(begin)]; r < first[static_cast<size_t>(end)]; ++r) of_row(r);
    });
  }
  template <class F>
  void in_any_order(F of_row) const {
    ditto::in_threads(count, 64, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) of_row(r);
    });
  }

  Tensor x, sample;
  int64_t width, count, tokens;
  Storage storage;
};

// Calls of_row for each row of the norm.
template <class F>
void each_row(const OpInputs& in, const Rows& rows, const Tensors& results, F of_row) {
  const Tensor shift = in.tensors[1].contiguous(), scale = in.tensors[2].contiguous();
  rows.in_any_order([&](int64_t r) {
    const int64_t m = rows.modulation(r);
    of_row(ForwardRow{rows.at(rows.x, r), rows.at(shift, m), rows.at(scale, m), rows.at_mutable(results[0], r),
                      results[1].data_ptr<float>() + r, results[2].data_ptr<float>() + r});
  });
}

// y, and the rows' means and reciprocal deviations for the backward.
Tensors norm(const OpInputs& in) {
  const Rows rows(in.tensors[0], in.tensors[3]);
  const auto of_rows = [&] { return torch::empty({rows.count}, torch::kFloat); };
  const Tensors results{torch::empty_like(rows.x), of_rows(), of_rows()};
  const auto eps = static_cast<float>(in.number("eps"));
  each_row(in, rows, results,
           [&](const ForwardRow& row) { forward_row(row, static_cast<size_t>(rows.width), eps, rows.storage); });
  return results;
}

Tensor norm_again(const OpInputs& in, const Tensors& results) {
  const Rows rows(in.tensors[0], in.tensors[3]);
  const auto y = torch::empty_like(rows.x);
  each_row(in, rows, {y, results[1], results[2]},
           [&](const ForwardRow& row) { modulate_row(row, static_cast<size_t>(rows.width), rows.storage); });
  return y;
}

Tensors norm_back(const Tensors& grads, const OpInputs& in, const Tensors& results) {
  const Rows rows(in.tensors[0], in.tensors[3]);
  const Tensor scale = in.tensors[2].contiguous(), g = grads[0].contiguous();
  auto dx = torch::empty_like(rows.x);
  auto dshift = torch::zeros({scale.size(0), rows.width}, torch::kFloat), dscale = torch::zeros_like(dshift);
  const auto* mean = results[1].data_ptr<float>();
  const auto* rstd = results[2].data_ptr<float>();
  rows.in_samples([&](int64_t r) {
    const int64_t m = rows.modulation(r);
    backward_row(
        {rows.at(rows.x, r), rows.at(scale, m), rows.at(g, r), rows.at_mutable(dx, r),
         dshift.data_ptr<float>() + m * rows.width, dscale.data_ptr<float>() + m * rows.width, mean[r], rstd[r]},
        static_cast<size_t>(rows.width), rows.storage);
  });
  return {dx, dshift.to(in.tensors[1].scalar_type()), dscale.to(scale.scalar_type()), Tensor()};
}

Tensors norm_shapes(const OpInputs& in) {
  const Tensor y = torch::empty_like(in.tensors[0], torch::MemoryFormat::Contiguous);
  const auto of_rows = [&] { return torch::empty({y.numel() / y.size(-1)}, y.options().dtype(torch::kFloat)); };
  return {y, of_rows(), of_rows()};
}

Tensors gated(const OpInputs& in) {
  const Rows rows(in.tensors[0], in.tensors[3]);
  const Tensor by = in.tensors[1].contiguous(), y = in.tensors[2].contiguous();
  auto out = torch::empty_like(rows.x);
  rows.in_any_order([&](int64_t r) {
    gate(rows.at(rows.x, r), rows.at(by, rows.modulation(r)), rows.at(y, r), rows.at_mutable(out, r),
         static_cast<size_t>(rows.width), rows.storage);
  });
  return {out};
}

Tensors gated_back(const Tensors& grads, const OpInputs& in, const Tensors&) {
  const Tensor g = grads[0].contiguous(), by = in.tensors[1].contiguous(), y = in.tensors[2].contiguous();
  const Rows rows(g, in.tensors[3]);
  auto dy = torch::empty_like(y);
  auto dgate = torch::zeros({by.size(0), rows.width}, torch::kFloat);
  rows.in_samples([&](int64_t r) {
    const int64_t m = rows.modulation(r);
    gate_back(rows.at(by, m), rows.at(y, r), rows.at(g, r), rows.at_mutable(dy, r),
              dgate.data_ptr<float>() + m * rows.width, static_cast<size_t>(rows.width), rows.storage);
  });
  return {g, dgate.to(by.scalar_type()), dy, Tensor()};
}

}  // namespace

ditto::KernelRow norm_modulate() {
  ditto::KernelRow row{"norm_modulate", "cpu_simd", score, norm, norm_back, norm_shapes};
  row.again = norm_again;
  row.again_of = {0, 1, 2, 3};
  return row;
}

ditto::KernelRow gated_residual() {
  const auto shapes = [](const OpInputs& in) -> Tensors {
    return {torch::empty_like(in.tensors[0], torch::MemoryFormat::Contiguous)};
  };
  ditto::KernelRow row{"gated_residual", "cpu_simd", score, gated, gated_back, shapes};
  row.reads_output = false;
  return row;
}

}  // namespace ditto_cpu
