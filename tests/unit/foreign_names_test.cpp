// The map of names that lists of layers make.
#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/ditto.h>
#include <ditto/foreign_names.h>

namespace {

struct NamedPart : ditto::Layer {
  NamedPart() : qkv(linear("qkv", 4, 12)), norm(make<ditto::RmsNorm>("norm", 4)) {}
  ditto::Linear qkv;
  std::shared_ptr<ditto::RmsNorm> norm;
};

struct NamedWhole : ditto::Units {
  NamedWhole() {
    linear(ditto::Unit::head, "out", 4, 2);
    for (int64_t i = 0; i < 4; ++i) add_block<NamedPart>(i);
  }
};

const ditto::ForeignTensor& mapped(const ditto::ForeignFormat& format, const std::string& ours) {
  for (const auto& tensor : format.tensors)
    if (tensor.ours == ours) return tensor;
  FAIL(ours);
  return format.tensors.front();
}

using TheirNames = std::vector<std::string>;
using RowNumbers = std::vector<int64_t>;

}  // namespace

TEST_CASE("foreign names: every parameter finds its own, by its block's number; what the model has not is left out") {
  ditto::ForeignNames names{NamedWhole()};
  names.layers("", "Net.", "out=last nobody=nothing");
  names.blocks(2, "blocks.#.", "even.#.", "qkv=q+k+v norm=norm", 0, 2);
  names.blocks(2, "blocks.#.", "odd.#.", "qkv=attn.qkv norm.weight=norm.scale", 1, 2);
  CHECK(names.format.tensors.size() == 2 + 4 * 3);
  CHECK(mapped(names.format, "out.bias").theirs == TheirNames{"Net.last.bias"});
  CHECK(mapped(names.format, "blocks.2.qkv.bias").theirs ==
        TheirNames{"even.1.q.bias", "even.1.k.bias", "even.1.v.bias"});
  CHECK(mapped(names.format, "blocks.2.norm.weight").theirs == TheirNames{"even.1.norm.weight"});
  CHECK(mapped(names.format, "blocks.3.qkv.weight").theirs == TheirNames{"odd.1.attn.qkv.weight"});
  CHECK(mapped(names.format, "blocks.3.norm.weight").theirs == TheirNames{"odd.1.norm.scale"});

  names.shape("blocks.#.qkv", {16, 4});
  names.rows("blocks.#.qkv", {3, 2, 1});
  names.rows("blocks.1.norm", {0});
  CHECK(mapped(names.format, "blocks.0.qkv.weight").shape == RowNumbers{16, 4});
  CHECK(mapped(names.format, "blocks.0.qkv.bias").shape == RowNumbers{16});
  CHECK(mapped(names.format, "blocks.0.qkv.bias").rows == RowNumbers{3, 2, 1});
  CHECK(mapped(names.format, "blocks.1.norm.weight").rows == RowNumbers{0});
  CHECK(mapped(names.format, "blocks.0.norm.weight").rows.empty());
  CHECK(mapped(names.format, "out.weight").rows.empty());

  CHECK(ditto::foreign_name("a=b c=d+e", "c") == "d");
  CHECK(ditto::foreign_name("a=b c=d+e", "c.bias") == "d.bias");
  CHECK(ditto::foreign_name("a=b c=d+e", "d").empty());
  CHECK_THROWS_AS(names.layers("", "", "out"), ditto::Error);
}

TEST_CASE("foreign names: a module's layers are called as the project calls them; pairs of its heads are turned") {
  ditto::ForeignNames names{NamedWhole(), "qkv=to_q+to_k+to_v norm.weight=scale"};
  names.layers("", "", "out=last");
  names.layers("", "", "blocks.0=attn blocks.1.qkv=fused");
  CHECK(names.format.tensors.size() == 2 + 3 + 2);
  CHECK(mapped(names.format, "blocks.0.qkv.bias").theirs ==
        TheirNames{"attn.to_q.bias", "attn.to_k.bias", "attn.to_v.bias"});
  CHECK(mapped(names.format, "blocks.0.norm.weight").theirs == TheirNames{"attn.scale"});
  CHECK(ditto::foreign_name("mlp=ff", "mlp.up.weight", "up=fc1") == "ff.fc1.weight");

  names.turn_pairs("blocks.#", 4);
  CHECK(mapped(names.format, "blocks.0.qkv.weight").rows == RowNumbers{0, 2, 1, 3, 4, 6, 5, 7, 8, 9, 10, 11});
  CHECK(mapped(names.format, "blocks.1.qkv.bias").rows == RowNumbers{0, 2, 1, 3, 4, 6, 5, 7, 8, 9, 10, 11});
  CHECK(mapped(names.format, "blocks.0.norm.weight").rows.empty());
  CHECK(mapped(names.format, "out.weight").rows.empty());
}

TEST_CASE(
    "foreign rows: pairs that lie side by side there lie half a head apart here; groups of heads lie together there") {
  CHECK(ditto::foreign_rows({{0, 8, 4}, {8, 2}}) == RowNumbers{0, 2, 1, 3, 4, 6, 5, 7, 8, 9});
  CHECK(ditto::megatron_rows({2, 1, 1}, 2, 2) == RowNumbers{0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15});
}
