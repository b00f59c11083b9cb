#include <ditto/parallel/replicated.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include <torch/autograd.h>
#include <torch/types.h>

#include <ditto/error.h>

namespace ditto {

using torch::Tensor;

std::vector<LeafRun> whole_nodes(const LeafRun& run, int64_t leaves) {
  const auto all = static_cast<int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<int64_t>(leaves, 1))));
  std::vector<LeafRun> nodes;
  for (int64_t at = run.begin; at < run.end; at = nodes.back().end) {
    int64_t size = all;
    while (at % size != 0 || std::min(at + size, leaves) > run.end) size /= 2;
    nodes.push_back({at, std::min(at + size, leaves)});
  }
  return nodes;
}

namespace {

// Takes nodes from the front of a list until the one that it is asked for is whole.
class Merge {
 public:
  Merge(const std::vector<LeafRun>& nodes, const Tensors& values, int64_t leaves)
      : nodes_(nodes), values_(values), leaves_(leaves) {}

  Tensor operator()(int64_t begin, int64_t size) {
    const LeafRun& next = nodes_[at_];
    if (next.begin == begin && next.end == std::min(begin + size, leaves_)) return values_[at_++];
    const Tensor left = (*this)(begin, size / 2);
    const int64_t middle = begin + size / 2;
    return middle < leaves_ ? left.add_((*this)(middle, size / 2)) : left;
  }

 private:
  const std::vector<LeafRun>& nodes_;
  const Tensors& values_;
  const int64_t leaves_;
  size_t at_ = 0;
};

}  // namespace

Tensor sum_of_nodes(const std::vector<LeafRun>& nodes, const Tensors& values, int64_t leaves) {
  torch::NoGradGuard no_grad;
  return Merge(nodes, values, leaves)(0, static_cast<int64_t>(std::bit_ceil(static_cast<std::uint64_t>(leaves))));
}

LeafShare::LeafShare(const Group& group, std::vector<LeafRun> runs) : group_(&group), runs_(std::move(runs)) {
  for (const auto& run : runs_) leaves_ = std::max(leaves_, run.end);
}

LeafShare LeafShare::equal(const Group& group, int64_t leaves, const std::string& option, const std::string& of) {
  const int64_t n = group.size();
  if (leaves < n)
    throw Error(ErrorKind::config, option,
                std::to_string(n) + " is more than the " + std::to_string(leaves) +
                    " leaves of which one number makes the sums over " + of,
                "use a degree of at most " + std::to_string(leaves) + ", or run.numerics = \"fast\"");
  std::vector<LeafRun> runs;
  for (int64_t i = 0; i < n; ++i) runs.push_back({i * leaves / n, (i + 1) * leaves / n});
  return {group, std::move(runs)};
}

namespace {

int64_t length_of(const LeafRun& run, int64_t leaf, int64_t tokens) {
  return std::min(run.end * leaf, tokens) - run.begin * leaf;
}

}  // namespace

int64_t TokenLeaves::begin(int member) const { return share.runs()[static_cast<size_t>(member)].begin * leaf; }

std::vector<int64_t> TokenLeaves::lengths() const {
  std::vector<int64_t> lengths;
  for (const auto& run : share.runs()) lengths.push_back(length_of(run, leaf, tokens));
  return lengths;
}

std::vector<int64_t> TokenLeaves::node_lengths() const {
  std::vector<int64_t> lengths;
  for (const auto& node : share.nodes()) lengths.push_back(length_of(node, leaf, tokens));
  return lengths;
}

namespace replicated {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// What an exchange is about. Without lengths of members' parts: tensors are whole on every member.
struct About : torch::CustomClassHolder {
  About(Share share_, const Group* group_, int64_t dim_, std::vector<int64_t> lengths_)
      : share(std::move(share_)), group(group_), dim(dim_), lengths(std::move(lengths_)) {}
  const Share share;
  const Group* const group;
  const int64_t dim;
  const std::vector<int64_t> lengths;

  bool parts() const { return !lengths.empty(); }
  int64_t start(int member) const { return std::accumulate(lengths.begin(), lengths.begin() + member, int64_t{0}); }
  int64_t here() const { return lengths[static_cast<size_t>(group->rank())]; }
  Tensor own_part(const Tensor& whole) const { return whole.narrow(dim, start(group->rank()), here()).contiguous(); }
  Tensor gathered(const Tensor& part) const { return group->all_gather(part.contiguous(), dim, lengths); }
};
using AboutPtr = c10::intrusive_ptr<About>;

void keep(AutogradContext* ctx, const AboutPtr& about) { ctx->saved_data["about"] = c10::IValue::make_capsule(about); }
AboutPtr about_of(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<About>(ctx->saved_data["about"].toCapsule());
}

// Of each node the part of every member goes to it; of what comes, in the order of leaves, this member's part is made.
Tensor sum_own_part(const variable_list& nodes, const About& about) {
  const auto& share = *about.share;
  const Group& group = *about.group;
  const auto members = static_cast<size_t>(group.size());
  const int64_t each = nodes[0].numel() / std::max<int64_t>(nodes[0].size(about.dim), 1);
  std::vector<int64_t> send(members), receive(members);
  variable_list flat;
  for (size_t i = 0; i < members; ++i) {
    const auto member = static_cast<int>(i);
    for (const auto& node : nodes)
      flat.push_back(node.narrow(about.dim, about.start(member), about.lengths[i]).reshape({-1}));
    send[i] = static_cast<int64_t>(nodes.size()) * about.lengths[i] * each;
    receive[i] = static_cast<int64_t>(share.nodes(member).size()) * about.here() * each;
  }
  const auto arrived = group.begin_exchange(torch::cat(flat), send, receive, "nodes")();
  auto shape = nodes[0].sizes().vec();
  shape[static_cast<size_t>(about.dim)] = about.here();
  struct Arrived {
    LeafRun node;
    int64_t at;
  };
  std::vector<Arrived> order;
  for (int member = 0; member < group.size(); ++member)
    for (const auto& node : share.nodes(member))
      order.push_back({node, static_cast<int64_t>(order.size()) * about.here() * each});
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.node.begin < b.node.begin; });
  std::vector<LeafRun> runs;
  variable_list values;
  for (const auto& [node, at] : order) {
    runs.push_back(node);
    values.push_back(arrived.narrow(0, at, about.here() * each).view(shape));
  }
  return sum_of_nodes(runs, values, share.leaves()).clone();  // without what the others sent
}

