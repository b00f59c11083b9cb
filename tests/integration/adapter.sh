#!/usr/bin/env bash
# adapter.py, with Python alone.
exec python3 "$(dirname "$0")/adapter.py" "$@"
