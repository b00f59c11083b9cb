#!/usr/bin/env bash
# Does a test see it when a line of the host, the SDK or a strategy is wrong? tests/mutants.sh --help
exec python3 "$(dirname "${BASH_SOURCE[0]}")/mutants/mutants.py" "$@"
