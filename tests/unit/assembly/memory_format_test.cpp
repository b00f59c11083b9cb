// How the maps of a run lie: which models have any, what is measured and kept, and what is refused.
#include "core/assembly/memory_format.h"

#include <doctest/doctest.h>

#include <algorithm>

#include <ditto/error.h>

#include "core/assembly/assembly.h"
#include "core/assembly/resume.h"
#include "core/config/late_options.h"
#include "core/mesh/gloo_mesh.h"
#include "tests/support/files.h"

namespace ditto {
namespace {

constexpr const char* kUNet =
    "[model]\nplugin = \"autoencoder_kl\"\nchannels = [4, 8]\ngroups = 2\nlayers = 1\nlatent = 2\n"
    "[objective]\nplugin = \"autoencoder\"\n";
constexpr const char* kTransformer =
    "[model]\nplugin = \"uvit\"\ndepth = 2\nwidth = 16\nheads = 2\npatch = 2\n"  // one convolution, in its head
    "[scheduler]\nplugin = \"rectified_flow\"\n[objective]\nplugin = \"diffusion\"\n";

Recipe of(const std::string& model, const std::vector<std::string>& sets = {}) {
  return Recipe::parse(
      "[data]\nplugin = \"synthetic\"\nsamples = 8\nheight = 8\nwidth = 8\nchannels = 3\n"
      "[encoder.image]\nplugin = \"identity\"\n[optimizer]\nplugin = \"adamw\"\n" +
          model,
      "maps.toml", sets);
}

// How maps lie in a run of the recipe, and what it notes of that.
struct Begun {
  at::MemoryFormat maps;
  std::string noted;
};

Begun begun(Recipe recipe, bool measures = true) {
  static Registry registry(std::vector<SearchFolder>{{test::plugin_folder(), "the test"}});
  const GlooMesh mesh(RankInfo{}, {}, std::chrono::seconds(60));
  AssemblyParts parts;
  parts.data = parts.objective = true;
  parts.weights = RunningModel::Weights::none;
  parts.measures = measures;
  const Assembly assembly(recipe, registry, mesh, parts, {});
  const auto* noted = recipe.resolved().find_path("run.memory_format");
  return {assembly.main->ctx->maps, noted ? *noted->as<std::string>() : "none"};
}

}  // namespace

TEST_CASE("maps lie as the recipe says, or as was measured, which the run notes") {
  CHECK(begun(of(kUNet, {"run.memory_format=channels_last"})).maps == at::MemoryFormat::ChannelsLast);
  CHECK(begun(of(kUNet, {"run.memory_format=channels_first"})).maps == at::MemoryFormat::Contiguous);
  const auto measured = begun(of(kUNet));
  CHECK((measured.noted == kChannelsFirst || measured.noted == kChannelsLast));
  CHECK((measured.maps == at::MemoryFormat::ChannelsLast) == (measured.noted == kChannelsLast));
  CHECK(begun(of(kUNet)).noted == measured.noted);
  for (const bool measures : {true, false}) {
    const auto none = begun(of(kTransformer), measures);
    CHECK(none.maps == at::MemoryFormat::Preserve);
    CHECK(none.noted == "none");
  }
  CHECK(begun(of(kUNet), false).maps == at::MemoryFormat::Preserve);
}

TEST_CASE("nothing is measured where no bits may depend on it, nor in proofs") {
  for (const std::string set : {"run.numerics=one", "run.precision=fp64"}) {
    const auto none = begun(of(kUNet, {set}));
    CHECK(none.maps == at::MemoryFormat::Preserve);
    CHECK(none.noted == "none");
  }
  const auto one = of(kUNet, {"run.numerics=one", "run.memory_format=channels_last"});
  CHECK(begun(one).maps == at::MemoryFormat::Preserve);
  const auto notes = notes_on_options(one);
  CHECK(std::any_of(notes.begin(), notes.end(), [](const auto& line) {
    return line.starts_with("warning: run.memory_format") && line.ends_with("it changes nothing");
  }));
}

TEST_CASE("how maps lie is refused of a model that has none") {
  const auto said =
      test::error_of(ErrorKind::config, [&] { begun(of(kTransformer, {"run.memory_format=channels_last"})); });
  CHECK(said.find("run.memory_format") != said.npos);
  CHECK(said.find("model \"uvit\" has no convolution in its blocks") != said.npos);
  CHECK_THROWS_AS(of(kUNet, {"run.memory_format=rows"}), Error);
}

TEST_CASE("a resume keeps how maps lay, but what it is asked for") {
  const auto kept = [](const std::string& saved, const std::vector<std::string>& sets = {}) {
    auto recipe = of(kUNet, sets);
    keep_memory_format(recipe, saved);
    return recipe;
  };
  const std::string last = "[run]\nmemory_format = \"channels_last\"\n";
  CHECK(kept(last).run.memory_format == kChannelsLast);
  CHECK(kept(last).memory_format_was_measured);
  CHECK(kept(last, {"run.memory_format=channels_first"}).run.memory_format == kChannelsFirst);
  CHECK(kept("[run]\nmemory_format = \"auto\"\n").run.memory_format == kMeasured);
  CHECK(kept("[run]\nsteps = 3\n").run.memory_format == kMeasured);
  const auto asked = kept(last, {"run.memory_format=channels_first"});
  const auto said = compare_recipes(kept(last).resolved(), asked.resolved(), asked.effects(), {});
  REQUIRE(said.size() == 1);
  CHECK(said[0] ==
        "run.memory_format: \"channels_last\" -> \"channels_first\" (equal within rounding from here on, not "
        "bit for bit)");
}

}  // namespace ditto
