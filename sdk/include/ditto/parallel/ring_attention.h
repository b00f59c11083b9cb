// Attention to keys and values that go around a ring of ranks (H. Liu et al., 2023, arXiv:2310.01889).
//
// Legend: B samples, T tokens here, N heads, K head width.
#pragma once

#include <memory>
#include <vector>

#include <ditto/attention.h>
#include <ditto/parallel/mesh.h>

namespace ditto {

// q, k, v [B, T, N, K] of this member's tokens; lengths: each member's tokens, in the order of members. The result is
// as q, and what attention to all members' keys under `shape`'s pattern (not cross) gives. Blocks of keys and values
// take size - 1 passes forward; backward they take them again, and their gradients as many passes as members, to end
// where they belong. Passes ("shift", to the next member) are under way while a block is computed. Partial results are
// merged, and gradients added, in fp32 (fp64 for fp64). A mask is of this member's keys, and gathered once. `group`
// must outlive the graph. Throws Error(shape) where the pattern has no meaning, or q is not of lengths[rank] tokens.
DITTO_API torch::Tensor ring_attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                       const AttentionShape& shape, const std::vector<int64_t>& lengths,
                                       const Group& group, std::shared_ptr<const AttentionOp> op);

}  // namespace ditto
