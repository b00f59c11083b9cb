// Collectives with autograd: each is differentiated as its exact transpose.
#include <ditto/parallel/mesh.h>

#include <numeric>

#include <torch/autograd.h>
#include <torch/types.h>

namespace ditto {

using torch::Tensor;

namespace {

int64_t positive(int64_t dim, const Tensor& x) { return dim < 0 ? dim + x.dim() : dim; }

}  // namespace

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

struct Lengths {
  std::vector<int64_t> first, second;
};
void keep(AutogradContext* ctx, const Group* group, const std::vector<int64_t>& first,
          const std::vector<int64_t>& second, int64_t dim = 0, int64_t other_dim = 0) {
  keep(ctx, group, dim, other_dim);
  ctx->saved_data["first"] = first;
  ctx->saved_data["second"] = second;
}
Lengths lengths_of(AutogradContext* ctx) {
  return {ctx->saved_data["first"].toIntVector(), ctx->saved_data["second"].toIntVector()};
}

struct UnevenGather : Function<UnevenGather> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Group* group, int64_t dim,
                        const std::vector<int64_t>& lengths) {
    keep(ctx, group, lengths, {}, dim);
    return group->all_gather(x, dim, lengths);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grad) {
    return {group_of(ctx).reduce_scatter(grad[0], dim_of(ctx), lengths_of(ctx).first), Tensor(), Tensor(), Tensor()};
  }
};

struct UnevenScatter : Function<UnevenScatter> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Group* group, int64_t dim,
                        const std::vector<int64_t>& lengths) {
    keep(ctx, group, lengths, {}, dim);
    return group->reduce_scatter(x, dim, lengths);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grad) {
    return {group_of(ctx).all_gather(grad[0], dim_of(ctx), lengths_of(ctx).first), Tensor(), Tensor(), Tensor()};
  }
};

struct UnevenAllToAll : Function<UnevenAllToAll> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Group* group, int64_t scatter_dim,
                        const std::vector<int64_t>& scatter, int64_t gather_dim, const std::vector<int64_t>& gather) {
    keep(ctx, group, scatter, gather, scatter_dim, gather_dim);
    return group->all_to_all(x, scatter_dim, scatter, gather_dim, gather);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grad) {
    const auto lengths = lengths_of(ctx);
    return {group_of(ctx).all_to_all(grad[0], dim_of(ctx, "other_dim"), lengths.second, dim_of(ctx), lengths.first),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor()};
  }
};

std::vector<int64_t> times(std::vector<int64_t> counts, int64_t factor) {
  for (int64_t& count : counts) count *= factor;
  return counts;
}

Tensor exchange_rows(const Group& group, const Tensor& x, const std::vector<int64_t>& send,
                     const std::vector<int64_t>& receive) {
  auto shape = x.sizes().vec();
  shape[0] = std::accumulate(receive.begin(), receive.end(), int64_t{0});
  const int64_t numbers = x.dim() > 1 ? c10::multiply_integers(shape.begin() + 1, shape.end()) : 1;
  return group.exchange(x.contiguous().view(-1), times(send, numbers), times(receive, numbers)).view(shape);
}

struct ExchangeRows : Function<ExchangeRows> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Group* group, const std::vector<int64_t>& send,
                        const std::vector<int64_t>& receive) {
    keep(ctx, group, send, receive);
    return exchange_rows(*group, x, send, receive);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grad) {
    const auto lengths = lengths_of(ctx);
    return {exchange_rows(group_of(ctx), grad[0], lengths.second, lengths.first), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor all_reduce(const Tensor& x, const Group& group) { return group.transport() ? AllReduce::apply(x, &group) : x; }
Tensor all_gather(const Tensor& x, const Group& group, int64_t dim) {
  return group.transport() ? AllGather::apply(x, &group, positive(dim, x)) : x;
}
Tensor reduce_scatter(const Tensor& x, const Group& group, int64_t dim) {
  return group.transport() ? ReduceScatter::apply(x, &group, positive(dim, x)) : x;
}
Tensor all_to_all(const Tensor& x, const Group& group, int64_t scatter_dim, int64_t gather_dim) {
  return group.transport() ? AllToAll::apply(x, &group, positive(scatter_dim, x), positive(gather_dim, x)) : x;
}

Tensor all_gather(const Tensor& x, const Group& group, int64_t dim, const std::vector<int64_t>& lengths) {
  return group.transport() ? UnevenGather::apply(x, &group, positive(dim, x), lengths) : x;
}
Tensor reduce_scatter(const Tensor& x, const Group& group, int64_t dim, const std::vector<int64_t>& lengths) {
  return group.transport() ? UnevenScatter::apply(x, &group, positive(dim, x), lengths) : x;
}
Tensor all_to_all(const Tensor& x, const Group& group, int64_t scatter_dim, const std::vector<int64_t>& scatter_lengths,
                  int64_t gather_dim, const std::vector<int64_t>& gather_lengths) {
  if (!group.transport()) return x;
  return UnevenAllToAll::apply(x, &group, positive(scatter_dim, x), scatter_lengths, positive(gather_dim, x),
                               gather_lengths);
}
Tensor exchange(const Tensor& x, const Group& group, const std::vector<int64_t>& send,
                const std::vector<int64_t>& receive) {
  return group.transport() ? ExchangeRows::apply(x, &group, send, receive) : x;
}

}  // namespace transposed

}  // namespace ditto
