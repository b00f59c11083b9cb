#include "core/sample/request_hash.h"

#include <sstream>

#include "core/checkpoint/disk.h"
#include "core/checkpoint/tensor_file.h"

namespace ditto {

namespace {

// One row that stands for all is hashed once.
void add(std::ostream& text, const std::string& name, const torch::Tensor& tensor) {
  const bool is_one_row = tensor.dim() > 0 && tensor.size(0) > 1 && tensor.stride(0) == 0;
  const auto numbers = (is_one_row ? tensor.slice(0, 0, 1) : tensor).to(torch::kCPU).contiguous();
  text << name << ' ' << tensor.dtype() << ' ' << tensor.sizes() << ' ' << checkpoint::checksum(bytes_of(numbers))
       << '\n';
}

}  // namespace

std::string request_hash(const SampleRequests& requests, const torch::Tensor& noise, const std::string& settings) {
  std::ostringstream text;
  text << settings << '\n' << checkpoint::checksum(std::as_bytes(std::span(requests.seeds))) << '\n';
  for (const auto size : requests.shape) text << size << ' ';
  text << '\n';
  for (const auto& [name, tensor] : requests.conditions.tensors) {
    const auto followed = requests.followed.find(name);
    if (followed == requests.followed.end())
      add(text, name, tensor);
    else
      text << name << " of request " << followed->second.request << '\n';
  }
  if (requests.negative)
    for (const auto& [name, tensor] : requests.negative->tensors) add(text, "negative " + name, tensor);
  if (noise.defined()) add(text, "noise", noise);
  const auto all = text.str();
  return checkpoint::checksum(std::as_bytes(std::span(all)));
}

}  // namespace ditto
