#!/usr/bin/env bash
# Claim (plugins): `ditto plugins new` writes sdk/template's model under a name, in a folder of its own, and refuses what it
# cannot write. That it compiles, trains and runs on every layout: new_model_slow_test.py.
set -euo pipefail
ditto=${DITTO:?the program}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "plugins_new: $1" >&2; exit 1; }

# refused WORDS NAMED…: exit code 2, and one line that has the words; nothing is written.
refused() {
  local words=$1 status=0
  shift
  find . | sort > before
  "$ditto" plugins new "$@" > out 2> err || status=$?
  [ $status -eq 2 ] || fail "new $*: exit code $status, expected 2: $(cat err)"
  [ "$(wc -l < err)" -eq 1 ] || fail "new $*: more than one line: $(cat err)"
  grep -qF -- "$words" err || fail "new $* said: $(cat err); expected: $words"
  find . | sort | diff before - || fail "new $* has written something"
}
touch before out err

"$ditto" plugins new model my_net --in some/where > said
[ "$(cd some/where/my_net && echo *)" = "CMakeLists.txt my_net.cpp" ] || fail "it wrote $(ls some/where/my_net)"
grep -q "libmy_net.so" said || fail "it does not say what it will build: $(cat said)"
sed -e 's/\<TinyOptions\>/MyNetOptions/g; s/\<Tiny\>/MyNetModel/g; s/\<tiny\>/my_net/g' "${DITTO_SOURCE_DIR:?}/sdk/template/tiny.cpp" |
  diff - some/where/my_net/my_net.cpp || fail "it is another model than sdk/template's"
grep -q "^ditto_add_plugin(my_net models SOURCES my_net.cpp)" some/where/my_net/CMakeLists.txt || fail "its CMakeLists.txt builds something else"

refused "some/where/my_net: is there already" model my_net --in some/where
mkdir empty
refused "empty: is there already" model empty
ln -s nowhere dangling
refused "dangling: is there already" model dangling
for name in Net my-net 2net ../net net.cpp "$(printf 'n%.0s' {1..65})"; do
  refused "is not the name of a plugin" model "$name"
done
refused "NAME: is given an empty value" model ''
refused "'sampler' is a kind that it does not write" sampler net
touch file
refused "cannot be made" model net --in file
echo "plugins_new: a folder, and ten refusals"
