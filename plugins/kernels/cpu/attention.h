// Softmax attention of one head in bf16, without the matrix of its shares in memory: T. Dao et al., 2022
// (arXiv:2205.14135) and M. Milakov and N. Gimelshein, 2018 (arXiv:1805.02867). Products are sums in fp32 of pairs of
// bf16 numbers; shares are rounded to bf16 before they weigh values.
//
// Legend: T queries, S keys, K head width.
#pragma once

#include <cstdint>

namespace ditto_cpu {

// A head's rows of K numbers, `token` numbers apart: both even, at addresses of whole words.
struct Rows16 {
  const std::uint16_t* p;
  std::int64_t token;
};
struct RowsOut16 {
  std::uint16_t* p;
  std::int64_t token;
};

struct AttentionHead {
  Rows16 q, k, v;
  std::int64_t T, S, K;
  float scale;
  const unsigned char* seen;  // [S], 0 where no query sees the key; null: all are seen
  bool causal;                // a query sees no later key
};

// The output, and of each query log2 of the sum of 2^(score / ln 2): nan and -inf where it sees no key.
void attention(const AttentionHead& head, RowsOut16 out, float* lse_T);

// Gradients of q, k and v. `first` is false where heads of queries share one of keys, and this one is to be added to
// those before in `sums`, attention_sums(S, K) numbers of fp32; with `last` the sums go to dk and dv.
struct AttentionBack {
  AttentionHead head;
  Rows16 out, grad;
  const float* lse_T;
  RowsOut16 dq, dk, dv;
  float* sums;
  bool first, last;
};
void attention_back(const AttentionBack& back);
std::int64_t attention_sums(std::int64_t S, std::int64_t K);

bool has_bf16_pairs();  // the processor's, that both need

}  // namespace ditto_cpu
