// Attention of queries that are one rank's share of a sample, under run.numerics = "one".
#pragma once

#include <memory>

#include <ditto/nn/attention.h>
#include <ditto/parallel/replicated.h>

namespace ditto {

enum class Keys {
  slices,  // of the same tokens: gathered from all members (pattern full)
  whole,   // of another sequence, text, which every member has whole (pattern cross)
};

// The queries of each node attend by themselves, so that the gradients of keys and values are summed as a tree over all
// queries. Gathered keys and values are kept for backward: 2 (c - 1) / c numbers a token and width more than a ring
// keeps. Throws Error(config) about run.numerics for several sequences, a bias, what is causal, and other patterns.
DITTO_API Tensors attention_of_nodes(const AttentionCall& call, const std::shared_ptr<const TokenLeaves>& queries,
                                     Keys keys, const AttentionOp& op);

}  // namespace ditto
