// The plugin webdataset on samples that NeMo's scripts make: latents (.pth), embedded texts (.pickle), notes (.json).
#include <doctest/doctest.h>
#include <torch/types.h>

#include <ditto/data.h>
#include <ditto/error.h>

#include "core/data/loader.h"
#include "core/formats/archive/tar.h"
#include "tests/support/files.h"
#include "tests/support/open_plugin.h"

namespace {

using ditto::Error;
using ditto::ErrorKind;
using ditto::kOwnSide;
using ditto::test::contains;
using ditto::test::error_of;
using ditto::test::golden_format;
using ditto::test::read_text;
using ditto::test::TemporaryFolder;
using Options = std::map<std::string, ditto::OptionValue>;
using Sides = std::vector<int64_t>;
using Strings = std::vector<std::string>;

struct Saved {
  std::string latent, text;
};

void write_shard(const std::string& path, const std::vector<Saved>& samples, const std::string& dot = "") {
  ditto::formats::TarWriter tar(path);
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto key = std::to_string(100 + i) + "." + dot;
    tar.add(key + "pth", samples[i].latent);
    tar.add(key + "pickle", samples[i].text);
    tar.add(key + "json", R"({"image_height": 16, "image_width": 24, "aesthetic_score": 5.5})");
  }
  tar.finish();
}

std::string golden(const std::string& name) { return read_text(golden_format(name)); }

std::shared_ptr<ditto::Source> open_latents(const TemporaryFolder& folder, Options options = {},
                                            bool shapes_only = false) {
  options.emplace("shards", Strings{"*.tar"});
  options.emplace("image", Strings{"pth"});
  options.emplace("text", "pickle");
  options.emplace("label", "none");
  return ditto::test::make_plugin<ditto::Source>(
      "data", "webdataset", options,
      {.split = ditto::SplitOf::train, .folder = folder.path().string(), .shapes_only = shapes_only});
}

torch::Tensor ramp(at::IntArrayRef shape) {
  return (torch::arange(12, torch::kFloat) / 8 - 1).slice(0, 0, c10::multiply_integers(shape)).view(shape);
}

}  // namespace

TEST_CASE("latents and embedded texts are read, of members with one dot and with two") {
  for (const std::string dot : {"", "."}) {
    const TemporaryFolder folder;
    write_shard(folder / "a.tar",
                {{golden("saved_latent.pth"), golden("saved_numpy.pickle")},
                 {golden("saved_latent.pth"), golden("saved_tensor.pickle")}},
                dot);
    const auto source = open_latents(folder, {{"image", Strings{dot + "pth"}}, {"text", dot + "pickle"}});
    const auto specs = source->makes();
    CHECK(find(specs, "image")->shape == Sides{2, 1, 2, 3});
    CHECK(find(specs, "text")->shape == Sides{-1, 3});
    CHECK((find(specs, "text_mask")->dtype == at::kBool));
    for (int64_t i = 0; i < 2; ++i) {
      const auto sample = source->read(i);
      CHECK(sample.place == "a.tar:" + std::to_string(100 + i) + "." + dot + "pth");
      CHECK(sample.tensors.at("image").equal(ramp({2, 1, 2, 3})));
      CHECK(sample.tensors.at("text").equal(ramp({2, 3})));
      CHECK(sample.tensors.at("text_mask").equal(torch::ones({2}, torch::kBool)));
    }
    CHECK(open_latents(folder, {{"image", Strings{dot + "pth"}}, {"text", dot + "pickle"}, {"text_tokens", int64_t{1}}})
              ->read(0)
              .tensors.at("text")
              .equal(ramp({1, 3})));
  }
}

