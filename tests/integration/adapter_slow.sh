#!/usr/bin/env bash
# All of adapter.py.
exec python3 "$(dirname "$0")/adapter.py" --slow
