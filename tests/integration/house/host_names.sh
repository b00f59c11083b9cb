#!/usr/bin/env bash
# The host stays small, knows no tensor by name but those that core/data/names.h lists, and no plugin but its defaults.
#
# Claim (plugins): No tensor is named by the host outside of one list, and no plugin outside of the defaults in `core/config/run_options.h`.
set -euo pipefail
cd "${DITTO_SOURCE_DIR:-.}"

fail() { echo "$*"; exit 1; }

found=$(grep -rnE '"(clean|label|text|image|caption|x_t|prediction|time_u|features|modulated_input)"' core --include='*.cpp' --include='*.h' | grep -v '^core/data/names.h:' |
  grep -vE '^core/formats/|^core/dataset/(inspect|masks|picture_notes|prepare_folder)|^core/plan/nemo_recipe|:[0-9]+: *//' || true)  # words of people's own notes and names, and of recipes
[ -z "$found" ] || fail "the host names a tensor outside of core/data/names.h:
$found"
# Of plugins' names that are other words too (a device, axes, values of options, what texts tell of) literals say nothing.
words='cpu|exact|expert|none|pipeline|table|tensor'
ids=$(grep -rhoPz 'DITTO_PLUGIN\(\s*\w+,\s*[\w:]+,\s*"\K[^"]+' plugins --include='*.cpp' | tr '\0' '\n' | grep -vxE "$words" | sort -u)
[ "$(wc -l <<<"$ids")" -gt 20 ] || fail "found only these names of plugins: $ids"
# bench_kernels.cpp holds a recipe, nemo_recipe.cpp writes one, mistyped.cpp has words of other programs.
found=$(grep -rnE "\"($(paste -sd'|' <<<"$ids"))\"" core apps --include='*.cpp' --include='*.h' |
  grep -vE '^core/config/run_options\.h:|^apps/ditto/(bench_kernels|mistyped)\.cpp:|^core/plan/nemo_recipe\.cpp:|:[0-9]+: *//' || true)
[ -z "$found" ] || fail "the host names a plugin outside of core/config/run_options.h:
$found"
for id in $ids; do
  count=$(grep -cE "\"$id\"" core/config/run_options.h || true)
  [ "$count" -le 1 ] || fail "core/config/run_options.h names the plugin $id in $count lines; once is enough"
done
lines=$(wc -l < core/assembly/assembly.cpp)
[ "$lines" -lt 120 ] || fail "core/assembly/assembly.cpp has $lines lines; it only puts parts together: under 120"