TEST_CASE("latents of several sizes tell theirs without the loader; bad ones keep their place") {
  const TemporaryFolder folder;
  const auto text = golden("saved_numpy.pickle");
  write_shard(folder / "a.tar", {{golden("saved_latent.pth"), text},
                                 {golden("saved_long.pth"), text},
                                 {golden("saved_latent.pth").substr(0, 400), text},
                                 {golden("saved_large.pth"), text},
                                 {golden("saved_nan.pth"), text},
                                 {golden("saved_latent.pth"), "no pickle"}});
  const auto source = open_latents(folder, {{"latent", Sides{2, -1, -1, -1}}, {"text_width", int64_t{3}}});
  CHECK(source->makes()[0].shape == Sides{2, kOwnSide, kOwnSide, kOwnSide});
  CHECK(source->info(0).at("image") == Sides{2, 1, 2, 3});
  CHECK(source->info(1).at("image") == Sides{2, 3, 2, 1});
  CHECK(source->info(2).at("image") == Sides{2, 1, 2, 3});
  const std::vector<std::string> why{
      "a.tar:102.pth: cannot be opened as a zip archive", "a.tar:103.pth: the latent holds numbers up to 1001",
      "a.tar:104.pth: holds numbers that are not finite", "a.tar:105.pickle: is neither"};
  for (size_t i = 0; i < why.size(); ++i)
    CHECK(contains(error_of(ErrorKind::data, [&] { source->read(static_cast<int64_t>(2 + i)); }), why[i]));
  ditto::LoaderOptions options;
  options.shuffle = false;
  ditto::Loader loader(source, options, 1, {});
  const auto batch = loader.next({0, 6});
  CHECK(batch.weights.size() == 6);
  CHECK(std::count(batch.weights.begin(), batch.weights.end(), 1.0) == 2);
}

TEST_CASE("latents that do not fit, and recipes that ask for what is not there, are refused by name") {
  const TemporaryFolder folder;
  write_shard(folder / "a.tar", {{golden("saved_latent.pth"), golden("saved_numpy.pickle")}});
  CHECK(contains(error_of(ErrorKind::data,
                          [&] {
                            open_latents(folder, {{"latent", Sides{4, 1, 2, 3}}})->read(0);
                          }),
                 "the latent is [2, 1, 2, 3]; expected [4, 1, 2, 3]"));
  CHECK(contains(error_of(ErrorKind::data,
                          [&] {
                            open_latents(folder, {{"text_width", int64_t{5}}})->read(0);
                          }),
                 "the text is [2, 3]; expected [tokens, 5]"));
  CHECK(contains(error_of(ErrorKind::data, [&] { open_latents(folder, {{"text", "npy"}}); }), "no member \"100.npy\""));
  const auto refusal = [&](Options options, bool shapes_only = false) {
    return error_of(ErrorKind::config, [&] { open_latents(folder, std::move(options), shapes_only); });
  };
  CHECK(contains(refusal({}, true), "data.latent: is not there"));
  CHECK(contains(refusal({{"image", Strings{"pth", "png"}}}), "names tensors beside pictures"));
  CHECK(contains(refusal({{"size", Sides{2, 2}}}), "data.latent says their shape"));
  CHECK(contains(refusal({{"latent", Sides{2, 3}}}), "expected [channels, frames, rows, columns]"));
  CHECK(contains(refusal({{"text", "none"}, {"text_width", int64_t{5}}}), "data.text is \"none\""));
  const auto known = open_latents(folder, {{"latent", Sides{2, 1, 2, 3}}, {"text_width", int64_t{3}}}, true);
  CHECK(known->makes()[0].shape == Sides{2, 1, 2, 3});
}

TEST_CASE("a text is found by its key in a pickle of several, and called as the recipe says") {
  const TemporaryFolder folder;
  write_shard(folder / "a.tar", {{golden("saved_latent.pth"), golden("saved_imagen.pickle")}});
  const auto source =
      open_latents(folder, {{"text_key", "embeddings_t5_xxl"}, {"text_name", "t5_text"}, {"text_width", int64_t{3}}});
  CHECK(find(source->makes(), "t5_text")->shape == Sides{-1, 3});
  CHECK(find(source->makes(), "t5_text_mask")->shape == Sides{-1});
  const auto sample = source->read(0);
  CHECK(sample.tensors.at("t5_text").equal(ramp({2, 3})));
  CHECK(sample.tensors.at("t5_text_mask").equal(torch::ones({2}, torch::kBool)));
  CHECK(find(open_latents(folder, {{"text_key", "embeddings_clip"}})->makes(), "text")->shape == Sides{-1, 4});
  CHECK(source->fingerprint() != open_latents(folder, {{"text_key", "embeddings_clip"}})->fingerprint());
  CHECK(contains(error_of(ErrorKind::data,
                          [&] {
                            open_latents(folder, {{"text_key", "umt5"}});
                          }),
                 "a.tar:100.pickle: has no \"umt5\", only"));
  CHECK(contains(error_of(ErrorKind::config,
                          [&] {
                            open_latents(folder, {{"text", "none"}, {"text_key", "t5"}});
                          }),
                 "text_key is of texts, and data.text is \"none\""));
  CHECK(contains(error_of(ErrorKind::config,
                          [&] {
                            open_latents(folder, {{"text_name", ""}});
                          }),
                 "text_name is empty"));
}
