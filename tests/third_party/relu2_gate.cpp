// The op "relu2_gate", scale relu(a)^2 b, and a kernel for it: one pass over memory each way.
#include <ditto/ditto.h>
#include <ditto/math/threads.h>

namespace {

using ditto::OpInputs;
using ditto::Tensors;
using torch::Tensor;

Tensors reference(const OpInputs& in) {
  return {torch::relu(in.tensor(0)).square() * in.tensor(1) * in.number("scale")};
}

template <class Each>
void for_each(int64_t count, const Each& each) {
  ditto::in_threads(count, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) each(i);
  });
}

template <class T>
Tensors forward_of(const OpInputs& in) {
  const Tensor a = in.tensor(0).contiguous(), b = in.tensor(1).contiguous(), y = torch::empty_like(a);
  const T *pa = a.const_data_ptr<T>(), *pb = b.const_data_ptr<T>(), scale = static_cast<T>(in.number("scale"));
  T* py = y.mutable_data_ptr<T>();
  for_each(a.numel(), [=](int64_t i) {
    const T r = pa[i] > 0 ? pa[i] : T(0);
    py[i] = r * r * pb[i] * scale;
  });
  return {y};
}

template <class T>
Tensors backward_of(const Tensors& grads, const OpInputs& in) {
  const Tensor g = grads.at(0).contiguous(), a = in.tensor(0).contiguous(), b = in.tensor(1).contiguous();
  const Tensor da = torch::empty_like(a), db = torch::empty_like(b);
  const T *pg = g.const_data_ptr<T>(), *pa = a.const_data_ptr<T>(), *pb = b.const_data_ptr<T>();
  const T scale = static_cast<T>(in.number("scale"));
  T *pda = da.mutable_data_ptr<T>(), *pdb = db.mutable_data_ptr<T>();
  for_each(a.numel(), [=](int64_t i) {
    const T r = pa[i] > 0 ? pa[i] : T(0), gs = pg[i] * scale;
    pda[i] = 2 * r * pb[i] * gs;
    pdb[i] = r * r * gs;
  });
  return {da, db};
}

bool is_double(const OpInputs& in) { return in.tensor(0).scalar_type() == torch::kDouble; }

Tensor leaf(std::vector<int64_t> shape, int64_t which, at::ScalarType dtype) {
  const int64_t id[] = {which};
  return ditto::Random(7)
      .normal(ditto::Purpose::noise, id, shape, torch::kDouble)
      .squeeze(0)
      .to(dtype)
      .requires_grad_();
}

ditto::Op::Case a_case(const std::string& name, const std::vector<int64_t>& shape) {
  return {name, [=](at::ScalarType dtype) -> OpInputs {
            return {{leaf(shape, 1, dtype), leaf(shape, 2, dtype)}, {{"scale", 0.5}}};
          }};
}

double tolerance(at::ScalarType dtype) {
  return dtype == torch::kDouble ? 1e-14 : dtype == torch::kFloat ? 1e-6 : dtype == torch::kHalf ? 1e-2 : 4e-2;
}

struct Relu2Gate final : ditto::KernelSet {
  using Options = ditto::NoOptions;
  Relu2Gate(const Options&, const Needs&) {}

  std::vector<ditto::Op> ops() const override {
    return {{.name = "relu2_gate",
             .signature = "a [...], b [...]; scale -> [...]",
             .contains = {},
             .reference = reference,
             .cases = {a_case("rows", {2, 5, 16}), a_case("odd", {3, 7, 37})},
             .tolerance = tolerance}};
  }

  std::vector<ditto::KernelRow> rows() const override {
    ditto::KernelRow row{.op = "relu2_gate", .variant = "one_pass", .score = {}, .forward = {}, .backward = {}};
    row.score = [](const ditto::OpCall& call) {
      return call.device == torch::kCPU && (call.dtype == torch::kFloat || call.dtype == torch::kDouble) ? 10 : 0;
    };
    row.forward = [](const OpInputs& in) { return is_double(in) ? forward_of<double>(in) : forward_of<float>(in); };
    row.backward = [](const Tensors& grads, const OpInputs& in, const Tensors&) {
      return is_double(in) ? backward_of<double>(grads, in) : backward_of<float>(grads, in);
    };
    row.copies = true;
    return {row};
  }
};

}  // namespace

DITTO_PLUGIN(KernelSet, Relu2Gate, "relu2_gate", "1.0.0", "Apache-2.0", "the op relu2_gate, and a kernel for it")
