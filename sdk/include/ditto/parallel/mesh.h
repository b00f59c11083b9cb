// Ranks as a grid of named axes, groups of ranks, and collectives differentiated as their exact transpose.
//
// A model never includes this file: it is for strategies, optimizers and the host.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/axis.h>
#include <ditto/visibility.h>

namespace c10d {
class ProcessGroup;
class Work;
}  // namespace c10d

namespace ditto {

using AxisSet = std::set<Axis>;
// Ranks that differ along these have different samples.
inline constexpr std::array kDataAxes{Axis::replicate, Axis::shard, Axis::expert};
constexpr bool is_data_axis(Axis axis) {
  return std::find(kDataAxes.begin(), kDataAxes.end(), axis) != kDataAxes.end();
}

// What a rank has asked of its peers, counted by who, what and when. Bytes are those that leave this rank when every
// member sends each of the others its part directly: all_gather (n - 1) x, reduce_scatter, all_to_all and exchange what
// is not for itself, all_reduce the sum of a reduce_scatter and an all_gather, broadcast (n - 1) x from the root.
class DITTO_API Traffic {
 public:
  // What is being computed: set by whoever runs it, for what it runs.
  enum class Pass { other, forward, backward, recompute };
  struct Count {
    int64_t calls = 0, bytes = 0;
    // How long this rank stood still for the results: what no work hid. Of calls that a device queues, the host's
    // share.
    std::chrono::nanoseconds waited{0};
  };
  struct Key {
    std::string axes;  // a group's label: "tensor", "replicate+shard"
    std::string op;    // "all_gather"
    Pass pass;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  Key add(const std::string& axes, const std::string& op, int64_t bytes);  // what was counted, under the current pass
  void add_wait(const Key& key, std::chrono::nanoseconds time);  // of a call counted before; forgotten after clear()
  const std::map<Key, Count>& counts() const { return counts_; }
  void clear() { counts_.clear(); }

  // Everything asked for while it lives belongs to `pass`.
  class DITTO_API Scope {
   public:
    Scope(Traffic& traffic, Pass pass) : traffic_(traffic), before_(traffic.pass_) { traffic_.pass_ = pass; }
    ~Scope() { traffic_.pass_ = before_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Traffic& traffic_;
    Pass before_;
  };
  Pass pass() const { return pass_; }

  // For tests of overlap: no result is handed out earlier than this after it was asked for.
  std::chrono::microseconds delay{0};

 private:
  Pass pass_ = Pass::other;
  std::map<Key, Count> counts_;
};
DITTO_API const char* name(Traffic::Pass pass);

// Ranks that talk to each other. All methods are called by every member, in the same order; each blocks until its
// result is there. Without a transport they return what they were given. A lost peer throws Error(distributed),
// what a rank would send in other lengths than agreed, Error(plugin).
class DITTO_API Group {
 public:
  Group();  // of one
  Group(int rank, int size, std::string label, c10::intrusive_ptr<c10d::ProcessGroup> transport,
        std::shared_ptr<Traffic> traffic = nullptr);
  ~Group();
  Group(const Group&);
  Group& operator=(const Group&);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& label() const { return label_; }                                     // "tensor", "replicate+shard"
  const c10::intrusive_ptr<c10d::ProcessGroup>& transport() const { return transport_; }  // null: a group of one

