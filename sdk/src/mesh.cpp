// Collectives on c10d, and their transposed derivatives.
#include <ditto/mesh.h>

#include <cstring>
#include <numeric>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ditto/error.h>

namespace ditto {

using torch::Tensor;

const char* name(Axis axis) {
  switch (axis) {
    case Axis::pipeline: return "pipeline";
    case Axis::replicate: return "replicate";
    case Axis::shard: return "shard";
    case Axis::context: return "context";
    case Axis::expert: return "expert";
    case Axis::tensor: return "tensor";
  }
  return "?";
}

namespace {

std::string place(const Group& group) {
  return "rank " + std::to_string(group.rank()) + " of " + std::to_string(group.size()) + " along " + group.label();
}

std::string text(const Tensor& x) { return std::string(c10::toString(x.scalar_type())) + " " + c10::str(x.sizes()); }

// The library's text up to its first line's end: what follows is a stack of addresses.
std::string first_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string all = torch_error ? torch_error->what_without_backtrace() : error.what();
  return all.substr(0, all.find('\n'));
}

// Runs a collective without autograd; what it throws comes out as Error(distributed) that names the group and the call.
template <class Call>
auto guarded(const Group& group, const std::string& doing, Call call) {
  torch::NoGradGuard no_grad;
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorKind::distributed, place(group), doing + " failed: " + first_line(error),
                "a peer stopped or hangs: its own last message says why");
  }
}

int64_t positive(int64_t dim, const Tensor& x) { return dim < 0 ? dim + x.dim() : dim; }

void check_divides(const Group& group, const std::string& doing, const Tensor& x, int64_t dim) {
  if (x.size(dim) % group.size() != 0)
    throw Error(ErrorKind::shape, place(group),
                doing + " of " + text(x) + ": dim " + std::to_string(dim) + " of length " +
                    std::to_string(x.size(dim)) + " is not divided by " + std::to_string(group.size()) + " ranks");
}

// [size, …]: x's equal parts along dim, one a member, contiguous.
Tensor parts(const Group& group, const Tensor& x, int64_t dim) {
  return torch::stack(x.chunk(group.size(), dim), 0).contiguous();
}

// [size, …] -> the members' parts side by side along dim.
Tensor side_by_side(const Tensor& parts, int64_t dim) {
  return dim == 0 ? parts.flatten(0, 1) : torch::cat(parts.unbind(0), dim);
}

}  // namespace

Group::Group() = default;
Group::Group(int rank, int size, std::string label, c10::intrusive_ptr<c10d::ProcessGroup> transport)
    : rank_(rank), size_(size), label_(std::move(label)), transport_(std::move(transport)) {}
Group::~Group() = default;
Group::Group(const Group&) = default;
Group& Group::operator=(const Group&) = default;

Tensor Group::all_reduce(Tensor x) const {
  if (size_ == 1) return x;
  return guarded(*this, "all_reduce of " + text(x), [&] {
    TORCH_CHECK(x.is_contiguous(), "the tensor is not contiguous");
    std::vector<Tensor> list{x.detach()};
    transport_->allreduce(list)->wait();
    return x;
  });
}

Tensor Group::all_gather(const Tensor& x, int64_t dim) const {
  if (size_ == 1) return x;
  return guarded(*this, "all_gather of " + text(x), [&] {
    auto in = x.detach().contiguous();
    auto shape = in.sizes().vec();
    shape.insert(shape.begin(), size_);
    const auto out = torch::empty(shape, in.options());
    auto flat_in = in.view(-1), flat_out = out.view(-1);
    transport_->_allgather_base(flat_out, flat_in)->wait();
    return side_by_side(out, positive(dim, x));
  });
}

Tensor Group::reduce_scatter(const Tensor& x, int64_t dim) const {
  if (size_ == 1) return x;
  dim = positive(dim, x);
  check_divides(*this, "reduce_scatter", x, dim);
  return guarded(*this, "reduce_scatter of " + text(x), [&] {
    const auto in = parts(*this, x.detach(), dim);
    const auto out = torch::empty_like(in[0], torch::MemoryFormat::Contiguous);
    auto flat_in = in.view(-1), flat_out = out.view(-1);
    transport_->_reduce_scatter_base(flat_out, flat_in)->wait();
    return out;
  });
}

Tensor Group::all_to_all(const Tensor& x, int64_t scatter_dim, int64_t gather_dim) const {
  if (size_ == 1) return x;
  scatter_dim = positive(scatter_dim, x);
  check_divides(*this, "all_to_all", x, scatter_dim);
  return guarded(*this, "all_to_all of " + text(x), [&] {
    const auto in = parts(*this, x.detach(), scatter_dim);
    const auto out = torch::empty_like(in);
    std::vector<int64_t> even;
    auto rows_in = in.view({size_, -1}), rows_out = out.view({size_, -1});
    transport_->alltoall_base(rows_out, rows_in, even, even)->wait();
    return side_by_side(out, positive(gather_dim, x));
  });
}

