#!/usr/bin/env bash
# traces.py, with Python alone.
exec python3 "$(dirname "$0")/traces.py" "$@"
