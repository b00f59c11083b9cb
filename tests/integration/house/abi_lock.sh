#!/usr/bin/env bash
# The SDK's headers are those that sdk/abi.lock was made of; the lock notices what it should, and no more, and for the kinds
# of plugins that it concerns. A sampler that was built before the kit of strategies changed still loads, and one of before a
# change of its own interface is refused.
#
# Claim (plugins): A private change of the kit of strategies refuses no sampler that was built before, one of the sampler's
# interface does.
set -euo pipefail
root=${DITTO_SOURCE_DIR:-$(cd "$(dirname "$0")/../../.." && pwd)}
build=${DITTO_BUILD_DIR:?the build folder}
lock="$root/sdk/abi_lock.py"
export PYTHONDONTWRITEBYTECODE=1
python3 "$lock"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
copy="$work/sdk"
fail() { echo "abi_lock: $1" >&2; exit 1; }
fresh() {
  rm -rf "$copy" && mkdir "$copy"
  cp -r "$root/sdk/include" "$root/sdk/abi.lock" "$copy"
  cp "$root/CHANGELOG.md" "$work"
}
holds() { python3 "$lock" --sdk "$copy" 2> "$copy/said"; }
include="$copy/include/ditto"
raise() { sed -i -E "s/(kAbi = )[0-9]+/\\1$2/" "$include/$1"; }
# The kinds that the message says have changed: "sampler (6 in sampler.h), …".
changed() { { grep -oE '[a-z]+ \([0-9]+ in [a-z/]+\.h\)' "$copy/said" || true; } | sed 's/ .*//' | sort | xargs; }

fresh
printf '// a comment\n\n   /* another */\n' >> "$include/stream.h"
sed -i 's/  int64_t first_token = 0;/  int64_t   first_token=0 ;  \/\/ words/' "$include/stream.h"
holds || fail "comments and white space must not matter: $(cat "$copy/said")"

echo 'struct Added { int value; };' >> "$include/stream.h"
holds && fail "a new struct went unnoticed"
grep -q "kAbi is still" "$copy/said" || fail "the message does not say what is wrong"
grep -q "python3 sdk/abi_lock.py --write" "$copy/said" || fail "the message does not name the command"
[ "$(changed)" = "encoder model objective parallel" ] || fail "models' streams changed for: $(changed)"

raise model.h 999
holds && fail "three kinds have not raised their numbers"
[ "$(changed)" = "encoder objective parallel" ] || fail "still to be raised: $(changed)"
for header in encoder.h objective.h parallel/strategy.h; do raise $header 999; done
holds && fail "raised numbers need a new lock"
python3 "$lock" --sdk "$copy" --write
holds || fail "a lock that was just written does not hold"

# A released version keeps its ABI.
version=$(sed -n 's/.*kVersion = "\(.*\)".*/\1/p' "$include/version.h")
sed -i "s/^## Unreleased.*/## $version/" "$work/CHANGELOG.md"
holds || fail "the version that is released now has its ABI: $(cat "$copy/said")"
raise sampler.h 1000
! python3 "$lock" --sdk "$copy" --write 2> "$copy/said" || fail "a released version got another ABI"
grep -q "raise kVersion" "$copy/said" || fail "the message does not say what to do: $(cat "$copy/said")"
sed -i 's/kVersion = ".*"/kVersion = "99.0.0"/' "$include/version.h"
python3 "$lock" --sdk "$copy" --write || fail "a new version may have another ABI"
holds && fail "CHANGELOG.md does not know this version"
sed -i "0,/^## /s//## Unreleased: 99.0.0\n\n## /" "$work/CHANGELOG.md"
holds || fail "a new version with its ABI does not hold: $(cat "$copy/said")"

fresh
echo 'struct Stray {};' > "$include/stray.h"
holds && fail "a header that no kind's number stands for went unnoticed"
grep -q "no kind's number stands for stray.h" "$copy/said" || fail "it said: $(cat "$copy/said")"

# A sampler out of the tree, built with the headers of the copy: what it was built with is another Ditto's than the program.
cat > "$work/mine.cpp" <<'C'
#include <ditto/sampler.h>
struct Mine final : ditto::Sampler {
  using Options = ditto::NoOptions;
  Mine(const Options&, const Needs&) {}
  torch::Tensor sample(const ditto::SamplingRequest& request) const override {
    return integrate(request, [&](const torch::Tensor& x, const ditto::Step&) { return x; });
  }
};
DITTO_PLUGIN(Sampler, Mine, "mine", "0.1.0", "Apache-2.0", "stands still")
C
# As plugins of the tree are compiled, but for the headers: sampler NAME builds $work/NAME.so with what $copy holds now.
sampler() {
  cp -r "$copy" "$work/$1"
  python3 - "$build" "$root/sdk/include" "$work/$1/include" > "$work/$1.flags" <<'P'
import json, sys
build, own, other = sys.argv[1:]
command = next(e["command"] for e in json.load(open(build + "/compile_commands.json")) if e["file"].endswith("euler.cpp"))
words = command.split(" -include ")[0].split()
print(" ".join("-I" + other if word == "-I" + own else word for word in words if word[0] != "/" or "include" in word))
P
  c++ $(cat "$work/$1.flags") -O0 -w -shared -o "$work/$1.so" "$work/mine.cpp" -L"$build/lib" -lditto_sdk \
    -L"$build/lib/torch/lib" -lc10 -ltorch_cpu 2> "$work/$1.said"
}

fresh
sed -i 's/^class DITTO_API PeerChannel {$/& int added_ = 0;/' "$include/parallel/peer_channel.h"
holds && fail "a member of a channel went unnoticed"
[ "$(changed)" = "parallel" ] || fail "a member of a channel changed: $(changed)"
raise parallel/strategy.h 777
sampler other_kit & kit=$!
while [ ! -e "$work/other_kit.flags" ]; do sleep 0.1; done

fresh
sed -i 's/^class DITTO_API Sampler {$/& int added_ = 0;/' "$include/sampler.h"
holds && fail "a member of Sampler went unnoticed"
[ "$(changed)" = "guidance sampler" ] || fail "a member of Sampler changed: $(changed)"
raise sampler.h 777
sampler other_sampler || fail "$(head -20 "$work/other_sampler.said")"
wait $kit || fail "$(head -20 "$work/other_kit.said")"

"$build/bin/ditto" plugins verify "$work/other_kit.so" | grep -q "sampler 'mine' 0.1.0 fits and opens" ||
  fail "another kit of strategies refused a sampler"
status=0
"$build/bin/ditto" plugins verify "$work/other_sampler.so" 2> "$work/said" || status=$?
[ $status -eq 3 ] || fail "a sampler of another ABI ended with exit code $status, expected 3"
own=$(sed -n 's/.*kAbi = \([0-9]*\);/\1/p' "$root/sdk/include/ditto/sampler.h")
grep -q "it was built for ABI 777 of kind 'sampler', and this ditto has $own;" "$work/said" || fail "it said: $(cat "$work/said")"
