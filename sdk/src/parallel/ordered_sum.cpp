#include <ditto/parallel/ordered_sum.h>

#include <algorithm>
#include <utility>

#include <torch/types.h>

namespace ditto {

using torch::Tensor;

namespace {

std::vector<int64_t> equal_lengths(int64_t numel, int members) {
  const int64_t piece = (numel + members - 1) / members;
  std::vector<int64_t> lengths;
  for (int i = 0; i < members; ++i) lengths.push_back(std::min((i + 1) * piece, numel) - std::min(i * piece, numel));
  return lengths;
}

}  // namespace

OrderedSum::OrderedSum(const Group& group, int64_t numel, SumOrder order)
    : OrderedSum(group, equal_lengths(numel, group.size()), order) {}
OrderedSum::OrderedSum(const Group& group, std::vector<int64_t> lengths, SumOrder order)
    : group_(&group), starts_{0}, order_(order) {
  for (const int64_t length : lengths) starts_.push_back(starts_.back() + length);
}
OrderedSum::~OrderedSum() = default;

void OrderedSum::send(const Tensor& x, int active, const char* op) {
  std::vector<int64_t> out(group_->size(), 0), in(group_->size(), 0);
  const bool mine = group_->rank() < active;
  for (int member = 0; member < group_->size(); ++member) {
    if (mine) out[member] = length_of(member);
    if (member < active) in[member] = length();
  }
  active_ = active;
  arrival_ = group_->begin_exchange(mine ? x : x.narrow(0, 0, 0), out, in, op);
}

void OrderedSum::receive() {
  torch::NoGradGuard no_grad;
  const auto pieces = std::exchange(arrival_, nullptr)().view({active_, length()});
  if (order_ == SumOrder::tree) {
    for (int i = 0; i < active_; ++i) tree_.add(pieces[i]);
    return tree_.own();
  }
  int first = 0;
  if (!sum_.defined()) {  // begun with the first one or two: 0 + (-0) would be 0
    sum_ = active_ > 1 ? pieces[0] + pieces[1] : pieces[0].clone();
    first = std::min(active_, 2);
  }
  for (int i = first; i < active_; ++i) sum_.add_(pieces[i]);
}

Tensor OrderedSum::gather() {
  torch::NoGradGuard no_grad;
  const Tensor sum = take();
  std::vector<int64_t> lengths;
  for (int member = 0; member < group_->size(); ++member) lengths.push_back(length_of(member));
  return group_->all_gather(sum, 0, lengths);
}

Tensor OrderedSum::take() { return order_ == SumOrder::tree ? tree_.take() : std::exchange(sum_, Tensor()); }

}  // namespace ditto