  torch::Tensor all_reduce(torch::Tensor x) const;                          // sum, in place; x contiguous
  torch::Tensor all_gather(const torch::Tensor& x, int64_t dim) const;      // members' x side by side along dim
  torch::Tensor reduce_scatter(const torch::Tensor& x, int64_t dim) const;  // sum, then this member's part of dim
  // Part i of scatter_dim goes to member i; what comes is put side by side along gather_dim.
  torch::Tensor all_to_all(const torch::Tensor& x, int64_t scatter_dim, int64_t gather_dim) const;
  // The same where members' parts differ in length: one length a member, the same list on all. Sums are in the order of
  // members.
  torch::Tensor all_gather(const torch::Tensor& x, int64_t dim, const std::vector<int64_t>& lengths) const;
  torch::Tensor reduce_scatter(const torch::Tensor& x, int64_t dim, const std::vector<int64_t>& lengths) const;
  torch::Tensor all_to_all(const torch::Tensor& x, int64_t scatter_dim, const std::vector<int64_t>& scatter_lengths,
                           int64_t gather_dim, const std::vector<int64_t>& gather_lengths) const;
  // Flat and equally long on all members; member i's numbers are [i * n, (i + 1) * n) of the result. Does not wait: the
  // function that is returned does. x must stay unchanged until then.
  std::function<torch::Tensor()> begin_all_gather(const torch::Tensor& x) const;
  // The same of several, of which a transport that can makes one call where they have one dtype. The first function
  // that is called may wait for all.
  std::vector<std::function<torch::Tensor()>> begin_all_gathers(const std::vector<torch::Tensor>& list) const;
  // Flat rows: sends send[i] numbers to member i and receives receive[i] from it. x one-dimensional and contiguous.
  torch::Tensor exchange(const torch::Tensor& x, const std::vector<int64_t>& send,
                         const std::vector<int64_t>& receive) const;
  // The same without waiting, under a name of its own in the counts ("send", "shift"); x must stay unchanged until the
  // function that is returned has given the result.
  std::function<torch::Tensor()> begin_exchange(const torch::Tensor& x, const std::vector<int64_t>& send,
                                                const std::vector<int64_t>& receive, const char* op = "exchange") const;
  torch::Tensor broadcast(torch::Tensor x, int root) const;  // in place
  std::vector<std::string> all_gather_text(const std::string& text) const;
  void barrier() const;

 private:
  std::function<void()> count(const char* op, const torch::Tensor& x, int64_t bytes,
                              c10::intrusive_ptr<c10d::Work> work) const;
  torch::Tensor exchange_as(const char* op, const torch::Tensor& x, const std::vector<int64_t>& send,
                            const std::vector<int64_t>& receive) const;

  int rank_ = 0, size_ = 1;
  std::string label_;
  c10::intrusive_ptr<c10d::ProcessGroup> transport_;
  std::shared_ptr<Traffic> traffic_;
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

  virtual Traffic& traffic() const = 0;

  const Group& group(Axis axis) const { return group(AxisSet{axis}); }
  const Group& world() const { return group(AxisSet(kAxes.begin(), kAxes.end())); }
  // Micro-batch j of a step is run by data rank j modulo data_ranks(). Ranks along the expert axis are data ranks: they
  // lend one another their experts.
  int data_ranks() const { return size(Axis::replicate) * size(Axis::shard) * size(Axis::expert); }
  int data_rank() const {
    return (index(Axis::replicate) * size(Axis::shard) + index(Axis::shard)) * size(Axis::expert) + index(Axis::expert);
  }
  const Group& data_group() const { return group(AxisSet(kDataAxes.begin(), kDataAxes.end())); }
};

// The rule of transposition: the run's loss is the sum of the ranks' losses, and every collective is differentiated as
// its exact transpose. `group` must outlive the graph.
namespace transposed {

DITTO_API torch::Tensor all_reduce(const torch::Tensor& x, const Group& group);                   // <-> all_reduce
DITTO_API torch::Tensor all_gather(const torch::Tensor& x, const Group& group, int64_t dim);      // <-> reduce_scatter
DITTO_API torch::Tensor reduce_scatter(const torch::Tensor& x, const Group& group, int64_t dim);  // <-> all_gather
DITTO_API torch::Tensor all_to_all(const torch::Tensor& x, const Group& group, int64_t scatter_dim,
                                   int64_t gather_dim);  // <-> its inverse
// Where members' parts differ in length.
DITTO_API torch::Tensor all_gather(const torch::Tensor& x, const Group& group, int64_t dim,
                                   const std::vector<int64_t>& lengths);
DITTO_API torch::Tensor reduce_scatter(const torch::Tensor& x, const Group& group, int64_t dim,
                                       const std::vector<int64_t>& lengths);
DITTO_API torch::Tensor all_to_all(const torch::Tensor& x, const Group& group, int64_t scatter_dim,
                                   const std::vector<int64_t>& scatter_lengths, int64_t gather_dim,
                                   const std::vector<int64_t>& gather_lengths);
// Flat rows to and from each member (Group::exchange) <-> the same with send and receive exchanged.
DITTO_API torch::Tensor exchange(const torch::Tensor& x_RD, const Group& group, const std::vector<int64_t>& send,
                                 const std::vector<int64_t>& receive);  // counts of rows of x
}  // namespace transposed

}  // namespace ditto
