#include <ditto/ordered_sum.h>

#include <algorithm>
#include <utility>

#include <torch/torch.h>

namespace ditto {

using torch::Tensor;

OrderedSum::OrderedSum(const Group& group, int64_t numel)
    : group_(&group), numel_(numel), piece_((numel + group.size() - 1) / group.size()) {}
OrderedSum::~OrderedSum() = default;

// All pieces but the last ones are equally long, so that gathered pieces, padded, need no rearranging.
int64_t OrderedSum::start_of(int member) const { return std::min(member * piece_, numel_); }
int64_t OrderedSum::length_of(int member) const { return start_of(member + 1) - start_of(member); }

void OrderedSum::send(const Tensor& x, int active) {
  std::vector<int64_t> out(group_->size(), 0), in(group_->size(), 0);
  const bool mine = group_->rank() < active;
  for (int member = 0; member < group_->size(); ++member) {
    if (mine) out[member] = length_of(member);
    if (member < active) in[member] = length();
  }
  active_ = active;
  arrival_ = group_->begin_exchange(mine ? x : x.narrow(0, 0, 0), out, in);
}

void OrderedSum::receive() {
  torch::NoGradGuard no_grad;
  const auto pieces = std::exchange(arrival_, nullptr)().view({active_, length()});
  int first = 0;
  if (!sum_.defined()) sum_ = pieces[first++].clone();  // copied: 0 + (-0) would be 0
  for (int i = first; i < active_; ++i) sum_.add_(pieces[i]);
}

Tensor OrderedSum::gather() {
  torch::NoGradGuard no_grad;
  const Tensor sum = std::exchange(sum_, Tensor());
  if (group_->size() == 1) return sum;
  auto padded = length() == piece_ ? sum : torch::constant_pad_nd(sum, {0, piece_ - length()});
  return group_->all_gather(padded, 0).narrow(0, 0, numel_);
}

}  // namespace ditto