std::function<Tensor()> Group::begin_exchange(const Tensor& x, const std::vector<int64_t>& send,
                                              const std::vector<int64_t>& receive) const {
  if (size_ == 1) return [x] { return x; };
  const std::string doing = "exchange of " + text(x);
  return guarded(*this, doing, [&]() -> std::function<Tensor()> {
    auto in = x.detach();
    auto out = torch::empty({std::accumulate(receive.begin(), receive.end(), int64_t{0})}, in.options());
    auto in_counts = send, out_counts = receive;
    auto work = transport_->alltoall_base(out, in, out_counts, in_counts);
    return [self = *this, doing, work, in, out] {
      guarded(self, doing, [&] { return work->wait(); });
      return out;
    };
  });
}

Tensor Group::exchange(const Tensor& x, const std::vector<int64_t>& send, const std::vector<int64_t>& receive) const {
  return begin_exchange(x, send, receive)();
}

Tensor Group::broadcast(Tensor x, int root) const {
  if (size_ == 1) return x;
  return guarded(*this, "broadcast of " + text(x), [&] {
    TORCH_CHECK(x.is_contiguous(), "the tensor is not contiguous");
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<Tensor> list{x.detach()};
    transport_->broadcast(list, options)->wait();
    return x;
  });
}

std::vector<std::string> Group::all_gather_text(const std::string& mine) const {
  if (size_ == 1) return {mine};
  const auto lengths = all_gather(torch::tensor({static_cast<int64_t>(mine.size())}, torch::kLong), 0);
  const int64_t longest = lengths.max().item<int64_t>();
  auto padded = torch::zeros({longest + 1}, torch::kByte);  // + 1: a tensor without numbers has no address
  std::memcpy(padded.data_ptr(), mine.data(), mine.size());
  const auto all = all_gather(padded.unsqueeze(0), 0);
  std::vector<std::string> texts;
  for (int i = 0; i < size_; ++i)
    texts.emplace_back(static_cast<const char*>(all[i].data_ptr()), lengths[i].item<int64_t>());
  return texts;
}

void Group::barrier() const {
  if (size_ > 1) guarded(*this, "barrier", [&] { return transport_->barrier()->wait(); });
}

Mesh::~Mesh() = default;

namespace transposed {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

void keep(AutogradContext* ctx, const Group* group, int64_t dim = 0, int64_t other_dim = 0) {
  ctx->saved_data["group"] = static_cast<int64_t>(reinterpret_cast<intptr_t>(group));
  ctx->saved_data["dim"] = dim;
  ctx->saved_data["other_dim"] = other_dim;
}
const Group& group_of(AutogradContext* ctx) {
  return *reinterpret_cast<const Group*>(static_cast<intptr_t>(ctx->saved_data["group"].toInt()));
}
int64_t dim_of(AutogradContext* ctx, const char* key = "dim") { return ctx->saved_data[key].toInt(); }

struct AllReduce : Function<AllReduce> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Group* group) {
    keep(ctx, group);
    return group->all_reduce(x.clone(torch::MemoryFormat::Contiguous));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grad) {
    return {group_of(ctx).all_reduce(grad[0].clone(torch::MemoryFormat::Contiguous)), Tensor()};
  }
};

struct AllGather : Function<AllGather> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Group* group, int64_t dim) {
    keep(ctx, group, dim);
    return group->all_gather(x, dim);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grad) {
    return {group_of(ctx).reduce_scatter(grad[0], dim_of(ctx)), Tensor(), Tensor()};
  }
};

struct ReduceScatter : Function<ReduceScatter> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Group* group, int64_t dim) {
    keep(ctx, group, dim);
    return group->reduce_scatter(x, dim);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grad) {
    return {group_of(ctx).all_gather(grad[0], dim_of(ctx)), Tensor(), Tensor()};
  }
};

struct AllToAll : Function<AllToAll> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Group* group, int64_t scatter_dim,
                        int64_t gather_dim) {
    keep(ctx, group, scatter_dim, gather_dim);
    return group->all_to_all(x, scatter_dim, gather_dim);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grad) {
    return {group_of(ctx).all_to_all(grad[0], dim_of(ctx, "other_dim"), dim_of(ctx)), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor all_reduce(const Tensor& x, const Group& group) { return group.size() == 1 ? x : AllReduce::apply(x, &group); }
Tensor all_gather(const Tensor& x, const Group& group, int64_t dim) {
  return group.size() == 1 ? x : AllGather::apply(x, &group, positive(dim, x));
}
Tensor reduce_scatter(const Tensor& x, const Group& group, int64_t dim) {
  return group.size() == 1 ? x : ReduceScatter::apply(x, &group, positive(dim, x));
}
Tensor all_to_all(const Tensor& x, const Group& group, int64_t scatter_dim, int64_t gather_dim) {
  return group.size() == 1 ? x : AllToAll::apply(x, &group, positive(scatter_dim, x), positive(gather_dim, x));
}

}  // namespace transposed

}  // namespace ditto
