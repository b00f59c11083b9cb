#!/usr/bin/env bash
# The SDK's headers are those that sdk/abi.lock was made of; and the lock notices what it should, and no more.
set -euo pipefail
root=${DITTO_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
lock="$root/sdk/abi_lock.py"
python3 "$lock"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
copy="$work/sdk"
mkdir "$copy"
cp -r "$root/sdk/include" "$root/sdk/abi.lock" "$copy"
cp "$root/CHANGELOG.md" "$work"
fail() { echo "abi_lock: $1" >&2; exit 1; }
holds() { python3 "$lock" --sdk "$copy" 2> "$copy/said"; }
header="$copy/include/ditto/stream.h"

printf '// a comment\n\n   /* another */\n' >> "$header"
sed -i 's/  int64_t first_token = 0;/  int64_t   first_token=0 ;  \/\/ words/' "$header"
holds || fail "comments and white space must not matter: $(cat "$copy/said")"

echo 'struct Added { int value; };' >> "$header"
holds && fail "a new struct went unnoticed"
grep -q "kAbi is still" "$copy/said" || fail "the message does not say what is wrong"
grep -q "python3 sdk/abi_lock.py --write" "$copy/said" || fail "the message does not name the command"

sed -i -E 's/(kAbi = )[0-9]+/\1999/' "$copy/include/ditto/version.h"
holds && fail "a raised number needs a new lock"
python3 "$lock" --sdk "$copy" --write
holds || fail "a lock that was just written does not hold"

# A released version keeps its ABI.
version=$(sed -n 's/.*kVersion = "\(.*\)".*/\1/p' "$copy/include/ditto/version.h")
sed -i "s/^## Unreleased.*/## $version/" "$work/CHANGELOG.md"
holds || fail "the version that is released now has its ABI: $(cat "$copy/said")"
sed -i -E 's/(kAbi = )[0-9]+/\11000/' "$copy/include/ditto/version.h"
! python3 "$lock" --sdk "$copy" --write 2> "$copy/said" || fail "a released version got another ABI"
grep -q "raise kVersion" "$copy/said" || fail "the message does not say what to do: $(cat "$copy/said")"
sed -i 's/kVersion = ".*"/kVersion = "99.0.0"/' "$copy/include/ditto/version.h"
python3 "$lock" --sdk "$copy" --write || fail "a new version may have another ABI"
holds && fail "CHANGELOG.md does not know this version"
sed -i "0,/^## /s//## Unreleased: 99.0.0\n\n## /" "$work/CHANGELOG.md"
holds || fail "a new version with its ABI does not hold: $(cat "$copy/said")"
