#!/usr/bin/env bash
# Claim (plugins): An option of a type that recipes do not have is refused by the compiler, in one sentence and no other.
set -euo pipefail
root=${DITTO_SOURCE_DIR:-$(cd "$(dirname "$0")/../../.." && pwd)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "option_types: $1" >&2; exit 1; }

compiles() {  # TYPE CALLS
  cat > "$work/options.cpp" <<C
#include <ditto/options.h>
struct Options {
  $1 value{};
  void read(ditto::OptionReader& option) { option("value", value, "what it is for")$2; }
};
void use(ditto::OptionReader& reader) { Options().read(reader); }
C
  "${CXX:-c++}" -std=c++20 -fsyntax-only -I "$root/sdk/include" "$work/options.cpp" 2> "$work/said"
}

compiles int64_t '.at_least(1)' || fail "int64_t does not compile: $(cat "$work/said")"
compiles double '.between(0, 1)' || fail "double does not compile: $(cat "$work/said")"
compiles std::string '.one_of({"a", "b"})' || fail "std::string does not compile: $(cat "$work/said")"
for case in 'int .at_least(1)' 'unsigned .between(1,8)' 'float .above(0)' 'std::vector<int>' 'const char* .one_of({"a"})'; do
  compiles "${case% .*}" "$([[ $case == *' .'* ]] && echo ".${case##* .}")" && fail "$case compiles"
  [ "$(grep -c 'error' "$work/said")" -eq 1 ] || fail "$case has more errors than one: $(cat "$work/said")"
  grep -q 'an option is a bool, int64_t, double or std::string.*declare an int as int64_t' "$work/said" ||
    fail "$case: the sentence is missing: $(cat "$work/said")"
  [ "$(wc -l < "$work/said")" -le 12 ] || fail "$case: $(wc -l < "$work/said") lines of messages"
done
