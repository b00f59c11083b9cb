// LibTorch's operations on a mock GPU: those that move numbers or make views are the mock's own, all others the CPU's
// on copies of the operands.
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "tests/mock_gpu/copies.h"
#include "tests/mock_gpu/counts.h"
#include "tests/mock_gpu/device.h"
#include "tests/mock_gpu/memory.h"

namespace mock_gpu {

namespace {

using at::Tensor;

// --- those of its own ---

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return empty_on(device ? device->index() : -1, size, {}, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  return empty_on(device ? device->index() : -1, size, stride, c10::dtype_or_default(dtype), {});
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool later) {
  Tensor there = to;
  return copy(there, from, later);
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  Tensor there = to;
  if (there.sizes() != from.sizes()) there.resize_(from.sizes());
  return copy(there, from, false);
}

const Tensor& resize(const Tensor& x, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* tensor = x.unsafeGetTensorImpl();
  tensor->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve) tensor->empty_tensor_restride(*format);
  const auto bytes = static_cast<std::size_t>(x.numel() + x.storage_offset()) * x.element_size();
  auto* storage = x.storage().unsafeGetStorageImpl();
  if (storage->nbytes() >= bytes) return x;
  const OnGpu there(x.device().index());
  auto* before = block_of(x);
  auto grown = memory().allocate(bytes);
  if (before) {
    auto* after = static_cast<Block*>(grown.get_context());
    const Open reads(before), writes(after);
    std::memcpy(after->at, before->at, before->bytes);
  }
  storage->set_data_ptr_noswap(std::move(grown));
  storage->set_nbytes(bytes);
  return x;
}

at::Scalar local_scalar(const Tensor& x) {
  ++counts().host_reads;
  const auto stream = current_stream(x.device().index());
  const auto read = access(x, false);
  order().launch(stream, std::span(&*read, 1), ".item()");
  wait_for(stream);
  const Emulating own;
  auto number = at::empty({}, x.options().device(at::kCPU));
  return copy(number, x, false).item();
}

void record_stream(Tensor& x, c10::Stream stream) { memory().recordStream(x.storage().data_ptr(), stream); }

// --- all others ---

// On a GPU these ask it how large their result is, or what is in it.
constexpr std::array<std::string_view, 6> kOfUnknownSize{
    "aten::nonzero",  "aten::masked_select",      "aten::_unique",
    "aten::_unique2", "aten::unique_consecutive", "aten::unique_dim"};

// Of these the host knows the numbers that they return.
constexpr std::array<std::string_view, 1> kOfKnownNumbers{"aten::_scaled_dot_product_cudnn_attention"};

// A call's tensors, and what becomes of their memory.
class Call {
 public:
  Call(const c10::OperatorHandle& op, const torch::jit::Stack& stack) : name_(op.schema().name()) {
    const auto& arguments = op.schema().arguments();
    const auto values = torch::jit::last(stack, arguments.size());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto* alias = arguments[i].alias_info();
      look_at(values[i], alias && alias->isWrite());
    }
    if (gpu_ < 0) gpu_ = current_gpu();
    waits_ |= std::find(kOfUnknownSize.begin(), kOfUnknownSize.end(), name_) != kOfUnknownSize.end();
  }

  void launch() {
    ++counts().launches;
    moment_ = order().launch(stream(), accesses_, name_);
  }
  // LibTorch's fallback takes results to the first operand's device, which may be a number of the host's; a GPU keeps
  // them.
  void bring_results(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
    for (auto value = stack.end() - std::ssize(op.schema().returns()); has_tensor_ && value != stack.end(); ++value)
      if (value->isTensor() && value->toTensor().defined() && value->toTensor().is_cpu())
        *value = value->toTensor().to(c10::Device(kDevice, gpu_));
  }
  // Of what it returns: new tensors are written, and other values are the host's to know.
  void done(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
    for (const auto& value : torch::jit::last(stack, op.schema().returns().size())) {
      if (value.isTensor())
        made(value.toTensor());
      else if (value.isTensorList())
        for (const Tensor& x : value.toTensorList()) made(x);
      else
        waits_ |= !value.isNone() && !(value.isInt() && knows_numbers());
    }
    if (waits_) wait_for(stream());
  }