// Of whole tensors every member makes a part of the numbers, and all get all.
Tensor sum_whole(const variable_list& nodes, const About& about) {
  const Group& group = *about.group;
  const int64_t numbers = nodes[0].numel(), members = group.size();
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < members; ++i) lengths.push_back((i + 1) * numbers / members - i * numbers / members);
  const About flat(about.share, about.group, 0, lengths);
  variable_list views;
  for (const auto& node : nodes) views.push_back(node.reshape({-1}));
  return flat.gathered(sum_own_part(views, flat)).view(nodes[0].sizes());
}

Tensor summed(const variable_list& nodes, const About& about) {
  return about.parts() ? sum_own_part(nodes, about) : sum_whole(nodes, about);
}

struct Sum : Function<Sum> {
  static Tensor forward(AutogradContext* ctx, at::TensorList nodes, const AboutPtr& about) {
    keep(ctx, about);
    ctx->saved_data["nodes"] = static_cast<int64_t>(nodes.size());
    return summed(nodes.vec(), *about);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grad) {
    const auto about = about_of(ctx);
    const auto whole = about->parts() ? about->gathered(grad[0]) : grad[0];
    variable_list list(static_cast<size_t>(ctx->saved_data["nodes"].toInt()), whole);
    list.emplace_back();
    return list;
  }
};

struct Copies : Function<Copies> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const AboutPtr& about) {
    keep(ctx, about);
    const auto whole = about->parts() ? about->gathered(x) : x;
    variable_list list;
    for (size_t i = 0; i < about->share->nodes().size(); ++i) list.push_back(whole.view_as(whole));
    return list;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {summed(grads, *about_of(ctx)), Tensor()};
  }
};

struct Gather : Function<Gather> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const AboutPtr& about) {
    keep(ctx, about);
    return about->gathered(x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grad) {
    return {about_of(ctx)->own_part(grad[0]), Tensor()};
  }
};

struct Part : Function<Part> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const AboutPtr& about) {
    keep(ctx, about);
    return about->own_part(x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grad) {
    return {about_of(ctx)->gathered(grad[0]), Tensor()};
  }
};

AboutPtr about(const Share& share, int64_t dim = 0, std::vector<int64_t> lengths = {}) {
  return c10::make_intrusive<About>(share, &share->group(), dim, std::move(lengths));
}
AboutPtr about(const Group& group, int64_t dim, const std::vector<int64_t>& lengths) {
  return c10::make_intrusive<About>(nullptr, &group, dim, lengths);
}

int64_t positive(int64_t dim, const Tensor& x) { return dim < 0 ? dim + x.dim() : dim; }

}  // namespace

Tensor sum(const Tensors& nodes, const Share& share) {
  return share->group().transport() ? Sum::apply(at::TensorList(nodes), about(share)) : nodes.at(0);
}

Tensor sum(const Tensors& nodes, const Share& share, int64_t dim, const std::vector<int64_t>& lengths) {
  if (!share->group().transport()) return nodes.at(0);
  return Sum::apply(at::TensorList(nodes), about(share, positive(dim, nodes.at(0)), lengths));
}

Tensors copies(const Tensor& x, const Share& share) {
  return share->group().transport() ? Copies::apply(x, about(share)) : Tensors{x};
}

Tensors copies(const Tensor& part, const Share& share, int64_t dim, const std::vector<int64_t>& lengths) {
  if (!share->group().transport()) return {part};
  return Copies::apply(part, about(share, positive(dim, part), lengths));
}

Tensor gather(const Tensor& part, const Group& group, int64_t dim, const std::vector<int64_t>& lengths) {
  return group.transport() ? Gather::apply(part, about(group, positive(dim, part), lengths)) : part;
}

Tensor part(const Tensor& whole, const Group& group, int64_t dim, const std::vector<int64_t>& lengths) {
  return group.transport() ? Part::apply(whole, about(group, positive(dim, whole), lengths)) : whole;
}

}  // namespace replicated
}  // namespace ditto
