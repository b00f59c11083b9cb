// Ranks as a grid of named axes, groups of ranks, and collectives differentiated as their exact transpose.
//
// A model never includes this file: it is for strategies, optimizers and the host.
#pragma once

#include <array>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/visibility.h>

namespace c10d {
class ProcessGroup;
}

namespace ditto {

// Slowest first: ranks that differ along `tensor` alone are neighbours. "axis" is the mesh's, "dim" a tensor's.
enum class Axis { pipeline, replicate, shard, context, expert, tensor };
inline constexpr std::array<Axis, 6> kAxes{Axis::pipeline, Axis::replicate, Axis::shard,
                                           Axis::context,  Axis::expert,    Axis::tensor};
DITTO_API const char* name(Axis axis);
using AxisSet = std::set<Axis>;

// Ranks that talk to each other. All methods are called by every member, in the same order; each blocks until its
// result is there. With one member they return what they were given. A lost peer throws Error(distributed).
class DITTO_API Group {
 public:
  Group();  // of one
  Group(int rank, int size, std::string label, c10::intrusive_ptr<c10d::ProcessGroup> transport);
  ~Group();
  Group(const Group&);
  Group& operator=(const Group&);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& label() const { return label_; }                                     // "tensor", "replicate+shard"
  const c10::intrusive_ptr<c10d::ProcessGroup>& transport() const { return transport_; }  // null with one member

  torch::Tensor all_reduce(torch::Tensor x) const;                          // sum, in place; x contiguous
  torch::Tensor all_gather(const torch::Tensor& x, int64_t dim) const;      // members' x side by side along dim
  torch::Tensor reduce_scatter(const torch::Tensor& x, int64_t dim) const;  // sum, then this member's part of dim
  // Part i of scatter_dim goes to member i; what comes is put side by side along gather_dim.
  torch::Tensor all_to_all(const torch::Tensor& x, int64_t scatter_dim, int64_t gather_dim) const;
  // Flat rows: sends send[i] numbers to member i and receives receive[i] from it. x one-dimensional and contiguous.
  torch::Tensor exchange(const torch::Tensor& x, const std::vector<int64_t>& send,
                         const std::vector<int64_t>& receive) const;
  // The same without waiting; x must stay unchanged until the function that is returned has given the result.
  std::function<torch::Tensor()> begin_exchange(const torch::Tensor& x, const std::vector<int64_t>& send,
                                                const std::vector<int64_t>& receive) const;
  torch::Tensor broadcast(torch::Tensor x, int root) const;  // in place
  std::vector<std::string> all_gather_text(const std::string& text) const;
  void barrier() const;

 private:
  int rank_ = 0, size_ = 1;
  std::string label_;
  c10::intrusive_ptr<c10d::ProcessGroup> transport_;
};

class DITTO_API Mesh {
 public:
  virtual ~Mesh();
  virtual int size(Axis axis) const = 0;
  virtual int index(Axis axis) const = 0;  // this rank's place along the axis
  virtual int rank() const = 0;            // in the world
  virtual int world_size() const = 0;
  // The ranks that differ from this one along `axes` only. Made on first use; only members need to ask for it.
  virtual const Group& group(const AxisSet& axes) const = 0;

  const Group& group(Axis axis) const { return group(AxisSet{axis}); }
  const Group& world() const { return group(AxisSet(kAxes.begin(), kAxes.end())); }
  // Micro-batch j of a step is run by data rank j modulo data_ranks().
  int data_ranks() const { return size(Axis::replicate) * size(Axis::shard); }
  int data_rank() const { return index(Axis::replicate) * size(Axis::shard) + index(Axis::shard); }
  const Group& data_group() const { return group({Axis::replicate, Axis::shard}); }
};

// The rule of transposition: the run's loss is the sum of the ranks' losses, and every collective is differentiated as
// its exact transpose. `group` must outlive the graph.
namespace transposed {

DITTO_API torch::Tensor all_reduce(const torch::Tensor& x, const Group& group);                   // <-> all_reduce
DITTO_API torch::Tensor all_gather(const torch::Tensor& x, const Group& group, int64_t dim);      // <-> reduce_scatter
DITTO_API torch::Tensor reduce_scatter(const torch::Tensor& x, const Group& group, int64_t dim);  // <-> all_gather
DITTO_API torch::Tensor all_to_all(const torch::Tensor& x, const Group& group, int64_t scatter_dim,
                                   int64_t gather_dim);  // <-> its inverse
}  // namespace transposed

}  // namespace ditto
