// Tensors from one member of a group to another.
//
// A model never includes this file: it is for strategies.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <ditto/parallel/mesh.h>

namespace ditto {

// Through the host's memory: NCCL matches what two ranks send each other in the order of their calls, and two that both
// send first are a deadlock. Group and traffic outlive it. Throws Error(distributed) if the peer is lost.
class DITTO_API PeerChannel {
 public:
  PeerChannel(const Group& group, Traffic& traffic) : group_(group), traffic_(traffic) {}

  // Does not wait: two ranks that both waited for the other to take a tensor would wait for ever. `op` is the call's
  // name in the counts. Tensors of one tag arrive in the order in which they were sent. One without numbers is not
  // sent, nor waited for.
  void send(const torch::Tensor& tensor, int to, int tag, const char* op = "send");
  void send_numbers(const std::vector<int64_t>& numbers, int to, int tag);
  // Of the shape and dtype that was sent, contiguous; waits. Counted with no bytes: none leave this rank.
  void receive(torch::Tensor& into, int from, int tag, const char* op = "receive");
  std::vector<int64_t> receive_numbers(int from, int tag);
  // Waits until all that was sent has been taken.
  void finish();

 private:
  const Group& group_;
  Traffic& traffic_;
  struct Sending {
    c10::intrusive_ptr<c10d::Work> work;
    torch::Tensor tensor;  // must live until it has been taken
    std::string doing;
  };
  std::vector<Sending> sending_;
};

}  // namespace ditto
