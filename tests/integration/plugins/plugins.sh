#!/usr/bin/env bash
# Claim (plugins): `ditto plugins`: what it lists, shows and verifies, and that every broken library ends with exit code 3 and
# one line.
set -euo pipefail
build=${DITTO_BUILD_DIR:?the build folder}
ditto=${DITTO:-$build/bin/ditto}
fixtures=$build/tests/fixture_plugins
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "plugins: $1" >&2; exit 1; }
unset DITTO_PLUGIN_PATH

# refused FILE WORDS: verify ends with exit code 3 and one line on stderr that has the words.
refused() {
  local status=0
  "$ditto" plugins verify "$1" > "$work/out" 2> "$work/err" || status=$?
  [ $status -eq 3 ] || fail "verify $1 ended with exit code $status, expected 3: $(cat "$work/err")"
  [ "$(wc -l < "$work/err")" -eq 1 ] || fail "verify $1 wrote more than one line: $(cat "$work/err")"
  grep -qF -- "$2" "$work/err" || fail "verify $1 said: $(cat "$work/err"); expected: $2"
}

"$ditto" plugins verify "$fixtures/good.so" | grep "kernels 'good' 1.2.3 fits and opens; 1 option$" > /dev/null
echo "not a library" > "$work/text.so"
head -c 3000 "$fixtures/good.so" > "$work/cut.so"
sed 's/DITTOPLG/DITTOPLX/' "$fixtures/good.so" > "$work/damaged.so"
refused "$work/text.so" "not an ELF file"
refused "$work/cut.so" "cut off"
refused "$work/damaged.so" "its stamp is damaged"
refused "$work/missing.so" "cannot be read"
refused "$fixtures/no_stamp.so" "no section .ditto.stamp"
refused "$fixtures/other_abi.so" "it was built for ABI"
refused "$fixtures/other_torch.so" "it was built with LibTorch 1.13.1"
refused "$fixtures/other_build.so" "build, and this ditto is a"
refused "$fixtures/unresolved.so" "no library has '_Z15nowhere_definedv'"
refused "$fixtures/no_entry.so" "has no entry function"
refused "$fixtures/entry_throws.so" "the licence server is asleep"

# One broken file takes no other down: the list has all of them, and the tree's own plugins are usable.
list=$("$ditto" plugins list --plugin-path "$fixtures" --json)
python3 - "$list" <<'P'
import json, sys
files = {(f["kind"], f["id"]): f for f in json.loads(sys.argv[1])}
assert files["model", "dit"]["usable"] and files["model", "dit"]["licence"], files["model", "dit"]
assert files["kernels", "good"]["usable"]
assert not files["kernels", "other_abi"]["usable"] and files["kernels", "other_abi"]["refusal"]
assert "twin_a.so and " in files["kernels", "twin"]["refusal"], files["kernels", "twin"]
P
"$ditto" plugins list --plugin-path "$fixtures" | grep -E "^kernels +good +1.2.3 +MIT +[0-9.]+ +ok +good.so" > /dev/null

# show opens a plugin and prints its options; an id that was refused says why.
"$ditto" plugins show model/dit | grep "^depth  *an integer  *12  *1 to 4096 " > /dev/null
"$ditto" plugins show model/dit --json | python3 -c '
import json, sys
options = {o["name"]: o for o in json.load(sys.stdin)["options"]}
assert options["heads"]["default"] == 6 and options["heads"]["help"]'
status=0
"$ditto" plugins show kernels/other_abi --plugin-path "$fixtures" 2> "$work/err" || status=$?
[ $status -eq 3 ] && grep -q "kernels 'other_abi' cannot be used; .*it was built for ABI" "$work/err" || fail "$(cat "$work/err")"
status=0
"$ditto" plugins show model/dti 2> "$work/err" || status=$?
[ $status -eq 3 ] && grep -q "there is no model 'dti'; did you mean 'dit'?" "$work/err" || fail "$(cat "$work/err")"
status=0
"$ditto" plugins show models/dit 2> "$work/err" || status=$?
[ $status -eq 2 ] && grep -q "there is no kind \"models\" of plugins; did you mean \"model\"?" "$work/err" || fail "$(cat "$work/err")"
