#include <ditto/parallel/attention_of_nodes.h>

#include <torch/types.h>

#include <ditto/error.h>
#include <ditto/parallel/token_cut.h>

namespace ditto {

using torch::Tensor;

namespace {

void check(const AttentionCall& call, Keys keys) {
  check_call(call);
  const char* what = call.parts.size() > 1                                   ? "several sequences"
                     : call.bias.defined()                                   ? "a bias"
                     : call.causal                                           ? "an order of tokens"
                     : call.parts[0].tokens.packing                          ? "packs"
                     : keys == Keys::slices && call.pattern != Pattern::full ? "frames that lie on several ranks"
                                                                             : nullptr;
  if (what)
    throw Error(ErrorKind::config, "run.numerics",
                std::string("\"one\" does not go with parallel.context for attention of ") + what,
                "use context_plugin = \"ulysses\", leave parallel.context = 1, or set run.numerics = \"fast\"");
}

}  // namespace

Tensors attention_of_nodes(const AttentionCall& call, const std::shared_ptr<const TokenLeaves>& queries, Keys keys,
                           const AttentionOp& op) {
  check(call, keys);
  const bool learns = torch::GradMode::is_enabled();
  const auto& given = call.parts[0];
  const auto lengths = queries->lengths();
  const auto& group = queries->share.group();
  const replicated::Share share(queries, &queries->share);
  auto whole = call;
  whole.pattern = Pattern::cross;
  auto& part = whole.parts[0];
  if (keys == Keys::slices) part.key_mask_BS = whole_mask(given.key_mask_BS, lengths, group);
  const auto attend = [&](const Tensor& q, const Tensor& k, const Tensor& v) {
    part.q = q, part.k = k, part.v = v;
    return op.run(whole).at(0);
  };

  std::vector<Tensors> kv;  // of each node
  if (keys == Keys::slices) {
    const auto both = torch::stack({given.k, given.v});
    if (!learns)
      kv.push_back(replicated::gather(both, group, 2, lengths).unbind(0));
    else
      for (const auto& copy : replicated::copies(both, share, 2, lengths)) kv.push_back(copy.unbind(0));
  } else if (!learns) {
    kv.push_back({given.k, given.v});
  } else {
    const auto k = replicated::copies(given.k, share), v = replicated::copies(given.v, share);
    for (size_t i = 0; i < k.size(); ++i) kv.push_back({k[i], v[i]});
  }
  if (kv.size() == 1) return {attend(given.q, kv[0][0], kv[0][1])};
  const auto q = given.q.split_with_sizes(queries->node_lengths(), 1);
  Tensors outputs;
  for (size_t i = 0; i < q.size(); ++i) outputs.push_back(attend(q[i], kv[i][0], kv[i][1]));
  return {torch::cat(outputs, 1)};
}

}  // namespace ditto
