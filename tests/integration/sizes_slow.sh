#!/usr/bin/env bash
# All of sizes.py.
exec python3 "$(dirname "$0")/sizes.py" --slow
