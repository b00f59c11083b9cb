// Tensors from stage to stage.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <ditto/mesh.h>

namespace ditto {

// Throws Error(distributed) if the peer is lost.
class StageChannel {
 public:
  StageChannel(const Group& group, Traffic& traffic) : group_(group), traffic_(traffic) {}

  // Does not wait: two stages that both waited for the other to take a tensor would wait for ever. `op` is its name in
  // the counts. Tensors of one tag arrive in the order in which they were sent.
  void send(const torch::Tensor& tensor, int to, int tag, const char* op = "send");
  void send_numbers(const std::vector<int64_t>& numbers, torch::Device device, int to, int tag);
  void receive(torch::Tensor& into, int from, int tag);
  std::vector<int64_t> receive_numbers(torch::Device device, int from, int tag);
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
