#!/usr/bin/env bash
# A copy of sdk/template, outside of the tree, builds against an installed and moved prefix, passes its contract tests
# and trains; the tree is not touched. So does the model that docs/add_a_model.md builds; the page's other blocks compile.
# A source of data beside it reads shards with the parsers that the prefix offers.
#
# Claim (plugins): A copy of `sdk/template` outside of the tree, and a source of data with Ditto's parsers, build against a
# moved installation, keeps its promises and trains.
set -euo pipefail
build=${DITTO_BUILD_DIR:?the build folder}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "template: $1" >&2; exit 1; }
unset DITTO_PLUGIN_PATH

cmake --install "$build" --prefix "$work/first" > "$work/install.log" || fail "$(tail -5 "$work/install.log")"
mv "$work/first" "$work/moved"
prefix=$work/moved

# From anywhere, the examples of the installed program name what was installed with it.
cd "$work"
recipe=$("$prefix/bin/ditto" train --help | sed -n 's/^Example: ditto train \([^ ]*\).*/\1/p')
[ "$recipe" = "$prefix/share/ditto/configs/digits.toml" ] || fail "the example names $recipe"
"$prefix/bin/ditto" config check "$recipe" || fail "the example's recipe is not fine"
cp -r "$prefix/share/ditto/template" "$work/mine"
cd "$work/mine"
python3 - "${DITTO_SOURCE_DIR:?the source folder}/docs/add_a_model.md" <<'P'
import re, sys
codes = re.findall(r"```cpp\n(.*?)```", open(sys.argv[1]).read(), re.S)
whole, block = [code for code in codes if "struct Block" in code]
layer, = [code for code in codes if "struct Lens" in code]
op, = [code for code in codes if "KernelSet" in code]
open("port.cpp", "w").write(whole)
open("layer.cpp", "w").write("#include <ditto/ditto.h>\n" + layer + "static_assert(std::is_constructible_v<Lens, int, int>);\n")
open("op.cpp", "w").write("#include <ditto/ditto.h>\n" + op)
open("block.cpp", "w").write(block + "static_assert(std::is_constructible_v<Block, ditto::AttentionOptions>);\n")
P
cat > one_shard.cpp <<'C'
#include <ATen/Functions.h>

#include <ditto/data.h>
#include <ditto/formats/picture.h>
#include <ditto/formats/shard.h>

using namespace ditto;

struct OneShard final : Source {
  struct Options {
    std::string shard;
    void read(OptionReader& option) { option("shard", shard, "a tar file of pictures and classes").place(); }
  };
  OneShard(const Options& options, const Needs&)
      : file(formats::RandomFile::open(options.shard)),
        samples(formats::shard_samples(formats::index_tar(options.shard), options.shard)) {}
  int64_t size() const override { return static_cast<int64_t>(samples.size()); }
  TensorSpecs makes() const override {
    return {{"image", at::kFloat, {1, 8, 8}, "-1 … 1"}, {"label", at::kLong, {}, "0 … 9", 10}};
  }
  Sample read(int64_t index) const override {
    const auto& sample = samples.at(static_cast<size_t>(index));
    const auto bytes = [&](const char* extension) {
      const auto* member = sample.find(extension);
      return formats::read_member(*file, member->offset, member->size, sample.key);
    };
    const auto picture = formats::decode_picture(bytes("png"), sample.key, {.channels = formats::Channels::grey});
    const auto label = bytes("cls");
    const std::string_view text(reinterpret_cast<const char*>(label.data()), label.size());
    return {{{"image", at::tensor(at::ArrayRef<uint8_t>(picture.pixels), at::kByte).to(at::kFloat).view({1, 8, 8}) / 127.5 - 1},
             {"label", at::scalar_tensor(formats::parse_label(text, sample.key), at::kLong)}},
            sample.key};
  }
  std::string fingerprint() const override { return samples.front().key; }
  std::shared_ptr<const formats::RandomFile> file;
  std::vector<formats::ShardSample> samples;
};
DITTO_PLUGIN(Source, OneShard, "one_shard", "0.1.0", "Apache-2.0", "pictures of one shard")
C
sed -i 's/find_package(Ditto 0.2 REQUIRED)/find_package(Ditto 0.2 REQUIRED COMPONENTS formats)/' CMakeLists.txt
cat >> CMakeLists.txt <<'C'
ditto_add_plugin(one_shard data SOURCES one_shard.cpp LIBRARIES Ditto::formats)
ditto_add_plugin(port models SOURCES port.cpp block.cpp layer.cpp)
ditto_add_plugin(square_gate kernels SOURCES op.cpp)
add_test(NAME page COMMAND tiny_test $<TARGET_FILE:ditto_models_port>)
C

cmake -S . -B build -DCMAKE_PREFIX_PATH="$prefix" > "$work/configure.log" 2>&1 || fail "$(tail -20 "$work/configure.log")"
cmake --build build -j2 > "$work/build.log" 2>&1 || fail "$(tail -30 "$work/build.log")"
! grep -i warning "$work/build.log" || fail "the template builds with warnings"
ctest --test-dir build --output-on-failure

# LibTorch is looked for beside the installation before LD_LIBRARY_PATH is asked.
for file in build/lib/ditto/plugins/*/*.so "$prefix"/lib/ditto/plugins/*/*.so "$prefix/bin/ditto" build/tiny_test; do
  ! readelf -d "$file" | grep RUNPATH || fail "$file has a RUNPATH, which LD_LIBRARY_PATH goes before"
done

plugins=build/lib/ditto/plugins
"$prefix/bin/ditto" plugins verify $plugins/models/libtiny.so
DITTO_PLUGIN_PATH=$plugins "$prefix/bin/ditto" plugins list | grep -E "^model +tiny .* ok " || fail "the plugin is not listed"
"$prefix/bin/ditto" train tiny.toml --plugin-path $plugins --set run.steps=5 --set run.threads=1
[ "$(wc -l < runs/tiny/metrics.jsonl)" -eq 5 ] || fail "metrics.jsonl has not one line for each of 5 steps"
shard=$(ls "$prefix"/share/ditto/data/digits/train-*.tar | head -1)
sed -e '/^\[data\]/,/^$/d' tiny.toml > digits.toml
printf '\n[data]\nplugin = "one_shard"\nshard = "%s"\n' "$shard" >> digits.toml
"$prefix/bin/ditto" train digits.toml --plugin-path $plugins --set run.steps=3 --set run.name=digits --set run.threads=1
[ "$(wc -l < runs/digits/metrics.jsonl)" -eq 3 ] || fail "digits from a source outside of the tree: not 3 steps"
# Without its folder the plugin is not there, and the message says so.
status=0
"$prefix/bin/ditto" train tiny.toml --set run.steps=5 --set run.name=none 2> "$work/said" || status=$?
[ $status -eq 3 ] || fail "an unknown plugin ended with exit code $status, expected 3"
grep -q "there is no model 'tiny'" "$work/said" || fail "it said: $(cat "$work/said")"
grep -q "name its folder by --plugin-path or in DITTO_PLUGIN_PATH" "$work/said" || fail "no remedy: $(cat "$work/said")"
for page in README.md docs/config.md docs/add_a_model.md; do
  [ -s "$prefix/share/doc/ditto/$page" ] || fail "$page is not installed"
done
