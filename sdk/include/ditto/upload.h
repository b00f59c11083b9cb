// From the host's memory to a device's, so that the host waits for neither.
#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

#include <ditto/visibility.h>

namespace ditto {

// The same numbers on `device`, contiguous. Those in the host's memory go to a GPU in one copy, from pinned memory that
// LibTorch uses again once that is done, and lie there in one block. The copy has a stream of its own, which the
// current one waits for: of a host that is ahead of its device it is done while the device computes what was asked
// before. What is on the device already stays as it is, as do undefined ones.
DITTO_API std::vector<torch::Tensor> uploaded(const std::vector<torch::Tensor>& host, torch::Device device);
DITTO_API torch::Tensor uploaded(const torch::Tensor& host, torch::Device device);

// Small numbers of a micro-batch that the host makes at one place and the device needs at several: factors of times,
// features of times, weights of samples. What is added goes up in the copy that `uploaded` makes next; from then on
// `uploaded` of equal numbers gives those that are there, which nobody may change. Who asks for others uploads them: no
// result depends on what is added.
//
// It serves calls of the thread that has made it, and where there are several the youngest. That thread ends it.
class DITTO_API SentAhead {
 public:
  SentAhead();
  ~SentAhead();
  SentAhead(const SentAhead&) = delete;
  SentAhead& operator=(const SentAhead&) = delete;
  static SentAhead* here();  // null: there is none

  void forget();  // the micro-batch before
  void add(const torch::Tensor& host);
  // What a function, by its name, makes of numbers in the host's memory; `find` gives it without making it again.
  void add(const std::string& function, const torch::Tensor& of, const torch::Tensor& host);
  // On its device; undefined: it is not there. Shapes of `of` may differ.
  torch::Tensor find(const std::string& function, const torch::Tensor& of) const;

 private:
  friend std::vector<torch::Tensor> uploaded(const std::vector<torch::Tensor>&, torch::Device);
  struct Entry {
    std::string function;  // "": none, and `of` are the numbers themselves
    torch::Tensor of, host, sent;
  };
  const Entry* entry(const std::string& function, const torch::Tensor& of) const;
  std::vector<Entry> entries_;
};

}  // namespace ditto
