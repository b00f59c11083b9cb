#!/usr/bin/env bash
# The SDK's headers are those that sdk/abi.lock was made of; and the lock notices what it should, and no more.
set -euo pipefail
root=${DITTO_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
lock="$root/sdk/abi_lock.py"
python3 "$lock"

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$root/sdk/include" "$root/sdk/abi.lock" "$copy"
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
