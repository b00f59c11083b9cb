#include "tests/mock_gpu/copies.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <limits>

#include "tests/mock_gpu/counts.h"
#include "tests/mock_gpu/device.h"
#include "tests/mock_gpu/memory.h"

namespace mock_gpu {

thread_local int Emulating::depth_ = 0;

namespace {

using at::Tensor;

// The same numbers as the host sees them; their block must be open where they are read.
Tensor as_host(const Tensor& x) {
  if (x.device().type() != kDevice) return x;
  return at::from_blob(x.data_ptr(), x.sizes(), x.strides(), x.options().device(at::kCPU));
}

void copy_numbers(const Tensor& to, const Tensor& from) {
  const at::AutoDispatchBelowADInplaceOrView plain;
  const Open reads(from), writes(to);
  as_host(to).copy_(as_host(from));
}

bool is_pinned_tensor(const Tensor& x) { return x.is_cpu() && is_pinned(x.storage().data()); }

// What no program computes with by chance: a reader that did not wait is seen by its numbers.
void spoil(const Tensor& x) {
  const at::AutoDispatchBelowADInplaceOrView plain;
  Tensor(x).fill_(x.is_floating_point() ? at::Scalar(std::numeric_limits<double>::quiet_NaN()) : at::Scalar(-1));
}

void require_unchanged(const Tensor& now, const Tensor& then) {
  const at::AutoDispatchBelowADInplaceOrView plain;
  if (std::memcmp(now.contiguous().data_ptr(), then.data_ptr(), then.nbytes()) != 0)
    throw ditto::Error(
        ditto::ErrorKind::plugin, "mock_gpu",
        "pinned memory of " + std::to_string(then.nbytes()) + " bytes was written while its upload was under way",
        "wait for the upload first, or write another piece");
}

Moment launched(const Tensor& to, const Tensor& from, StreamId stream) {
  std::vector<Access> accesses;
  if (const auto reads = access(from, false)) accesses.push_back(*reads);
  if (const auto writes = access(to, true)) accesses.push_back(*writes);
  return order().launch(stream, accesses, from.is_cpu() ? "an upload" : to.is_cpu() ? "a download" : "a copy");
}

void upload(const Tensor& to, const Tensor& from, bool later) {
  ++counts().uploads;
  counts().uploaded_bytes += static_cast<std::int64_t>(to.nbytes());
  const auto stream = current_stream(to.device().index());
  order().hasten(stream, from.storage().data());  // what it downloaded there before
  const auto moment = launched(to, from, stream);
  copy_numbers(to, from);
  if (!later) return wait_for(stream);
  if (!is_pinned_tensor(from)) return;  // a copy of it was made first
  const at::AutoDispatchBelowADInplaceOrView plain;
  order().hold_back(moment, from.storage().data(),
                    [from = from.detach(), then = from.contiguous().clone()] { require_unchanged(from, then); });
}

void download(const Tensor& to, const Tensor& from, bool later) {
  ++counts().downloads;
  counts().downloaded_bytes += static_cast<std::int64_t>(from.nbytes());
  const auto stream = current_stream(from.device().index());
  const auto moment = launched(to, from, stream);
  if (!later || !is_pinned_tensor(to)) {
    wait_for(stream);
    return copy_numbers(to, from);
  }
  const at::AutoDispatchBelowADInplaceOrView plain;
  const Tensor taken = at::empty_like(to);
  copy_numbers(taken, from);
  order().hasten(stream, to.storage().data());  // what it did there before
  spoil(to);
  order().hold_back(moment, to.storage().data(), [to = to.detach(), taken] { copy_numbers(to, taken); });
}

// Between two of them each one's stream waits for the other's, as LibTorch has it.
void copy_on_gpus(const Tensor& to, const Tensor& from) {
  ++counts().launches;
  const auto here = current_stream(to.device().index()), there = current_stream(from.device().index());
  order().wait(here, order().now(there));
  launched(to, from, here);
  copy_numbers(to, from);
  order().wait(there, order().now(here));
}

}  // namespace

Tensor& copy(Tensor& to, const Tensor& from, bool later) {
  if (to.numel() == 0) return to;
  if (Emulating::depth() > 0) {
    copy_numbers(to, from);
  } else if (from.is_cpu()) {
    upload(to, from, later);
  } else if (to.is_cpu()) {
    download(to, from, later);
  } else {
    copy_on_gpus(to, from);
  }
  return to;
}

Tensor empty_on(c10::DeviceIndex gpu, at::IntArrayRef size, std::optional<at::IntArrayRef> stride, at::ScalarType dtype,
                std::optional<at::MemoryFormat> format) {
  const OnGpu there(gpu);
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::CUDA);
  if (stride) return at::detail::empty_strided_generic(size, *stride, &memory(), keys, dtype);
  return at::detail::empty_generic(size, &memory(), keys, dtype, format);
}

}  // namespace mock_gpu