 private:
  StreamId stream() const { return current_stream(gpu_); }
  bool knows_numbers() const {
    return std::find(kOfKnownNumbers.begin(), kOfKnownNumbers.end(), name_) != kOfKnownNumbers.end();
  }

  void look_at(const c10::IValue& value, bool writes) {
    if (value.isDevice() && value.toDevice().type() == kDevice && value.toDevice().has_index() && gpu_ < 0)
      gpu_ = value.toDevice().index();
    if (value.isTensor()) operand(value.toTensor(), writes);
    if (value.isTensorList())
      for (const Tensor& x : value.toTensorList()) operand(x, writes);
    if (!value.isOptionalTensorList()) return;
    for (const std::optional<Tensor>& x : value.toOptionalTensorList()) index(x);
  }

  // As on a GPU, tensors of two devices meet only where one is a number of the host.
  void operand(const Tensor& x, bool writes) {
    if (!x.defined() || x.is_meta() || (x.is_cpu() && x.dim() == 0)) return;
    if (x.is_cpu() || (gpu_ >= 0 && has_tensor_ && x.device().index() != gpu_))
      throw ditto::Error(
          ditto::ErrorKind::plugin, "mock_gpu",
          name_ + " of tensors on two devices: one of " + c10::str(x.sizes()) + " lies on " + x.device().str(),
          "bring all of them to one device first");
    gpu_ = x.device().index();
    has_tensor_ = true;
    if (const auto use = access(x, writes)) accesses_.push_back(*use);
  }

  // Indices may come from the host. Those that are masks have as many numbers as they say.
  void index(const std::optional<Tensor>& x) {
    if (!x || !x->defined()) return;
    waits_ |= x->scalar_type() == at::kBool || x->scalar_type() == at::kByte;
    if (const auto use = access(*x, false)) accesses_.push_back(*use);
  }

  void made(const Tensor& x) {
    if (const auto use = x.defined() ? access(x, true) : std::nullopt) order().add(moment_, *use);
  }

  std::string name_;
  c10::DeviceIndex gpu_ = -1;
  bool has_tensor_ = false, waits_ = false;
  std::vector<Access> accesses_;
  Moment moment_;
};

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  constexpr int kMost = 20;
  TORCH_CHECK(Emulating::depth() < kMost, "mock_gpu: ", op.schema().name(), " calls itself");
  if (Emulating::depth() > 0) {
    const Emulating own;
    return at::native::cpu_fallback(op, stack);
  }
  Call call(op, *stack);
  call.launch();
  {
    const Emulating own;
    at::native::cpu_fallback(op, stack);
    call.bring_results(op, *stack);
  }
  call.done(op, *stack);
}

}  // namespace
}  // namespace mock_gpu

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", TORCH_FN(mock_gpu::empty));
  library.impl("empty_strided", TORCH_FN(mock_gpu::empty_strided));
  library.impl("copy_", TORCH_FN(mock_gpu::copy));
  library.impl("_copy_from", TORCH_FN(mock_gpu::copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(mock_gpu::copy_from_and_resize));
  library.impl("_local_scalar_dense", TORCH_FN(mock_gpu::local_scalar));
  library.impl("resize_", TORCH_FN(mock_gpu::resize));
  library.impl("record_stream", TORCH_FN(mock_gpu::record_stream));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  // A composite that looks for the device's kernels itself.
  library.impl("convolution_backward", torch::CppFunction::makeFromBoxedFunction<&mock_gpu::on_the_cpu>());
}

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&mock_gpu::on_the_cpu>());
}
