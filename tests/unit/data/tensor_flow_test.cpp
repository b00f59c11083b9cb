// Which tensors go from one part of a recipe to another, and what a checkpoint keeps of them.
#include "core/data/shapes.h"

#include <doctest/doctest.h>

#include "support/files.h"

using ditto::ErrorKind;
using ditto::SavedShapes;
using ditto::TensorFlow;
using ditto::TensorSpec;
using ditto::TensorSpecs;
using ditto::test::contains;
using ditto::test::error_of;

namespace {

const TensorSpec kImage{"image", at::kFloat, {3, 16, 16}, "-1 … 1"}, kLabel{"label", at::kLong, {}, "", 10};

TensorFlow flow() {
  TensorFlow made;
  made.make("data \"pictures\"", "run.toml:4:1", {kImage, kLabel, {"text", at::kFloat, {-1, 32}, ""}});
  return made;
}

// What is said where a model takes this.
std::string flow_refusal(const TensorSpec& taken) {
  return error_of(ErrorKind::config, [&] { flow().take("model \"m\"", "run.toml:9:1", {taken}); });
}

bool equal(const TensorSpecs& a, const TensorSpecs& b) {
  const auto same = [](const TensorSpec& x, const TensorSpec& y) {
    return x.name == y.name && x.dtype == y.dtype && x.shape == y.shape && x.range == y.range && x.values == y.values &&
           x.names == y.names;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

}  // namespace

TEST_CASE("what is made may be taken: by its own shape, with any length of a dim, and of any shape") {
  for (const TensorSpec& taken : {kImage, kLabel, TensorSpec{"image", at::kFloat, {-1, 16, -1}},
                                  TensorSpec{"image", at::kFloat, ditto::kAnyShape},
                                  TensorSpec{"text", at::kFloat, {77, 32}}, TensorSpec{"text", at::kFloat, {-1, 32}},
                                  TensorSpec{"label", at::kLong, {}, "", 11}, TensorSpec{"label", at::kLong, {}}})
    CHECK(flow_refusal(taken) == "");
}

TEST_CASE("a tensor that nobody makes is refused with who takes it, what there is, and who makes that") {
  CHECK(flow_refusal({"depth_map", at::kFloat, {1, 16, 16}}) ==
        "run.toml:9:1: model \"m\" takes \"depth_map\", and nobody makes it; there is only: image (data \"pictures\"), "
        "label (data \"pictures\"), text (data \"pictures\"); choose data, an encoder or an objective that makes it");
  CHECK(contains(error_of(ErrorKind::config, [] { TensorFlow().take("model \"m\"", "here", {kLabel}); }),
                 "there is only: nothing"));
}

TEST_CASE("two makers of one name are refused by the names of both") {
  auto both = flow();
  const auto said = error_of(ErrorKind::config, [&] { both.make("encoder \"e\"", "run.toml:7:1", {kLabel}); });
  CHECK(contains(said, "run.toml:7:1: encoder \"e\" makes \"label\", and so does data \"pictures\""));
  // What was encoded is gone: its name is free.
  both.encode("encoder \"e\"", "run.toml:7:1", {kImage}, {kImage});
  CHECK(both.specs().size() == 3);
  CHECK(equal({both.specs().back()}, {kImage}));
}

TEST_CASE(
    "a text stays for the encoders behind one that takes it, and goes after the last; what is made of texts alone is "
    "there of the empty text") {
  const TensorSpec caption{"caption", at::kByte, {-1}}, unread{"note", at::kByte, {-1}};
  const auto made = [](const std::string& name) {
    return ditto::TensorSpecs{{name, at::kFloat, {-1, 8}}, {name + "_mask", at::kBool, {-1}}};
  };
  TensorFlow flow;
  flow.make("data \"d\"", "r", {caption, unread, kImage, {"joined_empty", at::kFloat, {2}}});
  flow.encode("encoder \"a\"", "r", {caption}, made("a"));
  flow.encode("encoder \"b\"", "r", {caption}, made("b"));
  flow.encode("encoder \"both\"", "r", made("a"), {{"joined", at::kFloat, {4}}});
  flow.encode("encoder \"seen\"", "r", {caption, kImage}, {{"seen", at::kFloat, {4}}});
  CHECK(flow.text().starts_with("caption (data \"d\"), note"));
  const auto offered = flow.end_encoders();
  REQUIRE(offered.size() == 2);  // of "seen" there is none: it saw a picture; "joined_empty" is the data's
  CHECK(equal(offered, {{"b_empty", at::kFloat, {-1, 8}}, {"b_empty_mask", at::kBool, {-1}}}));
  CHECK(flow.text() ==
        "note (data \"d\"), joined_empty (data \"d\"), b (encoder \"b\"), b_mask (encoder \"b\"), "
        "joined (encoder \"both\"), seen (encoder \"seen\"), b_empty (encoder \"b\"), b_empty_mask "
        "(encoder \"b\")");
  CHECK(contains(error_of(ErrorKind::config, [&] { flow.take("model \"m\"", "r", {caption}); }), "nobody makes it"));
}

TEST_CASE("another dtype, number of dims, size or number of values is refused with both sides") {
  CHECK(
      flow_refusal({"image", at::kByte, {3, 16, 16}}) ==
      "run.toml:9:1: model \"m\" takes \"image\" Byte [3, 16, 16], and data \"pictures\" makes \"image\" Float [3, 16, "
      "16]; choose parts that agree, or their options");
  CHECK(contains(flow_refusal({"image", at::kFloat, {3, 4, 16, 16}}), "takes \"image\" Float [3, 4, 16, 16]"));
  CHECK(contains(flow_refusal({"image", at::kFloat, {-1, 16}}), "takes \"image\" Float [any, 16]"));
  CHECK(contains(flow_refusal({"image", at::kFloat, {1, 16, 16}}), "takes \"image\" Float [1, 16, 16]"));
  CHECK(contains(flow_refusal({"image", at::kByte, ditto::kAnyShape}), "takes \"image\" Byte of any shape"));
  CHECK(contains(flow_refusal({"text", at::kFloat, {-1, 64}}), "makes \"text\" Float [any, 32]"));
  CHECK(contains(flow_refusal({"label", at::kLong, {}, "", 5}),
                 "takes \"label\" Long [] of 0 … 4, and data \"pictures\" makes \"label\" Long [] of 0 … 9"));
}

TEST_CASE("a checkpoint's shapes are read as they were written") {
  SavedShapes shapes;
  shapes.model = {
      {{"x", at::kFloat, {4, 8, 8}, "noisy"}, {"t", at::kFloat, {}, ""}, {"text_mask", at::kBool, {-1}, ""}}, 8};
  shapes.data = {kImage, {"label", at::kLong, {}, "", 3, {"cat", "dog", "größer"}}};
  const auto again = ditto::saved_shapes(to_text(shapes), "here");
  CHECK(equal(again.model.inputs, shapes.model.inputs));
  CHECK(equal(again.data, shapes.data));
  CHECK(again.model.out_channels == 8);
}

TEST_CASE("a checkpoint of before tensors had names says of its model what it said then") {
  const auto pictures = ditto::saved_shapes(
      R"({"x": [3, 32, 32], "out_channels": 6, "classes": 1000, "text_width": 0,
          "data": [{"name": "image", "dtype": 6, "shape": [3, 32, 32], "range": "-1 … 1"},
                   {"name": "label", "dtype": 4, "shape": [], "range": ""}]})",
      "here");
  CHECK(pictures.model.shape("x") == std::vector<int64_t>{3, 32, 32});
  CHECK(pictures.model.shape("t").empty());
  CHECK(pictures.model.values("label") == 1000);
  CHECK(pictures.model.width("text") == 0);
  CHECK(pictures.model.out_channels == 6);
  CHECK(equal(pictures.data, {{"image", at::kFloat, {3, 32, 32}, "-1 … 1"}, {"label", at::kLong, {}, ""}}));

  const auto texts = ditto::saved_shapes(
      R"({"x": [4, 16, 32, 32], "out_channels": 4, "classes": 0, "text_width": 4096, "data": []})", "here");
  CHECK(texts.model.values("label") == 0);
  CHECK(ditto::find(texts.model.inputs, "label") == nullptr);
  CHECK(texts.model.width("text") == 4096);
  CHECK(texts.model.shape("text_mask") == std::vector<int64_t>{-1});
}

TEST_CASE("shapes that cannot be read are refused with the place") {
  for (const char* text : {"[]", R"({"out_channels": 3, "data": []})",
                           R"({"x": [3, 8], "out_channels": "3", "classes": 0, "text_width": 0, "data": []})",
                           R"({"inputs": [{"name": "x"}], "out_channels": 3, "data": []})"})
    CHECK(contains(error_of(ErrorKind::checkpoint, [&] { ditto::saved_shapes(text, "step_7/recipe"); }),
                   "step_7/recipe: the model's shapes cannot be read"));
}
