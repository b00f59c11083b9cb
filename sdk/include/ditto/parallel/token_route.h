// Token routing: F. Krause et al., "TREAD: token routing for efficient architecture-agnostic diffusion training", 2025
// (arXiv:2501.04765). While training, some of each sample's tokens go around a run of blocks and join the others behind
// it; sampling and validation run all blocks on all tokens.
//
// Which tokens those are depends on the run's seed, the sample's id and the token's place in the sample alone. Tokens
// leave and join while they are whole, between the strategies' joins and splits: so strategies cut the shorter sequence
// as any other, and every layout runs the same tokens.
#pragma once

#include <cstdint>
#include <vector>

#include <ditto/math/random.h>
#include <ditto/stream.h>

namespace ditto {

struct TokenRoute {
  int64_t start = 0, end = 0;  // blocks [start, end) run the tokens that are kept
  double ratio = 0;            // in [0, 1): of T tokens of a sample, floor(ratio T) go around
};

class DITTO_API TokenRouter {
 public:
  TokenRouter(const TokenRoute& route, const Random& random) : route_(route), random_(random) {}
  const TokenRoute& route() const { return route_; }

  // A sample's tokens that are kept: distinct places in [0, tokens), ascending, int64.
  torch::Tensor kept(int64_t id, int64_t tokens) const;

  // Before the first split: constants, which no join makes whole again.
  static void remember_constants(Stream& stream);
  // Of a stream that is whole but for its constants. It becomes one of its kept tokens, in their order. `others`:
  // fields along its tokens that no block reads ("extra.NAME"). Throws Error(config) for what cannot lose tokens, by
  // name.
  void enter(Stream& stream, const std::vector<std::string>& others = {}) const;
  void leave(Stream& stream) const;

  // The whole sequence of a stream whose tokens are on their way, cut or not; null: it has all its tokens.
  static const Sequence* whole_of(const Stream& stream);
  // After a block: long skips that it has taken need not come back.
  static void after_block(Stream& stream);

 private:
  TokenRoute route_;
  Random random_;
};

}  // namespace ditto
