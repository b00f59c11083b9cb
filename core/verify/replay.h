// Steps made again, held against the receipts of the run that made them first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/receipts/receipt.h"

namespace ditto {

inline constexpr int kNotWhatItSays = 8;  // exit code: a run is not what its receipts say

// Hears a replay (Trainer's), on every rank alike.
class ReceiptCheck {
 public:
  ReceiptCheck(Receipts run, int64_t last_step) : run_(std::move(run)), last_step_(last_step) {}

  // Throws Error(config) where the replay cannot have the run's bits: another recipe; with run.numerics = "fast"
  // another layout or machine, which are named.
  void begins(const Receipt& beginning);
  bool made(const Receipt& receipt);  // whether to go on: it is what the run's says

  bool same() const { return !found_; }
  std::string verdict() const;  // for people, a sentence

 private:
  struct Found {
    int64_t step;
    std::vector<std::string> parts;
  };
  void refuse_other(const Receipt& theirs, const Receipt& beginning);

  const Receipts run_;
  const int64_t last_step_;
  int64_t from_ = 0, done_ = 0;
  std::vector<std::string> notes_;
  std::optional<Found> found_;
};

// The newest checkpoint of the run's folder at `step` or before; empty: there is none, and a replay begins where the
// run began. Throws Error(checkpoint) where the receipts begin later.
std::string checkpoint_before(const std::string& run, const Receipts& receipts, int64_t step);

// Where the first step lies that is not what its line says, as far as the saved checkpoints tell: the first of them
// whose weights or average are not what the line of its step says is found by halves, and the one before it. Where each
// is as its line says, a run may still have made a step otherwise, and told of it truly: then all of it is suspect.
struct Suspects {
  int64_t from = 0, to = 0;                // steps from + 1 … to
  std::optional<int64_t> checkpoint = {};  // of the step `to`, which is not what its line says
};
Suspects suspects(const std::string& run, const Receipts& receipts);

}  // namespace ditto
