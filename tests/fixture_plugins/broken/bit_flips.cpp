// The exact kernels' products, in which now and then a bit flips for once, as a processor that is not quite right may
// do it. Where is a function of the seed alone, and known to all ranks; who flips notes it in a file.
#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>

#include <torch/types.h>

#include <ditto/kernels.h>
#include <ditto/plugin.h>

namespace {

using ditto::OpInputs;
using ditto::Tensors;
using torch::Tensor;

struct Options {
  std::string of, notes;
  int64_t seed = 0, every = 0, spread = 1, stuck = -1, bit = -1;
  bool notes_calls = false;
  void read(ditto::OptionReader& option) {
    option("of", of, "the library of the exact kernels").place();
    option("notes", notes, "file that a line is added to for each bit: call, rank, product, place, bit").place();
    option("seed", seed, "of calls, ranks, places and bits");
    option("every", every, "calls of products between two bits, at least; 0: none flips");
    option("spread", spread, "up to as many calls more");
    option("bit", bit, "which one flips; -1: any");
    option("stuck", stuck, "a rank whose products have one bit flipped always; -1: none");
    option("notes_calls", notes_calls, "add a line for each call too");
  }
};

int number_in(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : otherwise;
}

// Shared by all rows: calls are counted over them.
class Flips {
 public:
  explicit Flips(const Options& options)
      : options_(options), random_(static_cast<std::uint64_t>(options.seed)), rank_(number_in("RANK", 0)) {
    next();
  }

  void see(const std::string& product, Tensor& result) {
    if (!result.defined() || result.numel() == 0) return;
    const int64_t call = calls_++;
    if (options_.notes_calls) note("call");
    if (options_.stuck == rank_) flip(result, 0, 3);
    if (options_.every == 0 || call != at_) return;
    if (by_ == rank_) {
      const auto place = static_cast<int64_t>(place_ % static_cast<std::uint64_t>(result.numel()));
      flip(result, place, bit_);
      note(std::to_string(call) + " " + std::to_string(rank_) + " " + product + " " + std::to_string(place) + " " +
           std::to_string(bit_));
    }
    next();
  }

 private:
  void next() {
    at_ += options_.every + static_cast<int64_t>(random_() % static_cast<std::uint64_t>(options_.spread));
    by_ = static_cast<int>(random_() % static_cast<std::uint64_t>(number_in("WORLD_SIZE", 1)));
    place_ = random_();
    bit_ = options_.bit < 0 ? static_cast<int>(random_() % 32) : static_cast<int>(options_.bit);
  }
  static void flip(Tensor& result, int64_t place, int bit) {
    result = result.contiguous();
    static_cast<std::uint32_t*>(result.data_ptr())[place] ^= 1u << bit;
  }
  void note(const std::string& line) const { std::ofstream(options_.notes, std::ios::app) << line + "\n"; }

  const Options options_;
  std::mt19937_64 random_;
  const int rank_;
  int64_t calls_ = 0, at_ = 0;
  int by_ = 0, bit_ = 0;
  std::uint64_t place_ = 0;
};

class BitFlips final : public ditto::KernelSet {
 public:
  using Options = ::Options;
  BitFlips(const Options& options, const Needs& needs) : flips_(std::make_shared<Flips>(options)) {
    void* library = dlopen(options.of.c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto entry = library ? reinterpret_cast<const void* (*)()>(dlsym(library, ditto::kEntryName)) : nullptr;
    if (!entry) throw std::runtime_error("no plugin " + options.of);
    ditto::OptionReader reader(ditto::OptionMap{"exact", "bit_flips", {}});
    inner_ = static_cast<const ditto::Factory<ditto::KernelSet>*>(entry())->make(reader, needs);
  }

  std::vector<ditto::KernelRow> rows() const override {
    std::vector<ditto::KernelRow> rows;
    for (auto row : inner_->rows()) {
      if (row.op != "linear" && row.op != "linear_gelu_tanh") continue;
      row.variant = "flipped_" + row.variant;
      row.score = [inner = row.score](const ditto::OpCall& call) {
        const int score = inner(call);
        return score > 0 ? score + 1000 : 0;
      };
      row.forward = [flips = flips_, op = row.op, inner = row.forward](const OpInputs& in) {
        auto results = inner(in);
        flips->see(op, results[0]);
        return results;
      };
      row.backward = [flips = flips_, op = row.op, inner = row.backward](const Tensors& grads, const OpInputs& in,
                                                                         const Tensors& results) {
        auto made = inner(grads, in, results);
        for (size_t i = 0; i < made.size() && i < 2; ++i) flips->see(op + "_gradient_" + std::to_string(i), made[i]);
        return made;
      };
      rows.push_back(std::move(row));
    }
    return rows;
  }

 private:
  std::shared_ptr<Flips> flips_;
  std::shared_ptr<ditto::KernelSet> inner_;
};

}  // namespace

DITTO_PLUGIN(KernelSet, BitFlips, "bit_flips", "1.0.0", "Apache-2.0", "exact products in which bits flip")
