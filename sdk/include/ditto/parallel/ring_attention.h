// Attention to keys and values that go around a ring of ranks (H. Liu et al., 2023, arXiv:2310.01889).
//
// Legend: B samples, T tokens here, N heads, K head width.
#pragma once

#include <vector>

#include <ditto/nn/attention.h>
#include <ditto/parallel/mesh.h>

namespace ditto {

// The call with this member's tokens of each part; lengths: each member's tokens of each part, in the order of members.
// The results are what attention of all members' tokens under the call's pattern (not cross) gives. Blocks of keys and
// values, of all parts at once, take size - 1 passes forward; backward they take them again, and their gradients as
// many passes as members, to end where they belong. Passes ("shift", to the next member) are under way while a block is
// computed. Partial results are merged in the order in which blocks come: this member's own, then those of the members
// before it; in fp32 (fp64 for fp64), as gradients are added. Masks are of this member's keys, and gathered once.
// `group` must outlive the graph. Throws Error(shape) where the pattern has no meaning, or a part is not of
// lengths[rank] tokens, and Error(config) for a bias that is learned.
DITTO_API Tensors ring_attention(const AttentionCall& call, const std::vector<std::vector<int64_t>>& lengths,
                                 const Group& group, const AttentionOp& op);

}  // namespace ditto
