#!/usr/bin/env bash
# The host stays small, and knows no tensor by name but those that core/data/names.h lists.
#
# Claim (plugins): No tensor is named by the host outside of one list.
set -euo pipefail
cd "${DITTO_SOURCE_DIR:-.}"

fail() { echo "$*"; exit 1; }

found=$(grep -rnE '"(clean|label|text|image|caption|x_t|prediction|time_u|features|modulated_input)"' core --include='*.cpp' --include='*.h' | grep -v '^core/data/names.h:' |
  grep -vE '^core/formats/|^core/dataset/(inspect|picture_notes|prepare_folder)|:[0-9]+: *//' || true)  # fields of people's own notes
[ -z "$found" ] || fail "the host names a tensor outside of core/data/names.h:
$found"
lines=$(wc -l < core/assembly/assembly.cpp)
[ "$lines" -lt 120 ] || fail "core/assembly/assembly.cpp has $lines lines; it only puts parts together: under 120"
