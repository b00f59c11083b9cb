// Collectives on c10d, and their transposed derivatives.
#include <ditto/parallel/mesh.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ditto/error.h>
#include <ditto/parallel/waiting.h>

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

const char* name(Traffic::Pass pass) {
  switch (pass) {
    case Traffic::Pass::other: return "other";
    case Traffic::Pass::forward: return "forward";
    case Traffic::Pass::backward: return "backward";
    case Traffic::Pass::recompute: return "recompute";
  }
  return "?";
}

Traffic::Key Traffic::add(const std::string& axes, const std::string& op, int64_t bytes) {
  Key key{axes, op, pass_};
  auto& count = counts_[key];
  ++count.calls;
  count.bytes += bytes;
  return key;
}

void Traffic::add_wait(const Key& key, std::chrono::nanoseconds time) {
  if (const auto it = counts_.find(key); it != counts_.end()) it->second.waited += time;
}

namespace {

int64_t bytes_of(const Tensor& x) { return static_cast<int64_t>(x.nbytes()); }

int64_t total(const std::vector<int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

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

Error lost(const Group& group, const std::string& doing, const std::exception& error) {
  return Error(ErrorKind::distributed, place(group), doing + " failed: " + first_line(error),
               "a peer stopped or hangs: its own last message says why");
}

// Runs a collective without autograd; what the transport throws comes out as Error(distributed) that names the group
// and the call.
template <class Call>
auto guarded(const Group& group, const std::string& doing, Call call) {
  torch::NoGradGuard no_grad;
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (const c10::DistError& error) {
    throw lost(group, doing, error);
  } catch (const c10::Error& error) {  // of the tensors, before anything was sent
    throw Error(ErrorKind::plugin, place(group), doing + ": " + first_line(error));
  } catch (const std::exception& error) {
    throw lost(group, doing, error);
  }
}

int64_t positive(int64_t dim, const Tensor& x) { return dim < 0 ? dim + x.dim() : dim; }

void check_divides(const Group& group, const std::string& doing, const Tensor& x, int64_t dim) {
  if (x.size(dim) % group.size() != 0)
    throw Error(ErrorKind::shape, place(group),
                doing + " of " + text(x) + ": dim " + std::to_string(dim) + " of length " +
                    std::to_string(x.size(dim)) + " is not divided by " + std::to_string(group.size()) + " ranks");
}

// A member that sends another number than the others expect would be waited for until the timeout.
void check_length(const Group& group, const std::string& doing, const Tensor& x, int64_t dim, int64_t expected) {
  if (x.size(dim) == expected) return;
  throw Error(ErrorKind::plugin, place(group),
              doing + " of " + text(x) + ": dim " + std::to_string(dim) + " has length " + std::to_string(x.size(dim)) +
                  ", and the other ranks expect " + std::to_string(expected),
              "what is exchanged must be as the cut leaves it: all of a stream's tokens, and no others");
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
Group::Group(int rank, int size, std::string label, c10::intrusive_ptr<c10d::ProcessGroup> transport,
             std::shared_ptr<Traffic> traffic)
    : rank_(rank),
      size_(size),
      label_(std::move(label)),
      transport_(std::move(transport)),
      traffic_(std::move(traffic)) {}

PeerCalls& peer_calls() {
  static PeerCalls calls;
  return calls;
}

namespace {

// While it lives, this process waits for its peers.
class PeerCall {
 public:
  explicit PeerCall(bool counted) : counted_(counted) {
    if (counted_) ++peer_calls().begun;
  }
  ~PeerCall() {
    if (counted_) ++peer_calls().done;
  }
  PeerCall(const PeerCall&) = delete;
  PeerCall& operator=(const PeerCall&) = delete;

 private:
  bool counted_;
};

}  // namespace

// Counts a call on x. What is returned waits for `work`, and where a test wants transfers to be late, until they are.
std::function<void()> Group::count(const char* op, const Tensor& x, int64_t bytes,
                                   c10::intrusive_ptr<c10d::Work> work) const {
  using Clock = std::chrono::steady_clock;
  const auto key = traffic_ ? traffic_->add(label_, op, bytes) : Traffic::Key{};
  const auto late = traffic_ ? traffic_->delay : std::chrono::microseconds(0);
  return [self = *this, doing = std::string(op) + " of " + text(x), work, key, late, due = Clock::now() + late] {
    const PeerCall call(self.traffic_ != nullptr);
    const auto began = Clock::now();
    guarded(self, doing, [&] { return work->wait(); });
    if (late.count() > 0) std::this_thread::sleep_until(due);
    if (self.traffic_) self.traffic_->add_wait(key, Clock::now() - began);
  };
}
Group::~Group() = default;
Group::Group(const Group&) = default;
Group& Group::operator=(const Group&) = default;

Tensor Group::all_reduce(Tensor x) const {
  if (!transport_) return x;
  return guarded(*this, "all_reduce of " + text(x), [&] {
    TORCH_CHECK(x.is_contiguous(), "the tensor is not contiguous");
    std::vector<Tensor> list{x.detach()};
    count("all_reduce", x, 2 * bytes_of(x) * (size_ - 1) / size_, transport_->allreduce(list))();
    return x;
  });
}

Tensor Group::all_gather(const Tensor& x, int64_t dim) const {
  if (!transport_) return x;
  return guarded(*this, "all_gather of " + text(x), [&] {
    auto in = x.detach().contiguous();
    auto shape = in.sizes().vec();
    shape.insert(shape.begin(), size_);
    const auto out = torch::empty(shape, in.options());
    auto flat_in = in.view(-1), flat_out = out.view(-1);
    count("all_gather", x, bytes_of(in) * (size_ - 1), transport_->_allgather_base(flat_out, flat_in))();
    return side_by_side(out, positive(dim, x));
  });
}

std::function<Tensor()> Group::begin_all_gather(const Tensor& x) const {
  if (!transport_) return [x] { return x; };
  const std::string doing = "all_gather of " + text(x);
  return guarded(*this, doing, [&]() -> std::function<Tensor()> {
    auto in = x.detach();
    auto out = torch::empty({size_ * in.numel()}, in.options());
    auto wait = count("all_gather", x, bytes_of(in) * (size_ - 1), transport_->_allgather_base(out, in));
    return [wait, in, out] {
      wait();
      return out;
    };
  });
}

std::vector<std::function<Tensor()>> Group::begin_all_gathers(const std::vector<Tensor>& list) const {
  std::vector<std::function<Tensor()>> arrivals;
  const auto alike = [&](const Tensor& x) { return x.scalar_type() == list[0].scalar_type(); };
  const bool has_numbers = !list.empty() && !list[0].is_meta();  // of shapes alone there is no backend
  if (!transport_ || list.size() < 2 || !has_numbers || !std::all_of(list.begin(), list.end(), alike) ||
      !transport_->getBackend(list[0].device().type())->supportsCoalescing()) {
    for (const auto& x : list) arrivals.push_back(begin_all_gather(x));
    return arrivals;
  }
  return guarded(*this, std::to_string(list.size()) + " all_gathers at once, the first of " + text(list[0]), [&] {
    std::vector<Tensor> ins, outs;
    for (const auto& x : list) {
      ins.push_back(x.detach());
      outs.push_back(torch::empty({size_ * x.numel()}, ins.back().options()));
    }
    const auto work = transport_->allgather_into_tensor_coalesced(outs, ins);
    for (size_t i = 0; i < list.size(); ++i)
      arrivals.push_back(
          [wait = count("all_gather", list[i], bytes_of(ins[i]) * (size_ - 1), work), in = ins[i], out = outs[i]] {
            wait();
            return out;
          });
    return arrivals;
  });
}

Tensor Group::all_gather(const Tensor& x, int64_t dim, const std::vector<int64_t>& lengths) const {
  if (!transport_) return x;
  dim = positive(dim, x);
  check_length(*this, "all_gather", x, dim, lengths[static_cast<size_t>(rank_)]);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  return guarded(*this, "all_gather of " + text(x), [&] {
    auto shape = x.sizes().vec();
    shape[static_cast<size_t>(dim)] = longest;
    const auto in = torch::zeros(shape, x.options().requires_grad(false));
    in.narrow(dim, 0, x.size(dim)).copy_(x.detach());
    shape.insert(shape.begin(), size_);
    const auto out = torch::empty(shape, in.options());
    auto flat_in = in.view(-1), flat_out = out.view(-1);
    count("all_gather", x, bytes_of(x) * (size_ - 1), transport_->_allgather_base(flat_out, flat_in))();
    std::vector<Tensor> pieces;
    for (int i = 0; i < size_; ++i) pieces.push_back(out[i].narrow(dim, 0, lengths[static_cast<size_t>(i)]));
    return torch::cat(pieces, dim);
  });
}

Tensor Group::reduce_scatter(const Tensor& x, int64_t dim, const std::vector<int64_t>& lengths) const {
  if (!transport_) return x;
  dim = positive(dim, x);
  check_length(*this, "reduce_scatter", x, dim, total(lengths));
  const int64_t own = lengths[static_cast<size_t>(rank_)];
  auto shape = x.sizes().vec();
  shape[static_cast<size_t>(dim)] = own;
  return guarded(*this, "reduce_scatter of " + text(x), [&] {
    std::vector<int64_t> send;
    std::vector<Tensor> pieces;
    for (const auto& piece : x.detach().split_with_sizes(lengths, dim)) {
      pieces.push_back(piece.reshape(-1));
      send.push_back(pieces.back().numel());
    }
    const int64_t mine = send[static_cast<size_t>(rank_)];
    const auto parts = exchange_as("reduce_scatter", torch::cat(pieces), send, std::vector<int64_t>(size_, mine));
    auto sum = parts.narrow(0, 0, mine).clone();
    for (int i = 1; i < size_; ++i) sum.add_(parts.narrow(0, i * mine, mine));
    return sum.view(shape);
  });
}

Tensor Group::all_to_all(const Tensor& x, int64_t scatter_dim, const std::vector<int64_t>& scatter_lengths,
                         int64_t gather_dim, const std::vector<int64_t>& gather_lengths) const {
  if (!transport_) return x;
  scatter_dim = positive(scatter_dim, x);
  gather_dim = positive(gather_dim, x);
  check_length(*this, "all_to_all", x, scatter_dim, total(scatter_lengths));
  check_length(*this, "all_to_all", x, gather_dim, gather_lengths[static_cast<size_t>(rank_)]);
  return guarded(*this, "all_to_all of " + text(x), [&] {
    std::vector<int64_t> send, receive;
    std::vector<Tensor> pieces;
    for (const auto& piece : x.detach().split_with_sizes(scatter_lengths, scatter_dim)) {
      pieces.push_back(piece.reshape(-1));
      send.push_back(pieces.back().numel());
    }
    auto shape = x.sizes().vec();
    shape[static_cast<size_t>(scatter_dim)] = scatter_lengths[static_cast<size_t>(rank_)];
    std::vector<std::vector<int64_t>> shapes;
    for (const int64_t length : gather_lengths) {
      shape[static_cast<size_t>(gather_dim)] = length;
      shapes.push_back(shape);
      receive.push_back(c10::multiply_integers(shape));
    }
    const auto flat = exchange_as("all_to_all", torch::cat(pieces), send, receive).split_with_sizes(receive);
    std::vector<Tensor> arrived;
    for (size_t i = 0; i < flat.size(); ++i) arrived.push_back(flat[i].view(shapes[i]));
    return torch::cat(arrived, gather_dim);
  });
}

Tensor Group::reduce_scatter(const Tensor& x, int64_t dim) const {
  if (!transport_) return x;
  dim = positive(dim, x);
  check_divides(*this, "reduce_scatter", x, dim);
  return guarded(*this, "reduce_scatter of " + text(x), [&] {
    const auto in = parts(*this, x.detach(), dim);
    const auto out = torch::empty_like(in[0], torch::MemoryFormat::Contiguous);
    auto flat_in = in.view(-1), flat_out = out.view(-1);
    count("reduce_scatter", x, bytes_of(out) * (size_ - 1), transport_->_reduce_scatter_base(flat_out, flat_in))();
    return out;
  });
}

Tensor Group::all_to_all(const Tensor& x, int64_t scatter_dim, int64_t gather_dim) const {
  if (!transport_) return x;
  scatter_dim = positive(scatter_dim, x);
  check_divides(*this, "all_to_all", x, scatter_dim);
  return guarded(*this, "all_to_all of " + text(x), [&] {
    const auto in = parts(*this, x.detach(), scatter_dim);
    const auto out = torch::empty_like(in);
    std::vector<int64_t> even;
    auto rows_in = in.view({size_, -1}), rows_out = out.view({size_, -1});
    count("all_to_all", x, bytes_of(in[0]) * (size_ - 1), transport_->alltoall_base(rows_out, rows_in, even, even))();
    return side_by_side(out, positive(gather_dim, x));
  });
}

std::function<Tensor()> Group::begin_exchange(const Tensor& x, const std::vector<int64_t>& send,
                                              const std::vector<int64_t>& receive, const char* op) const {
  if (!transport_) return [x] { return x; };
  const std::string doing = std::string(op) + " of " + text(x);
  check_length(*this, op, x, 0, total(send));
  return guarded(*this, doing, [&]() -> std::function<Tensor()> {
    auto in = x.detach();
    auto out = torch::empty({total(receive)}, in.options());
    auto in_counts = send, out_counts = receive;
    const int64_t leaving = total(send) - send[static_cast<size_t>(rank_)];
    auto wait = count(op, x, leaving * static_cast<int64_t>(in.element_size()),
                      transport_->alltoall_base(out, in, out_counts, in_counts));
    return [wait, in, out] {
      wait();
      return out;
    };
  });
}

Tensor Group::exchange_as(const char* op, const Tensor& x, const std::vector<int64_t>& send,
                          const std::vector<int64_t>& receive) const {
  return begin_exchange(x, send, receive, op)();
}

Tensor Group::exchange(const Tensor& x, const std::vector<int64_t>& send, const std::vector<int64_t>& receive) const {
  return begin_exchange(x, send, receive)();
}

Tensor Group::broadcast(Tensor x, int root) const {
  if (!transport_) return x;
  return guarded(*this, "broadcast of " + text(x), [&] {
    TORCH_CHECK(x.is_contiguous(), "the tensor is not contiguous");
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<Tensor> list{x.detach()};
    count("broadcast", x, rank_ == root ? bytes_of(x) * (size_ - 1) : 0, transport_->broadcast(list, options))();
    return x;
  });
}

std::vector<std::string> Group::all_gather_text(const std::string& mine) const {
  if (!transport_) return {mine};
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

// As a sum: LibTorch's own way to a barrier (2.11, through its dispatcher) writes to freed memory where ranks are
// threads of one process.
void Group::barrier() const {
  if (!transport_) return;
  std::vector<Tensor> nothing{torch::zeros({1})};
  guarded(*this, "barrier", [&] { return transport_->allreduce(nothing)->wait(); });
}

Mesh::~Mesh() = default;

}  // namespace ditto
